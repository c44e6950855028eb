//! A running job, and how it ends.

mod ending;
mod spawn;
mod spec;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};

pub use ending::Ending;
pub use spawn::SpawnError;
pub use spawn::check_privilege;
pub use spec::JobSpec;

use crate::cut::{DumpOptions, KnownCopies, Setback};
use crate::files::{self, Doubtful, Tracker, Written};
use crate::init::instructions::{STATUS, WINDOW};
use crate::memory;
use crate::mounts::Mount;
use crate::stdio::border::Border;
use crate::tasks::{self, InnerPid, OuterPid, Task};
use crate::tmpfs::Tmpfs;

/// Whom a signal is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// The application's first process, as `kill` would.
    Application,
    /// Its process group, as a terminal would.
    Group,
}

/// A running job. Dropping it kills the job.
#[derive(Debug)]
pub struct Job {
    pub(crate) init: OuterPid,
    pidfd: OwnedFd,
    pub(crate) tmpfs: Tmpfs,
    /// None once the job has ended.
    border: Mutex<Option<Border>>,
    /// The mounts that we made or the machine had: what the application mounts itself is CRIU's to carry.
    base_mounts: OnceLock<Vec<Mount>>,
    /// None where the kernel does not let us watch.
    tracker: OnceLock<Tracker>,
    /// What of its files no image may rely on any more.
    pub(crate) doubtful: Arc<Doubtful>,
    ending: Mutex<Option<Ending>>,
    /// Output on its way belongs to an image: it goes nowhere else.
    discard_output: AtomicBool,
    /// Held by whoever has the job stopped.
    pub(crate) cutting: Mutex<()>,
    /// Leaving memory out of its dumps.
    pub(crate) leaving_out: Setback,
    /// Keeping from CRIU that there is such memory.
    pub(crate) withholding: Setback,
    /// The same of files in memory that have no names.
    pub(crate) withholding_files: Setback,
    /// Copying its processes.
    pub(crate) forking: Arc<Setback>,
    /// Those in its namespace that are copies of others.
    pub(crate) copies: KnownCopies,
}

