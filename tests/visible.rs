//! Which of the machine's GPUs a program sees, as it says itself (`CUDA_VISIBLE_DEVICES`), and which it has later.
#![allow(clippy::unwrap_used)]

use dormouse_tests::planned::finish;
use dormouse_tests::{Failure, Stage, first_line};
use std::process::Command;
use std::time::{Duration, Instant};
use testkit::job::{Job, LIMIT};
use testkit::outcome::Exit;
use testkit::place::{After, Suspension};

const LIST: &str = "CUDA_VISIBLE_DEVICES";

/// On a machine with so many devices.
fn among(mut command: Command, devices: u32) -> Command {
    command.env_remove(LIST).env("DORMOUSE_SOFT_DEVICES", devices.to_string());
    command
}

/// What the guest says of the devices it sees.
fn seen(stdout: &[u8]) -> Vec<String> {
    let lines = String::from_utf8_lossy(stdout);
    lines.lines().filter(|line| line.contains("device")).map(str::to_owned).collect()
}

/// The lists of the job's servers.
fn lists(stage: &Stage, job: &Job) -> Vec<Option<String>> {
    let list = |pid: i32| {
        let environment = std::fs::read_to_string(format!("/proc/{pid}/environ")).unwrap();
        let found = environment.split('\0').find_map(|each| each.strip_prefix(LIST)?.strip_prefix('='));
        found.map(str::to_owned)
    };
    stage.place().servers(job).unwrap().into_iter().map(list).collect()
}

#[test]
fn each_process_of_a_job_sees_what_it_says() {
    let stage = Stage::new("visible").unwrap();
    let guest = stage.guest("devices");
    let devices = |list: &str| {
        let script = format!("{list} exec {} 3 1", guest.display());
        seen(&finish(among(stage.shell(&script), 3)).unwrap().stdout)
    };
    assert_eq!(
        devices(""),
        ["device 0 at 0000:01:00.0", "device 1 at 0000:02:00.0", "device 2 at 0000:03:00.0"]
    );
    assert_eq!(devices("CUDA_VISIBLE_DEVICES=2,0"), ["device 0 at 0000:03:00.0", "device 1 at 0000:01:00.0"]);
    assert_eq!(devices("CUDA_VISIBLE_DEVICES=1,7,0"), ["device 0 at 0000:02:00.0"]);
    for none in ["''", "-1", "NoDevFiles"] {
        assert_eq!(devices(&format!("CUDA_VISIBLE_DEVICES={none}")), ["no devices"], "{none}");
    }
    // What the job is begun with is no limit: a program may ask for others, as it may without Dormouse.
    let mut inherited =
        among(stage.shell(&format!("{0} 3 1; CUDA_VISIBLE_DEVICES=0 {0} 3 1", guest.display())), 2);
    inherited.env(LIST, "1");
    assert_eq!(
        seen(&finish(inherited).unwrap().stdout),
        ["device 0 at 0000:02:00.0", "device 0 at 0000:01:00.0"]
    );
}

