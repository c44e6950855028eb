//! Regular files that a job is started with: they are not its alone.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File, OpenOptions};
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::{Bench, Supervisor, counted, counter, wait_until};

fn appending(path: &Path) -> File {
    OpenOptions::new().create(true).append(true).open(path).unwrap()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

/// Runs `script` in a folder of its own, in which `"$@"` is `job`, natively and under us, and answers what both have made of the file
/// `f`.
#[track_caller]
fn same(job: &str, script: &str) -> String {
    let bench = Bench::new();
    let words = ["bash", "-c", job];
    let run = |command: Command, folder: &str| {
        let folder = bench.path(folder);
        fs::create_dir(&folder).unwrap();
        let mut shell = Command::new("bash");
        shell.args(["-c", script, "bash"]).arg(command.get_program()).args(command.get_args());
        shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell.current_dir(&folder).stdin(Stdio::null());
        assert!(shell.status().unwrap().success());
        read(&folder.join("f"))
    };
    let mut native = Command::new(words[0]);
    native.args(&words[1..]);
    let (native, ours) = (run(native, "native"), run(bench.command(&words), "ours"));
    assert_eq!(ours, native);
    ours
}

#[test]
fn the_offset_is_shared_with_whoever_else_has_the_file() {
    const JOB: &str = "echo b1; until [ -e go ]; do sleep 0.01; done; echo b2 >&2";
    const ALL: &str =
        "echo a; \"$@\" & until grep -q b1 f; do sleep 0.01; done; echo c; touch go; wait; echo d";
    for given in ["> f 2>&1", ">> f 2>&1", ">> f 2>> f"] {
        assert_eq!(same(JOB, &format!("{{ {ALL}; }} {given}")), "a\nb1\nc\nb2\nd\n");
    }
    assert_eq!(same("echo two >&7", "exec 7> f; echo one >&7; \"$@\"; echo three >&7"), "one\ntwo\nthree\n");
    let lines = "seq 1 5 > in; exec < in; read a; \"$@\" > f; cat >> f";
    assert_eq!(same("read b; echo job $b", lines), "job 2\n3\n4\n5\n");
    // One file for reading and for writing.
    assert_eq!(same("read a; echo $a", "echo x > f; \"$@\" < f >> f"), "x\nx\n");
    // A lock goes with the open file.
    let locked = "exec 9> lock; flock 9; \"$@\" > f";
    assert_eq!(
        same("flock -n 9 && echo ours; exec 8> lock; flock -n 8 || echo not twice", locked),
        "ours\nnot twice\n"
    );
}

/// A job that counts to 300, and that ends when it may.
struct Counting {
    bench: Bench,
    program: PathBuf,
}

impl Counting {
    fn new() -> Self {
        let bench = Bench::new();
        let program = bench.compile("counter", &counter(5, 300));
        Self { bench, program }
    }

    fn start(&self, prepare: impl FnOnce(&mut Command)) -> Supervisor {
        let mut command = self.bench.command(&self.bench.to_the_end(&self.program));
        prepare(&mut command);
        Supervisor::start(command, self.bench.control())
    }

    fn restart(&self, image: &Path, prepare: impl FnOnce(&mut Command)) -> Supervisor {
        let mut command = self.bench.restart_command(image);
        prepare(&mut command);
        Supervisor::start(command, self.bench.control())
    }
}

fn wait_for_lines(file: &Path) {
    wait_until("some lines", || fs::read_to_string(file).is_ok_and(|text| text.lines().count() > 5));
}

#[test]
fn nothing_is_lost_and_with_a_stop_nothing_comes_twice() {
    for stop in [true, false] {
        let counting = Counting::new();
        let log = counting.bench.path("log");
        writeln!(appending(&log), "begun").unwrap();
        let job = counting.start(|c| _ = c.stdout(appending(&log)).stderr(appending(&log)));
        wait_for_lines(&log);
        let image = counting.bench.image();
        let cut = if stop {
            counting.bench.let_end();
            job.stop(&image);
            drop(job);
            read(&log)
        } else {
            job.hold(&image);
            let cut = read(&log);
            job.kill_everything();
            // What it would have written between the cut and its end.
            write!(appending(&log), "{}", counted(300).strip_prefix(&cut["begun\n".len()..]).unwrap())
                .unwrap();
            counting.bench.let_end();
            cut
        };
        let before = read(&log);
        assert!(before.starts_with(&cut));
        writeln!(appending(&log), "precious line").unwrap();
        let job = counting.restart(&image, |c| _ = c.stdout(appending(&log)).stderr(appending(&log)));
        assert_eq!(job.finish().0.code(), Some(7));
        let rest = counted(300).strip_prefix(&cut["begun\n".len()..]).unwrap().to_owned();
        assert_eq!(read(&log), before + "precious line\n" + &rest);
    }
}

#[test]
fn a_restart_writes_to_what_it_is_given() {
    let counting = Counting::new();
    let at = |name: &str| counting.bench.path(name);
    let image = || counting.bench.image();
    let (first, second, fourth) = (at("first"), at("second"), at("fourth"));
    let job = counting.start(|c| _ = c.stdout(File::create(&first).unwrap()));
    wait_for_lines(&first);
    let stopped = image();
    job.stop(&stopped);
    drop(job);
    // Its own file is not needed any more.
    let begun = read(&first);
    fs::remove_file(&first).unwrap();

    let job = counting.restart(&stopped, |c| _ = c.stdout(File::create(&second).unwrap()));
    wait_for_lines(&second);
    let stopped = image();
    job.stop(&stopped);
    drop(job);
    let begun = begun + &read(&second);

    // A pipe, and from there to a file again.
    let mut job = counting.restart(&stopped, |_| {});
    job.wait_for(|_| true);
    let stopped = image();
    job.stop(&stopped);
    let begun = begun + &job.finish().1;
    counting.bench.let_end();
    let job = counting.restart(&stopped, |c| _ = c.stdout(File::create(&fourth).unwrap()));
    assert_eq!(job.finish().0.code(), Some(7));
    assert_eq!(begun + &read(&fourth), counted(300));
}

#[test]
fn a_restart_onto_a_closed_stream_or_a_device() {
    let counting = Counting::new();
    let log = counting.bench.path("log");
    let job = counting.start(|c| _ = c.stdout(File::create(&log).unwrap()));
    wait_for_lines(&log);
    let image = counting.bench.image();
    job.stop(&image);
    drop(job);
    let before = read(&log);
    counting.bench.let_end();
    let job = counting.restart(&image, |c| _ = c.stdout(Stdio::null()));
    assert_eq!(job.finish().0.code(), Some(7));
    let restart = counting.bench.restart_command(&image);
    let words = [restart.get_program()].into_iter().chain(restart.get_args());
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec \"$@\" >&-", "sh"]).args(words);
    shell.envs(restart.get_envs().filter_map(|(name, value)| Some((name, value?))));
    // Nobody reads what it writes.
    let (status, _) = Supervisor::start(shell, counting.bench.control()).finish();
    assert_eq!(crate::support::code(status), 128 + libc::SIGPIPE);
    assert_eq!(read(&log), before);
}

