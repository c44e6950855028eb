//! Holding threads in a way that neither their process nor its parent sees, by ptrace without signals: those of a process but one, for a
//! moment, or all of a job, for as long as it takes.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::marker::PhantomData;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::job::Job;
use crate::tasks::{self, InnerPid, OuterPid};

/// A thread that has not stopped after this long is not waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often it is looked, while a job stands still, who of it has been killed.
const REAPING: Duration = Duration::from_millis(50);
/// Between two looks.
const LOOK: Duration = Duration::from_micros(50);

/// A thread that is held, and the signal that was on its way to it.
struct Held {
    thread: i32,
    signal: i32,
}

/// The threads of a process, held until this is dropped: by the thread that made it, as ptrace demands. Whatever has not been let go of
/// when that thread ends, the kernel lets go of.
pub struct Still {
    held: Vec<Held>,
    // Only the thread that holds them can let go of them.
    here: PhantomData<*const ()>,
}

impl Still {
    /// Holds all threads of `process` but `mover`, which is told by the number that it has in its own PID namespace.
    ///
    /// # Errors
    /// `NotFound` when there is no such thread, `PermissionDenied` when somebody else traces one, `TimedOut` when one does not stop.
    pub fn of(process: OuterPid, mover: i32) -> io::Result<Self> {
        let mut still = Self { held: Vec::new(), here: PhantomData };
        let mut known = BTreeSet::new();
        let deadline = Instant::now() + PATIENCE;
        let mut found = false;
        // Those that are not held yet may make new ones.
        loop {
            let threads = threads(process)?;
            let fresh: Vec<i32> = threads.into_iter().filter(|thread| known.insert(*thread)).collect();
            if fresh.is_empty() {
                break;
            }
            for thread in fresh {
                if inner_number(process, thread) == Some(mover) {
                    found = true;
                } else {
                    still.hold(thread, deadline)?;
                }
            }
        }
        if found { Ok(still) } else { Err(io::ErrorKind::NotFound.into()) }
    }

    /// Holds all threads of a job's processes but its init.
    fn of_all(job: &Job) -> io::Result<Self> {
        let mut still = Self { held: Vec::new(), here: PhantomData };
        let mut known = BTreeSet::new();
        let deadline = Instant::now() + PATIENCE;
        // Those that are not held yet may make new ones.
        loop {
            let mut fresh = Vec::new();
            for task in job.tasks().into_iter().filter(|task| task.inner != InnerPid::INIT) {
                let threads: Vec<i32> =
                    task.threads.iter().copied().filter(|thread| known.insert(*thread)).collect();
                fresh.extend(threads.into_iter().map(|thread| (task.clone(), thread)));
            }
            if fresh.is_empty() {
                return Ok(still);
            }
            for (task, thread) in fresh {
                still.hold(thread, deadline).map_err(|error| {
                    let (inner, comm) = (task.inner, task.comm);
                    let what = format!(
                        "thread {thread} of process {inner} of the job ({comm}) is not held: {error}"
                    );
                    io::Error::new(error.kind(), what)
                })?;
            }
        }
    }

    /// Whoever was killed is over for its parent only when its tracer has taken note of it.
    fn reap(&mut self) {
        loop {
            let mut status = 0;
            let whom = libc::__WALL | libc::__WNOTHREAD | libc::WNOHANG;
            // SAFETY: a status of our own to be written; only what this thread traces is meant, and it has no children.
            let thread = unsafe { libc::waitpid(-1, &raw mut status, whom) };
            if thread <= 0 {
                return;
            }
            if libc::WIFEXITED(status) || libc::WIFSIGNALED(status) {
                self.held.retain(|held| held.thread != thread);
            }
        }
    }

