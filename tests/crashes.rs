//! A process is killed at some moment of a checkpoint: whatever is listed then is whole, and nobody is disturbed who was not killed, or lost his server or supervisor.
//!
//! `DORMOUSE_CRASHES` sets how many, `DORMOUSE_SEED` what the moments are drawn from.
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
/// As long as those who come with a checkpoint and go stay, about.
const VISIT: Duration = Duration::from_millis(40);
/// What is left of a delay in each try: a checkpoint, or who comes with it, may be over by then.
const TRIES: [f64; 4] = [1.0, 0.5, 0.25, 0.0];
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

    /// Whether it is there during checkpoints only.
    fn is_visitor(self) -> bool {
        matches!(self, Self::Copy | Self::Criu)
    }

    /// Whether this is its command line.
    fn is(self, words: &[&str]) -> bool {
        let program = |word: &&str| word.rsplit('/').next().unwrap_or_default().to_owned();
        match self {
            Self::Server => words.get(1) == Some(&"server"),
            Self::Application | Self::Copy => words.first().map(program).as_deref() == Some(GUEST),
            // The kit's is an argument of a loader of its own, until it says what it does.
            Self::Criu => words.iter().map(program).any(|name| name == "criu" || name.starts_with("criu: ")),
            Self::Supervisor | Self::Client => false,
        }
    }
}

#[test]
fn an_image_that_is_listed_is_whole_whoever_is_killed_when() {
    let number = |name, default| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (moments, from) = (number("DORMOUSE_CRASHES", MOMENTS), number("DORMOUSE_SEED", 1));
    let native = undisturbed().unwrap();
    let (next, failures) = (AtomicU32::new(0), Mutex::new(Vec::new()));
    let deaths = Victim::ALL.map(|_| AtomicU32::new(0));
    let work = || loop {
        let moment = next.fetch_add(1, Ordering::Relaxed);
        if moment >= moments {
            return;
        }
        let victim = Victim::ALL[moment as usize % Victim::ALL.len()];
        let mut seed = Seed::of_round(from.into(), GUEST, "crash", moment);
        let part = seed.fraction();
        let mut tries = TRIES.iter().map(|rest| crash(victim, part * rest, &native));
        let result = tries.find(|result| !matches!(result, Ok(false))).unwrap_or(Ok(false));
        match result {
            Ok(killed) => drop(deaths[victim as usize].fetch_add(killed.into(), Ordering::Relaxed)),
            Err(error) => {
                let failure = format!("moment {moment}, {victim:?}, after {part:.3} of its time: {error:#}");
                failures.lock().unwrap().push(failure);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..SIDE_BY_SIDE {
            scope.spawn(work);
        }
    });
    let failures = failures.into_inner().unwrap();
    assert!(failures.is_empty(), "{} of {moments}:\n{}", failures.len(), failures.join("\n"));
    println!("{:?} were killed in a checkpoint, so many of each: {deaths:?}", Victim::ALL);
    let mut with_turns = deaths.iter().take(moments as usize);
    assert!(with_turns.all(|deaths| deaths.load(Ordering::Relaxed) > 0), "{deaths:?}");
}

fn undisturbed() -> anyhow::Result<Vec<u8>> {
    Ok(Stage::new("undisturbed")?.started(GUEST, &ARGS)?.finish()?.stdout)
}

/// Kills one of them when such a part of a checkpoint, or of its own time in there, is over, and looks at what is left; whether it was there to be
/// killed, and the checkpoint was under way.
fn crash(victim: Victim, part: f64, native: &[u8]) -> anyhow::Result<bool> {
    let stage = Stage::new("crash")?;
    let place = stage.place();
    let job = stage.started(GUEST, &ARGS)?;
    let begun = Instant::now();
    let first = stage.checkpoint(After::LeaveRunning)?;
    let delay = if victim.is_visitor() { VISIT } else { begun.elapsed() }.mul_f64(part);
    let application =
        find(Victim::Application, &place.processes(&job)?).context("there is an application")?;
    let mut command = place.checkpoint_command(After::LeaveRunning);
    let mut checkpoint = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let others = || -> anyhow::Result<Vec<i32>> {
        Ok(place.processes(&job)?.into_iter().filter(|pid| *pid != application).collect())
    };
    // It may be over in the time that it takes to look for it again.
    let mut visitor = None;
    while victim.is_visitor() && visitor.is_none() && checkpoint.try_wait()?.is_none() {
        visitor = find(victim, &others()?);
        // The processors are the job's.
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(delay);
    let is_under_way = checkpoint.try_wait()?.is_none();
    let killed = match (victim, visitor) {
        (Victim::Supervisor, _) => Some(job.pid()),
        (Victim::Client, _) => is_under_way.then_some(checkpoint.id() as i32),
        (Victim::Application, _) => Some(application),
        (Victim::Server, _) => find(victim, &others()?),
        (Victim::Copy | Victim::Criu, visitor) => visitor,
    };
    let (all, listed) = (place.processes(&job)?, Instant::now());
    let killed = killed.map_or(Ok(false), kill)?;
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
        .map_err(|_| anyhow::anyhow!("the outputs do not fit: {}", again.stderr))?;
    Ok(killed && is_under_way)
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
