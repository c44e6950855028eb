//! `dormouse restart`

use super::{again, free, profile_file, remote, store_access, target, tell_of_far_memory};
use crate::exit::OWN_FAILURE;
use crate::flags::{self, Restart};
use crate::notify::{Part, Waiting};
use crate::output::{Show, command_line, complain, finish, tell_end};
use checkpoint::admin::Event;
use checkpoint::gpus::Gpus;
use checkpoint::restart::{self, Progress};
use checkpoint::starting::{Name, Settings};
use checkpoint::supervisor::Ended;
use checkpoint::{Failure, Preparing, runtime};
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use store::Access;

/// How often the bar is drawn when nothing is read: GPU servers and CRIU are at work.
const TICK: Duration = Duration::from_millis(100);

/// How much is shown of a command, characters.
const COMMAND: usize = 200;

/// How long a job may take to end that goes on in this process.
const END: Duration = Duration::from_secs(60);

/// An image that can be restarted here.
#[derive(Serialize)]
pub struct Restartable {
    /// Its id.
    pub image: String,
    /// The job's name when it was taken.
    pub job: String,
    /// Where calls would go.
    pub device: String,
    /// What the program would find otherwise.
    pub warnings: Vec<String>,
}

/// Continues a job from an image and ends as it does, or finds out whether that can be done.
pub fn run(flags: Restart) -> ExitCode {
    if flags.check {
        return finish(flags.json, check(&flags));
    }
    let (on_failure, by_hand) = (flags.on_failure.clone(), again::by_hand(&flags));
    // Whoever has started this, if he wants to know. A job that has ended for this one has nobody else.
    let part = match (flags.after, flags.arriving) {
        (Some(_), _) => Part::MayMiss,
        (None, false) => Part::Hears,
        (None, true) => Part::Decides,
    };
    let waiting = match Waiting::of_environment(part) {
        Ok(waiting) => waiting.map(Arc::new),
        Err(failure) => {
            complain(&failure);
            return ExitCode::from(OWN_FAILURE);
        }
    };
    match start(flags, waiting.clone()) {
        Ok((ended, from)) => {
            again::restart(&ended, &on_failure, Some(&from));
            tell_end(&ended);
            ended.ending.exit_like_it()
        }
        Err(failure) => {
            waiting.into_iter().for_each(|waiting| waiting.hears_of(&failure));
            complain(&failure);
            if let Some(command) = by_hand {
                eprintln!("dormouse: the job is not continued; when that is mended, '{command}' does");
            }
            ExitCode::from(OWN_FAILURE)
        }
    }
}

fn check(flags: &Restart) -> Result<Restartable, Failure> {
    let restart = restart::Restart::open(&store_access(&flags.store)?, &flags.image)?;
    let device = device_for(flags, &restart)?;
    let limits = (shared_memory_for(flags, &restart), device_memory_for(flags, &restart));
    let gpus = gpus_for(flags, &restart, &device)?;
    let (_, warning) = restart.managed(flags.machine.managed)?;
    let mut warnings = restart.check(&device, limits, gpus, flags.may_run)?;
    warnings.extend(warning);
    let name = flags.name.as_deref().unwrap_or(restart.job());
    if !flags.may_run && runtime::find(&runtime::root(), name).is_ok() {
        return Err(runtime::name_in_use(name));
    }
    Ok(Restartable { image: restart.image().to_string(), job: restart.job().to_owned(), device, warnings })
}

