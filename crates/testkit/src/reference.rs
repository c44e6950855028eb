//! The run that others are compared with.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};

use crate::job::{Finished, Job};
use crate::kit::Kit;
use crate::manifest::Guest;
use crate::outcome::{Outcome, files};
use crate::place::{Device, Place};
use crate::served::Served;

/// How often the reference is run; all must agree. On a GPU, where guests are new to it; else each scenario's own run is compared with one.
fn runs(device: Device, served: Option<&Served>) -> usize {
    if device == Device::Gpu && served.is_none() { 3 } else { 1 }
}

/// How a guest is run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Without Dormouse.
    Natively,
    /// Under Dormouse, on this machine's device.
    Here,
    /// Under Dormouse, where it is asked to.
    Asked,
}

/// What an undisturbed guest leaves, and how long it takes.
#[derive(Debug, Clone)]
pub struct Reference {
    /// What it leaves.
    pub outcome: Outcome,
    /// From the start to the end of a run without Dormouse, the median; `None` without a GPU, where there is no such run.
    pub native: Option<Duration>,
    /// From its start to its end under Dormouse.
    pub took: Duration,
    /// From its first line to its last, under Dormouse.
    pub window: Duration,
}

impl Reference {
    /// Runs a guest a few times undisturbed and rejects it when the runs differ: natively on a GPU, under Dormouse on
    /// the software device. The run under Dormouse on a GPU, or with another machine's device, is then compared with those.
    pub fn measure(
        kit: &Kit,
        (device, served): (Device, Option<&Served>),
        guest: &Guest,
        folder: &Path,
        job: &str,
    ) -> anyhow::Result<Self> {
        let gpu = device == Device::Gpu;
        let run = |way: Way, index: usize| -> anyhow::Result<(Outcome, Finished)> {
            let folder = folder.join(format!("reference-{way:?}-{index}"));
            let place = Place {
                kit,
                device,
                served: served.filter(|_| way == Way::Asked),
                name: job,
                managed: guest.managed,
                device_memory: guest.device_memory(gpu),
                folder: &folder,
            };
            std::fs::create_dir_all(place.cwd()).context("cannot make a working directory")?;
            let program = kit.guest(guest.program());
            let args = guest.args(gpu);
            let job = match way {
                Way::Natively => place.run_natively(&program, args)?,
                Way::Here | Way::Asked => place.run(&program, args)?,
            };
            finish(job, guest, &place)
        };

        let way = if gpu { Way::Natively } else { Way::Here };
        let (outcome, first) = run(way, 0)?;
        if outcome.exit != guest.ends {
            let last = String::from_utf8_lossy(&outcome.stdout);
            bail!(
                "rejected: {} ended with {}, undisturbed, after: {}\nstderr: {}",
                guest.name,
                outcome.exit,
                last.lines().last().unwrap_or_default(),
                first.stderr
            );
        }
        let mut took = vec![first.took];
        for index in 1..runs(device, served) {
            let (again, finished) = run(way, index)?;
            took.push(finished.took);
            if let Some(difference) = again.difference(&outcome) {
                bail!("rejected: undisturbed runs of {} differ: {difference}", guest.name);
            }
        }
        if !gpu && served.is_none() {
            return Ok(Self { outcome, native: None, took: first.took, window: first.window });
        }
        let (under, finished) = run(Way::Asked, 0)?;
        if let Some(difference) = under.difference(&outcome) {
            bail!("under Dormouse: {difference}\nstderr: {}", finished.stderr);
        }
        took.sort();
        Ok(Self {
            outcome,
            native: took.get(took.len() / 2).copied().filter(|_| gpu),
            took: finished.took,
            window: finished.window,
        })
    }
}

/// Waits for a job and gathers what it left.
pub fn finish(job: Job, guest: &Guest, place: &Place<'_>) -> anyhow::Result<(Outcome, Finished)> {
    let finished = job.finish()?;
    let outcome = Outcome {
        stdout: finished.stdout.clone(),
        exit: finished.exit,
        files: files(&place.cwd(), &guest.files),
    };
    Ok((outcome, finished))
}
