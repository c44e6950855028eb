//! `--profile`, `--plan` and `--mtbf-gpu`: checkpoints where a program has little memory, found by a profile of it or as it runs.
#![allow(clippy::unwrap_used)]

use dormouse_tests::planned::{Planned, args, bytes, finish};
use dormouse_tests::{Stage, first_line};
use std::time::{Duration, Instant};
use testkit::job::{Job, LIMIT};
use testkit::place::Device;

fn planned(name: &str, part: f64) -> Planned {
    Planned::new(Device::of_this_machine(), name, part).unwrap()
}

#[test]
fn a_planned_run_that_is_killed_goes_on_by_its_plan() {
    let planned = planned("killed", 0.45);
    let stage = &planned.stage;
    let job = first_line(Job::start(planned.command()).unwrap()).unwrap();
    let begun = Instant::now();
    while stage.images().unwrap().is_empty() && begun.elapsed() < planned.took * 3 {
        std::thread::sleep(Duration::from_millis(50));
    }
    let before = stage.images().unwrap();
    stage.place().kill_everything(job).unwrap();
    let restarted = planned.restart(before.last().unwrap()).unwrap();
    assert!(stage.images().unwrap().len() > before.len(), "{}", restarted.stderr);
}

#[test]
fn without_a_profile_a_boundary_with_little_memory_is_waited_for() {
    let stage = Stage::new("online").unwrap();
    let args = args(Device::of_this_machine());
    // They are a quarter of either time apart: half of what both together have.
    let took = finish(stage.command("multigrid", &args)).unwrap().took.as_secs_f64();
    let [between, offset] = [1.6, 0.2].map(|part| format!("{:.0}ms", took * part * 1e3));
    let flags = ["--mtbf-gpu", &between, "--mtbf-cpu", &between, "--offset", &offset];
    let ended = finish(stage.command_with(&flags, "multigrid", &args)).unwrap();
    let written = bytes(&stage).unwrap();
    assert!(!written.is_empty(), "{}", ended.stderr);
    println!("online: {written:?} bytes");
}

#[test]
fn plans_and_profiles_that_make_no_sense() {
    let stage = Stage::new("unplanned").unwrap();
    std::fs::write(stage.place().cwd().join("no.plan"), "{}").unwrap();
    for (flags, code, said) in [
        (&["--plan", "no.plan"][..], 125, "this is no plan"),
        (&["--plan", "none.plan"], 125, "No such file"),
        (&["--plan", "no.plan", "--every", "2s"], 2, "cannot be used with"),
        (&["--mtbf-gpu", "2h"], 2, "--mtbf-cpu"),
        (&["--every", "2s", "--mtbf-gpu", "2h", "--mtbf-cpu", "2h"], 2, "cannot be used with"),
        (&["--mtbf-gpu", "2s", "--mtbf-cpu", "2s"], 125, "more often than each second"),
        (&["--mtbf-gpu", "2h", "--mtbf-cpu", "2h", "--offset", "1h"], 125, "--offset is longer"),
        (&["--profile", "nowhere/x.profile"], 125, "cannot write a profile"),
    ] {
        let output = stage.place().dormouse("run").args(flags).args(["--", "true"]).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(code) && stderr.contains(said), "{flags:?}: {stderr}");
    }
    let profile = stage.place().cwd().join("nothing.profile");
    let output =
        stage.place().dormouse("run").arg("--profile").arg(&profile).args(["--", "true"]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && stderr.contains("no process of the job has used CUDA"), "{stderr}");
}

#[test]
fn a_plan_of_another_program_is_noticed() {
    let planned = planned("another", 0.3);
    // Both compute all the time, and this one for longer than any interval of a plan.
    let run = planned.stage.command_with(&planned.flags(), "vector_loop", &["1000000", "40"]);
    let (mut job, begun) = (Job::start(run).unwrap(), Instant::now());
    loop {
        let stderr = String::from_utf8_lossy(&job.stderr.so_far()).into_owned();
        if stderr.contains("is it a plan of another program") {
            return;
        }
        assert!(!job.has_ended().unwrap() && begun.elapsed() < LIMIT, "{stderr}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