/// Runs it; also tells the image, whole.
fn start(flags: Restart, waiting: Option<Arc<Waiting>>) -> Result<(Ended, String), Failure> {
    let io = |error: io::Error| Failure::of("cannot prepare the job", &error);
    // Before any thread exists: signals are waited for, not handled.
    let signals = host::signals::Forwarder::block().map_err(io)?;
    let preparing = Preparing::begin(&signals).map_err(io)?;
    let stdio = host::Stdio::take().map_err(io)?;
    let store = store_access(&flags.store)?;
    let restart = if flags.on_failure.fruitless > 0 {
        flags.machine.gpu.as_ref().map_or(Ok(()), remote::await_machine)?;
        again::open_when_free(|| open(&store, &flags))?
    } else {
        open(&store, &flags)?
    };
    tell_which(&flags.image, &restart);
    let restart = restart.lazily(flags.lazy);
    let restart = match waiting {
        Some(waiting) => restart.telling(waiting),
        None => restart,
    };
    let profile = profile_file(&flags.record, &[flags.regularly.plan.as_ref(), flags.trace.trace.as_ref()])?;
    let (managed, warning) = restart.managed(flags.machine.managed)?;
    warning.into_iter().for_each(|warning| tracing::warn!("{warning}"));
    tell_of_far_memory(&flags.machine, managed);
    let device = device_for(&flags, &restart)?;
    let regularly = flags.regularly.wanted()?;
    if regularly.is_none() && restart.summary().regular && !flags.arriving {
        tracing::warn!(
            "this image was taken regularly, and no more are from now on: `dormouse restart` takes `--every`, `--plan` and `--mtbf-gpu`, too"
        );
    }
    let settings = Settings {
        point_wait: flags.regularly.point_wait(),
        managed,
        preempt_after: flags.machine.preempt_after.map_or_else(|| restart.preempt_after(), |turn| turn.0),
        gpus: gpus_for(&flags, &restart, &device)?,
        device,
        name: Name::Exactly(flags.name.clone().unwrap_or_else(|| restart.job().to_owned())),
        store,
        store_is_default: flags.store.store.is_none(),
        shared_memory: shared_memory_for(&flags, &restart),
        device_memory: device_memory_for(&flags, &restart),
        trace: flags.trace.trace.clone(),
        regularly,
        profile,
        continued: flags.on_failure.restart_on_failure.is_some(),
    };
    let from = restart.image().to_string();
    flags.after.into_iter().for_each(wait_for_end);
    Ok((restart.run(settings, stdio, signals, preparing, progress())?, from))
}

fn open(store: &Access, flags: &Restart) -> Result<restart::Restart, Failure> {
    match flags.image.parse() {
        Ok(image) if flags.arriving => restart::Restart::open_arriving(store, &image),
        _ => restart::Restart::open(store, &flags.image),
    }
}

/// Says what a name stands for, which other programs may have had before: on the user's terminal, else in the log.
fn tell_which(reference: &str, restart: &restart::Restart) {
    let store::report::ImageSummary { id, job, created, command, .. } = restart.summary();
    if reference.strip_suffix("@latest").unwrap_or(reference) != job {
        return;
    }
    let command: String = command_line(&command).chars().take(COMMAND).collect();
    let which = format!("{job} is image {}, of {created}: {command}", id.short());
    if io::stderr().is_terminal() {
        eprintln!("dormouse: {which}");
    } else {
        tracing::info!("{which}");
    }
}

/// Waits for the end of the job that this process has.
fn wait_for_end(supervisor: u32) {
    let root = runtime::root();
    let jobs = runtime::list(&root).unwrap_or_default();
    let job = jobs.iter().find(|job| job.supervisor == supervisor);
    // If it has not ended by then, that is told when its name is wanted.
    job.into_iter().for_each(|job| runtime::wait_until_gone(&root, job, END));
}

/// A bar on the user's terminal, for as long as it is the user's; standard output is the program's alone.
fn progress() -> Progress {
    if !io::stderr().is_terminal() {
        return Box::new(|_| {});
    }
    let style = ProgressStyle::with_template("{msg:24} {wide_bar} {bytes}/{total_bytes} {elapsed}");
    let bar = ProgressBar::new(0)
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        .with_finish(ProgressFinish::AndClear);
    Box::new(move |event| match event {
        Event::Step { step } => {
            bar.set_message(step.clone());
            bar.enable_steady_tick(TICK);
        }
        Event::Progress { done, total } => {
            bar.set_length(*total);
            // Several threads tell, in no order.
            bar.set_position(bar.position().max(*done));
        }
        _ => {}
    })
}

/// Without a wish the job gets as much as it had.
fn shared_memory_for(flags: &Restart, restart: &restart::Restart) -> u64 {
    flags.machine.shared_memory.unwrap_or_else(|| restart.shared_memory())
}

/// The same.
fn device_memory_for(flags: &Restart, restart: &restart::Restart) -> Option<u64> {
    flags.machine.device_memory.or_else(|| restart.device_memory())
}

/// Without a wish the job goes back to the sort of device it was on.
fn device_for(flags: &Restart, restart: &restart::Restart) -> Result<String, Failure> {
    match (flags.machine.device, &flags.machine.gpu) {
        (flags::Device::Auto, None) => Ok(restart.device().to_owned()),
        _ => target(&flags.machine),
    }
}

/// The GPUs that the job has here.
fn gpus_for(flags: &Restart, restart: &restart::Restart, device: &str) -> Result<Gpus, Failure> {
    let asked = free::these(flags.visible.devices.as_ref(), device, restart.first_gpus())?;
    Ok(restart.gpus(asked.as_ref()))
}

impl Show for Restartable {
    fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "image {} of job {} can be restarted here", self.image, self.job)?;
        self.warnings.iter().try_for_each(|warning| writeln!(out, "warning: {warning}"))
    }
}
