//! Jobs that never get idle, jobs in use, jobs that end in the middle: a checkpoint that does not happen harms nobody.
#![allow(clippy::unwrap_used)]

use dormouse_tests::{Failure, Stage};
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
    let job = stage.started("spin", &["1500"]).unwrap();
    let mut command = stage.place().checkpoint_command(After::LeaveRunning);
    let output = command.args(["--gate-deadline", "0.5", "--retries", "10"]).output().unwrap();
    // Either a retry came after the kernel's end, or all of them, and the job's end, came before.
    if !output.status.success() {
        Failure::of(&output).unwrap().expect(11, &[]);
    } else {
        assert_eq!(stage.images().unwrap().len(), 1);
    }
    assert_eq!(job.finish().unwrap().exit, Exit::Code(0));
}

#[test]
fn two_checkpoints_at_once() {
    let stage = Stage::new("twice").unwrap();
    let job = stage.started("vector_loop", &["300", "40"]).unwrap();
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
    assert_eq!(job.finish().unwrap().exit, Exit::Code(0));
}

#[test]
fn a_job_that_still_runs_is_not_restarted() {
    let stage = Stage::new("still").unwrap();
    let job = stage.started("vector_loop", &["300", "40"]).unwrap();
    let image = stage.checkpoint(After::LeaveRunning).unwrap();
    let output = stage.place().restart_command(&image).output().unwrap();
    Failure::of(&output).unwrap().expect(125, &[stage.name(), "running"]);
    assert_eq!(job.finish().unwrap().exit, Exit::Code(0));
}

#[test]
fn a_program_that_ends_or_crashes_during_its_checkpoint() {
    for (how, exit) in [("exit", Exit::Code(42)), ("segfault", Exit::Signal(11))] {
        let mut published = 0;
        for steps in ["2", "4", "6", "8"] {
            let stage = Stage::new("racing").unwrap();
            let job = stage.started("endings", &[how, steps, "64"]).unwrap();
            match stage.place().checkpoint(After::LeaveRunning).unwrap() {
                Checkpoint::Published(report) => {
                    published += 1;
                    assert_eq!(stage.images().unwrap(), [report.image]);
                }
                Checkpoint::Ended => assert!(stage.images().unwrap().is_empty()),
            }
            assert_eq!(job.finish().unwrap().exit, exit);
        }
        assert!(published <= 4);
    }
}

/// A process that asks for its session while a checkpoint begins holds the checkpoint up; it does not make it fail.
#[test]
fn processes_that_begin_during_checkpoints() {
    let stage = Stage::new("beginning").unwrap();
    let script =
        format!("for each in 1 2 3 4 5 6 7 8 9 10; do {} 3 40; done", stage.guest("vector_loop").display());
    let command = stage.place().run_command("/bin/sh".as_ref(), &["-c".to_owned(), script]);
    let mut job = Job::start(command).unwrap();
    let mut published = 0;
    while !job.has_ended().unwrap() {
        match stage.place().checkpoint(After::LeaveRunning).unwrap() {
            Checkpoint::Published(_) => published += 1,
            Checkpoint::Ended => {}
        }
    }
    assert!(published > 0);
    let finished = job.finish().unwrap();
    assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stderr);
    let ends = finished.stdout.split(|&byte| byte == b'\n').filter(|line| line.starts_with(b"done"));
    assert_eq!(ends.count(), 10, "{}", String::from_utf8_lossy(&finished.stdout));
}

#[test]
fn a_job_that_is_not_there() {
    let stage = Stage::new("nobody").unwrap();
    stage.refused_checkpoint(&[]).unwrap().expect(3, &[stage.name()]);
}