    fn hold(&mut self, thread: i32, deadline: Instant) -> io::Result<()> {
        while let Err(error) = trace(libc::PTRACE_SEIZE, thread, 0) {
            if tasks::is_over(thread) {
                return Ok(());
            }
            // CRIU may still be about to let go of it, after a checkpoint or a restart.
            if error.raw_os_error() != Some(libc::EPERM) || Instant::now() > deadline {
                return gone(error);
            }
            std::thread::sleep(LOOK);
        }
        // From here on it has to be let go of.
        self.held.push(Held { thread, signal: 0 });
        if let Err(error) = trace(libc::PTRACE_INTERRUPT, thread, 0) {
            self.held.pop();
            return gone(error);
        }
        loop {
            let mut status = 0;
            // SAFETY: a status of our own to be written; the thread is one that this one traces.
            let waited = unsafe { libc::waitpid(thread, &raw mut status, libc::__WALL | libc::WNOHANG) };
            if waited == thread && libc::WIFSTOPPED(status) {
                // A stop that is none of ptrace's own is a signal that was on its way: it goes on at the end.
                if let Some(held) = self.held.last_mut()
                    && status >> 16 == 0
                {
                    held.signal = libc::WSTOPSIG(status);
                }
                return Ok(());
            }
            if waited == thread || waited < 0 {
                // It has ended.
                self.held.pop();
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl Drop for Still {
    fn drop(&mut self) {
        for Held { thread, signal } in &self.held {
            if let Err(error) = trace(libc::PTRACE_DETACH, *thread, *signal) {
                tracing::debug!("thread {thread} has ended, or goes on when its tracer ends: {error}");
            }
        }
    }
}

/// A job of which nothing runs but its init, until this is dropped. Who is killed meanwhile ends all the same; other signals wait.
#[derive(Debug)]
pub struct Standstill {
    /// Dropped first: that is what the thread waits for.
    held: Option<Sender<()>>,
    holder: Option<JoinHandle<()>>,
}

impl Standstill {
    /// Stops the job. No checkpoint of it is taken as long.
    ///
    /// # Errors
    /// When somebody else traces one of its threads, or one cannot stop, as one that waits for a child of `vfork`; then all go on.
    pub fn of(job: &Arc<Job>) -> io::Result<Self> {
        let (stopped, has_stopped) = mpsc::channel();
        let (held, let_go) = mpsc::channel::<()>();
        let job = Arc::clone(job);
        let holder = std::thread::Builder::new().name("standstill".into()).spawn(move || {
            let _cutting = job.cutting.lock().unwrap_or_else(PoisonError::into_inner);
            let (mut still, told) = match Still::of_all(&job) {
                Ok(still) => (Some(still), Ok(())),
                Err(error) => (None, Err(error)),
            };
            if stopped.send(told).is_err() {
                return;
            }
            // Nothing is ever sent: it ends when the other end is dropped.
            while let_go.recv_timeout(REAPING) == Err(RecvTimeoutError::Timeout) {
                still.as_mut().into_iter().for_each(Still::reap);
            }
            drop(still);
        })?;
        let this = Self { held: Some(held), holder: Some(holder) };
        has_stopped
            .recv()
            .unwrap_or_else(|_| Err(io::Error::other("the thread that holds them panicked")))?;
        Ok(this)
    }
}

impl Drop for Standstill {
    fn drop(&mut self) {
        drop(self.held.take());
        // One that panicked has let go of all.
        drop(self.holder.take().map(JoinHandle::join));
    }
}

fn gone(error: io::Error) -> io::Result<()> {
    if error.raw_os_error() == Some(libc::ESRCH) { Ok(()) } else { Err(error) }
}

fn trace(request: libc::c_uint, thread: i32, data: i32) -> io::Result<()> {
    // SAFETY: none of these requests takes an address of ours.
    let done = unsafe { libc::ptrace(request, thread, 0usize, data as usize) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn threads(process: OuterPid) -> io::Result<Vec<i32>> {
    let entries = fs::read_dir(format!("/proc/{process}/task"))?;
    Ok(entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect())
}

/// The number that a thread has in its own PID namespace.
fn inner_number(process: OuterPid, thread: i32) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{process}/task/{thread}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("NSpid:"))?.split_whitespace().last()?.parse().ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::privilege::Capability;
    use std::process::{Command, Stdio};

    /// Says that this program is the one to be held.
    const HELD: &str = "DORMOUSE_TEST_HELD";

    /// The program that is held: some threads that sleep again and again.
    #[test]
    fn program() {
        if std::env::var_os(HELD).is_some() {
            let sleep = || loop {
                std::thread::sleep(Duration::from_millis(1));
            };
            (0..3).for_each(|_| drop(std::thread::spawn(sleep)));
            sleep();
        }
    }

    fn held(process: OuterPid) -> BTreeSet<i32> {
        let is_held = |thread: &i32| {
            let stat = fs::read_to_string(format!("/proc/{process}/task/{thread}/stat")).unwrap();
            stat.rsplit_once(')').unwrap().1.trim_start().starts_with('t')
        };
        threads(process).unwrap().into_iter().filter(is_held).collect()
    }

    #[test]
    fn all_threads_but_one_stand_still() {
        assert!(
            Capability::SysPtrace.is_held(),
            "as all of this crate's tests do, this one needs root's rights"
        );
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "still::tests::program", "--nocapture"])
            .env(HELD, "1")
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let process = OuterPid(i32::try_from(child.id()).unwrap());
        let begun = Instant::now();
        while threads(process).unwrap().len() < 5 {
            assert!(begun.elapsed() < Duration::from_secs(20));
            std::thread::sleep(LOOK);
        }
        let all: BTreeSet<i32> = threads(process).unwrap().into_iter().collect();
        for mover in &all {
            let still = Still::of(process, *mover).unwrap();
            let mut others = all.clone();
            others.remove(mover);
            assert_eq!(held(process), others);
            drop(still);
            assert_eq!(held(process), BTreeSet::new());
        }
        let still = Still::of(process, all.first().copied().unwrap()).unwrap();
        assert_eq!(
            Still::of(process, 1).err().unwrap().kind(),
            io::ErrorKind::PermissionDenied,
            "held already"
        );
        drop(still);
        assert_eq!(Still::of(process, 1).err().unwrap().kind(), io::ErrorKind::NotFound);
        assert_eq!(held(process), BTreeSet::new(), "nobody is held in vain");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