#[test]
fn a_job_that_nobody_hears_can_be_heard_again() {
    const JOB: &str =
        "trap '' PIPE; exec 2>/dev/null; until [ -e $1 ]; do echo here; sleep 0.01; done; echo the end";
    let bench = Bench::new();
    let (first, last, end) = (bench.path("first"), bench.path("last"), bench.path("end"));
    let start = |command: &Command, to: String| {
        let words = [command.get_program()].into_iter().chain(command.get_args());
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("exec \"$@\" >{to}"), "sh"]).args(words);
        shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        Supervisor::start(shell, bench.control())
    };
    let stopped = |job: Supervisor| {
        let image = bench.image();
        job.stop(&image);
        job.finish();
        image
    };
    let command = bench.command(&["bash", "-c", JOB, "job", end.to_str().unwrap()]);
    let job = start(&command, first.display().to_string());
    wait_for_lines(&first);
    let image = stopped(job);
    let image = stopped(start(&bench.restart_command(&image), "&-".into()));
    bench.let_end();
    let (status, _) = start(&bench.restart_command(&image), last.display().to_string()).finish();
    let text = read(&last);
    assert!(status.success() && text.ends_with("the end\n") && !read(&first).contains("end"), "{text}");
}

#[test]
fn input_goes_on_where_it_was_unless_another_is_given() {
    const JOB: &str =
        "while read -r line; do echo $line; [ $line = 2 ] && until [ -e $1 ]; do sleep 0.01; done; done";
    let bench = Bench::new();
    let (input, other) = (bench.path("input"), bench.path("other"));
    fs::write(&input, counted(5)).unwrap();
    fs::write(&other, "other\n").unwrap();
    let end = bench.path("end");
    let mut command = bench.command(&["bash", "-c", JOB, "job", end.to_str().unwrap()]);
    command.stdin(File::open(&input).unwrap());
    let mut job = Supervisor::start(command, bench.control());
    job.wait_for_number(2);
    let image = bench.image();
    job.stop(&image);
    drop(job);
    bench.let_end();
    let restart = |stdin: Stdio| {
        let mut command = bench.restart_command(&image);
        command.stdin(stdin);
        Supervisor::start(command, bench.control()).finish().1
    };
    assert_eq!(restart(Stdio::null()), "3\n4\n5\n");
    let mut shared = File::open(&input).unwrap();
    assert_eq!(restart(shared.try_clone().unwrap().into()), "3\n4\n5\n");
    assert_eq!(shared.stream_position().unwrap(), 12);
    assert_eq!(restart(File::open(&other).unwrap().into()), "other\n");
    fs::write(&input, "0\n").unwrap();
    shared.rewind().unwrap();
    let mut refused = bench.restart_command(&image);
    assert!(!refused.stdin(shared.try_clone().unwrap()).stderr(Stdio::null()).status().unwrap().success());
    assert_eq!(shared.stream_position().unwrap(), 0);
    let output = bench.restart_command(&image).stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains(input.to_str().unwrap()), "{text}");
    assert!(text.contains("it has 2 bytes, of which the job had read 6"), "{text}");
    fs::remove_file(&input).unwrap();
    let output = bench.restart_command(&image).stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains(input.to_str().unwrap()) && text.contains("bring it back"), "{text}");
}

