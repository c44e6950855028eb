//! The GPU sessions of a job: one server for each application process that initialises CUDA.

use crate::asks::Asks;
use crate::broker::Broker;
use crate::error::{Chain, Failure, Kind, no_thread};
use crate::gpus::{Gpus, Seen};
use crate::machine::Watcher;
use crate::server_process::{LOST_MACHINE, ServerProcess};
use crate::steer::Watching;
use crate::trace::Trace;
use crate::way_back::WayBack;
use host::InnerPid;
use plan::follow::Passed;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};
use serde::{Deserialize, Serialize};
use server::control::{Answer, Ask, Fills, Origin, Start};
use server::memory::Managed;
use shadow::Userfault;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockWriteGuard};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use store::Access;
use transport::hello::{HelloListener, Pending, Wish};
use wire::Question;

/// How long a process may take to say what it wants.
const GREETING: Duration = Duration::from_secs(5);
/// The longest that a process is held still: it copies what it registers.
const STILL_MAX: Duration = Duration::from_secs(120);
/// A process that was told of the GPUs and takes longer to close its connection does not run.
const HANGING_UP: Duration = Duration::from_millis(20);
/// The longest that the end of a job waits for who sees that a server was lost before.
const DECISION: Duration = Duration::from_secs(5);
/// How long a listener rests that could not accept: descriptors may have run out.
pub const RECOVERY: Duration = Duration::from_millis(200);

/// What an image records of a session, beside its server's own state.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SessionRecord {
    /// Its number: its folder is `s<number>`.
    pub number: u32,
    /// Its process.
    pub inner_pid: InnerPid,
    /// Which GPUs it sees.
    #[serde(default, skip_serializing_if = "Seen::is_jobs")]
    pub seen: Seen,
    /// Whether its managed memory has shadow pages.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shadows: bool,
    /// How far it was in its plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passed: Option<Passed>,
}

/// One session.
pub struct Session {
    /// What an image records of it.
    pub record: SessionRecord,
    dir: PathBuf,
    server: Mutex<ServerProcess>,
    /// Its process.
    server_fd: OwnedFd,
    /// The process's faults, if its managed memory has shadow pages. Without a holder its pages would read as zeros: with this, who
    /// touches one when the server is gone waits.
    userfault: OnceLock<OwnedFd>,
    /// How far it was in its plan at the last cut.
    passed: Mutex<Option<Passed>>,
    /// Its server was ended while its process stood still: what it shares with that is still needed.
    asleep: AtomicBool,
}

impl Session {
    /// What an image records of it.
    #[must_use]
    pub fn recorded(&self) -> SessionRecord {
        let passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner).clone();
        SessionRecord { shadows: self.has_shadows(), passed, ..self.record.clone() }
    }

    /// It was so far in its plan at the cut.
    pub fn has_passed(&self, passed: Option<Passed>) {
        *self.passed.lock().unwrap_or_else(PoisonError::into_inner) = passed;
    }

    /// Whether the process's managed memory has shadow pages.
    #[must_use]
    pub fn has_shadows(&self) -> bool {
        self.userfault.get().is_some()
    }

    /// A duplicate of the process's userfaultfd, if its managed memory has shadow pages.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub(crate) fn userfault(&self) -> io::Result<Option<OwnedFd>> {
        self.userfault.get().map(OwnedFd::try_clone).transpose()
    }

    /// Has it execute calls again. Where it does not, its server is ended, and whoever watches it sees to its process, which is ended where it has
    /// managed memory: nobody would serve that.
    ///
    /// # Errors
    /// When the server is gone, or does not answer.
    pub(crate) fn ungate(&self) -> Result<(), Failure> {
        let mut server = self.server();
        let ungated = server.tell(&Ask::Ungate { keep: false });
        if ungated.is_err() {
            server.kill();
        }
        ungated
    }

    /// The server, for the caller alone.
    pub fn server(&self) -> MutexGuard<'_, ServerProcess> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

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

/// A process that asks.
struct Asking(Arc<Sessions>);

