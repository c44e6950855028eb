//! Jobs that are continued by themselves when they lose a GPU server (`--restart-on-failure`).
#![allow(clippy::unwrap_used)]

use dormouse_tests::{PACED, Stage};
use std::time::{Duration, Instant};
use testkit::job::{Job, LIMIT};
use testkit::outcome::Exit;
use testkit::place::{After, Device};
use testkit::served::Served;

const ARGS: [&str; 1] = ["800"];

/// Kills the servers of a job that has some, and tells how many.
fn kill_servers(stage: &Stage, job: &Job) -> usize {
    let begun = Instant::now();
    loop {
        let servers = stage.place().servers(job).unwrap();
        if !servers.is_empty() {
            testkit::tree::kill_all(&servers);
            return servers.len();
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "the job has no server");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn wait_until(is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LIMIT, "it takes too long");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn last_line(stdout: &[u8]) -> String {
    String::from_utf8_lossy(stdout).lines().last().unwrap_or_default().to_owned()
}

#[test]
fn a_job_whose_server_is_killed_is_continued_from_its_newest_image() {
    let stage = Stage::new("continued").unwrap();
    let whole = stage.undisturbed(&ARGS).unwrap();
    let job = stage.held_by(stage.command_with(&["--restart-on-failure"], PACED, &ARGS)).unwrap();
    let image = stage.checkpoint(After::LeaveRunning).unwrap();
    assert_eq!(kill_servers(&stage, &job), 1);
    let finished = stage.finish(job).unwrap();
    assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stderr);
    assert_eq!(last_line(&finished.stdout), last_line(&whole.stdout));
    assert!(finished.stderr.contains(&format!("continuing from image {image}")), "{}", finished.stderr);
}

#[test]
fn a_job_that_gets_no_further_is_given_up() {
    let stage = Stage::new("given-up").unwrap();
    let job = stage.held_by(stage.command_with(&["--restart-on-failure=1"], PACED, &ARGS)).unwrap();
    stage.checkpoint(After::LeaveRunning).unwrap();
    kill_servers(&stage, &job);
    // Not while it is being restarted: that fails by itself.
    let continued = || String::from_utf8_lossy(&job.stderr.so_far()).contains("continuing from image");
    wait_until(continued);
    let printed = job.stdout.so_far().len();
    wait_until(|| job.stdout.so_far().len() > printed);
    kill_servers(&stage, &job);
    let finished = job.finish().unwrap();
    assert_ne!(finished.exit, Exit::Code(0));
    for said in ["giving up", "dormouse restart"] {
        assert!(finished.stderr.contains(said), "{said}: {}", finished.stderr);
    }
}

#[test]
fn a_job_without_an_image_only_gets_the_error() {
    let stage = Stage::new("no-image").unwrap();
    let job = stage.held_by(stage.command_with(&["--restart-on-failure"], PACED, &ARGS)).unwrap();
    kill_servers(&stage, &job);
    let finished = stage.finish(job).unwrap();
    assert_ne!(finished.exit, Exit::Code(0));
    assert!(finished.stderr.contains("There is no image of the job"), "{}", finished.stderr);
}

/// A job with another machine's device, of which there is an image.
fn checkpointed_at(stage: &Stage, served: &Served, on_failure: &str) -> Job {
    served.is_trusted().unwrap();
    let mut command = stage.command_with(&["--gpu", &served.address, on_failure], PACED, &ARGS);
    served.known_to(&mut command);
    let job = stage.held_by(command).unwrap();
    stage.checkpoint(After::LeaveRunning).unwrap();
    job
}

/// The other machine's server is gone, and comes back.
#[test]
fn a_job_goes_on_when_the_machine_of_its_device_does() {
    let stage = Stage::new("machine-gone").unwrap();
    let served = stage.served(Device::Soft, "127.0.0.1").unwrap();
    let whole = stage.undisturbed(&ARGS).unwrap();
    let job = checkpointed_at(&stage, &served, "--restart-on-failure");
    testkit::tree::kill_all(&served.sessions());
    let finished = stage.finish(job).unwrap();
    assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stderr);
    assert_eq!(last_line(&finished.stdout), last_line(&whole.stdout));
    assert!(finished.stderr.contains("is lost"), "{}", finished.stderr);
}

/// Until it is there again, a restart waits: each that has begun counts.
#[test]
fn a_job_waits_for_the_machine_of_its_device() {
    let stage = Stage::new("machine-back").unwrap();
    let mut served = stage.served(Device::Soft, "127.0.0.1").unwrap();
    let whole = stage.undisturbed(&ARGS).unwrap();
    let job = checkpointed_at(&stage, &served, "--restart-on-failure=1");
    served.fail();
    wait_until(|| String::from_utf8_lossy(&job.stderr.so_far()).contains("the restart waits for"));
    served.serve_again(Device::Soft).unwrap();
    let finished = stage.finish(job).unwrap();
    assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stderr);
    assert_eq!(last_line(&finished.stdout), last_line(&whole.stdout));
}
