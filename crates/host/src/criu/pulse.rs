//! Whether a CRIU that says nothing still gets somewhere.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use procfs::ProcResult;
use procfs::process::{Stat, all_processes};

use crate::tasks::{self, OuterPid, Task};

/// How long CRIU may neither use a processor nor get further before it counts as hung.
pub(crate) const SILENCE: Duration = Duration::from_secs(60);
/// How many times that it may use a processor and get no further.
const BUSY: u32 = 10;
/// How long a process may be one that keeps it waiting: it may be about to collect its threads, or busy with others.
const IN_VAIN: Duration = Duration::from_secs(1);

/// What CRIU has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Work {
    /// Written to its folders, or read into the tasks that it restores.
    bytes: u64,
    /// Clock ticks of its processes and of the tasks' own.
    ticks: u64,
}

/// How a CRIU is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sign {
    /// It does something.
    AtWork,
    /// It has done nothing for a while: somebody may have stopped it.
    Idle,
    /// It waits for a process of the job that [keeps it waiting](Pulse::keeps_waiting) for ever.
    WaitsInVain,
    /// Nothing has come of it for so long that nothing will.
    Hung(Duration),
}

/// Watches one CRIU.
#[derive(Debug)]
pub(super) struct Pulse {
    /// CRIU's process group.
    group: i32,
    /// Where it writes.
    folders: Vec<OwnedFd>,
    seen: Work,
    active: Instant,
    advanced: Instant,
    /// Since when it is known to do nothing: a CRIU that was not looked at for long is told to go on before it is given up.
    idle: Option<Instant>,
    /// Since when one of those that it dumps is known to [keep it waiting](Self::keeps_waiting).
    waits: Option<Instant>,
}

impl Pulse {
    /// `folders` are those of what CRIU was given.
    pub(super) fn of(group: u32, given: &[BorrowedFd<'_>]) -> Self {
        let is_folder = |fd: &&BorrowedFd<'_>| {
            rustix::fs::fstat(fd).is_ok_and(|stat| {
                rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Directory
            })
        };
        let folders = given.iter().filter(is_folder).filter_map(|fd| fd.try_clone_to_owned().ok()).collect();
        let now = Instant::now();
        let group = i32::try_from(group).unwrap_or(0);
        Self { group, folders, seen: Work::default(), active: now, advanced: now, idle: None, waits: None }
    }

    /// It has said something.
    pub(super) fn beat(&mut self) {
        let now = Instant::now();
        (self.active, self.advanced, self.idle) = (now, now, None);
        self.waits = self.waits.map(|_| now);
    }

    /// Looks at CRIU, and at the tasks that it works on where it has named their init.
    pub(super) fn look(&mut self, init: Option<OuterPid>, silence: Duration) -> Sign {
        let (work, now) = (self.work(init), Instant::now());
        if work.bytes > self.seen.bytes {
            self.beat();
        } else if work.ticks != self.seen.ticks {
            (self.active, self.idle) = (now, None);
        }
        self.seen = Work { bytes: work.bytes.max(self.seen.bytes), ticks: work.ticks };
        let stuck = now - self.advanced;
        let is_over = |since: Option<Instant>, limit| since.is_some_and(|since| now - since >= limit);
        if stuck >= silence * BUSY || is_over(self.idle, silence / 2) {
            Sign::Hung(stuck)
        } else if is_over(self.waits, IN_VAIN) {
            Sign::WaitsInVain
        } else if now - self.active >= silence / 2 {
            self.idle.get_or_insert(now);
            Sign::Idle
        } else {
            Sign::AtWork
        }
    }

    /// Looks at those that it dumps, whose init this is, beside [`Self::look`]: where one of them is killed and has several threads CRIU waits for its
    /// first, of whose end it is told when it has collected the others, which it does not.
    pub(super) fn look_at(&mut self, dumped: OuterPid) {
        let keeps_waiting = tasks::in_namespace_of(dumped).iter().any(|task| self.keeps_waiting(task));
        self.waits = if keeps_waiting { self.waits.or_else(|| Some(Instant::now())) } else { None };
    }

    /// Whether all threads of a process, more than one, have ended, and CRIU is to be told ("Death under ptrace" in `ptrace(2)`).
    fn keeps_waiting(&self, task: &Task) -> bool {
        let has_ended = |thread: &i32| {
            let status = fs::read_to_string(format!("/proc/{}/task/{thread}/status", task.outer));
            let status = status.unwrap_or_default();
            let field = |name| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            let tracer = field("TracerPid:").and_then(|pid| pid.parse::<i32>().ok());
            field("State:").is_some_and(|state| state.starts_with('Z')) && tracer == Some(self.group)
        };
        task.state == 'Z' && task.threads.len() > 1 && task.threads.iter().all(has_ended)
    }

    fn work(&self, init: Option<OuterPid>) -> Work {
        let bytes = self.folders.iter().map(|folder| length_of(folder.as_fd())).sum();
        let mut work = Work { bytes, ticks: 0 };
        let ours = all_processes().into_iter().flatten().flatten();
        for stat in ours.filter_map(|p| p.stat().ok()).filter(|stat| stat.pgrp == self.group) {
            work.ticks += ticks(&stat);
        }
        // Only a pid in a namespace below ours names a job.
        let init = init.filter(|init| tasks::inner_pid(*init).is_some());
        for task in init.into_iter().flat_map(tasks::in_namespace_of) {
            if let Ok(stat) = stat_of(task.outer) {
                work.ticks += ticks(&stat);
                work.bytes += stat.rss;
            }
        }
        work
    }
}