impl Asking {
    fn of(sessions: &Arc<Sessions>) -> Self {
        sessions.asking.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(sessions))
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.asking.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A process that may lose its server.
struct Undecided(Arc<Sessions>);

impl Undecided {
    fn of(sessions: &Arc<Sessions>) -> Self {
        *sessions.undecided.0.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        Self(Arc::clone(sessions))
    }
}

impl Drop for Undecided {
    fn drop(&mut self) {
        let (undecided, decided) = &self.0.undecided;
        *undecided.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        decided.notify_all();
    }
}

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

    /// Begins sessions as processes ask for them, on a thread of its own.
    pub fn serve(self: &Arc<Self>, listener: HelloListener) -> Serving {
        let (sessions, listener) = (Arc::clone(self), Arc::new(listener));
        let listening = Arc::clone(&listener);
        let thread = std::thread::spawn(move || sessions.listen(&listening));
        Serving { sessions: Arc::clone(self), listener, thread }
    }

    fn listen(self: &Arc<Self>, listener: &HelloListener) {
        loop {
            wait_for_caller(listener);
            if self.ended.load(Ordering::Acquire) {
                return;
            }
            let asking = Asking::of(self);
            match listener.accept() {
                Ok(caller) => {
                    let hearing = Builder::new().spawn(move || match caller.hear(GREETING) {
                        Ok(Wish::Session(pending, visible)) => asking.0.begin(pending, visible.as_deref()),
                        Ok(Wish::Devices(pending)) => asking.0.tell(pending),
                        Ok(Wish::Userfault(pending, userfault)) => asking.0.keep(pending, userfault),
                        Ok(Wish::Still(pending, thread)) => asking.0.hold_still(pending, thread),
                        Ok(Wish::Ask(pending, question)) => asking.0.note(pending, question),
                        Err(error) => {
                            tracing::warn!("a process asked for its GPU: {}", Chain(&error));
                        }
                    });
                    if let Err(error) = hearing {
                        tracing::warn!("a process asked for its GPU: {}", no_thread(&error));
                    }
                }
                Err(error) => {
                    tracing::warn!("a process cannot ask for a GPU session: {}", Chain(&error));
                    std::thread::sleep(RECOVERY);
                }
            }
        }
    }

    fn begin(self: &Arc<Self>, pending: Pending, visible: Option<&str>) {
        let _beginning = self.beginning.read().unwrap_or_else(PoisonError::into_inner);
        let pid = pending.pid();
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let begun = host::inner_pid(host::OuterPid(pid))
            .ok_or_else(|| Failure::new(Kind::Failed, "it is not a process of this job"))
            .map(|inner_pid| {
                let seen = self.gpus().seen(visible);
                SessionRecord { number, inner_pid, seen, shadows: false, passed: None }
            })
            .and_then(|record| Ok((self.join(number, false)?, record)))
            .and_then(|(broker, record)| self.start(record, &Start::Fresh, broker))
            .and_then(|session| {
                self.introduce(pid, &session).and_then(|process| self.watch(process, session)).map(drop)
            });
        match begun {
            Ok(()) => {
                if let Err(error) = pending.welcome(number) {
                    tracing::warn!("process {pid} did not wait for its GPU session: {}", Chain(&error));
                }
            }
            Err(failure) => {
                tracing::error!("process {pid} gets no GPU session: {failure}");
                if let Err(error) = pending.refuse(&failure.message) {
                    tracing::debug!("process {pid} is gone: {}", Chain(&error));
                }
            }
        }
    }

    /// Answers at once, whether a cut is on its way or not.
    fn tell(&self, pending: Pending) {
        let pid = pending.pid();
        let mut began = Instant::now();
        let told = match self.machine.look() {
            Ok(machine) => {
                began = Instant::now();
                pending.tell(machine)
            }
            Err(failure) => {
                tracing::warn!("process {pid} is not told of the GPUs: {failure}");
                pending.refuse(&failure.message)
            }
        };
        self.has_told(pid, told, began);
    }

