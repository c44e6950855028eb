//! Jobs that never get idle, jobs in use, jobs that end in the middle: a checkpoint that does not happen harms nobody.
#![allow(clippy::unwrap_used)]

use dormouse_tests::{Failure, PACED, Stage};
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::Duration;
use testkit::job::Job;
use testkit::outcome::Exit;
use testkit::place::{After, Checkpoint};

/// A checkpoint of a job that is never idle is refused within its deadline, names what holds it, and the job runs on.
fn never_idle(guest: &str, holder: &[&str]) {
    let stage = Stage::new(guest).unwrap();
    let job = stage.started(guest, &["4000"]).unwrap();
    let failure = stage.refused_checkpoint(&["--gate-deadline", "0.5", "--retries", "1"]).unwrap();
    failure.expect(5, holder);
    assert!(stage.images().unwrap().is_empty());
    let finished = job.finish().unwrap();
    assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stderr);
    assert!(finished.stdout.ends_with(b"done\n"), "{:?}", String::from_utf8_lossy(&finished.stdout));
}

#[test]
fn a_kernel_that_spins_on_mapped_memory() {
    never_idle("spin", &["kernel", "spin"]);
}

#[test]
fn a_host_function_that_needs_a_lock() {
    never_idle("callback_lock", &["callback"]);
}