fn stat_of(pid: OuterPid) -> ProcResult<Stat> {
    procfs::process::Process::new(pid.0)?.stat()
}

fn ticks(stat: &Stat) -> u64 {
    stat.utime + stat.stime
}

fn length_of(folder: BorrowedFd<'_>) -> u64 {
    let entries = fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd())).into_iter().flatten();
    entries.flatten().filter_map(|entry| entry.metadata().ok()).map(|meta| meta.len()).sum()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs::File;
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command};

    const SILENCE: Duration = Duration::from_millis(300);

    /// Looks every 20 ms while `meanwhile` is called, until CRIU counts as hung or `limit` is over.
    fn watch(
        child: &mut Child,
        folder: &File,
        limit: Duration,
        mut meanwhile: impl FnMut(),
    ) -> Option<Duration> {
        let mut pulse = Pulse::of(child.id(), &[folder.as_fd()]);
        let began = Instant::now();
        let mut hung = false;
        while !hung && began.elapsed() < limit {
            std::thread::sleep(Duration::from_millis(20));
            meanwhile();
            hung = matches!(pulse.look(None, SILENCE), Sign::Hung(_));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        hung.then(|| began.elapsed())
    }

    fn shell(script: &str) -> Child {
        Command::new("sh").args(["-c", script]).process_group(0).spawn().unwrap()
    }

    #[test]
    fn who_was_not_looked_at_is_not_given_up_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let opened = File::open(folder.path()).unwrap();
        let mut child = shell("exec sleep 100");
        let mut pulse = Pulse::of(child.id(), &[opened.as_fd()]);
        pulse.look(None, SILENCE);
        std::thread::sleep(2 * SILENCE);
        let signs = [pulse.look(None, SILENCE), pulse.look(None, SILENCE)];
        std::thread::sleep(SILENCE / 2);
        let last = pulse.look(None, SILENCE);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(signs, [Sign::Idle, Sign::Idle]);
        assert!(matches!(last, Sign::Hung(_)), "{last:?}");
    }

    #[test]
    fn who_sleeps_is_missed_who_writes_is_not_and_who_spins_is_later() {
        let folder = tempfile::tempdir().unwrap();
        let opened = File::open(folder.path()).unwrap();
        let asleep = watch(&mut shell("exec sleep 100"), &opened, 20 * SILENCE, || {});
        assert!(asleep.is_some_and(|after| after < 5 * SILENCE), "{asleep:?}");

        let mut image = File::create(folder.path().join("pages")).unwrap();
        let writing = watch(&mut shell("exec sleep 100"), &opened, 4 * SILENCE, || {
            std::io::Write::write_all(&mut image, b"page").unwrap();
        });
        assert_eq!(writing, None);

        let spinning = watch(&mut shell("while :; do :; done"), &opened, 40 * SILENCE, || {});
        assert!(spinning.is_some_and(|after| after >= BUSY * SILENCE), "{spinning:?}");
    }

    /// Says that this program is the one to be killed.
    const KILLED: &str = "DORMOUSE_TEST_KILLED";

    /// The program that is killed: two threads that sleep.
    #[test]
    fn program() {
        if std::env::var_os(KILLED).is_some() {
            let sleep = || std::thread::sleep(Duration::from_secs(100));
            std::thread::spawn(sleep);
            sleep();
        }
    }

    #[test]
    fn who_waits_for_the_first_thread_of_the_dead_waits_in_vain() {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "criu::pulse::tests::program"])
            .env(KILLED, "1")
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let threads = || fs::read_dir(format!("/proc/{pid}/task")).unwrap().count();
        let until = |what: &dyn Fn() -> bool| {
            let began = Instant::now();
            while !what() {
                assert!(began.elapsed() < Duration::from_secs(20));
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        // The test's own thread, and what runs it.
        until(&|| threads() >= 3);
        // Seized as CRIU seizes them, by this thread.
        let us = rustix::thread::gettid().as_raw_pid();
        let mut pulse = Pulse::of(us.cast_unsigned(), &[]);
        for entry in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
            let thread: i32 = entry.unwrap().file_name().to_str().unwrap().parse().unwrap();
            // SAFETY: the request takes no address.
            assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SEIZE, thread, 0usize, 0usize) }, 0);
        }
        let task =
            || tasks::in_namespace_of(OuterPid(us)).into_iter().find(|task| task.outer.0 == pid).unwrap();
        assert!(!pulse.keeps_waiting(&task()));
        child.kill().unwrap();
        until(&|| pulse.keeps_waiting(&task()));
        let namespace = OuterPid(us);
        pulse.look_at(namespace);
        assert_eq!(pulse.look(None, SILENCE * 100), Sign::AtWork);
        std::thread::sleep(IN_VAIN);
        pulse.look_at(namespace);
        assert_eq!(pulse.look(None, SILENCE * 100), Sign::WaitsInVain);
        // Whoever collects the others is told of the first.
        for thread in task().threads.into_iter().filter(|thread| *thread != pid) {
            let mut status = 0;
            // SAFETY: only this thread traces that one, and waits for it.
            assert_eq!(unsafe { libc::waitpid(thread, &mut status, libc::__WALL) }, thread);
        }
        child.wait().unwrap();
    }
}