    /// Gives a ticket for what a program asks of its own job, likewise at once.
    fn note(&self, pending: Pending, question: Question) {
        let pid = pending.pid();
        let began = Instant::now();
        let ticket = host::inner_pid(host::OuterPid(pid))
            .ok_or_else(|| Failure::new(Kind::Failed, "it is not a process of this job"))
            .and_then(|inner_pid| self.asks.note(question, inner_pid));
        let told = match &ticket {
            Ok(ticket) => pending.asked(*ticket),
            Err(failure) => pending.not_asked(failure.kind.exit_code().into(), &failure.message),
        };
        // Not before: a checkpoint that begins at once would find the connection. And not later: one that is under way may wait for it.
        ticket.into_iter().for_each(|ticket| self.asks.waits(ticket));
        self.has_told(pid, told, began);
    }

    /// A process has been told something since `began`, at once, and has closed its connection.
    fn has_told(&self, pid: i32, told: transport::Result<()>, began: Instant) {
        if let Err(error) = told {
            tracing::debug!("process {pid} is gone: {}", Chain(&error));
        }
        // It has been stopped with its connection open: the cut that failed for it shall still find it asking.
        if began.elapsed() > HANGING_UP {
            drop(self.beginning.read().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Holds all threads of a process but one while that one moves memory, on this thread; never during a cut.
    fn hold_still(&self, pending: Pending, thread: u32) {
        let _beginning = self.beginning.read().unwrap_or_else(PoisonError::into_inner);
        let pid = pending.pid();
        let mover = i32::try_from(thread).unwrap_or(0);
        let told = match host::Still::of(host::OuterPid(pid), mover) {
            Ok(still) => {
                let told = pending.stilled(STILL_MAX);
                drop(still);
                told
            }
            Err(error) => {
                tracing::warn!("process {pid} is not held still while it moves memory: {error}");
                pending.refuse(&format!("its threads cannot be held still: {error}"))
            }
        };
        if let Err(error) = told {
            tracing::debug!("process {pid} is gone: {}", Chain(&error));
        }
    }

    /// Gives the userfaultfd of a process to its server; never during a cut.
    fn keep(&self, pending: Pending, userfault: Option<OwnedFd>) {
        let _beginning = self.beginning.read().unwrap_or_else(PoisonError::into_inner);
        let pid = pending.pid();
        let inner_pid = host::inner_pid(host::OuterPid(pid));
        let session =
            self.live().values().find(|session| Some(session.record.inner_pid) == inner_pid).cloned();
        let kept = session
            .ok_or_else(|| Failure::new(Kind::Failed, "the process has no GPU session"))
            .and_then(|session| {
                let userfault = userfault.ok_or_else(|| Failure::new(Kind::Failed, "it has none"))?;
                let asked = self.target.managed != Managed::Coherent || session.record.shadows;
                if !asked || !is_userfaultfd(&userfault) {
                    return Err(Failure::new(Kind::Failed, "nobody has asked for it"));
                }
                self.give_userfault(&session, userfault).map(|()| session.record.number)
            });
        let told = match kept {
            Ok(number) => pending.welcome(number),
            Err(failure) => pending.refuse(&failure.message),
        };
        if let Err(error) = told {
            tracing::debug!("process {pid} is gone: {}", Chain(&error));
        }
    }

    /// Gives a session's server the userfaultfd of its process, and keeps a duplicate.
    ///
    /// # Errors
    /// When this kernel's are not good enough, and nothing is kept then; when the server is gone.
    pub fn give_userfault(&self, session: &Session, userfault: OwnedFd) -> Result<(), Failure> {
        // Here, where it can be answered: the program's memory is coherent then.
        userfault.try_clone().and_then(Userfault::open).map_err(|error| {
            Failure::of(
                "this kernel does not tell of all the faults that shadow pages need, as Linux 5.19 does",
                &error,
            )
        })?;
        // First, so that no page is ever kept without: a process has one memory, whose first is the one that counts.
        let userfault = session.userfault.get_or_init(|| userfault);
        let given = self.broker.give_userfault(session.record.number, userfault.as_fd());
        given.map_err(|error| Failure::of("the server does not take the userfaultfd", &error))
    }

    /// `broker`: the session's way to the others.
    fn start(&self, record: SessionRecord, start: &Start, broker: OwnedFd) -> Result<Session, Failure> {
        let began = Instant::now();
        let dir = self.dir(record.number);
        fs::create_dir_all(&dir)
            .map_err(|error| Failure::of(format_args!("cannot make {}", dir.display()), &error))?;
        let mut server = {
            let on = (&self.target, self.gpus().list(&record.seen));
            ServerProcess::start(record.number, &dir, on, start, Some(broker))?
        };
        match server.answer(&mut |_, _| {})? {
            Answer::Ready { device } => tracing::info!("session {}: {device}", record.number),
            other => return Err(server.unexpected(&other)),
        }
        let watch =
            self.watching.get().and_then(|watching| watching.ask(record.number, record.passed.clone()));
        watch.map_or(Ok(()), |ask| server.tell(&ask))?;
        if let Some(trace) = self.trace() {
            trace.span(&format!("GPU server of process {} starts", record.inner_pid), began);
        }
        let server_fd = open_pid(server.pid() as i32).map_err(|error| {
            Failure::of(format_args!("the server of session {} is gone", record.number), &error)
        })?;
        let (userfault, passed) = (OnceLock::new(), Mutex::default());
        let asleep = AtomicBool::new(false);
        Ok(Session { record, dir, server_fd, server: Mutex::new(server), userfault, passed, asleep })
    }

    /// Rebuilds the sessions of an image, side by side; their processes do not exist yet.
    /// `own`: nobody else has had the store, which is in memory.
    ///
    /// # Errors
    /// The first server's failure.
    pub fn restore(
        &self,
        records: &[SessionRecord],
        store: &Access,
        image: &str,
        (fills, origin): (Fills, Origin),
    ) -> Result<Vec<Session>, Failure> {
        let next = records.iter().map(|record| record.number).max().unwrap_or(0).saturating_add(1);
        self.next.fetch_max(next, Ordering::Relaxed);
        let start = Start::Restore { store: store.clone(), image: image.to_owned(), fills, origin };
        // All take part before one begins: they get from each other what they share.
        let brokers =
            records.iter().map(|record| self.join(record.number, true)).collect::<Result<Vec<_>, _>>()?;
        std::thread::scope(|scope| {
            let start = &start;
            let starting: Vec<_> = records
                .iter()
                .zip(brokers)
                .map(|(record, broker)| {
                    Builder::new().spawn_scoped(scope, move || self.start(record.clone(), start, broker))
                })
                .collect();
            let started = starting.into_iter().map(|starting| match starting {
                Ok(starting) => starting.join().unwrap_or_else(|_| Err(panicked())),
                Err(error) => Err(no_thread(&error)),
            });
            // All are heard out.
            started.collect::<Vec<_>>().into_iter().collect()
        })
    }

    fn join(&self, session: u32, restored: bool) -> Result<OwnedFd, Failure> {
        let joined = self.broker.join(session, restored);
        joined.map_err(|error| Failure::of(format_args!("session {session} cannot share anything"), &error))
    }

    /// Who holds what of what the sessions share.
    #[must_use]
    pub fn broker(&self) -> &Broker {
        &self.broker
    }

    /// Tells a session's server which process it serves: `pid` outside the job.
    ///
    /// # Errors
    /// When the process or the server is gone already.
    pub fn introduce(&self, pid: i32, session: &Session) -> Result<OwnedFd, Failure> {
        let number = session.record.number;
        let process = open_pid(pid)
            .map_err(|error| Failure::of(format_args!("the process of session {number} is gone"), &error))?;
        let told = self.broker.introduce(number, pid, process.as_fd());
        told.map_err(|error| Failure::of(format_args!("the server of session {number} is gone"), &error))?;
        Ok(process)
    }

    /// Lets a session live as long as its process and its server.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub fn watch(self: &Arc<Self>, process: OwnedFd, session: Session) -> Result<Arc<Session>, Failure> {
        let number = session.record.number;
        let server = session
            .server_fd
            .try_clone()
            .map_err(|error| Failure::of(format_args!("session {number} cannot be watched"), &error))?;
        let session = Arc::new(session);
        if let Some(trace) = self.trace() {
            trace.follow(number, session.record.inner_pid, &session.dir);
        }
        // A process that has called exec asks again: its former session has lost its user.
        let inner_pid = session.record.inner_pid;
        let former = {
            let mut live = self.live();
            let former = live.values().find(|other| other.record.inner_pid == inner_pid).map(Arc::clone);
            live.insert(number, Arc::clone(&session));
            former
        };
        if let Some(former) = former {
            self.finish(&former);
        }
        let (undecided, watched) = (Undecided::of(self), Arc::clone(&session));
        let watching = Builder::new().spawn(move || {
            let sessions = Arc::clone(&undecided.0);
            let mut each = [PollFd::new(&process, PollFlags::IN), PollFd::new(&server, PollFlags::IN)];
            while matches!(poll(&mut each, None), Err(Errno::INTR)) {}
            if !sessions.is_live(&session) {
                return;
            }
            // A server outlives its process until it is told to end, so it was first where both are gone: the process has had the error and ended at it.
            if !each[1].revents().is_empty() {
                sessions.lost(&session, &process, &server);
            }
            drop(undecided);
            while matches!(poll(&mut each[..1], None), Err(Errno::INTR)) {}
            sessions.finish(&session);
        });
        if let Err(error) = watching {
            self.finish(&watched);
            return Err(no_thread(&error));
        }
        Ok(watched)
    }

    /// Waits until it is known of each process whether it has lost its server; all are gone.
    pub fn decide(&self) {
        let (undecided, decided) = &self.undecided;
        let undecided = undecided.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = decided.wait_timeout_while(undecided, DECISION, |undecided| *undecided > 0);
        let (undecided, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if *undecided > 0 {
            tracing::debug!("{} processes of the job may have lost their servers", *undecided);
        }
    }

    /// A server died under its application: every call of it answers an error from now on. Whoever is asking the server something
    /// holds its lock, and is not waited for.
    fn lost(&self, session: &Session, process: &OwnedFd, server: &OwnedFd) {
        let number = session.record.number;
        if self.is_recorded() {
            tracing::warn!(
                "there is no profile of session {number}: it is written when its GPU server ends, and that is gone"
            );
        }
        // First, so that it goes on with nothing.
        if session.has_shadows() {
            if let Err(error) = pidfd_send_signal(process, Signal::KILL) {
                tracing::debug!("the process is gone: {error}");
            }
            tracing::error!(
                "the GPU server of session {number} {}, and with it the managed memory of process {} of the job: that process has been ended. {}",
                how_it_ended(server),
                session.record.inner_pid,
                self.way_back.lose()
            );
        }
        self.mark_dead(number);
        if session.has_shadows() {
            return;
        }
        tracing::error!(
            "the GPU server of session {number} {}; the CUDA calls of process {} of the job answer \
             CUDA_ERROR_DEVICE_UNAVAILABLE (46) from now on. {}",
            how_it_ended(server),
            session.record.inner_pid,
            self.way_back.lose()
        );
    }

    /// Has the calls of a session's process fail.
    pub(crate) fn mark_dead(&self, number: u32) {
        if let Err(error) = transport::mark_dead(&self.dir(number)) {
            tracing::error!("session {number} cannot be marked as dead: {}", Chain(&error));
        }
    }

    /// The process of a session is gone: so is the session.
    fn finish(&self, session: &Session) {
        if !self.leave(session) {
            return;
        }
        let mut server = session.server();
        // Its process was killed while it was put to sleep.
        if session.asleep.load(Ordering::Acquire) {
            return;
        }
        if server.is_running()
            && let Err(failure) = server.ask(&Ask::End, &mut |_, _| {})
        {
            tracing::debug!("session {}: {failure}", session.record.number);
        }
        server.kill();
        if let Some(trace) = self.trace() {
            trace.leave(session.record.number);
        }
        self.remove_files(session.record.number);
    }

    /// Removes what a session shared with its process.
    pub(crate) fn remove_files(&self, number: u32) {
        let dir = self.dir(number);
        if let Err(error) = fs::remove_dir_all(&dir) {
            tracing::debug!("{}: {error}", dir.display());
        }
    }

    /// Takes a session out of those that there are; whether it was among them.
    fn leave(&self, session: &Session) -> bool {
        let number = session.record.number;
        let mut live = self.live();
        // Another may have its number.
        let is_it = live.get(&number).is_some_and(|live| std::ptr::eq(&raw const **live, session));
        is_it && live.remove(&number).is_some()
    }

    fn is_live(&self, session: &Arc<Session>) -> bool {
        self.live().get(&session.record.number).is_some_and(|live| Arc::ptr_eq(live, session))
    }

    /// Ends a session's server, and leaves what it shares with its process, which stands still, as it is.
    pub(crate) fn put_to_sleep(&self, session: &Session, server: &mut ServerProcess) {
        // First, so that nobody takes it for lost.
        self.leave(session);
        session.asleep.store(true, Ordering::Release);
        server.kill();
        self.broker.forget(session.record.number);
        if let Some(trace) = self.trace() {
            trace.leave(session.record.number);
        }
    }

    /// Ends a session that was made again and whose process is gone: others own what it held.
    pub(crate) fn discard(&self, session: &Session) {
        session.server().kill();
        self.broker.forget(session.record.number);
    }

    /// The sessions as they are now, in order; none begins until the guard is dropped.
    pub fn hold(&self) -> (Vec<Arc<Session>>, Held<'_>) {
        let held = self.beginning.write().unwrap_or_else(PoisonError::into_inner);
        (self.all(), held)
    }

    /// Whether a process has asked for something that it has not got.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.asking.load(Ordering::Acquire) > 0
    }

    /// Whether a process asks for something that it does not get within a moment: a session, while a cut is taken.
    #[must_use]
    pub fn keeps_asking(&self) -> bool {
        let began = Instant::now();
        while self.is_asked() {
            if began.elapsed() > HANGING_UP {
                return true;
            }
            std::thread::sleep(Duration::from_micros(500));
        }
        false
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

    fn end(&self) {
        if self.is_recorded() && self.next.load(Ordering::Acquire) == 1 {
            tracing::warn!("there is no profile: no process of the job has used CUDA");
        }
        self.ended.store(true, Ordering::Release);
        self.all().iter().for_each(|session| self.finish(session));
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

fn open_pid(pid: i32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Whether it is what it is said to be: it comes from a program.
fn is_userfaultfd(descriptor: &OwnedFd) -> bool {
    let link = fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
    link.is_ok_and(|link| link.as_os_str() == "anon_inode:[userfaultfd]")
}

/// How a child of this process has ended; whoever owns it reaps it.
fn how_it_ended(child: &OwnedFd) -> String {
    let status = waitid(WaitId::PidFd(child.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT);
    let Ok(Some(status)) = status else { return "died".to_owned() };
    match (status.terminating_signal(), status.exit_status()) {
        (Some(number), _) if number == Signal::KILL.as_raw() => {
            "was killed by SIGKILL, by somebody or by the kernel for want of memory".to_owned()
        }
        (Some(number), _) => format!("was ended by signal {number}"),
        (_, Some(code)) if code == i32::from(LOST_MACHINE) => {
            "has ended, having lost its session with the other machine".to_owned()
        }
        (_, Some(code)) => format!("ended by itself, with exit code {code}"),
        _ => "died".to_owned(),
    }
}

/// A thread of this process panicked: a defect of ours, but no reason to take the job down.
#[must_use]
pub fn panicked() -> Failure {
    Failure::new(Kind::Failed, "a thread of the supervisor panicked; please report this with the log")
}

/// Sessions that begin as processes ask for them.
pub struct Serving {
    sessions: Arc<Sessions>,
    listener: Arc<HelloListener>,
    thread: JoinHandle<()>,
}

impl Serving {
    /// Ends all sessions; none begins any more.
    pub fn end(self) {
        self.sessions.end();
        stop_listening(&*self.listener);
        // A thread that panicked has said so.
        let _ = self.thread.join();
    }
}

/// Waits until something can be accepted, or the listener has been stopped.
pub fn wait_for_caller(listener: &impl AsFd) {
    while poll(&mut [PollFd::new(listener, PollFlags::IN)], None) == Err(Errno::INTR) {}
}

/// Wakes up who waits for callers; nobody can call any more.
pub fn stop_listening(listener: &impl AsFd) {
    if let Err(error) = shutdown(listener, Shutdown::Both) {
        tracing::error!("a listening socket cannot be shut down: {error}");
    }
}

#[cfg(test)]
mod tests;
