//! The GPU sessions of a job: one server for each application process that initialises CUDA.

mod asking;
mod life;
mod session;
#[cfg(test)]
mod tests;

pub use self::asking::{RECOVERY, stop_listening, wait_for_caller};
pub use self::session::{Session, SessionRecord};
use crate::asks::Asks;
use crate::broker::Broker;
use crate::error::{Failure, Kind};
use crate::gpus::Gpus;
use crate::machine::Watcher;
use crate::steer::Watching;
use crate::trace::Trace;
use crate::way_back::WayBack;
use plan::follow::Passed;
use server::memory::Managed;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockWriteGuard};
use std::time::Duration;

/// Where calls go.
#[derive(Clone, Debug)]
pub struct Destination {
    /// The value of `--device`.
    pub device: String,
    /// How managed memory is had.
    pub managed: Managed,
    /// How long a marked kernel may have a device that other streams of its process wait for.
    pub preempt_after: Option<Duration>,
    /// The most memory of each device that a process may take, bytes.
    pub memory: Option<u64>,
    /// The GPUs of the job, at its beginning.
    pub gpus: Gpus,
}

/// All sessions of a job.
pub struct Sessions {
    /// The job's tmpfs, as seen by the supervisor.
    shared: PathBuf,
    target: Destination,
    /// Those it has now.
    gpus: Mutex<Gpus>,
    trace: Option<Arc<Trace>>,
    machine: Arc<Watcher>,
    broker: Arc<Broker>,
    way_back: Arc<WayBack>,
    live: Mutex<BTreeMap<u32, Arc<Session>>>,
    next: AtomicU32,
    /// Held for reading while a session begins, for writing while a cut is taken.
    beginning: RwLock<()>,
    /// Processes that have asked for something and not got it yet: their connections lead out of the job.
    asking: AtomicUsize,
    /// Processes of which is not known yet whether they will have lost their server.
    undecided: (Mutex<usize>, Condvar),
    ended: AtomicBool,
    watching: OnceLock<Watching>,
    asks: Asks,
}

/// While it lives, no session begins.
pub type Held<'a> = RwLockWriteGuard<'a, ()>;

impl Sessions {
    /// No session yet.
    #[must_use]
    pub fn new(
        shared: PathBuf,
        target: Destination,
        way_back: Arc<WayBack>,
        trace: Option<Arc<Trace>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            shared,
            machine: Watcher::new(target.device.clone()),
            broker: Arc::default(),
            way_back,
            gpus: Mutex::new(target.gpus.clone()),
            target,
            trace,
            live: Mutex::default(),
            next: AtomicU32::new(1),
            beginning: RwLock::default(),
            asking: AtomicUsize::new(0),
            undecided: Default::default(),
            ended: AtomicBool::new(false),
            watching: OnceLock::new(),
            asks: Asks::default(),
        })
    }

    /// What the program itself asks for.
    #[must_use]
    pub fn asks(&self) -> &Asks {
        &self.asks
    }

    /// What every server is asked to watch, from the beginning of its session on.
    pub fn watch_programs(&self, watching: Watching) {
        // It is said once, before there are sessions.
        let _ = self.watching.set(watching);
    }

    /// The GPUs of the job as they are now.
    #[must_use]
    pub fn gpus(&self) -> Gpus {
        self.gpus.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The list of those that a session's process sees.
    pub(crate) fn visible_to(&self, session: u32) -> Option<String> {
        let seen = self.live().get(&session).map(|session| session.record.seen.clone());
        self.gpus().list(&seen.unwrap_or_default())
    }

    /// From now on the job has other GPUs.
    pub(crate) fn move_to(&self, gpus: Gpus) {
        *self.gpus.lock().unwrap_or_else(PoisonError::into_inner) = gpus;
    }

    /// Where calls go.
    #[must_use]
    pub fn target(&self) -> &Destination {
        &self.target
    }

    /// Where it is written what sessions and checkpoints take, if it is.
    #[must_use]
    pub fn trace(&self) -> Option<&Trace> {
        self.trace.as_deref()
    }

    /// Who holds what of what the sessions share.
    #[must_use]
    pub fn broker(&self) -> &Broker {
        &self.broker
    }

    /// The sessions as they are now, in order; none begins until the guard is dropped.
    pub fn hold(&self) -> (Vec<Arc<Session>>, Held<'_>) {
        let held = self.beginning.write().unwrap_or_else(PoisonError::into_inner);
        (self.all(), held)
    }

    /// A session was so far in its plan at the cut.
    pub(crate) fn has_passed(&self, number: u32, passed: Option<Passed>) {
        if let Some(session) = self.live().get(&number) {
            session.has_passed(passed);
        }
    }

    /// Those that there are now.
    pub(crate) fn all(&self) -> Vec<Arc<Session>> {
        self.live().values().map(Arc::clone).collect()
    }

    /// Whether the session has not ended.
    #[must_use]
    pub fn has(&self, number: u32) -> bool {
        self.live().contains_key(&number)
    }

    /// Whether profiles of the program are recorded.
    pub(crate) fn is_recorded(&self) -> bool {
        self.watching.get().is_some_and(|watching| watching.profile.is_some())
    }

    /// A session's folder, as seen by the supervisor.
    #[must_use]
    pub fn dir(&self, number: u32) -> PathBuf {
        self.shared.join(format!("s{number}"))
    }

    fn live(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<Session>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread of this process panicked: a defect of ours, but no reason to take the job down.
#[must_use]
pub fn panicked() -> Failure {
    Failure::new(Kind::Failed, "a thread of the supervisor panicked; please report this with the log")
}