#[test]
fn what_a_job_does_with_such_a_file_survives() {
    // Opened once more through its descriptor, and locked by whoever started the job.
    const JOB: &str = "exec 5>>/dev/stdout; echo one >&5; until [ -e $1 ]; do sleep 0.01; done; echo two >&5; echo three; \
        flock -n 9 && echo ours";
    let bench = Bench::new();
    let (log, lock, end) = (bench.path("log"), bench.path("lock"), bench.path("end"));
    let locked = |command: Command| {
        let words = [command.get_program()].into_iter().chain(command.get_args());
        let mut flock = Command::new("bash");
        let script = format!("exec 9>>{}; flock -n 9 || exit 9; exec \"$@\"", lock.display());
        flock.args(["-c", &script, "bash"]).args(words).stdout(appending(&log));
        flock.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        Supervisor::start(flock, bench.control())
    };
    let job = locked(bench.command(&["bash", "-c", JOB, "job", end.to_str().unwrap()]));
    wait_until("the first line", || fs::read_to_string(&log).is_ok_and(|text| text == "one\n"));
    let image = bench.image();
    job.stop(&image);
    job.finish();
    bench.let_end();
    let (status, _) = locked(bench.restart_command(&image)).finish();
    assert_eq!((status.code(), read(&log).as_str()), (Some(0), "one\ntwo\nthree\nours\n"));
}
