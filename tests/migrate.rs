//! Jobs that move: to another device of this machine, and to another machine (`networks.rs`).
#![allow(clippy::unwrap_used)]

use dormouse_tests::{Failure, PACED, Stage};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use serde_json::{Value, json};
use std::ffi::CString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use testkit::outcome::Exit;
use testkit::place::{After, Device};
use testkit::served::Served;

/// Some seconds of work.
pub const ARGS: [&str; 1] = ["800"];

/// `dormouse migrate` of the stage's job.
pub fn migrate(stage: &Stage, to: &str, options: &[&str]) -> Command {
    let mut command = stage.place().asked("migrate");
    command.args(["--to", to, "--output"]).arg(output(stage));
    if !options.is_empty() {
        command.arg("--").args(options);
    }
    command
}

/// Where a job writes that goes on here.
pub fn output(stage: &Stage) -> PathBuf {
    stage.place().folder.join("output")
}

/// Does something where there are other running jobs, and where [`hide`] hides from nobody else.
pub fn apart<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    let act = || {
        // SAFETY: only what this thread sees of mounts changes, and it has nothing open by a path.
        unsafe { unshare_unsafe(UnshareFlags::NEWNS | UnshareFlags::FS) }.unwrap();
        mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
        hide("/run".as_ref(), None);
        act()
    };
    std::thread::scope(|scope| scope.spawn(act).join()).unwrap()
}

/// Has an empty folder in the place of another, with room for so many KiB.
pub fn hide(folder: &Path, room: Option<u32>) {
    let room = room.map(|room| CString::new(format!("size={room}k")).unwrap());
    mount("tmpfs", folder, "tmpfs", MountFlags::empty(), room.as_deref()).unwrap();
}

/// What a migration that succeeded says.
pub fn report(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Images that were taken ahead and are gone are not what a job is continued from.
#[test]
fn a_refused_migration_leaves_the_way_back_as_it_was() {
    let stage = Stage::new("way-back").unwrap();
    let job = stage.started("server_lost", &["100000"]).unwrap();
    let image = stage.checkpoint(After::LeaveRunning).unwrap();
    let refused = migrate(&stage, "here", &["--device", "gpu"]).output().unwrap();
    Failure::of(&refused).unwrap().expect(8, &["--device gpu"]);
    assert_eq!(stage.images().unwrap(), std::slice::from_ref(&image));
    let server = stage.place().servers(&job).unwrap()[0];
    testkit::tree::kill_all(&[server]);
    let finished = job.finish().unwrap();
    let told = format!("continue it from image {image}");
    assert!(finished.stderr.contains(&told), "{}", finished.stderr);
}

#[test]
fn who_is_interrupted_says_what_becomes_of_the_job() {
    let stage = Stage::new("interrupted").unwrap();
    let job = stage.started("private_memory", &["100000", "40"]).unwrap();
    let moving = migrate(&stage, "here", &[]).stderr(Stdio::piped()).spawn().unwrap();
    let images = stage.place().store().join("images");
    let until = Instant::now() + Duration::from_secs(60);
    while std::fs::read_dir(&images).map_or(0, Iterator::count) < 2 {
        assert!(Instant::now() < until, "no images are taken ahead");
        std::thread::sleep(Duration::from_millis(1));
    }
    kill_process(Pid::from_child(&moving), Signal::INT).unwrap();
    let output = moving.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), Some(2), "{output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("is not moved, and goes on where it was"), "{said}");
    // What is just ready it has not heard of.
    let unnamed = stage.images().unwrap().into_iter().filter(|image| !said.contains(image)).count();
    assert!(said.contains("`dormouse ls`") && said.contains("dormouse rm --store") && unnamed <= 1, "{said}");
    stage.checkpoint(After::Stop).unwrap();
    job.finish().unwrap();
}

