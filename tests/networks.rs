//! A job that moves to another machine, or whose device is there, over a network that is the only way to it. What all guests do with such a device is in `matrix_elsewhere.rs`.
#![allow(clippy::unwrap_used)]

use crate::migrate::{apart, report, wait_for_end};
use dormouse_tests::elsewhere::Elsewhere;
use dormouse_tests::{Failure, PACED, Stage};
use serde_json::Value;
use std::path::Path;
use testkit::job::Job;
use testkit::outcome::Exit;
use testkit::place::{After, Device};

#[test]
fn a_job_moves_to_another_machine() {
    let elsewhere = Elsewhere::beside().unwrap();
    let stage = Stage::new("moves").unwrap();
    let there = stage.place().folder.join("there");
    let server =
        elsewhere.at_it(|| apart(|| stage.receiving(&there, &["--jobs"], Elsewhere::ADDRESS))).unwrap();
    let args = ["800"];
    let whole = stage.undisturbed(&args).unwrap().stdout;
    let migrate = |flags: &[&str], options: &[&str]| {
        let mut command = stage.place().asked("migrate");
        command.args(["--to", &server.address]).args(flags).arg("--").args(options);
        server.known_to(&mut command);
        command.output().unwrap()
    };
    let job = stage.held(PACED, &args).unwrap();
    // What cannot be started there goes on here.
    let refused = migrate(&[], &["--trace", "/no/such/folder/trace"]);
    Failure::of(&refused).unwrap().expect(1, &["the job goes on where it was", "/no/such/folder"]);
    let moved = report(&migrate(&[], &["--every", "1h"]));
    println!("{moved:#}");
    let left = job.finish().unwrap();
    assert_eq!(left.exit, Exit::Signal(9), "{}", left.stderr);
    let place = format!("the job goes on at {}", server.address);
    assert!(left.stderr.contains(&place), "{}", left.stderr);
    stage.let_end().unwrap();
    let rest = wait_for_end(&moved);
    assert_eq!([left.stdout, rest].concat(), whole);
    // One image is left of all that: here, and there with all that it needs.
    let image = moved["image"].as_str().unwrap();
    let near = stage.images().unwrap();
    assert!(near.contains(&image.to_owned()) && near.len() == 2, "{near:?}: the one before was not taken");
    let verify = |store: &Path| {
        let mut command = stage.place().dormouse("verify");
        command.args([image, "--read-data"]).arg("--store").arg(store).output().unwrap()
    };
    assert!(verify(&there.join("store")).status.success(), "{:?}", verify(&there.join("store")));
    // Where both see the job's store, nothing is sent; the name is free again here, and there.
    let job = stage.held_by(stage.place().restart_command(image)).unwrap();
    let moved = report(&migrate(&["--shared-store", "--name", "other"], &[]));
    let left = stage.finish(job).unwrap();
    assert_eq!((left.exit, &moved["last"]["sent"]), (Exit::Signal(9), &Value::from(0)), "{}", left.stderr);
    let rest = wait_for_end(&moved);
    let end = [left.stdout, rest].concat();
    assert!(whole.ends_with(&end) && !end.is_empty(), "{}", String::from_utf8_lossy(&end));
}

#[test]
fn a_network_is_the_only_way_between_a_job_and_its_device() {
    let elsewhere = Elsewhere::beside().unwrap();
    let stage = Stage::new("network").unwrap();
    let server = elsewhere.at_it(|| stage.served(Device::Soft, Elsewhere::ADDRESS)).unwrap();
    server.is_trusted().unwrap();
    assert!(server.address.starts_with(Elsewhere::ADDRESS), "{}", server.address);
    // An image is made here, of memory that is there.
    let args = ["600"];
    let whole = stage.undisturbed(&args).unwrap().stdout;
    let job = stage.held_by(stage.command_at(&server, PACED, &args)).unwrap();
    let image = stage.checkpoint(After::Stop).unwrap();
    let mut printed = stage.finish(job).unwrap().stdout;
    let ended = Job::start(stage.restart_at(&server, &image)).unwrap().finish().unwrap();
    printed.extend(ended.stdout);
    assert_eq!(ended.exit, Exit::Code(0), "{}", ended.stderr);
    assert_eq!(printed, whole);
}