#[test]
fn a_job_that_gets_idle_later_is_checkpointed_by_a_retry() {
    let stage = Stage::new("later").unwrap();
    let job = stage.started("spin", &["5000", "9000"]).unwrap();
    let mut command = stage.place().checkpoint_command(After::LeaveRunning);
    let output = command.args(["--gate-deadline", "0.3", "--retries", "10"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["retries"].as_u64().unwrap() >= 1, "{report}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("trying again (1 of 10)") && said.contains("kernel"), "{said}");
    assert_eq!(stage.images().unwrap().len(), 1);
    assert_eq!(job.finish().unwrap().exit, Exit::Code(0));
}

#[test]
fn two_checkpoints_at_once() {
    let stage = Stage::new("twice").unwrap();
    let job = stage.held(PACED, &["300"]).unwrap();
    let outputs: Vec<_> = std::thread::scope(|scope| {
        let checkpoint = || stage.place().checkpoint_command(After::LeaveRunning).output().unwrap();
        let threads = [scope.spawn(checkpoint), scope.spawn(checkpoint)];
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let published = outputs.iter().filter(|output| output.status.success()).count();
    for output in outputs.iter().filter(|output| !output.status.success()) {
        Failure::of(output).unwrap().expect(4, &["checkpoint"]);
    }
    assert!(published >= 1, "{outputs:?}");
    let images = stage.images().unwrap();
    assert_eq!(images.len(), published);
    for image in images {
        let mut verify = stage.place().dormouse("verify");
        assert!(verify.arg("--store").arg(stage.place().store()).arg(image).status().unwrap().success());
    }
    assert_eq!(stage.finish(job).unwrap().exit, Exit::Code(0));
}

/// Who stops a job waits for a checkpoint that is under way.
#[test]
fn a_stop_waits_for_its_turn() {
    let stage = Stage::new("turn").unwrap();
    let job = stage.held(PACED, &["300"]).unwrap();
    let mut first = stage.place().checkpoint_command(After::LeaveRunning);
    let mut first = first.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // It is under way then, or nearly.
    std::thread::sleep(Duration::from_millis(100));
    let stopped = stage.checkpoint(After::Stop).unwrap();
    let published = if first.wait().unwrap().success() { 2 } else { 1 };
    let images = stage.images().unwrap();
    assert_eq!((images.len(), images.contains(&stopped)), (published, true));
    assert_eq!(job.finish().unwrap().exit, Exit::Signal(9));
}

/// It is stopped also if whoever asked for that is gone before his turn has come.
#[test]
fn a_stop_waits_for_its_turn_by_itself() {
    let stage = Stage::new("gone").unwrap();
    let job = stage.held(PACED, &["1000"]).unwrap();
    let quiet = |after| {
        let mut command = stage.place().checkpoint_command(after);
        command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let mut patience = Duration::from_millis(50);
    loop {
        let mut first = quiet(After::LeaveRunning);
        std::thread::sleep(Duration::from_millis(100));
        let second = quiet(After::Stop);
        std::thread::sleep(patience);
        kill_process(Pid::from_child(&second), Signal::INT).unwrap();
        let second = second.wait_with_output().unwrap();
        first.wait().unwrap();
        let said = String::from_utf8_lossy(&second.stderr);
        if second.status.code() == Some(0) || said.contains("goes on, and ends the job") {
            break;
        }
        // It had not asked yet.
        assert!(second.status.signal() == Some(2) && said.is_empty(), "{} {said}", second.status);
        patience *= 2;
        assert!(patience < Duration::from_secs(10));
    }
    assert_eq!(job.finish().unwrap().exit, Exit::Signal(9));
    assert!(!stage.images().unwrap().is_empty());
}

#[test]
fn a_job_that_still_runs_is_not_restarted() {
    let stage = Stage::new("still").unwrap();
    let job = stage.held(PACED, &["300"]).unwrap();
    let image = stage.checkpoint(After::LeaveRunning).unwrap();
    let output = stage.place().restart_command(&image).output().unwrap();
    Failure::of(&output).unwrap().expect(125, &[stage.name(), "running"]);
    assert_eq!(stage.finish(job).unwrap().exit, Exit::Code(0));
}

/// Another job has the name: who only asks is told, too, and what to do.
#[test]
fn a_name_that_is_taken_is_told_before_a_restart() {
    let stage = Stage::new("taken").unwrap();
    let job = stage.held(PACED, &["300"]).unwrap();
    let image = stage.checkpoint(After::Stop).unwrap();
    assert_eq!(job.finish().unwrap().exit, Exit::Signal(9));
    let other = stage.held(PACED, &["300"]).unwrap();
    let check = |more: &[&str]| {
        let mut command = stage.place().restart_command(&image);
        command.args(["--check", "--json"]).args(more).output().unwrap()
    };
    Failure::of(&check(&[])).unwrap().expect(4, &[stage.name(), "running already", "--name"]);
    let free = check(&["--name", &format!("{}-too", stage.name())]);
    assert!(free.status.success(), "{free:?}");
    assert_eq!(stage.finish(other).unwrap().exit, Exit::Code(0));
}

#[test]
fn a_program_that_ends_or_crashes_during_its_checkpoint() {
    for (how, exit) in [("exit", Exit::Code(42)), ("segfault", Exit::Signal(11))] {
        for steps in ["2", "4", "6", "8"] {
            let stage = Stage::new("racing").unwrap();
            let job = stage.started("endings", &[how, steps, "64"]).unwrap();
            match stage.place().checkpoint(After::LeaveRunning).unwrap() {
                Checkpoint::Published(report) => assert_eq!(stage.images().unwrap(), [report.image]),
                Checkpoint::Ended => assert!(stage.images().unwrap().is_empty()),
                Checkpoint::Refused(why) => panic!("{why}"),
            }
            assert_eq!(job.finish().unwrap().exit, exit);
        }
    }
}

/// A process that asks for its session while a checkpoint begins holds the checkpoint up; it does not make it fail.
#[test]
fn processes_that_begin_during_checkpoints() {
    let stage = Stage::new("beginning").unwrap();
    let script = format!("for each in 1 2 3 4 5 6 7 8 9 10; do {} 3; done", stage.guest(PACED).display());
    let command = stage.place().run_command("/bin/sh".as_ref(), &["-c".to_owned(), script]);
    let mut job = Job::start(command).unwrap();
    let mut published = 0;
    while !job.has_ended().unwrap() {
        match stage.place().checkpoint(After::LeaveRunning).unwrap() {
            Checkpoint::Published(_) => published += 1,
            Checkpoint::Ended => {}
            Checkpoint::Refused(why) => panic!("{why}"),
        }
    }
    assert!(published > 0);
    all_done(job, 10);
}

/// Waits for a job of so many guests, each of which has to say that it is done.
fn all_done(job: Job, guests: usize) {
    let finished = job.finish().unwrap();
    assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stderr);
    let ends = finished.stdout.split(|&byte| byte == b'\n').filter(|line| line.starts_with(b"done"));
    assert_eq!(ends.count(), guests, "{}", String::from_utf8_lossy(&finished.stdout));
}

/// Both have the pid 1 where they are.
#[test]
fn processes_in_namespaces_of_their_own() {
    let stage = Stage::new("nested").unwrap();
    let guest = stage.guest(PACED);
    let one = format!("unshare --fork --pid {} 40", guest.display());
    let command =
        stage.place().run_command("/bin/sh".as_ref(), &["-c".to_owned(), format!("{one} & {one}; wait")]);
    all_done(Job::start(command).unwrap(), 2);
}

/// Somebody who calls the supervisor and asks nothing does not keep it from ending with its job.
#[test]
fn a_caller_that_says_nothing() {
    let stage = Stage::new("silent").unwrap();
    let job = stage.started(PACED, &["60"]).unwrap();
    let socket = std::path::Path::new("/run/dormouse").join(stage.name()).join("admin.sock");
    let caller = UnixStream::connect(socket).unwrap();
    let finished = job.finish().unwrap();
    assert_eq!(finished.exit, Exit::Code(0));
    assert!(finished.took < Duration::from_secs(8), "{:?}", finished.took);
    drop(caller);
}

#[test]
fn a_job_that_is_not_there() {
    let stage = Stage::new("nobody").unwrap();
    stage.refused_checkpoint(&[]).unwrap().expect(3, &[stage.name()]);
}
