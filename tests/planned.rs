//! `--profile`, `--plan` and `--mtbf-gpu`: checkpoints where a program has little memory, found by a profile of it or as it runs.
#![allow(clippy::unwrap_used)]

use dormouse_tests::{Stage, first_line};
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;
use testkit::job::Job;
use testkit::outcome::Exit;

/// Some seconds, in eight cycles.
const ARGS: [&str; 2] = ["8", "64"];
/// How much less is written than at equidistant times.
const LESS: f64 = 3.0;

struct Planned {
    stage: Stage,
    plan: PathBuf,
    stdout: Vec<u8>,
    took: Duration,
}

impl Planned {
    /// Profiles the guest, and plans checkpoints no further apart than such a part of the run.
    fn new(name: &str, part: f64) -> Self {
        let stage = Stage::new(name).unwrap();
        let [profile, plan] =
            ["multigrid.profile", "multigrid.plan"].map(|name| stage.place().cwd().join(name));
        let flags = ["--profile", profile.to_str().unwrap()];
        let ended = Job::start(stage.command_with(&flags, "multigrid", &ARGS)).unwrap().finish().unwrap();
        assert_eq!(ended.exit, Exit::Code(0), "{}", ended.stderr);
        let shown = json(stage.place().dormouse("profile").args(["show", "--json"]).arg(&profile));
        let seconds = shown["ms"].as_f64().unwrap() / 1e3;
        let mut planning = stage.place().dormouse("plan");
        planning.arg(&profile).args(["--mtbf-gpu", "40h", "--mtbf-cpu", "40h", "--json"]);
        planning.args(["--interval", &format!("{}ms", (seconds * 1e3 * part) as u64)]).arg("-o").arg(&plan);
        json(&mut planning);
        Self { plan, stdout: ended.stdout, took: ended.took, stage }
    }

    fn flags(&self) -> [&str; 2] {
        ["--plan", self.plan.to_str().unwrap()]
    }
}

fn json(command: &mut std::process::Command) -> Value {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_str(&said).unwrap()
}

/// Bytes of each image of a stage, each for itself, in their order.
fn bytes(stage: &Stage) -> Vec<f64> {
    let listing = json(stage.place().dormouse("ls").arg("--json").arg("--store").arg(stage.place().store()));
    let images = listing["images"].as_array().unwrap();
    images.iter().map(|image| image["stored"]["data"].as_f64().unwrap()).collect()
}

/// The program's own time, from its first call to its last, without anything.
fn undisturbed(stage: &Stage) -> Duration {
    let ended = Job::start(stage.command("multigrid", &ARGS)).unwrap().finish().unwrap();
    assert_eq!(ended.exit, Exit::Code(0), "{}", ended.stderr);
    ended.took
}

#[test]
fn a_planned_run_writes_a_third_of_an_equidistant_one_and_each_image_continues_it() {
    let planned = Planned::new("planned", 0.3);
    let stage = &planned.stage;
    let ended =
        Job::start(stage.command_with(&planned.flags(), "multigrid", &ARGS)).unwrap().finish().unwrap();
    assert_eq!((ended.exit, &ended.stdout), (Exit::Code(0), &planned.stdout), "{}", ended.stderr);
    let written = bytes(stage);
    assert!(written.len() >= 2, "{written:?}: {}", ended.stderr);
    for image in stage.images().unwrap() {
        let mut restart = stage.place().restart_command(&image);
        restart.args(planned.flags());
        let restarted = Job::start(restart).unwrap().finish().unwrap();
        assert_eq!(restarted.exit, Exit::Code(0), "{}", restarted.stderr);
        assert!(planned.stdout.ends_with(&restarted.stdout));
    }
    // As many at equal distances; where one more comes of it, the largest is left out.
    let other = Stage::new("equidistant").unwrap();
    let every = planned.took / (written.len() as u32 + 1);
    let every = format!("{}ms", every.as_millis().max(1000));
    let ended =
        Job::start(other.command_with(&["--every", &every], "multigrid", &ARGS)).unwrap().finish().unwrap();
    assert_eq!((ended.exit, &ended.stdout), (Exit::Code(0), &planned.stdout), "{}", ended.stderr);
    let mut equidistant = bytes(&other);
    equidistant.sort_by(f64::total_cmp);
    let count = written.len().min(equidistant.len());
    assert!(count >= 2, "{equidistant:?}: {}", ended.stderr);
    let sum = |all: &[f64]| all.iter().take(count).sum::<f64>();
    let (planned, equidistant) = (sum(&written), sum(&equidistant));
    println!("{count} planned: {planned:.0} bytes; {count} equidistant: {equidistant:.0}");
    assert!(planned * LESS <= equidistant, "{written:?}, equidistant {equidistant}");
}

#[test]
fn a_planned_run_that_is_killed_goes_on_by_its_plan() {
    let planned = Planned::new("killed", 0.45);
    let stage = &planned.stage;
    let job =
        first_line(Job::start(stage.command_with(&planned.flags(), "multigrid", &ARGS)).unwrap()).unwrap();
    let begun = std::time::Instant::now();
    while stage.images().unwrap().is_empty() && begun.elapsed() < planned.took * 3 {
        std::thread::sleep(Duration::from_millis(50));
    }
    let before = stage.images().unwrap();
    stage.place().kill_everything(job).unwrap();
    let mut restart = stage.place().restart_command(before.last().unwrap());
    restart.args(planned.flags());
    let restarted = Job::start(restart).unwrap().finish().unwrap();
    assert_eq!(restarted.exit, Exit::Code(0), "{}", restarted.stderr);
    assert!(planned.stdout.ends_with(&restarted.stdout));
    assert!(stage.images().unwrap().len() > before.len(), "{}", restarted.stderr);
}

#[test]
fn without_a_profile_a_boundary_with_little_memory_is_waited_for() {
    let stage = Stage::new("online").unwrap();
    // They are a quarter of either time apart: half of what both together have.
    let took = undisturbed(&stage).as_secs_f64();
    let [between, offset] = [1.6, 0.2].map(|part| format!("{:.0}ms", took * part * 1e3));
    let flags = ["--mtbf-gpu", &between, "--mtbf-cpu", &between, "--offset", &offset];
    let ended = Job::start(stage.command_with(&flags, "multigrid", &ARGS)).unwrap().finish().unwrap();
    assert_eq!(ended.exit, Exit::Code(0), "{}", ended.stderr);
    let written = bytes(&stage);
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
    let planned = Planned::new("another", 0.3);
    // Longer than twice the interval of the plan.
    let args = ["700", "40"];
    let run = planned.stage.command_with(&planned.flags(), "vector_loop", &args);
    let ended = Job::start(run).unwrap().finish().unwrap();
    assert_eq!(ended.exit, Exit::Code(0), "{}", ended.stderr);
    assert!(ended.stderr.contains("is it a plan of another program"), "{}", ended.stderr);
}
