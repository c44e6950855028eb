//! What is done to a guest while it runs, and what must come out all the same.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use crate::job::{Job, LIMIT};
use crate::kit::Kit;
use crate::manifest::{Guest, Set};
use crate::outcome::{Outcome, fits};
use crate::place::{After, Checkpoint, Device, Place, Report, Suspension};
use crate::reference::{Reference, finish};
use crate::seed::Seed;
use crate::served::Served;

/// A way to disturb a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Scenario {
    /// A checkpoint, and the guest runs on to its end.
    Checkpoint,
    /// A checkpoint, or two of which the second reads only what has changed, then everything is killed and the last image restarted.
    #[value(name = "restart")]
    KillAndRestart,
    /// The same three times in a row, each image taken from the job restarted from the one before.
    Chain,
    /// Suspended and resumed, once or twice; or once, and then stopped by a checkpoint and restarted.
    Suspend,
    /// Five checkpoints (fewer, but two, of a guest that is too short), of which each reads what has changed since the one before; behind the last everything is
    /// killed and that image restarted.
    Stops,
    /// From the GPU to the software device and back again, with a checkpoint on either.
    Devices,
}

/// How many checkpoints [`Scenario::Stops`] has before its last one.
const STOPS: usize = 4;

impl Scenario {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Checkpoint, Self::KillAndRestart, Self::Chain, Self::Suspend, Self::Stops, Self::Devices];

    /// Those of them that CI has time for, of the guest with such a number: in a chain happens what a restart is, and in place every other guest goes on
    /// behind a checkpoint, of marked ones behind several, the others behind a suspension.
    pub fn in_ci(number: usize, set: Set) -> [Self; 2] {
        let in_place = match (number % 2, set) {
            (0, Set::Marked) => Self::Stops,
            (0, _) => Self::Checkpoint,
            _ => Self::Suspend,
        };
        [Self::Chain, in_place]
    }

    /// Its name, in tables and test names.
    pub fn name(self) -> &'static str {
        match self {
            Self::Checkpoint => "checkpoint",
            Self::KillAndRestart => "restart",
            Self::Chain => "chain",
            Self::Suspend => "suspend",
            Self::Stops => "stops",
            Self::Devices => "devices",
        }
    }

    /// Whether it can be done to a guest on this machine's GPU, or on another device.
    pub fn suits(self, guest: &Guest, on_gpu: bool) -> bool {
        self != Self::Devices || (on_gpu && guest.devices)
    }

    /// How many times the job is restarted.
    fn restarts(self) -> usize {
        match self {
            Self::Checkpoint | Self::Suspend => 0,
            Self::KillAndRestart | Self::Stops => 1,
            Self::Devices => 2,
            Self::Chain => 3,
        }
    }

    /// Where the job goes on after so many restarts, that began on `device`.
    fn device(self, device: Device, restarts: usize) -> Device {
        if self == Self::Devices && restarts % 2 == 1 { Device::Soft } else { device }
    }
}

/// A guest on a device, with the run that its rounds are compared with.
#[derive(Debug)]
pub struct Case<'a> {
    /// The programs under test.
    pub kit: &'a Kit,
    /// Where calls go.
    pub device: Device,
    /// Whose device it is, if it is another machine's.
    pub served: Option<&'a Served>,
    /// The guest.
    pub guest: &'a Guest,
    /// Its undisturbed run.
    pub reference: &'a Reference,
    /// The job's name.
    pub job: &'a str,
    /// Where stores and working directories are made.
    pub folder: &'a Path,
}

/// How one attempt at a round went, when nothing was wrong.
enum Attempt {
    Done(Vec<Report>),
    /// The guest had finished before its checkpoint: nothing was tested.
    TooLate,
}

/// How often a round is tried with an earlier moment before it counts as failed.
const ATTEMPTS: u32 = 12;

