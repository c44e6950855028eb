//! However a program ends and wherever it writes: as without Dormouse, before and after a restart.
#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dormouse_tests::{PACED, Stage, first_line};
use rustix::process::{Pid, Signal, kill_process};
use testkit::job::Job;
use testkit::outcome::{Exit, fits};
use testkit::place::{After, Checkpoint};
use testkit::tree::wait_until_gone;

/// Runs `endings HOW` undisturbed, and again through a checkpoint and a restart.
fn ends_alike(how: &str, exit: Exit) {
    let stage = Stage::new(how).unwrap();
    let undisturbed = stage.started("endings", &[how, "1500", "64"]).unwrap().finish().unwrap();
    assert_eq!(undisturbed.exit, exit, "{}", undisturbed.stderr);
    assert!(String::from_utf8_lossy(&undisturbed.stdout).contains("done sum"), "{:?}", undisturbed.stdout);

    let job = stage.started("endings", &[how, "1500", "64"]).unwrap();
    let image = stage.checkpoint(After::Stop).unwrap();
    let before = job.finish().unwrap();
    let after = stage.place().restart(&image).unwrap().finish().unwrap();
    assert_eq!(after.exit, exit, "{}", after.stderr);
    let pieces = [&before.stdout[..], &after.stdout[..]];
    assert!(
        fits(&undisturbed.stdout, &pieces, true).is_ok(),
        "{:?}",
        String::from_utf8_lossy(&pieces.concat())
    );
}

#[test]
fn exit_code() {
    ends_alike("exit", Exit::Code(42));
}

#[test]
fn abort() {
    ends_alike("abort", Exit::Signal(Signal::ABORT.as_raw()));
}

#[test]
fn killed_by_itself() {
    ends_alike("kill", Exit::Signal(Signal::KILL.as_raw()));
}

#[test]
fn segmentation_fault() {
    ends_alike("segfault", Exit::Signal(Signal::SEGV.as_raw()));
}

#[test]
fn grandchild_that_outlives_its_parent() {
    ends_alike("grandchild", Exit::Code(0));
}

#[test]
fn grandchild_that_outlives_the_program() {
    let stage = Stage::new("survivor").unwrap();
    let finished = stage.started("endings", &["survivor", "20", "64"]).unwrap().finish().unwrap();
    let text = String::from_utf8_lossy(&finished.stdout).into_owned();
    assert_eq!(finished.exit, Exit::Code(0));
    assert!(text.ends_with("grandchild: alone\n"), "{text}");
}

/// A signal sent to Dormouse reaches the program, whose handler decides.
fn handles(how: &str, signal: Signal) {
    let stage = Stage::new(how).unwrap();
    let check = |job: Job| {
        job.signal(signal).unwrap();
        let finished = job.finish().unwrap();
        let text = String::from_utf8_lossy(&finished.stdout).into_owned();
        assert!(text.ends_with(&format!("asked to stop by signal {}\n", signal.as_raw())), "{text}");
        assert_eq!(finished.exit, Exit::Code(7));
    };
    // So many steps that only the signal ends it.
    check(stage.started("endings", &[how, "100000", "64"]).unwrap());

    let job = stage.started("endings", &[how, "2000", "64"]).unwrap();
    let image = stage.checkpoint(After::Stop).unwrap();
    job.finish().unwrap();
    check(first_line(stage.place().restart(&image).unwrap()).unwrap());
}

#[test]
fn sigterm_is_handled() {
    handles("sigterm", Signal::TERM);
}

#[test]
fn sigint_is_handled() {
    handles("sigint", Signal::INT);
}

#[test]
fn sigterm_ends_a_program_without_a_handler() {
    let stage = Stage::new("terminated").unwrap();
    let job = stage.started("endings", &["exit", "2000", "64"]).unwrap();
    job.signal(Signal::TERM).unwrap();
    assert_eq!(job.finish().unwrap().exit, Exit::Signal(Signal::TERM.as_raw()));
}

