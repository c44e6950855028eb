//! From a server's start to its end, whoever of server and process is gone first.

use super::{Session, SessionRecord, Sessions, panicked};
use crate::error::{Chain, Failure, no_thread};
use crate::server_process::{LOST_MACHINE, ServerProcess};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};
use server::control::{Answer, Ask, Fills, Origin, Start};
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};
use store::Access;

/// The longest that the end of a job waits for who sees that a server was lost before.
const DECISION: Duration = Duration::from_secs(5);

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
    /// `broker`: the session's way to the others.
    pub(super) fn start(
        &self,
        record: SessionRecord,
        start: &Start,
        broker: OwnedFd,
    ) -> Result<Session, Failure> {
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
        let server_fd = server.pidfd().map_err(|error| {
            Failure::of(format_args!("the server of session {} is gone", record.number), &error)
        })?;
        let (userfault, passed) = (OnceLock::new(), Mutex::default());
        let (asleep, unprivileged) = (AtomicBool::new(false), AtomicBool::new(record.unprivileged));
        let server = Mutex::new(server);
        Ok(Session { record, dir, server_fd, server, userfault, passed, asleep, unprivileged })
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

    pub(super) fn join(&self, session: u32, restored: bool) -> Result<OwnedFd, Failure> {
        let joined = self.broker.join(session, restored);
        joined.map_err(|error| Failure::of(format_args!("session {session} cannot share anything"), &error))
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

    pub(super) fn end(&self) {
        if self.is_recorded() && self.next.load(Ordering::Acquire) == 1 {
            tracing::warn!("there is no profile: no process of the job has used CUDA");
        }
        self.ended.store(true, Ordering::Release);
        self.all().iter().for_each(|session| self.finish(session));
    }
}

pub(super) fn open_pid(pid: i32) -> io::Result<OwnedFd> {
    let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidInput)?;
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
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
