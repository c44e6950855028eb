//! What processes of the job ask the supervisor for, and get: a session each, what GPUs there are, a keeper of their memory.

use super::{Session, SessionRecord, Sessions};
use crate::error::{Chain, Failure, Kind, no_thread};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use server::control::Start;
use server::memory::Managed;
use shadow::Userfault;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use transport::hello::{HelloListener, Pending, Wish};
use wire::Question;

/// How long a process may take to say what it wants.
const GREETING: Duration = Duration::from_secs(5);
/// The longest that a process is held still: it copies what it registers.
const STILL_MAX: Duration = Duration::from_secs(120);
/// A process that was told of the GPUs and takes longer to close its connection does not run.
const HANGING_UP: Duration = Duration::from_millis(20);
/// How long a listener rests that could not accept: descriptors may have run out.
pub const RECOVERY: Duration = Duration::from_millis(200);

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

impl Sessions {
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
                SessionRecord { number, inner_pid, seen, shadows: false, unprivileged: false, passed: None }
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

/// Whether it is what it is said to be: it comes from a program.
fn is_userfaultfd(descriptor: &OwnedFd) -> bool {
    let link = fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
    link.is_ok_and(|link| link.as_os_str() == "anon_inode:[userfaultfd]")
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