#[test]
fn a_killed_supervisor_takes_the_job_with_it_and_its_image_restarts() {
    let stage = Stage::new("orphan").unwrap();
    let job = stage.started("endings", &["exit", "1500", "64"]).unwrap();
    let image = stage.checkpoint(After::LeaveRunning).unwrap();
    let others: Vec<i32> =
        stage.place().processes(&job).unwrap().into_iter().filter(|pid| *pid != job.pid()).collect();
    assert!(others.len() >= 3, "an init, an application and a server: {others:?}");
    kill_process(Pid::from_raw(job.pid()).unwrap(), Signal::KILL).unwrap();
    wait_until_gone(&others, Instant::now(), Duration::from_secs(5)).unwrap();
    assert_eq!(job.finish().unwrap().exit, Exit::Signal(Signal::KILL.as_raw()));
    let after = stage.place().restart(&image).unwrap().finish().unwrap();
    assert_eq!(after.exit, Exit::Code(42), "{}", after.stderr);
}

/// Kills the GPU server of a job; answers with the pid of its application, which stands still meanwhile.
fn kill_server(stage: &Stage, job: &Job, application: &str) -> Pid {
    let processes = stage.place().processes(job).unwrap();
    let named = |word: &str| {
        let of = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let mut all =
            processes.iter().filter(|pid| of(pid).split('\0').take(2).any(|each| each.ends_with(word)));
        let found = Pid::from_raw(*all.next().unwrap()).unwrap();
        assert_eq!(all.next(), None, "one {word}");
        found
    };
    let (application, server) = (named(application), named("server"));
    kill_process(application, Signal::STOP).unwrap();
    kill_process(server, Signal::KILL).unwrap();
    wait_until_gone(&[server.as_raw_nonzero().get()], Instant::now(), Duration::from_secs(5)).unwrap();
    application
}

#[test]
fn a_killed_server_fails_the_next_call_and_checkpoints_say_so() {
    let stage = Stage::new("lost").unwrap();
    let job = stage.started(PACED, &["1000"]).unwrap();
    let application = kill_server(&stage, &job, PACED);
    for _ in 0..2 {
        let failure = stage.refused_checkpoint(&[]).unwrap();
        failure.expect(1, &["GPU server of session 1 died", "SIGKILL", "dormouse restart"]);
    }
    assert!(stage.images().unwrap().is_empty());
    let resumed = Instant::now();
    kill_process(application, Signal::CONT).unwrap();
    let finished = job.finish().unwrap();
    // A second for the call, the rest for the job's end.
    assert!(resumed.elapsed() < Duration::from_secs(3), "{:?}", resumed.elapsed());
    // The guest ends so when a call fails: CUDA_ERROR_DEVICE_UNAVAILABLE.
    assert_eq!(finished.exit, Exit::Code(3), "{}", finished.stderr);
    assert!(finished.stderr.contains("(46)"), "{}", finished.stderr);
}

/// What `endings stdio` writes at its end.
const BOTH: &str = "out 0\nerr 0\nout 1\nerr 1\nout 2\nerr 2\nout 3\nerr 3\nout 4\nerr 4\n";

#[test]
fn one_pipe_for_output_and_errors_keeps_their_order() {
    let stage = Stage::new("merged").unwrap();
    let check = |job: Job| {
        let finished = job.finish().unwrap();
        let text = String::from_utf8_lossy(&finished.stdout).into_owned();
        assert!(text.ends_with(BOTH), "{text}");
        assert_eq!(finished.exit, Exit::Code(0));
    };
    let job = Job::start_merged(stage.command("endings", &["stdio", "1500", "64"])).unwrap();
    check(job);

    let job =
        first_line(Job::start_merged(stage.command("endings", &["stdio", "1500", "64"])).unwrap()).unwrap();
    let image = stage.checkpoint(After::Stop).unwrap();
    job.finish().unwrap();
    check(Job::start_merged(stage.place().restart_command(&image)).unwrap());
}

