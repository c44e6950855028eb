//! `dormouse checkpoint`

use super::access;
use crate::flags::{self, Checkpoint};
use crate::output::Show;
use checkpoint::admin::{self, Asked, CheckpointOptions, Event, Report, Request};
use checkpoint::{Failure, Kind, runtime};
use host::signals;
use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// How long the supervisor of a stopped job may take to end: a restart may follow at once.
const SUPERVISOR_END: Duration = Duration::from_secs(10);

/// How long whoever is to end waits for the supervisor's first word, which comes at once unless that is suspended.
const FIRST_WORD: Duration = Duration::from_secs(2);

#[derive(Serialize)]
#[serde(transparent)]
pub struct Published(Report);

/// Asks the job's supervisor for a checkpoint and shows how it goes.
pub fn run(flags: &Checkpoint) -> Result<Published, Failure> {
    let root = runtime::root();
    let job = runtime::find(&root, &flags.job)?;
    let store = flags.store.clone();
    let options = CheckpointOptions {
        stop: flags.stop,
        gate_deadline_ms: flags.patience.gate_deadline_ms(),
        retries: flags.patience.retries,
        compress: flags.compress.into(),
        memory: flags.memory_limit,
        threads: flags.threads,
        paranoid: flags.paranoid,
        store: store.map(|at| access(at, &flags.key, &flags.encrypt)).transpose()?,
        point_wait_ms: flags.point_wait.map(|seconds| (seconds * 1000.0) as u64),
        ..CheckpointOptions::default()
    };
    let shown = bar(!flags.json.json);
    let is_heard = tell_at_end(&shown, &job.job, flags.stop)?;
    let ask = || {
        let mut is_heard = locked(&is_heard);
        let mut asked = Asked::of(&runtime::admin_socket(&root, &job.job), &Request::Checkpoint(options))?;
        let first = asked.until(|_| true, |event| follow(&shown, event))?;
        *is_heard = true;
        drop(is_heard);
        if first.is_last() { Ok(first) } else { asked.until(Event::is_last, |event| follow(&shown, event)) }
    };
    match answer(&shown, ask())? {
        Event::Published(report) => {
            if flags.stop {
                runtime::wait_until_gone(&root, &job, SUPERVISOR_END);
            }
            Ok(Published(report))
        }
        other => Err(unexpected(&other)),
    }
}

/// Has whoever waits no longer told what becomes of the checkpoint. What is returned is to be locked from before the supervisor is asked
/// until it has answered, and then to be true: of a checkpoint that nobody has heard of nothing is told.
fn tell_at_end(bar: &ProgressBar, job: &str, stop: bool) -> Result<Arc<Mutex<bool>>, Failure> {
    let then = match stop {
        true => "goes on, and ends the job when its image is safe",
        false => {
            "goes on if it has begun to stop the job and the job's files get to disk, and is given up if not"
        }
    };
    let told =
        format!("dormouse: the checkpoint of job {job} {then}; `dormouse ls` shows images that are safe");
    let unknown = format!(
        "dormouse: the supervisor of job {job} has not said yet whether it takes a checkpoint; `dormouse ls` shows images that are safe"
    );
    let bar = bar.clone();
    let is_heard = Arc::new(Mutex::new(false));
    let heard = Arc::clone(&is_heard);
    let words = move || match locked_within(&heard, FIRST_WORD) {
        Some(is_heard) => {
            if *is_heard {
                bar.suspend(|| drop(writeln!(io::stderr(), "{told}")));
            }
            // This process ends now; it asks for nothing before that.
            std::mem::forget(is_heard);
        }
        None => bar.suspend(|| drop(writeln!(io::stderr(), "{unknown}"))),
    };
    signals::last_words(words).map_err(|error| Failure::of("signals cannot be waited for", &error))?;
    Ok(is_heard)
}

/// What it guards, whoever panicked with it.
pub fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

