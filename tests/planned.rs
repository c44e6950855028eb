//! Checkpoints where a program has little memory, on whatever device: planned by a profile of it, and beside as many at equal distances.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;
use testkit::job::{Finished, Job};
use testkit::outcome::Exit;
use testkit::place::Device;

use crate::{Body, Stage};

/// Every body, and what it is called.
pub const ALL: &[(&str, Body)] =
    &[("a_planned_run_writes_a_third_of_an_equidistant_one", writes_less_than_equidistant)];

/// How much less is written than at equidistant times.
const LESS: f64 = 3.0;

/// Arguments of the guest for some seconds.
#[must_use]
pub fn args(device: Device) -> [&'static str; 2] {
    match device {
        Device::Gpu => ["60", "200"],
        _ => ["8", "64"],
    }
}

/// A profile of the guest `multigrid`, and a plan made of it.
#[derive(Debug)]
pub struct Planned {
    /// Where it was made.
    pub stage: Stage,
    /// The plan's file.
    pub plan: PathBuf,
    /// What the guest printed.
    pub stdout: Vec<u8>,
    /// How long it took.
    pub took: Duration,
    device: Device,
}

impl Planned {
    /// Profiles the guest, and plans checkpoints no further apart than such a part of the run.
    ///
    /// # Errors
    /// Whatever went wrong.
    pub fn new(device: Device, name: &str, part: f64) -> anyhow::Result<Self> {
        let stage = Stage::on(device, name)?;
        let [profile, plan] =
            ["multigrid.profile", "multigrid.plan"].map(|name| stage.place().cwd().join(name));
        let flags = ["--profile".as_ref(), profile.as_os_str()];
        let ended = finish(stage.command_with(&flags, "multigrid", &args(device)))?;
        let shown = json(stage.place().dormouse("profile").args(["show", "--json"]).arg(&profile))?;
        let ms = shown["ms"].as_f64().context("a profile has a length")? * part;
        let mut planning = stage.place().dormouse("plan");
        planning.arg(&profile).args(["--mtbf-gpu", "40h", "--mtbf-cpu", "40h", "--json"]);
        planning.args(["--interval", &format!("{ms:.0}ms")]).arg("-o").arg(&plan);
        json(&mut planning)?;
        Ok(Self { plan, stdout: ended.stdout, took: ended.took, stage, device })
    }

    /// The flags that have a run follow the plan.
    #[must_use]
    pub fn flags(&self) -> [&std::ffi::OsStr; 2] {
        ["--plan".as_ref(), self.plan.as_os_str()]
    }

    /// A run that follows the plan.
    #[must_use]
    pub fn command(&self) -> Command {
        self.stage.command_with(&self.flags(), "multigrid", &args(self.device))
    }

    /// A restart of an image of it, which goes on by the plan; checks what it prints.
    ///
    /// # Errors
    /// When that is not the end of what was printed before.
    pub fn restart(&self, image: &str) -> anyhow::Result<Finished> {
        let mut restart = self.stage.place().restart_command(image);
        restart.args(self.flags());
        let restarted = finish(restart)?;
        ensure!(self.stdout.ends_with(&restarted.stdout), "image {image} goes on otherwise");
        Ok(restarted)
    }
}

/// Runs a program to its end, which has to be a good one.
///
/// # Errors
/// When it is not.
pub fn finish(command: Command) -> anyhow::Result<Finished> {
    let ended = Job::start(command)?.finish()?;
    ensure!(ended.exit == Exit::Code(0), "{:?}: {}", ended.exit, ended.stderr);
    Ok(ended)
}

/// Bytes of each image of a stage, each for itself, in their order.
///
/// # Errors
/// When they cannot be listed.
pub fn bytes(stage: &Stage) -> anyhow::Result<Vec<f64>> {
    let listing = json(stage.place().dormouse("ls").arg("--json").arg("--store").arg(stage.place().store()))?;
    let images = listing["images"].as_array().context("a listing has images")?;
    images.iter().map(|image| image["stored"]["data"].as_f64().context("an image has bytes")).collect()
}

fn json(command: &mut Command) -> anyhow::Result<Value> {
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    Ok(serde_json::from_str(&said)?)
}

fn writes_less_than_equidistant(device: Device) -> anyhow::Result<()> {
    let planned = Planned::new(device, "planned", 0.3)?;
    let ended = finish(planned.command())?;
    ensure!(ended.stdout == planned.stdout, "it printed something else");
    let written = bytes(&planned.stage)?;
    ensure!(written.len() >= 2, "{written:?}: {}", ended.stderr);
    for image in planned.stage.images()? {
        planned.restart(&image)?;
    }
    // At equal distances, which are no multiple of a cycle of the guest: all would be at the same place of one. On a machine that is busier by then there are more of them.
    let other = Stage::on(device, "equidistant")?;
    let every = planned.took.mul_f64(0.23);
    let every = format!("{}ms", every.as_millis().max(1000));
    let mut equidistant = Vec::new();
    while equidistant.len() < 4 {
        let ended = finish(other.command_with(&["--every", &every], "multigrid", &args(device)))?;
        ensure!(ended.stdout == planned.stdout, "it printed something else");
        let before = equidistant.len();
        equidistant = bytes(&other)?;
        ensure!(equidistant.len() > before, "{equidistant:?}: {}", ended.stderr);
    }
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len() as f64;
    println!(
        "planned checkpoints, each: {:.0} bytes; equidistant: {:.0}",
        mean(&written),
        mean(&equidistant)
    );
    ensure!(mean(&written) * LESS <= mean(&equidistant), "{written:?}, equidistant {equidistant:?}");
    Ok(())
}