fn appending(path: &Path) -> File {
    File::options().create(true).append(true).open(path).unwrap()
}

fn wait_for_bytes(child: &mut Child, file: &Path, length: u64) {
    while std::fs::metadata(file).unwrap().len() < length {
        assert!(child.try_wait().unwrap().is_none(), "it ended too early");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn output_to_files() {
    let stage = Stage::new("files").unwrap();
    let at = |name: &str| stage.place().cwd().join(name);
    let (out, err) = (at("out"), at("err"));
    let start = |out: &Path| {
        let mut command = stage.command("endings", &["stdio", "1500", "64"]);
        stage.hold(&mut command);
        command.stdout(File::create(out).unwrap()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut command = stage.command("endings", &["stdio", "1500", "64"]);
    assert!(command.stdout(appending(&out)).stderr(appending(&err)).status().unwrap().success());
    let undisturbed = std::fs::read(&out).unwrap();
    assert!(
        String::from_utf8_lossy(&std::fs::read(&err).unwrap())
            .contains("err 0\nerr 1\nerr 2\nerr 3\nerr 4\n")
    );

    for after in [After::Stop, After::LeaveRunning] {
        let exact = after == After::Stop;
        let mut child = start(&out);
        wait_for_bytes(&mut child, &out, 40);
        let image = stage.checkpoint(after).unwrap();
        stage.let_end().unwrap();
        // Stopped, or at its end.
        child.wait().unwrap();
        let before = std::fs::read(&out).unwrap();
        // To the same file, to which somebody else has added something, and to another.
        let line = b"precious line\n";
        appending(&out).write_all(line).unwrap();
        let mut restart = stage.place().restart_command(&image);
        assert!(restart.stdout(appending(&out)).stderr(Stdio::null()).status().unwrap().success());
        let all = std::fs::read(&out).unwrap();
        let same = all.strip_prefix(&[&before[..], line].concat()[..]).expect("nothing is lost").to_vec();
        let new = at("new");
        let mut restart = stage.place().restart_command(&image);
        assert!(
            restart.stdout(File::create(&new).unwrap()).stderr(Stdio::null()).status().unwrap().success()
        );
        assert!(std::fs::read(&out).unwrap() == all, "the old file is touched no more");
        for rest in [same, std::fs::read(&new).unwrap()] {
            assert!(!rest.is_empty());
            let pieces = [&before[..], &rest[..]];
            assert!(
                fits(&undisturbed, &pieces, exact).is_ok(),
                "{:?}",
                String::from_utf8_lossy(&pieces.concat())
            );
        }
    }
}

#[test]
fn a_file_is_shared_with_the_shell_that_has_it_too() {
    const JOB: &str = "echo b1; until [ -e go ]; do sleep 0.01; done; echo b2";
    let stage = Stage::new("shared").unwrap();
    let command = stage.place().run_command("/bin/sh".as_ref(), &["-c", JOB].map(str::to_owned));
    let file = stage.place().cwd().join("f");
    let script = "echo a; \"$@\" & until grep -q b1 f; do sleep 0.01; done; echo c; touch go; wait; echo d";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh"]).arg(command.get_program()).args(command.get_args());
    shell.current_dir(stage.place().cwd()).stdin(Stdio::null()).stdout(File::create(&file).unwrap());
    assert!(shell.status().unwrap().success());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "a\nb1\nc\nb2\nd\n");
}

#[test]
fn output_to_a_terminal() {
    let stage = Stage::new("terminal").unwrap();
    let on_terminal = |command: &Command| {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let line: Vec<String> = words.map(|word| format!("'{}'", word.to_str().unwrap())).collect();
        // script(1), which every Debian has, runs a command on a terminal of its own and copies what comes out.
        let mut script = Command::new("script");
        script.args(["--quiet", "--return", "--flush", "--command", &line.join(" "), "/dev/null"]);
        script.current_dir(stage.place().cwd()).stdin(Stdio::null());
        Job::start(script).unwrap()
    };
    let finished = on_terminal(&stage.command("endings", &["stdio", "1500", "64"])).finish().unwrap();
    let text = String::from_utf8_lossy(&finished.stdout).replace("\r\n", "\n");
    assert!(text.contains("terminals: 1 1 1\n") && text.ends_with(BOTH), "{text}");

    let job = first_line(on_terminal(&stage.command("endings", &["stdio", "1500", "64"]))).unwrap();
    let image = stage.checkpoint(After::Stop).unwrap();
    job.finish().unwrap();
    let finished = on_terminal(&stage.place().restart_command(&image)).finish().unwrap();
    let text = String::from_utf8_lossy(&finished.stdout).replace("\r\n", "\n");
    assert!(text.ends_with(BOTH), "{text}");
    assert_eq!(finished.exit, Exit::Code(0));
}

#[test]
fn a_pipe_is_no_terminal() {
    let stage = Stage::new("pipe").unwrap();
    let finished = stage.started("endings", &["stdio", "1", "1"]).unwrap().finish().unwrap();
    assert!(
        finished.stdout.starts_with(b"terminals: 0 0 0\n"),
        "{:?}",
        String::from_utf8_lossy(&finished.stdout)
    );
}

#[test]
fn a_program_that_is_not_cuda_just_runs() {
    let stage = Stage::new("plain").unwrap();
    let input = stage.place().cwd().join("input");
    std::fs::write(&input, "abc\nliving on video\n").unwrap();
    let mut command = stage.command("no_cuda", &[]);
    command.stdin(File::open(&input).unwrap());
    let finished = Job::start(command).unwrap().finish().unwrap();
    assert_eq!(String::from_utf8_lossy(&finished.stdout), "cba\noediv no gnivil\ndone 2 lines\n");
    assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stderr);
}

/// The device's time is the device's: a job without a session has none, however long CRIU takes.
#[test]
fn a_checkpoint_of_a_job_without_a_session_takes_no_device_time() {
    let stage = Stage::new("no-device").unwrap();
    let words = ["-c", "echo ready; exec sleep 1000"].map(str::to_owned);
    let job = first_line(stage.place().run("/bin/sh".as_ref(), &words).unwrap()).unwrap();
    let Checkpoint::Published(report) = stage.place().checkpoint(After::Stop).unwrap() else {
        panic!("it sleeps")
    };
    assert!(report.device_ms == 0.0 && report.host_ms > 0.0, "{report:?}");
    job.finish().unwrap();
}

#[test]
fn programs_that_cannot_be_started() {
    let stage = Stage::new("missing").unwrap();
    let run = |program: &str| {
        Job::start(stage.place().run_command(program.as_ref(), &[])).unwrap().finish().unwrap()
    };
    let missing = run("./no-such-program");
    assert_eq!(missing.exit, Exit::Code(127));
    assert!(missing.stderr.contains("no-such-program"), "{}", missing.stderr);
    std::fs::write(stage.place().cwd().join("text"), "no program\n").unwrap();
    let text = run("./text");
    assert_eq!(text.exit, Exit::Code(126));
    assert!(text.stderr.contains("text"), "{}", text.stderr);
}

/// A thread that has waited for its kernel finds printed what that has printed, whoever's answer carried it.
#[test]
fn device_and_host_print_in_turn_beside_other_threads() {
    let stage = Stage::new("in-turn").unwrap();
    let finished = stage
        .place()
        .run(&stage.guest("printf_threads"), &["60".into(), "2".into()])
        .unwrap()
        .finish()
        .unwrap();
    assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stderr);
    let text = String::from_utf8(finished.stdout).unwrap();
    let mut lines = text.lines();
    for step in 1..=60 {
        let count = if step % 10 == 0 { 4000 } else { 3 };
        for line in 0..count {
            assert_eq!(lines.next(), Some(&*format!("device: step {step} line {line} of {count}")));
        }
        assert_eq!(lines.next(), Some(&*format!("host: step {step}")));
    }
    assert_eq!(lines.next(), None);
}