/// Whoever is killed when the old life ends: the new one begins.
#[test]
fn who_moves_a_job_to_here_may_be_killed() {
    let stage = Stage::new("killed-mover").unwrap();
    let whole = stage.undisturbed(&ARGS).unwrap();
    let job = stage.held(PACED, &ARGS).unwrap();
    let mut moving = migrate(&stage, "here", &[]).stdout(Stdio::null()).spawn().unwrap();
    let left = job.finish().unwrap();
    stage.let_end().unwrap();
    moving.kill().unwrap();
    moving.wait().unwrap();
    assert_eq!(left.exit, Exit::Signal(9), "{}", left.stderr);
    let stdout = output(&stage).join(format!("{}.out", stage.name()));
    let began = Instant::now();
    let is_over =
        || std::fs::read(&stdout).is_ok_and(|rest| [&left.stdout[..], &rest].concat() == whole.stdout);
    while !is_over() {
        assert!(began.elapsed() < Duration::from_secs(60), "it does not go on: {}", left.stderr);
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_key_without_that_right_brings_no_job() {
    let stage = Stage::new("no-right").unwrap();
    let whole = stage.undisturbed(&ARGS).unwrap();
    let job = stage.held(PACED, &ARGS).unwrap();
    let there = stage.place().folder.join("there");
    let refused = |server: &Served, words: &[&str]| {
        let mut command = migrate(&stage, &server.address, &[]);
        server.known_to(&mut command);
        Failure::of(&command.output().unwrap()).unwrap().expect(9, words);
    };
    let listen = "127.0.0.1";
    refused(
        &stage.receiving(&there, &[], listen).unwrap(),
        &["may not bring jobs", "dormouse keys authorize --jobs client"],
    );
    let serves = stage.served(Device::Soft, listen).unwrap();
    refused(&serves, &["the key of", "is not known", "dormouse keys trust"]);
    serves.is_trusted().unwrap();
    refused(&serves, &["`dormouse serve` that listens on this port, and not `dormouse receive`"]);
    assert_eq!(stage.images().unwrap().len(), 0, "nothing was begun");
    let finished = stage.finish(job).unwrap();
    assert_eq!((finished.exit, finished.stdout), (Exit::Code(0), whole.stdout), "{}", finished.stderr);
}

/// Asks for the job as a migration does, says this word when it stands still, and is gone; or waits for an answer before.
fn hand_over(stage: &Stage, word: &Value, waits: bool) -> Option<Value> {
    let socket = Path::new("/run/dormouse").join(stage.name()).join("admin.sock");
    let stream = UnixStream::connect(socket).unwrap();
    let send = |what: &Value| (&stream).write_all(format!("{what}\n").as_bytes()).unwrap();
    send(&json!({
        "ask": "hand-over", "stop": true, "gate_deadline_ms": 2000, "retries": 9, "compress": "none"
    }));
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next()?.ok()?).ok();
    while next().unwrap()["event"] != "standing" {}
    if !word.is_null() {
        send(word);
    }
    if waits { next() } else { None }
}

#[test]
fn whoever_moves_a_job_and_dies_leaves_it_in_one_place() {
    let stage = Stage::new("left-alone").unwrap();
    let whole = stage.undisturbed(&ARGS).unwrap();
    let job = stage.held(PACED, &ARGS).unwrap();
    // Gone before anything could run elsewhere: it goes on.
    hand_over(&stage, &Value::Null, false);
    let kept = hand_over(&stage, &json!({ "word": "kept", "why": "no room there" }), true).unwrap();
    assert_eq!(kept["event"], "failed", "{kept}");
    let message = kept["message"].as_str().unwrap();
    assert!(message.contains("goes on where it was: no room there"), "{message}");
    let finished = stage.finish(job).unwrap();
    assert_eq!((finished.exit, &finished.stdout), (Exit::Code(0), &whole.stdout), "{}", finished.stderr);
    // When it may run there, it does not go on here, whoever is gone.
    let job = stage.held(PACED, &ARGS).unwrap();
    hand_over(&stage, &json!({ "word": "starting", "place": "elsewhere" }), false);
    let ended = job.finish().unwrap();
    assert_eq!(ended.exit, Exit::Signal(9), "{}", ended.stderr);
    let image = stage.images().unwrap().last().unwrap().clone();
    for word in ["before it was known whether it runs there", "dormouse restart"] {
        assert!(ended.stderr.contains(word), "{word} in {}", ended.stderr);
    }
    // From its image it can go on all the same.
    stage.let_end().unwrap();
    let rest = testkit::job::Job::start(stage.place().restart_command(&image)).unwrap().finish().unwrap();
    assert_eq!([ended.stdout, rest.stdout].concat(), whole.stdout);
}

fn wait_until_gone(supervisor: &str) {
    let began = Instant::now();
    while Path::new("/proc").join(supervisor).exists() {
        assert!(began.elapsed() < Duration::from_secs(60), "process {supervisor} still runs");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits for the end of a job that no process of this test's has started.
pub fn wait_for_end(report: &Value) -> Vec<u8> {
    wait_until_gone(&report["supervisor"].to_string());
    let read = |which: &str| std::fs::read(report[which].as_str().unwrap()).unwrap();
    let stderr = String::from_utf8_lossy(&read("stderr")).into_owned();
    assert!(!stderr.contains("dormouse: error"), "{stderr}");
    read("stdout")
}

/// What lies between a job's going on and its being told of, on a busy machine.
const SLACK_MS: f64 = 2000.0;

/// From the last that a job prints to its own output to the first that it prints into a file.
fn silence(job: &testkit::job::Job, file: &Path) -> Duration {
    let began = Instant::now();
    let (mut printed, mut last) = (0, began);
    while std::fs::metadata(file).map_or(0, |file| file.len()) == 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "it does not go on");
        let now = job.stdout.so_far().len();
        if now > printed {
            (printed, last) = (now, Instant::now());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    last.elapsed()
}

/// What can only be found out when the old life is over: it goes on as it was.
#[test]
fn a_job_that_cannot_go_on_with_other_options_goes_on_without() {
    let stage = Stage::new("as-it-was").unwrap();
    let whole = stage.undisturbed(&ARGS).unwrap();
    let job = stage.held(PACED, &ARGS).unwrap();
    let refused = migrate(&stage, "here", &["--trace", "/no/such/folder/trace"]).output().unwrap();
    let failure = Failure::of(&refused).unwrap();
    failure.expect(1, &["/no/such/folder", "goes on as it was, from image", "with process"]);
    let left = job.finish().unwrap();
    assert_eq!(left.exit, Exit::Signal(9), "{}", left.stderr);
    stage.let_end().unwrap();
    let after = failure.message.split_once("with process ").unwrap().1;
    let supervisor: String = after.chars().take_while(char::is_ascii_digit).collect();
    let log = |which| output(&stage).join(format!("{}.{which}", stage.name()));
    wait_until_gone(&supervisor);
    let rest = std::fs::read(log("out")).unwrap();
    assert_eq!([left.stdout, rest].concat(), whole.stdout, "{:?}", std::fs::read_to_string(log("err")));
}

/// As long as a round makes the next one smaller, and `--rounds` at most; all of this program's memory changes all the time.
#[test]
fn rounds_that_do_not_converge_end() {
    let stage = Stage::new("rounds").unwrap();
    let job = stage.started("private_memory", &["100000", "40"]).unwrap();
    let moved = |flags: &[&str]| {
        let mut command = stage.place().asked("migrate");
        command.args(["--to", "here", "--compress", "none", "--output"]).arg(output(&stage)).args(flags);
        report(&command.output().unwrap())
    };
    for (flags, rounds) in [(&["--rounds", "1"][..], 1), (&[], 2)] {
        let moved = moved(flags);
        assert_eq!(moved["rounds"].as_array().unwrap().len(), rounds, "{moved}");
        for round in moved["rounds"].as_array().unwrap().iter().chain([&moved["last"]]) {
            assert!(round["written"].as_u64().unwrap() > 32 << 20, "{moved}");
        }
    }
    assert_eq!(job.finish().unwrap().exit, Exit::Signal(9));
    let stopped = stage.place().checkpoint_command(After::Stop).output().unwrap();
    assert!(stopped.status.success(), "{stopped:?}");
}

/// Only one of them moves it, and the other says that it could not.
#[test]
fn two_who_move_one_job_do_not_double_it() {
    let stage = Stage::new("two-movers").unwrap();
    let whole = stage.undisturbed(&ARGS).unwrap();
    let job = stage.held(PACED, &ARGS).unwrap();
    let movers: Vec<_> = [(); 2]
        .map(|()| migrate(&stage, "here", &[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
        .into_iter()
        .collect();
    let outputs: Vec<Output> = movers.into_iter().map(|mover| mover.wait_with_output().unwrap()).collect();
    let (moved, refused): (Vec<_>, Vec<_>) = outputs.into_iter().partition(|output| output.status.success());
    let ([moved], [refused]) = (&moved[..], &refused[..]) else { panic!("{moved:?}\n{refused:?}") };
    let failure = Failure::of(refused).unwrap();
    assert!([3, 4, 11].contains(&failure.code.unwrap()), "{failure:?}");
    let left = stage.finish(job).unwrap();
    let rest = wait_for_end(&report(moved));
    assert_eq!([left.stdout, rest].concat(), whole.stdout, "{failure:?}");
}

#[test]
fn a_job_goes_on_with_other_options() {
    let stage = Stage::new("moves-here").unwrap();
    let whole = stage.undisturbed(&ARGS).unwrap();
    let job = stage.held(PACED, &ARGS).unwrap();
    let mut moving = migrate(&stage, "here", &["--every", "1h"]);
    let (moved, stood_still) = std::thread::scope(|scope| {
        let moving = scope.spawn(|| report(&moving.output().unwrap()));
        let file = output(&stage).join(format!("{}.out", stage.name()));
        let stood_still = silence(&job, &file);
        (moving.join().unwrap(), stood_still)
    });
    let left = job.finish().unwrap();
    assert_eq!(left.exit, Exit::Signal(9), "{}", left.stderr);
    assert!(left.stderr.contains("the job goes on at this machine"), "{}", left.stderr);
    stage.let_end().unwrap();
    let rest = wait_for_end(&moved);
    assert_eq!([left.stdout, rest].concat(), whole.stdout);
    // What was taken ahead is gone.
    assert_eq!(stage.images().unwrap(), [moved["image"].as_str().unwrap()]);
    assert_eq!((&moved["to"], moved["name"].as_str()), (&Value::from("this machine"), Some(stage.name())));
    // What it says of its standstill is made of its parts, and no more than what was seen.
    let ms = |which: &str| moved[which].as_f64().unwrap();
    let parts = ["stall_ms", "write_ms", "send_ms", "start_ms"].map(ms);
    assert!(parts[0] > 0.0 && parts.iter().all(|&part| part >= 0.0), "{moved}");
    assert!((parts.iter().sum::<f64>() - ms("downtime_ms")).abs() < 1.0, "{moved}");
    assert!(ms("downtime_ms") < ms("total_ms"), "{moved}");
    let seen = stood_still.as_secs_f64() * 1e3;
    assert!(ms("downtime_ms") <= seen + SLACK_MS, "it printed nothing for {seen} ms; {moved}");
}

#[test]
fn what_cannot_go_on_there_is_refused_before_it_is_stopped() {
    let stage = Stage::new("stays-here").unwrap();
    let whole = stage.undisturbed(&ARGS).unwrap();
    let job = stage.held(PACED, &ARGS).unwrap();
    let refused = |options: &[&str], code, words: &[&str]| {
        let output = migrate(&stage, "here", options).output().unwrap();
        Failure::of(&output).unwrap().expect(code, words);
        assert_eq!(stage.images().unwrap().len(), 0, "nothing is left of it");
    };
    refused(&["--device", "gpu"], 8, &["--device gpu"]);
    refused(&["--nmae", "x"], 2, &["--nmae"]);
    refused(&["--store", "/elsewhere"], 2, &["--store"]);
    let finished = stage.finish(job).unwrap();
    assert_eq!((finished.exit, finished.stdout), (Exit::Code(0), whole.stdout), "{}", finished.stderr);
}
