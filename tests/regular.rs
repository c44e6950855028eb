//! `--every`: checkpoints that nobody asks for, of which the newest are kept, and each of which continues the job.
#![allow(clippy::unwrap_used)]

use dormouse_tests::{PACED, Stage, first_line};
use std::process::Command;
use testkit::job::Job;
use testkit::outcome::Exit;
use testkit::place::After;

/// A job of a few seconds.
const ARGS: [&str; 1] = ["900"];

/// A checkpoint each second.
fn every(keep: &str) -> [&str; 4] {
    ["--every", "1s", "--keep-last", keep]
}

fn run(stage: &Stage) -> Command {
    stage.command_with(&every("2"), PACED, &ARGS)
}

#[test]
fn checkpoints_that_nobody_asks_for() {
    let stage = Stage::new("regular").unwrap();
    let plain = stage.undisturbed(&ARGS).unwrap();
    let ended = Job::start(run(&stage)).unwrap().finish().unwrap();
    assert_eq!((ended.exit, &ended.stdout), (Exit::Code(0), &plain.stdout), "{}", ended.stderr);
    let images = stage.images().unwrap();
    assert_eq!(images.len(), 2, "{}", ended.stderr);
    let oldest = &images[0];
    let verify =
        stage.place().dormouse("verify").arg(oldest).arg("--store").arg(stage.place().store()).output();
    assert!(verify.unwrap().status.success());
    let mut restart = stage.place().restart_command(oldest);
    restart.args(every("1"));
    let restarted = Job::start(restart).unwrap().finish().unwrap();
    assert_eq!(restarted.exit, Exit::Code(0), "{}", restarted.stderr);
    assert!(plain.stdout.ends_with(&restarted.stdout));
}

#[test]
fn they_are_written_as_was_said() {
    let written = |compress: &str| {
        let stage = Stage::new("written").unwrap();
        let flags = [
            "--every",
            "1s",
            "--compress",
            compress,
            "--memory-limit",
            "300M",
            "--threads",
            "1",
            "--paranoid",
        ];
        let ended = Job::start(stage.command_with(&flags, PACED, &ARGS)).unwrap().finish().unwrap();
        assert_eq!(ended.exit, Exit::Code(0), "{}", ended.stderr);
        let listed =
            stage.place().dormouse("ls").arg("--json").arg("--store").arg(stage.place().store()).output();
        let listed: serde_json::Value = serde_json::from_slice(&listed.unwrap().stdout).unwrap();
        let first = &listed["images"][0]["stored"];
        (first["data"].as_u64().unwrap(), first["written"].as_u64().unwrap())
    };
    let ((data, plain), (_, small)) = (written("none"), written("zstd"));
    assert!(plain >= data && small < plain / 2, "{data} bytes, {plain} plain, {small} compressed");
}

/// An image that somebody asked for stays beside those that come by themselves.
#[test]
fn what_was_asked_for_is_kept() {
    let stage = Stage::new("asked").unwrap();
    let job = stage.held_by(stage.command_with(&every("1"), PACED, &ARGS)).unwrap();
    while stage.images().unwrap_or_default().is_empty() {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let asked = loop {
        // One that is under way by itself goes first.
        match stage.checkpoint(After::LeaveRunning) {
            Ok(image) => break image,
            Err(error) => assert!(format!("{error:#}").contains("under way"), "{error:#}"),
        }
    };
    let ended = stage.finish(job).unwrap();
    assert_eq!(ended.exit, Exit::Code(0), "{}", ended.stderr);
    let images = stage.images().unwrap();
    assert!(images.contains(&asked) && images.len() == 2, "{asked}: {images:?}: {}", ended.stderr);
}

#[test]
fn a_store_that_can_be_written_no_more_is_warned_of_and_the_job_runs_on() {
    let stage = Stage::new("unwritten").unwrap();
    let (store, aside) = (stage.place().store(), stage.place().folder.join("aside"));
    let job = first_line(Job::start(run(&stage)).unwrap()).unwrap();
    // A checkpoint may make it at this moment.
    for number in 0.. {
        let _ = std::fs::rename(&store, aside.with_extension(number.to_string()));
        if std::fs::File::create_new(&store).is_ok() {
            break;
        }
    }
    let ended = job.finish().unwrap();
    assert_eq!(ended.exit, Exit::Code(0));
    assert!(ended.stderr.contains("no checkpoint was taken"), "{}", ended.stderr);
}

#[test]
fn times_and_numbers_that_make_no_sense() {
    let stage = Stage::new("senseless").unwrap();
    for (flags, said) in [
        (&["--every", "0s"][..], "a second is the least"),
        (&["--every", "soon"], "such as 10m"),
        (&["--keep-last", "2"], "--every"),
        (&["--every", "1m", "--keep-last", "0"], "0 is not in 1.."),
    ] {
        let output = stage.place().dormouse("run").args(flags).args(["--", "true"]).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && stderr.contains(said), "{flags:?}: {stderr}");
    }
    let nothing = stage.place().dormouse("prune").arg("--store").arg(stage.place().store()).output().unwrap();
    assert_eq!(nothing.status.code(), Some(2), "what to keep has to be said");
}
