//! What a job is given besides its standard streams, and what it is not given of those.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};

use crate::support::{Bench, Supervisor, wait_until};

/// The command, started by a shell as `script` says, in which it is `"$@"`.
fn by_shell(command: &Command, script: &str) -> Command {
    let mut shell = Command::new("bash");
    shell.args(["-c", script, "bash"]).arg(command.get_program()).args(command.get_args());
    shell.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    shell
}

fn run(bench: &Bench, job: &str, script: &str) -> Output {
    by_shell(&bench.command(&["bash", "-c", job, "job"]), script).output().unwrap()
}

/// Under us as natively.
#[track_caller]
fn same(bench: &Bench, job: &str, script: &str) -> String {
    let mut native = Command::new("bash");
    native.args(["-c", job, "job"]);
    let (native, ours) = (by_shell(&native, script).output().unwrap(), run(bench, job, script));
    let text = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(
        (text(&ours), ours.status.code()),
        (text(&native), native.status.code()),
        "{}",
        String::from_utf8_lossy(&ours.stderr)
    );
    text(&ours)
}

#[test]
fn what_a_shell_opens_for_a_program_is_open() {
    let bench = Bench::new();
    assert_eq!(same(&bench, "cat \"$1\"", "exec \"$@\" <(echo hello)"), "hello\n");
    assert_eq!(same(&bench, "cat <&7", "exec \"$@\" 7<<<x"), "x\n");
    // Longer than a pipe holds: a file without a name.
    let long = "exec \"$@\" 7<<<$(seq 1 30000)";
    assert_eq!(same(&bench, "cat <&7", long).lines().count(), 30_000);
    // Numbers that init and the supervisor use for themselves.
    for fd in [3, 4, 5, 6, 9, 10, 11, 12, 13, 14, 200] {
        let job = format!("echo back >&{fd}; cat <&20");
        assert_eq!(same(&bench, &job, &format!("exec \"$@\" {fd}>&1 20<<<there")), "back\nthere\n");
    }
    // Above what may be opened by now.
    let above = bench.path("above");
    fs::write(&above, "above\n").unwrap();
    let script = format!("exec 90<{}; ulimit -Sn 80; exec \"$@\"", above.display());
    assert_eq!(same(&bench, "cat <&90; ulimit -n", &script), "above\n80\n");
    assert_eq!(same(&bench, "cat <&90", "exec 90<<<pipe; ulimit -n 80; exec \"$@\""), "pipe\n");
    // Both ends of one pipe, as a make's jobserver has them.
    assert_eq!(same(&bench, "echo + >&7; read -n 1 token <&7; echo $token", "exec \"$@\" 7<> <(:)"), "+\n");
    let folder = bench.path("folder");
    fs::create_dir_all(folder.join("inside")).unwrap();
    let script = format!("exec \"$@\" 7<{}", folder.display());
    assert_eq!(same(&bench, "ls /proc/self/fd/7/", &script), "inside\n");
}

#[test]
fn files_are_the_same_at_the_same_place() {
    let bench = Bench::new();
    let (file, out, through) = (bench.path("file"), bench.path("out"), bench.path("through"));
    fs::write(&file, "one\ntwo\nthree\n").unwrap();
    let script = format!("read line; exec \"$@\" 7<&0 </dev/null 8>{}", out.display());
    let script = format!("exec <{}; {script}", file.display());
    assert_eq!(same(&bench, "cat <&7; echo written >&8", &script), "two\nthree\n");
    assert_eq!(fs::read_to_string(&out).unwrap(), "written\n");
    let script = format!("\"$@\" 9> >(cat >{}); wait $!", through.display());
    same(&bench, "echo far away >&9", &script);
    assert_eq!(fs::read_to_string(&through).unwrap(), "far away\n");
}

#[test]
fn a_closed_stream_stays_closed() {
    let bench = Bench::new();
    for closed in ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"] {
        let job = "cat || exit 4; echo out || exit 5; echo err >&2 || exit 6; exec 9<&0 || exit 7";
        same(&bench, job, &format!("exec \"$@\" {closed}"));
    }
    assert_eq!(run(&bench, "echo x", "exec \"$@\" >&-").status.code(), Some(1));
}

#[test]
fn what_no_job_can_have_is_refused_by_name() {
    let bench = Bench::new();
    let refused = run(&bench, "echo started", "exec \"$@\" 7<>/dev/udp/127.0.0.1/9");
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(125) && refused.stdout.is_empty(), "{text}");
    assert!(text.contains("descriptor 7 is socket:[") && text.contains("7<&-"), "{text}");
}

/// Starts `command` with `file` as its descriptor `fd`.
fn with(mut command: Command, given: &[(&File, i32)]) -> Command {
    let given: Vec<(i32, i32)> = given.iter().map(|(file, fd)| (file.as_raw_fd(), *fd)).collect();
    // SAFETY: system calls only, on descriptors that stay open until the child has been executed.
    unsafe {
        command.pre_exec(move || {
            for &(from, to) in &given {
                libc::dup2(from, to);
            }
            Ok(())
        });
    }
    command
}

fn pipe() -> (File, File) {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    (reader.into(), writer.into())
}

#[test]
fn pipes_go_on_after_a_restart_or_are_at_their_end() {
    const JOB: &str = "trap '' PIPE; exec 2>/dev/null; read a <&107; echo got $a; echo $a >&108; \
        echo to the file >&109; until [ -e $1 ]; do sleep 0.01; done; while read b <&107; do echo got $b; echo $b >&108 || echo nobody; done; \
        echo to the file again >&109; read -n 1 token <&110; echo $token end";
    let bench = Bench::new();
    let ((reader, mut writer), (mut seen, seen_by)) = (pipe(), pipe());
    let out = File::create(bench.path("out")).unwrap();
    let (one_end, _) = pipe();
    let mut both = File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/self/fd/{}", one_end.as_raw_fd()))
        .unwrap();
    both.write_all(b"+").unwrap();
    let given = [(&reader, 107), (&seen_by, 108), (&out, 109), (&both, 110)];
    let mut job = Supervisor::start(
        with(bench.command(&["bash", "-c", JOB, "job", bench.path("end").to_str().unwrap()]), &given),
        bench.control(),
    );
    drop((reader, seen_by, one_end, both));
    writer.write_all(b"one\ntwo\n").unwrap();
    job.wait_for(|line| line == "got one");
    wait_until("the file", || !fs::read(bench.path("out")).unwrap().is_empty());
    let image = bench.image();
    job.stop(&image);
    assert_eq!(job.finish().1, "got one\n");
    let mut text = String::new();
    seen.read_to_string(&mut text).unwrap();
    assert_eq!(text, "one\n");

    bench.let_end();

    // Nothing given: at its end, and nobody reads.
    let (_, output) = bench.restart(&image).finish();
    assert_eq!(output, "got two\nnobody\n+ end\n");
    assert_eq!(fs::read_to_string(bench.path("out")).unwrap(), "to the file\nto the file again\n");

    let ((reader, mut writer), (mut seen, seen_by)) = (pipe(), pipe());
    writer.write_all(b"three\n").unwrap();
    drop(writer);
    let job = with(bench.restart_command(&image), &[(&reader, 107), (&seen_by, 108)]);
    let (_, output) = Supervisor::start(job, bench.control()).finish();
    drop(seen_by);
    assert_eq!(output, "got two\ngot three\n+ end\n");
    text.clear();
    seen.read_to_string(&mut text).unwrap();
    assert_eq!(text, "two\nthree\n");
}