/// Two processes with a GPU each are restarted, and suspended and resumed, with other GPUs.
#[test]
fn a_job_goes_on_with_other_gpus() {
    let stage = Stage::new("moved-gpus").unwrap();
    let guest = stage.guest("devices");
    let script = format!(
        "CUDA_VISIBLE_DEVICES=0 {0} 6000 8 >first & CUDA_VISIBLE_DEVICES=1 {0} 6000 8; wait; cat first",
        guest.display()
    );
    let whole = finish(among(stage.shell(&script), 2)).unwrap().stdout;
    let first = stage.place().cwd().join("first");
    std::fs::remove_file(&first).unwrap();
    let mut job = first_line(Job::start(among(stage.shell(&script), 4)).unwrap()).unwrap();
    let await_two = |job: &Job| {
        let begun = Instant::now();
        while stage.place().servers(job).unwrap().len() < 2 {
            assert!(begun.elapsed() < LIMIT, "there are no two servers");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let sorted = |job: &Job| {
        let mut lists: Vec<_> = lists(&stage, job).into_iter().map(Option::unwrap_or_default).collect();
        lists.sort();
        lists
    };
    // Both are at work: one that has done nothing yet needs no device, and is told of its later ones.
    let works = |stdout: Vec<u8>| String::from_utf8_lossy(&stdout).contains("step");
    let begun = Instant::now();
    while !works(std::fs::read(&first).unwrap_or_default()) || !works(job.stdout.so_far()) {
        assert!(begun.elapsed() < LIMIT, "not both are at work");
        std::thread::sleep(Duration::from_millis(5));
    }
    await_two(&job);
    assert_eq!(sorted(&job), ["0", "1"]);
    assert_eq!(stage.place().suspend().unwrap(), Suspension::Suspended);
    let refused = stage.place().asked("resume").args(["--visible-devices", "none"]).output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("such as 0,2"), "{refused:?}");
    let cannot = stage.place().asked("resume").args(["--visible-devices", "0"]).output().unwrap();
    assert!(!cannot.status.success(), "one has no device: {cannot:?}");
    let resumed = stage.place().asked("resume").args(["--visible-devices", "3,2"]).output().unwrap();
    assert!(resumed.status.success(), "{resumed:?}");
    assert_eq!(sorted(&job), ["2", "3"]);
    let image = stage.checkpoint(After::Stop).unwrap();
    let mut printed = job.finish().unwrap().stdout;
    let mut check = among(stage.place().restart_command(&image), 4);
    Failure::of(&check.args(["--check", "--visible-devices", "3"]).output().unwrap())
        .unwrap()
        .expect(8, &["device 0", "0 are there"]);
    let mut restart = among(stage.place().restart_command(&image), 4);
    restart.args(["--visible-devices", "3,2"]);
    job = Job::start(restart).unwrap();
    await_two(&job);
    assert_eq!(sorted(&job), ["2", "3"]);
    let ended = job.finish().unwrap();
    printed.extend(ended.stdout);
    assert_eq!(ended.exit, Exit::Code(0), "{}", ended.stderr);
    assert_eq!(String::from_utf8_lossy(&printed), String::from_utf8_lossy(&whole));
}

/// Where all have as much left, those that it had, by their UUIDs; which are chosen of others is tested beside `choose`.
#[test]
fn the_freest_gpus_take_the_places_of_a_jobs() {
    let stage = Stage::new("freest").unwrap();
    let script = format!("exec {} 600 1", stage.guest("devices").display());
    let begin = || {
        let mut command = among(stage.shell(&script), 3);
        command.env(LIST, "1");
        command
    };
    let whole = finish(begin()).unwrap().stdout;
    let mut job = stage.held_by(begin()).unwrap();
    assert_eq!(lists(&stage, &job), [Some("1".to_owned())]);
    assert_eq!(stage.place().suspend().unwrap(), Suspension::Suspended);
    let mut resume = among(stage.place().asked("resume"), 3);
    let resumed = resume.args(["--visible-devices", "free"]).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&resumed.stdout).unwrap();
    let second = report["gpus"].as_str().unwrap_or_else(|| panic!("{resumed:?}")).to_owned();
    assert!(second.starts_with("GPU-") && second.ends_with("02"), "{second}");
    assert_eq!(lists(&stage, &job), [Some(second.clone())]);
    let image = stage.checkpoint(After::Stop).unwrap();
    let mut printed = job.finish().unwrap().stdout;
    let mut restart = among(stage.place().restart_command(&image), 3);
    restart.args(["--visible-devices", "free"]);
    job = Job::start(restart).unwrap();
    let begun = Instant::now();
    while stage.place().servers(&job).unwrap().is_empty() {
        assert!(begun.elapsed() < LIMIT, "it has no server");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(lists(&stage, &job), [Some(second)]);
    let ended = stage.finish(job).unwrap();
    printed.extend(ended.stdout);
    assert_eq!(ended.exit, Exit::Code(0), "{}", ended.stderr);
    assert_eq!(String::from_utf8_lossy(&printed), String::from_utf8_lossy(&whole));
}

#[test]
fn devices_reach_one_another_after_a_restart_as_before() {
    let stage = Stage::new("peers").unwrap();
    let script = format!("exec {} 400 8", stage.guest("peers").display());
    let whole = finish(among(stage.shell(&script), 3)).unwrap().stdout;
    assert!(whole.starts_with(b"3 devices"), "{}", String::from_utf8_lossy(&whole));
    let job = first_line(Job::start(among(stage.shell(&script), 3)).unwrap()).unwrap();
    let image = stage.checkpoint(After::Stop).unwrap();
    let mut printed = job.finish().unwrap().stdout;
    let ended = Job::start(among(stage.place().restart_command(&image), 3)).unwrap().finish().unwrap();
    printed.extend(ended.stdout);
    assert_eq!(ended.exit, Exit::Code(0), "{}", ended.stderr);
    assert_eq!(String::from_utf8_lossy(&printed), String::from_utf8_lossy(&whole));
}
