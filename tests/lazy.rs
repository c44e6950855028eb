//! `restart --lazy`: the program goes on before all its device memory is read.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use dormouse_tests::{PACED, Stage};
use rustix::process::Signal;
use serde_json::Value;
use testkit::job::Job;
use testkit::outcome::Exit;
use testkit::place::After;

/// A job of some seconds.
const ARGS: [&str; 1] = ["500"];

fn restarted_lazily(stage: &Stage, image: &str) -> Job {
    let mut command = stage.place().restart_command(image);
    command.arg("--lazy");
    Job::start(command).unwrap()
}

#[test]
fn a_job_goes_on_to_the_same_end_and_can_be_checkpointed_at_once() {
    let stage = Stage::new("lazy").unwrap();
    let native = stage.undisturbed(&ARGS).unwrap().stdout;
    let job = stage.held(PACED, &ARGS).unwrap();
    let image = stage.checkpoint(After::Stop).unwrap();
    job.finish().unwrap();

    let job = dormouse_tests::first_line(restarted_lazily(&stage, &image)).unwrap();
    let second = stage.checkpoint(After::LeaveRunning).unwrap();
    let finished = stage.finish(job).unwrap();
    assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stderr);
    assert!(!finished.stdout.is_empty() && native.ends_with(&finished.stdout));

    // Whatever it was killed at, it can be tried again.
    let killed = restarted_lazily(&stage, &second);
    let claim = Path::new("/run/dormouse").join(stage.name()).join("job.json");
    while !claim.exists() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    killed.signal(Signal::KILL).unwrap();
    killed.finish().unwrap();
    let finished = restarted_lazily(&stage, &second).finish().unwrap();
    assert_eq!(finished.exit, Exit::Code(0), "{}", finished.stderr);
    assert!(!finished.stdout.is_empty() && native.ends_with(&finished.stdout));
}

/// What `dormouse verify` says is damaged.
fn damaged(stage: &Stage, image: &str) -> String {
    let mut command = stage.place().dormouse("verify");
    let output = command.args(["--json", image, "--store"]).arg(stage.place().store()).output().unwrap();
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    said["damage"].to_string()
}

#[test]
fn memory_that_cannot_be_read_ends_the_job_by_name() {
    let stage = Stage::new("lazily-rotten").unwrap();
    let job = stage.held(PACED, &ARGS).unwrap();
    let image = stage.checkpoint(After::Stop).unwrap();
    stage.finish(job).unwrap();

    let packs = fs::read_dir(stage.place().store().join("packs")).unwrap();
    let packs: Vec<PathBuf> = packs.map(|entry| entry.unwrap().path()).collect();
    let places = packs.iter().flat_map(|pack| {
        let length = fs::metadata(pack).unwrap().len();
        (1..40u64).map(move |part| (pack, part * length / 40))
    });
    let rotten = places.into_iter().any(|(pack, offset)| {
        let file = fs::File::options().read(true).write(true).open(pack).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, offset).unwrap();
        file.write_all_at(&[!byte[0]], offset).unwrap();
        let found = damaged(&stage, &image).contains("device 0's memory");
        if !found {
            file.write_all_at(&byte, offset).unwrap();
        }
        found
    });
    assert!(rotten, "device memory is in one of these packs: {packs:?}");

    let finished = restarted_lazily(&stage, &image).finish().unwrap();
    assert_eq!((finished.exit, &finished.stdout[..]), (Exit::Code(125), &b""[..]), "{}", finished.stderr);
    assert!(finished.stderr.contains("cannot be filled"), "{}", finished.stderr);
    // Nor is it waited for in vain.
    let finished = stage.place().restart(&image).unwrap().finish().unwrap();
    assert_eq!((finished.exit, &finished.stdout[..]), (Exit::Code(125), &b""[..]), "{}", finished.stderr);
    assert!(finished.stderr.contains("cannot be restored"), "{}", finished.stderr);
    assert!(!Path::new("/run/dormouse").join(stage.name()).exists());
}
