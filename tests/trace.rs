//! `--trace`: what a job did is in the file, before and after a restart, and the program notices nothing.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

use dormouse_tests::{Failure, Stage, first_line};
use serde_json::Value;
use testkit::job::Job;
use testkit::outcome::Exit;
use testkit::place::{After, Suspension};

fn run(stage: &Stage, trace: &Path, args: &[&str]) -> Command {
    stage.command_with(&["--trace".as_ref(), trace.as_os_str()], "vector_loop", args)
}

fn names(trace: &Path) -> Vec<String> {
    let events: Vec<Value> = serde_json::from_slice(&std::fs::read(trace).unwrap()).unwrap();
    let spans = events.into_iter().filter(|event| event["ph"] == "X");
    spans.map(|event| event["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_run_its_checkpoint_and_its_restart() {
    let stage = Stage::new("traced").unwrap();
    let (first, second) = (stage.place().cwd().join("first.json"), stage.place().cwd().join("second.json"));
    let args = ["200", "40"];
    let plain = Job::start(stage.command("vector_loop", &args)).unwrap().finish().unwrap();

    let job = first_line(Job::start(run(&stage, &first, &args)).unwrap()).unwrap();
    let image = stage.checkpoint(After::Stop).unwrap();
    let begun = job.finish().unwrap();
    let names_of_first = names(&first);
    for wanted in
        ["cuLaunchKernel", "Launch", "GPU server of process 2 starts", "capturing", "the job stands still"]
    {
        assert!(names_of_first.iter().any(|name| name == wanted), "{wanted}: {names_of_first:?}");
    }
    // Each step that was begun has ended.
    for step in ["closing the gate", "writing", "publishing"] {
        assert_eq!(names_of_first.iter().filter(|name| *name == step).count(), 1, "{step}");
    }

    let mut restart = stage.place().restart_command(&image);
    restart.arg("--trace").arg(&second);
    let ended = Job::start(restart).unwrap().finish().unwrap();
    assert_eq!(ended.exit, Exit::Code(0), "{}", ended.stderr);
    assert_eq!([&begun.stdout[..], &ended.stdout[..]].concat(), plain.stdout);
    let launches = |names: &[String]| names.iter().filter(|name| *name == "cuLaunchKernel").count();
    // Between them both saw every launch, the filling and 200 steps; the one in hand at the cut may be in neither.
    let both = launches(&names_of_first) + launches(&names(&second));
    assert!((200..=201).contains(&both), "{both}");
}

/// What a suspension has tried is not tried again.
#[test]
fn a_checkpoint_behind_a_suspension_is_not_rehearsed() {
    let stage = Stage::new("slept").unwrap();
    let trace = stage.place().cwd().join("slept.json");
    let job = first_line(Job::start(run(&stage, &trace, &["800", "40"])).unwrap()).unwrap();
    assert_eq!(stage.place().suspend().unwrap(), Suspension::Suspended);
    stage.place().resume().unwrap();
    stage.checkpoint(After::Stop).unwrap();
    job.finish().unwrap();
    let names = names(&trace);
    let times = |step: &str| names.iter().filter(|name| *name == step).count();
    assert_eq!((times("publishing"), times("rehearsing")), (1, 1), "the suspension's");
}

#[test]
fn a_trace_that_cannot_be_written() {
    let stage = Stage::new("untraced").unwrap();
    let output = run(&stage, Path::new("/nowhere/at/all.json"), &["5"]).output().unwrap();
    Failure::of(&output).unwrap().expect(125, &["/nowhere/at/all.json"]);
    assert!(output.stdout.is_empty(), "the program has run");
}