impl Job {
    /// `init` must be a child of this process that has not been waited for.
    pub(crate) fn new(init: OuterPid, tmpfs: Tmpfs, border: Border) -> io::Result<Self> {
        let pid = Pid::from_raw(init.0).ok_or(io::ErrorKind::InvalidInput)?;
        let pidfd = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Self {
            init,
            pidfd,
            tmpfs,
            border: Mutex::new(Some(border)),
            base_mounts: OnceLock::new(),
            tracker: OnceLock::new(),
            doubtful: Arc::default(),
            ending: Mutex::new(None),
            discard_output: AtomicBool::new(false),
            cutting: Mutex::new(()),
            leaving_out: Setback::default(),
            withholding: Setback::default(),
            withholding_files: Setback::default(),
            forking: Arc::default(),
            copies: KnownCopies::default(),
        })
    }

    /// Takes note of the job's mounts, before anything of it runs, and watches them for files that it writes. `written` are those
    /// of an earlier life.
    pub(crate) fn settle(&self, base_mounts: Vec<Mount>, written: &BTreeSet<PathBuf>) {
        match Tracker::start(self.init, &base_mounts, written) {
            Ok(tracker) => drop(self.tracker.set(tracker)),
            Err(error) => tracing::warn!(%error, "files that the job writes and closes will not be restored"),
        }
        let _ = self.base_mounts.set(base_mounts);
    }

    pub(crate) fn base_mounts(&self) -> &[Mount] {
        self.base_mounts.get().map_or(&[], Vec::as_slice)
    }

    /// Every file the job has written and closed, under its present name.
    pub(crate) fn written(&self) -> Written {
        self.tracker.get().map(Tracker::written).unwrap_or_default()
    }

    /// The job's tmpfs.
    #[must_use]
    pub fn tmpfs(&self) -> &Tmpfs {
        &self.tmpfs
    }

    /// Pid 1 of the job, as seen from here.
    #[must_use]
    pub fn init(&self) -> OuterPid {
        self.init
    }

    /// Every process of the job, init first.
    #[must_use]
    pub fn tasks(&self) -> Vec<Task> {
        let mut tasks = tasks::in_namespace_of(self.init);
        let copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.retain(|task| !copies.contains(&task.outer));
        tasks
    }

    /// The pid out here of a process of the job.
    #[must_use]
    pub fn outer(&self, inner: InnerPid) -> Option<OuterPid> {
        self.tasks().into_iter().find(|t| t.inner == inner).map(|t| t.outer)
    }

    /// The same, of one that has not ended.
    #[must_use]
    pub fn living(&self, inner: InnerPid) -> Option<OuterPid> {
        self.tasks().into_iter().find(|task| task.inner == inner && !task.is_over()).map(|task| task.outer)
    }

    /// Whether any process but init has not ended; where none has, the job is about to.
    #[must_use]
    pub fn lives(&self) -> bool {
        self.tasks().iter().any(|task| task.inner != InnerPid::INIT && !task.is_over())
    }

    /// Bytes of private memory that the job's processes have, swapped out or not, of memory they share that is not on the job's
    /// tmpfs, of deleted files they have open, and of files that are saved: about what a dump writes with `options`.
    #[must_use]
    pub fn memory(&self, options: &DumpOptions) -> u64 {
        let on_tmpfs = rustix::fs::statvfs(self.tmpfs.path())
            .map_or(0, |fs| (fs.f_blocks - fs.f_bfree).saturating_mul(fs.f_frsize));
        let of_task = |task: &Task| {
            let status = fs::read_to_string(format!("/proc/{}/status", task.outer)).unwrap_or_default();
            private(&status) + memory::kilobytes(&status, "RssShmem:").saturating_sub(on_tmpfs)
        };
        let tasks = self.tasks();
        let pids: Vec<OuterPid> = tasks.iter().map(|task| task.outer).collect();
        let given = self.border().as_ref().and_then(|border| border.file_keys().ok()).unwrap_or_default();
        let files = files::carried_by(&pids, &given, &self.tmpfs.path(), options.save_limit);
        tasks.iter().map(of_task).sum::<u64>() + files + options.save_all_closed_limit
    }

    /// Bytes of private memory that its processes have, swapped out or not; and of private addresses, used or not.
    pub(crate) fn private_memory(&self) -> (u64, u64) {
        let addresses = |maps: &str| -> u64 {
            maps.lines().filter_map(tasks::private_range).map(|range| range.end - range.start).sum()
        };
        let of_task = |task: &Task| {
            let file = |name| fs::read_to_string(format!("/proc/{}/{name}", task.outer)).unwrap_or_default();
            (private(&file("status")), addresses(&file("maps")))
        };
        let sum = |(bytes, addresses): (u64, u64), of: (u64, u64)| (bytes + of.0, addresses + of.1);
        self.tasks().iter().map(of_task).fold((0, 0), sum)
    }

    /// Bytes of files in memory that its processes have open or mapped, and that have no names.
    pub(crate) fn nameless_files(&self) -> u64 {
        let pids: Vec<OuterPid> = self.tasks().iter().map(|task| task.outer).collect();
        files::nameless(&pids)
    }

    /// Whether the program would not be harmed by a fork of each of its processes: a filter of system calls (seccomp) may kill one for it; of private huge pages it could write none
    /// afterwards without another one, which the machine may not have; and where processes or promised memory are limited, the copies take at most half of what it has left for itself.
    pub(crate) fn may_fork(&self) -> bool {
        let file = |task: &Task, name| {
            fs::read_to_string(format!("/proc/{}/{name}", task.outer)).unwrap_or_default()
        };
        let tasks = self.tasks();
        let files: Vec<_> = tasks.iter().map(|task| (file(task, "status"), file(task, "maps"))).collect();
        let is_harmless = |(status, maps): &(String, String)| {
            !tasks::is_filtered(status) && !tasks::has_private_huge_pages(maps)
        };
        // For a moment there are two copies of one.
        let processes = tasks.len() as u64 + 1;
        let promised = || files.iter().map(|(status, _)| memory::kilobytes(status, "VmData:")).sum::<u64>();
        files.iter().all(is_harmless)
            && memory::processes_left().is_none_or(|left| processes <= left / 2)
            && memory::promises_left().is_none_or(|left| promised() <= left / 2)
    }

    /// Sends a signal to the application, unless it is over.
    ///
    /// # Errors
    /// As `kill(2)`.
    pub fn signal(&self, signal: i32, target: Target) -> io::Result<()> {
        let Some(application) = self.outer(InnerPid::APPLICATION) else { return Ok(()) };
        let pid = match target {
            Target::Application => application.0,
            // SAFETY: only asks the kernel.
            Target::Group => -unsafe { libc::getpgid(application.0) },
        };
        // SAFETY: sends a signal, no memory involved. -1 (from a failed getpgid) would be 1 here, which is not ours to signal.
        if pid == 1 || unsafe { libc::kill(pid, signal) } == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Gives the job's terminal the size of the user's.
    pub fn resize(&self) {
        let Some(window) = self.border().as_ref().and_then(Border::window) else { return };
        if self.tmpfs.write_host_file(WINDOW, &window.to_bytes()).is_ok() {
            let _ = pidfd_send_signal(&self.pidfd, Signal::WINCH);
        }
    }

    /// See [`Border::stops`].
    pub(crate) fn stops(&self) -> Option<OwnedFd> {
        self.border().as_ref().and_then(Border::stops)
    }

    /// Gives the user's terminal back for as long as the supervisor is stopped, then takes it again.
    pub(crate) fn suspended(&self, while_stopped: impl FnOnce()) {
        let border = self.border();
        let raw_mode = border.as_ref().and_then(Border::raw_mode);
        if let Some(raw_mode) = raw_mode {
            raw_mode.suspend();
        }
        while_stopped();
        if let Some(raw_mode) = raw_mode {
            let _ = raw_mode.again();
        }
    }

    /// The application's wait status, as soon as the application itself is over; the job may still have other processes.
    #[must_use]
    pub fn application_ending(&self) -> Option<Ending> {
        let text = fs::read_to_string(self.tmpfs.host_file(STATUS)).ok()?;
        text.trim().parse().ok().map(Ending::from_wait_status)
    }

    /// A descriptor that becomes readable when the job has ended.
    #[must_use]
    pub fn pidfd(&self) -> &OwnedFd {
        &self.pidfd
    }

    /// Waits until the last process of the job has ended and its output has arrived. Answers how the application ended.
    ///
    /// # Errors
    /// When waiting fails, which means that someone else has collected the job's init.
    pub fn wait(&self) -> io::Result<Ending> {
        loop {
            match poll(&mut [PollFd::new(&self.pidfd, PollFlags::IN)], None) {
                Ok(_) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        self.collect()
    }

    /// Ends the job at once, every process of it.
    ///
    /// # Errors
    /// When waiting fails.
    pub fn kill(&self) -> io::Result<Ending> {
        self.end()
    }

    /// Output that has not been delivered is dropped when the job ends.
    pub(crate) fn discard_output(&self) {
        self.discard_output.store(true, Ordering::Relaxed);
    }

    /// Lets input and output move, and arrive.
    pub(crate) fn let_streams_go_on(&self) {
        self.discard_output.store(false, Ordering::Relaxed);
        if let Some(border) = self.border().as_ref() {
            border.go_on();
        }
    }

    fn end(&self) -> io::Result<Ending> {
        match pidfd_send_signal(&self.pidfd, Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(e) => return Err(e.into()),
        }
        self.collect()
    }

    /// Collects init, once, and closes the border.
    fn collect(&self) -> io::Result<Ending> {
        use std::os::fd::AsFd;
        let mut ending = self.ending.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ending) = *ending {
            return Ok(ending);
        }
        while let Err(e) = waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED) {
            if e != rustix::io::Errno::INTR {
                return Err(e.into());
            }
        }
        if let Some(border) = self.border().take() {
            border.close(self.discard_output.load(Ordering::Relaxed));
        }
        // Without a status, init was killed and the application with it.
        Ok(*ending.insert(self.application_ending().unwrap_or(Ending::from_wait_status(libc::SIGKILL))))
    }

    pub(crate) fn border(&self) -> MutexGuard<'_, Option<Border>> {
        self.border.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of private memory of a process, as its `/proc/PID/status` tells.
fn private(status: &str) -> u64 {
    memory::kilobytes(status, "RssAnon:") + memory::kilobytes(status, "VmSwap:")
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.end();
    }
}
