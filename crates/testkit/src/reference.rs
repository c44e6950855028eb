//! The run that others are compared with.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, bail};

use crate::job::{Finished, Job};
use crate::kit::Kit;
use crate::manifest::Guest;
use crate::outcome::{Outcome, files};
use crate::place::{Device, Place};

/// How often the reference is run; all must agree. Nested, the guests are those of the software device, which are compared there.
fn runs(device: Device) -> usize {
    match device {
        Device::Gpu => 3,
        Device::Soft => 2,
        Device::Nested => 1,
    }
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
    /// the software device. On a GPU the run under Dormouse is then compared with the native ones.
    pub fn measure(
        kit: &Kit,
        device: Device,
        guest: &Guest,
        folder: &Path,
        job: &str,
    ) -> anyhow::Result<Self> {
        let run = |native: bool, index: usize| -> anyhow::Result<(Outcome, Finished)> {
            let folder = folder.join(format!("reference-{}{index}", if native { "native-" } else { "" }));
            let place = Place {
                kit,
                device,
                name: job,
                managed: guest.managed,
                device_memory: guest.device_memory(device == Device::Gpu),
                folder: &folder,
            };
            std::fs::create_dir_all(place.cwd()).context("cannot make a working directory")?;
            let program = kit.guest(guest.program());
            let args = guest.args(device == Device::Gpu);
            let job = if native { place.run_natively(&program, args)? } else { place.run(&program, args)? };
            finish(job, guest, &place)
        };

        let native = device == Device::Gpu;
        let (outcome, first) = run(native, 0)?;
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
        for index in 1..runs(device) {
            let (again, finished) = run(native, index)?;
            took.push(finished.took);
            if let Some(difference) = again.difference(&outcome) {
                bail!("rejected: undisturbed runs of {} differ: {difference}", guest.name);
            }
        }
        if !native {
            return Ok(Self { outcome, native: None, took: first.took, window: first.window });
        }
        let (under, finished) = run(false, 0)?;
        if let Some(difference) = under.difference(&outcome) {
            bail!("under Dormouse: {difference}\nstderr: {}", finished.stderr);
        }
        took.sort();
        Ok(Self {
            outcome,
            native: took.get(took.len() / 2).copied(),
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