/// Waits until a job that was restarted can be asked; whether it has not ended before that.
fn is_there(job: &mut Job, place: &Place<'_>) -> anyhow::Result<bool> {
    let deadline = Instant::now() + LIMIT;
    while !place.is_listed(job)? {
        if job.has_ended()? {
            return Ok(false);
        }
        ensure!(Instant::now() < deadline, "not restarted after {LIMIT:?}: {:?}", job.stderr.so_far());
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(true)
}

impl Case<'_> {
    /// Runs one round and answers with the reports of its checkpoints.
    ///
    /// The moment of each checkpoint is random, between the guest's first and last line. A round that finds the guest
    /// finished does not count and is tried again with an earlier moment.
    pub fn round(&self, scenario: Scenario, seed: &Seed) -> anyhow::Result<Vec<Report>> {
        for attempt in 0..ATTEMPTS {
            let folder = self.folder.join(format!("{}-{attempt}", scenario.name()));
            let place = Place {
                kit: self.kit,
                device: self.device,
                served: self.served,
                name: self.job,
                managed: self.guest.managed,
                device_memory: self.guest.device_memory(self.device == Device::Gpu),
                folder: &folder,
            };
            std::fs::create_dir_all(place.cwd()).context("cannot make a working directory")?;
            let result = self.attempt(scenario, &place, &mut seed.clone(), attempt);
            std::fs::remove_dir_all(&folder).context("cannot remove a round's folder")?;
            match result? {
                Attempt::Done(reports) => return Ok(reports),
                Attempt::TooLate => {}
            }
        }
        bail!("the guest was finished before its checkpoint in {ATTEMPTS} attempts: it is too short")
    }

    fn attempt(
        &self,
        scenario: Scenario,
        place: &Place<'_>,
        seed: &mut Seed,
        number: u32,
    ) -> anyhow::Result<Attempt> {
        let program = self.kit.guest(self.guest.program());
        let mut job = place.run(&program, self.guest.args(self.device == Device::Gpu))?;
        let hurry = 0.6f64.powi(number as i32);
        if scenario == Scenario::Suspend {
            return self.suspended(job, place, seed, hurry);
        }
        let mut reports = Vec::new();
        let mut pieces: Vec<Vec<u8>> = Vec::new();
        let cuts = scenario.restarts().max(1);
        let mut exact = true;

        for cut in 0..cuts {
            // On the software device a launch meant for a GPU may take hours: there the job is there once it can be asked.
            let there = match scenario.device(self.device, cut) {
                device if device == self.device => job.stdout.wait_for_line(LIMIT),
                _ => is_there(&mut job, place)?,
            };
            if !there {
                return self.too_late(job, place);
            }
            // Several moments are spread over the run.
            let before = match scenario {
                Scenario::Stops => STOPS.saturating_sub(number as usize / 2).max(1),
                _ => 0,
            };
            let part = self.reference.window.mul_f64(hurry / (cuts + before) as f64);
            for _ in 0..before {
                std::thread::sleep(part.mul_f64(seed.fraction()));
                match self.checkpoint(place, After::LeaveRunning)? {
                    Some(report) => reports.push(report),
                    None => return self.too_late(job, place),
                }
            }
            std::thread::sleep(part.mul_f64(seed.fraction()));
            let stop = matches!(scenario, Scenario::Chain | Scenario::Devices) && seed.coin();
            exact &= stop;
            let printed = job.stdout.so_far().len();
            // Where the guest is long enough for two.
            let is_first =
                matches!(scenario, Scenario::KillAndRestart | Scenario::Chain) && pieces.is_empty();
            if is_first && hurry == 1.0 && seed.coin() {
                match self.checkpoint(place, After::LeaveRunning)? {
                    Some(report) => reports.push(report),
                    None => return self.too_late(job, place),
                }
            }
            let after = if stop { After::Stop } else { After::LeaveRunning };
            let Some(report) = self.checkpoint(place, after)? else { return self.too_late(job, place) };
            if scenario == Scenario::Checkpoint {
                if printed >= self.reference.outcome.stdout.len() {
                    return self.too_late(job, place);
                }
                reports.push(report);
                break;
            }
            pieces.push(if stop {
                job.finish()?.stdout
            } else {
                std::thread::sleep(Duration::from_millis(seed.draw() % 60));
                place.kill_everything(job)?
            });
            let device = scenario.device(self.device, cut + 1);
            job = Place { device, ..*place }.restart(&report.image)?;
            reports.push(report);
        }

        let (mut outcome, finished) = finish(job, self.guest, place)?;
        if scenario != Scenario::Checkpoint
            && outcome.stdout.is_empty()
            && outcome.exit == self.reference.outcome.exit
        {
            // Nothing was left to print: the checkpoint came after the last line.
            return Ok(Attempt::TooLate);
        }
        pieces.push(std::mem::take(&mut outcome.stdout));
        self.compare(outcome, &pieces, exact).with_context(|| format!("stderr: {}", finished.stderr))?;
        Ok(Attempt::Done(reports))
    }

    /// Suspends the guest and resumes it. It may be stopped and restarted behind that, so that what was resumed is seen to be whole.
    fn suspended(
        &self,
        mut job: Job,
        place: &Place<'_>,
        seed: &mut Seed,
        hurry: f64,
    ) -> anyhow::Result<Attempt> {
        let (mut reports, mut pieces) = (Vec::new(), Vec::new());
        for turn in 0..2 {
            if !job.stdout.wait_for_line(LIMIT) {
                return self.too_late(job, place);
            }
            std::thread::sleep(self.reference.window.mul_f64(seed.fraction() * hurry / 2.0));
            if turn == 1 && seed.coin() {
                // The guest may be nearly over: what counts was done.
                let Some(report) = self.checkpoint(place, After::Stop)? else { break };
                pieces.push(job.finish()?.stdout);
                job = place.restart(&report.image)?;
                reports.push(report);
                break;
            }
            match place.suspend()? {
                Suspension::Suspended => {}
                Suspension::Ended if turn == 0 => return self.too_late(job, place),
                Suspension::Ended => break,
                // Its last kernel has faulted: the end is near.
                Suspension::Refused(_) if self.guest.faults => return self.too_late(job, place),
                Suspension::Refused(why) => bail!("the suspension was refused: {why}"),
            }
            let servers = place.servers(&job)?;
            ensure!(servers.is_empty(), "GPU servers are left when the job is suspended: {servers:?}");
            std::thread::sleep(Duration::from_millis(seed.draw() % 60));
            place.resume()?;
        }
        let (mut outcome, finished) = finish(job, self.guest, place)?;
        pieces.push(std::mem::take(&mut outcome.stdout));
        self.compare(outcome, &pieces, true).with_context(|| format!("stderr: {}", finished.stderr))?;
        Ok(Attempt::Done(reports))
    }

    /// A checkpoint; `None` where it came too late.
    fn checkpoint(&self, place: &Place<'_>, after: After) -> anyhow::Result<Option<Report>> {
        match place.checkpoint(after)? {
            Checkpoint::Published(report) => Ok(Some(report)),
            Checkpoint::Ended => Ok(None),
            // Its last kernel has faulted: the end is near.
            Checkpoint::Refused(_) if self.guest.faults => Ok(None),
            Checkpoint::Refused(why) => bail!("the checkpoint was refused: {why}"),
        }
    }

    /// The guest was over before its checkpoint; it must have ended well all the same.
    fn too_late(&self, job: Job, place: &Place<'_>) -> anyhow::Result<Attempt> {
        let (outcome, finished) = finish(job, self.guest, place)?;
        ensure!(
            self.reference.outcome.stdout.ends_with(&outcome.stdout)
                && outcome.exit == self.reference.outcome.exit,
            "the job ended before its time: {}, {} bytes printed\nstderr: {}",
            outcome.exit,
            outcome.stdout.len(),
            finished.stderr
        );
        Ok(Attempt::TooLate)
    }

    fn compare(&self, mut outcome: Outcome, pieces: &[Vec<u8>], exact: bool) -> anyhow::Result<()> {
        let reference = &self.reference.outcome;
        let views: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        if fits(&reference.stdout, &views, exact).is_ok() {
            // What fits adds up to the reference's output; exit code and files are left to compare.
            outcome.stdout.clone_from(&reference.stdout);
        } else {
            outcome.stdout = pieces.concat();
            if let [_, _, ..] = pieces {
                let pieces: Vec<_> = pieces.iter().map(|piece| String::from_utf8_lossy(piece)).collect();
                bail!("the outputs before and after the restarts do not add up: {pieces:#?}");
            }
        }
        match outcome.difference(reference) {
            Some(difference) => bail!("{difference}"),
            None => Ok(()),
        }
    }
}
