//! What the supervisor has said. Nobody waits for a lock here: a child that was forked while another thread held one must be able to ask.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

use transport::{TransportError, hello};
use wire::{Gpu, Machine, Quantity};

use super::{Answer, Error};
use crate::client::JOB;
use crate::log::{self, Level};

/// How old an answer about what changes may be.
const AGE_MAX: Duration = Duration::from_millis(100);

/// How long the supervisor may take: longer than it waits itself for whom it asks.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often `nvmlInit` was called and not undone.
static STARTED: AtomicU32 = AtomicU32::new(0);
/// What was said first; it stays, leaked.
static FIRST: AtomicPtr<First> = AtomicPtr::new(std::ptr::null_mut());
/// What was said last, and when.
static LAST: Mutex<Option<(Instant, Arc<Machine>)>> = Mutex::new(None);

struct First {
    job: PathBuf,
    machine: Machine,
}

/// `nvmlInit`, in the job whose shared folder is `job`.
///
/// # Errors
/// `DRIVER_NOT_LOADED` outside a job, or where the supervisor knows of no GPU.
pub fn start(job: &Path) -> Answer {
    first(job)?;
    STARTED.fetch_add(1, Ordering::AcqRel);
    Ok(())
}

/// `nvmlShutdown`. What is known stays known.
pub fn stop() -> Answer {
    let less = |count: u32| count.checked_sub(1);
    STARTED.fetch_update(Ordering::AcqRel, Ordering::Acquire, less).map_err(|_| Error::UNINITIALIZED)?;
    Ok(())
}

/// What the process was told first, between `nvmlInit` and `nvmlShutdown`.
pub fn machine() -> Answer<&'static Machine> {
    if STARTED.load(Ordering::Acquire) == 0 {
        return Err(Error::UNINITIALIZED);
    }
    anyway()
}

/// What the process was told first, whether NVML is initialised or not.
pub fn anyway() -> Answer<&'static Machine> {
    first(Path::new(JOB)).map(|first| &first.machine)
}

/// A device's numbers of one kind: of what changes, all as they were at one moment.
pub fn numbers(index: usize, quantity: Quantity) -> Answer<impl Fn(u16) -> Answer<u64>> {
    let told = machine()?;
    let now = if quantity.is_live() { Some(now()?) } else { None };
    Ok(move |which| {
        let machine = now.as_deref().unwrap_or(told);
        let gpu: &Gpu = machine.gpus.get(index).ok_or(Error::GPU_IS_LOST)?;
        gpu.number(quantity, which).ok_or(Error::NOT_SUPPORTED)
    })
}

fn first(job: &Path) -> Answer<&'static First> {
    // SAFETY: what it leads to was leaked, and nobody writes to it.
    if let Some(first) = unsafe { FIRST.load(Ordering::Acquire).as_ref() } {
        return Ok(first);
    }
    let machine = ask(job)?;
    remember(&Arc::new(machine.clone()));
    let ours = Box::into_raw(Box::new(First { job: job.to_owned(), machine }));
    let none = std::ptr::null_mut();
    match FIRST.compare_exchange(none, ours, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: leaked here.
        Ok(_) => Ok(unsafe { &*ours }),
        Err(theirs) => {
            // SAFETY: made above and known to nobody else; the other thread's was leaked.
            unsafe {
                drop(Box::from_raw(ours));
                Ok(&*theirs)
            }
        }
    }
}

/// The machine as it is now, or was a moment ago.
fn now() -> Answer<Arc<Machine>> {
    if let Ok(last) = LAST.try_lock()
        && let Some((when, machine)) = &*last
        && when.elapsed() < AGE_MAX
    {
        return Ok(Arc::clone(machine));
    }
    let job = &first(Path::new(JOB))?.job;
    let machine = Arc::new(ask(job)?);
    remember(&machine);
    Ok(machine)
}

fn remember(machine: &Arc<Machine>) {
    let mut last = match LAST.try_lock() {
        Ok(last) => last,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        // Whoever has it remembers the same, or is a thread that this process was forked without.
        Err(TryLockError::WouldBlock) => return,
    };
    *last = Some((Instant::now(), Arc::clone(machine)));
}

fn ask(job: &Path) -> Answer<Machine> {
    hello::ask_devices(&job.join("hello.sock"), PATIENCE).map_err(|error| {
        log::message(Level::Warn, format_args!("NVML knows of no GPU: {error}"));
        match error {
            TransportError::Io { .. } | TransportError::Refused(_) => Error::DRIVER_NOT_LOADED,
            _ => Error::UNKNOWN,
        }
    })
}