fn locked_within(lock: &Mutex<bool>, patience: Duration) -> Option<MutexGuard<'_, bool>> {
    let until = Instant::now() + patience;
    loop {
        match lock.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() > until => return None,
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// Asks a job's supervisor for something, and shows how it goes; answers with what it says at the end, unless that is a failure.
pub fn ask(root: &Path, job: &str, request: &Request, shows: bool) -> Result<Event, Failure> {
    let bar = bar(shows);
    let last = admin::ask(&runtime::admin_socket(root, job), request, |event| follow(&bar, event));
    answer(&bar, last)
}

/// What the supervisor said at the end, unless that is a failure.
fn answer(bar: &ProgressBar, last: Result<Event, Failure>) -> Result<Event, Failure> {
    bar.finish_and_clear();
    match last? {
        Event::Failed(failure) => Err(failure),
        event => Ok(event),
    }
}

/// Shows how far it is.
pub fn follow(bar: &ProgressBar, event: &Event) {
    match event {
        Event::Step { step } => bar.set_message(step.clone()),
        Event::Retry { number, of, held_by } => bar.suspend(|| {
            eprintln!("dormouse: not idle, held by {held_by}; trying again ({number} of {of})");
        }),
        Event::Progress { done, total } => {
            bar.set_length(*total);
            bar.set_position(*done);
        }
        _ => {}
    }
}

/// The failure of a supervisor that answers what it was not asked.
pub fn unexpected(event: &Event) -> Failure {
    Failure::new(Kind::Failed, format!("the job's supervisor answered {event:?}"))
}

/// A bar on the user's terminal, if he is to see one.
pub fn bar(shows: bool) -> ProgressBar {
    if !shows || !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg:24} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}");
    ProgressBar::new(0).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

impl From<flags::Compress> for image::Compress {
    fn from(flags: flags::Compress) -> Self {
        match flags {
            flags::Compress::Auto => Self::Auto,
            flags::Compress::None => Self::None,
            flags::Compress::Lz4 => Self::Lz4,
            flags::Compress::Zstd => Self::Zstd,
        }
    }
}

impl Show for Published {
    fn show(&self, out: &mut dyn Write) -> io::Result<()> {
        let report = &self.0;
        writeln!(out, "image {} of job {}", report.image, report.job)?;
        writeln!(
            out,
            "stopped for {:.0} ms (drain {:.0}, device {:.0}, shared {:.0}, host {:.0}); published after {:.0} ms",
            report.stall_ms,
            report.drain_ms,
            report.device_ms,
            report.shared_ms,
            report.host_ms,
            report.total_ms
        )?;
        writeln!(
            out,
            "{} in the image and {} of zeros; {} of all that is device memory; {} written",
            HumanBytes(report.data_bytes),
            HumanBytes(report.bytes.saturating_sub(report.data_bytes)),
            HumanBytes(report.device_bytes),
            HumanBytes(report.written)
        )?;
        let copied = report.copied_on_device + report.copied_on_host;
        let apart = copied + report.unchanged + report.device_excluded;
        if copied + report.unchanged > 0 {
            writeln!(
                out,
                "device memory: {} unchanged or zero, {} copied on the device and {} to the host, {} written while the job stood still",
                HumanBytes(report.unchanged),
                HumanBytes(report.copied_on_device),
                HumanBytes(report.copied_on_host),
                HumanBytes(report.device_bytes.saturating_sub(apart))
            )?;
        }
        if report.half_way > 0 {
            writeln!(out, "launches of marked kernels that are half-way: {}", report.half_way)?;
        }
        let private = report.private_forked + report.private_copied;
        if private > 0 {
            writeln!(
                out,
                "the processes' own memory: {} read from forked copies, {} copied while the job stood still",
                HumanBytes(report.private_forked),
                HumanBytes(report.private_copied)
            )?;
        }
        if report.shared_copied > 0 {
            writeln!(
                out,
                "the processes' shared memory: {} copied while the job stood still",
                HumanBytes(report.shared_copied)
            )?;
        }
        if report.device_excluded + report.private_excluded > 0 {
            writeln!(
                out,
                "excluded by the program: {} of device memory, {} of the processes' own",
                HumanBytes(report.device_excluded),
                HumanBytes(report.private_excluded)
            )?;
        }
        report.warnings.iter().try_for_each(|warning| writeln!(out, "warning: {warning}"))
    }
}
