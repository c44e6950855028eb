//! A process is killed at some moment of a checkpoint: whatever is listed then is whole, and nobody is disturbed who was not killed, or lost his server or supervisor.
#![allow(clippy::unwrap_used)]

use std::process::Stdio;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use dormouse_tests::Stage;
use rustix::process::{Pid, Signal, kill_process};
use testkit::outcome::{Exit, fits};
use testkit::place::After;
use testkit::seed::Seed;
use testkit::tree::wait_until_gone;

/// Moments, unless `DORMOUSE_CRASHES` says how many; `cargo xtask soak` has 200.
const MOMENTS: u32 = 24;
/// Most of a moment is waiting.
const SIDE_BY_SIDE: u32 = 4;
/// Longer than a checkpoint of the guest takes here.
const CHECKPOINT: Duration = Duration::from_millis(700);
/// One that leaves the processors to checkpoints and restarts, and goes on for long enough, however fast they are.
const GUEST: &str = "paced";
const ARGS: [&str; 1] = ["250"];

/// Who is killed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Victim {
    Supervisor,
    Server,
    Application,
    /// What the application's memory is read from.
    Copy,
    Criu,
    /// `dormouse checkpoint`.
    Client,
}

impl Victim {
    const ALL: [Self; 6] =
        [Self::Supervisor, Self::Server, Self::Application, Self::Copy, Self::Criu, Self::Client];

    /// Whether this is its command line.
    fn is(self, words: &[&str]) -> bool {
        let program = words.first().and_then(|word| word.rsplit('/').next()).unwrap_or_default();
        match self {
            Self::Server => words.get(1) == Some(&"server"),
            Self::Application | Self::Copy => program == GUEST,
            Self::Criu => program == "criu",
            Self::Supervisor | Self::Client => false,
        }
    }
}

#[test]
fn an_image_that_is_listed_is_whole_whoever_is_killed_when() {
    let moments = std::env::var("DORMOUSE_CRASHES").map_or(MOMENTS, |text| text.parse().unwrap());
    let native = undisturbed().unwrap();
    let (next, failures) = (AtomicU32::new(0), Mutex::new(Vec::new()));
    let work = || loop {
        let moment = next.fetch_add(1, Ordering::Relaxed);
        if moment >= moments {
            return;
        }
        let victim = Victim::ALL[moment as usize % Victim::ALL.len()];
        let mut seed = Seed::of_round(1, GUEST, "crash", moment);
        let delay = CHECKPOINT.mul_f64(seed.fraction());
        if let Err(error) = crash(victim, delay, &native) {
            let failure = format!("moment {moment}, {victim:?} killed after {delay:?}: {error:#}");
            failures.lock().unwrap().push(failure);
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..SIDE_BY_SIDE {
            scope.spawn(work);
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {moments}:\n{}", failures.len(), failures.join("\n"));
}

fn undisturbed() -> anyhow::Result<Vec<u8>> {
    Ok(Stage::new("undisturbed")?.started(GUEST, &ARGS)?.finish()?.stdout)
}

fn crash(victim: Victim, delay: Duration, native: &[u8]) -> anyhow::Result<()> {
    let stage = Stage::new("crash")?;
    let place = stage.place();
    let job = stage.started(GUEST, &ARGS)?;
    let first = stage.checkpoint(After::LeaveRunning)?;
    let application =
        find(Victim::Application, &place.processes(&job)?).context("there is an application")?;
    let mut command = place.checkpoint_command(After::LeaveRunning);
    let checkpoint = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    std::thread::sleep(delay);
    let (all, listed) = (place.processes(&job)?, Instant::now());
    let others: Vec<i32> = all.iter().copied().filter(|pid| *pid != application).collect();
    let killed = match victim {
        Victim::Supervisor => kill(job.pid())?,
        Victim::Client => kill(checkpoint.id() as i32)?,
        Victim::Application => kill(application)?,
        other => match find(other, &others) {
            Some(pid) => kill(pid)?,
            None => false,
        },
    };
    let output = checkpoint.wait_with_output().context("cannot wait for dormouse checkpoint")?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    ensure!(!said.contains("panicked"), "{said}");
    let finished = job.finish()?;
    match victim {
        Victim::Supervisor => {}
        Victim::Server | Victim::Application if killed => {
            let cut_short = native.starts_with(&finished.stdout);
            ensure!(cut_short && finished.exit != Exit::Code(0), "{}: {}", finished.exit, finished.stderr);
        }
        _ => {
            let undisturbed = finished.exit == Exit::Code(0) && finished.stdout == native;
            ensure!(undisturbed, "the job was disturbed: {}: {}", finished.exit, finished.stderr);
        }
    }
    wait_until_gone(&all, listed, Duration::from_secs(10))?;
    let images = stage.images()?;
    ensure!(images.first() == Some(&first), "the image from before is lost: {images:?}");
    ensure!(!output.status.success() || images.len() == 2, "an image that was told of is lost: {said}");
    for image in &images {
        let mut verify = place.dormouse("verify");
        let verified = verify.arg("--store").arg(place.store()).arg(image).output()?;
        ensure!(verified.status.success(), "{image}: {}", String::from_utf8_lossy(&verified.stderr));
    }
    let newest = images.last().context("there is an image")?;
    let again = place.restart(newest)?.finish()?;
    ensure!(again.exit == Exit::Code(0), "the restart: {}: {}", again.exit, again.stderr);
    // What was printed by then is a beginning of all, and what came after the restart an end.
    fits(native, &[&finished.stdout, &again.stdout], false)
        .map_err(|_| anyhow::anyhow!("the outputs do not fit: {}", again.stderr))
}

/// The process of the job, if there is one at this moment.
fn find(victim: Victim, all: &[i32]) -> Option<i32> {
    all.iter().copied().find(|pid| {
        let line = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        victim.is(&line.split('\0').collect::<Vec<_>>())
    })
}

/// False when it is gone.
fn kill(pid: i32) -> anyhow::Result<bool> {
    let pid = Pid::from_raw(pid).context("a process has a pid")?;
    match kill_process(pid, Signal::KILL) {
        Ok(()) => Ok(true),
        Err(rustix::io::Errno::SRCH) => Ok(false),
        Err(error) => bail!("cannot kill: {error}"),
    }
}
