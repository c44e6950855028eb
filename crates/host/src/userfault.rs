//! A userfaultfd of a stopped process's memory, made by the process itself: the system call is put under its program counter, and nothing
//! of that is left behind.

use crate::privilege::Capability;
use crate::tasks::OuterPid;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::null_mut;
use std::time::{Duration, Instant};

/// A process that does not stop for this long is given up.
const PATIENCE: Duration = Duration::from_secs(5);
/// Between two looks.
const LOOK: Duration = Duration::from_micros(100);
/// The library that has its program's system calls get at memory whose faults the kernel itself may not wait for (`crates/bounce`), as it is called in
/// a job. Who has it loaded can do with a userfaultfd that tells of the program's own faults only.
pub const BOUNCE: &str = "libdormouse_bounce.so";
/// `UFFD_USER_MODE_ONLY`, of <linux/userfaultfd.h>.
const USER_MODE_ONLY: u64 = 1;
/// `syscall`.
const SYSCALL: libc::c_long = 0x050f;

/// Whether each process may have one.
const UNPRIVILEGED: &str = "/proc/sys/vm/unprivileged_userfaultfd";

/// By what a process may have a userfaultfd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Right {
    /// Its own capability, or [`BOUNCE`].
    Own,
    /// The machine lets every process have one.
    Machine,
    /// Nothing. It may have made one before it gave up what that takes.
    None,
}

impl Right {
    /// That of a process's first thread, which would make it.
    ///
    /// # Errors
    /// When the process is gone.
    pub(crate) fn of(process: OuterPid) -> io::Result<Self> {
        let name = process.to_string();
        // In a user namespace of its own it has capabilities over that alone.
        let namespace = |of: &str| std::fs::read_link(format!("/proc/{of}/ns/user"));
        let is_ours = namespace(&name)? == namespace("self")?;
        Ok(match () {
            () if is_ours && Capability::SysPtrace.is_held_in(&name) => Self::Own,
            () if bounces(process)? => Self::Own,
            () if all_may() => Self::Machine,
            () => Self::None,
        })
    }
}

/// Whether this machine lets every process have a userfaultfd that tells of system calls' faults, too.
#[must_use]
pub fn all_may() -> bool {
    std::fs::read_to_string(UNPRIVILEGED).is_ok_and(|may| may.trim() == "1")
}

/// Makes a userfaultfd of a process that `SIGSTOP` has stopped, or will at once; one of user mode only, where it may have no other and has [`BOUNCE`]. It
/// stays stopped.
///
/// # Errors
/// `PermissionDenied` where the process may have none; those of `ptrace`.
pub(crate) fn of(process: OuterPid) -> io::Result<OwnedFd> {
    await_stop(process).map_err(while_("waiting until it stands"))?;
    let held = Held::seize(process).map_err(while_("stopping it"))?;
    let registers = held.registers()?;
    let at = registers.rip as usize;
    let text = held.peek(at)?;
    held.poke(at, (text & !0xffff) | SYSCALL)?;
    let flags = (libc::O_CLOEXEC | libc::O_NONBLOCK) as u64;
    let made = held.call(&registers, libc::SYS_userfaultfd, flags);
    let made = match made {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => match bounces(process) {
            Ok(true) => {
                tracing::warn!(
                    "process {process} has no right to a full userfaultfd here: system calls that are given managed memory may fail with EFAULT, but for the C \
                     library's reading and writing (--user-faults; docs/managed-memory.md)"
                );
                held.call(&registers, libc::SYS_userfaultfd, flags | USER_MODE_ONLY)
            }
            Ok(false) => Err(error),
            Err(error) => Err(while_("looking for what it has loaded")(error)),
        },
        made => made,
    };
    let made = made.map_err(|error| held.explained(error)).and_then(|number| {
        let got = take(process, number).map_err(while_("taking its userfaultfd"));
        held.call(&registers, libc::SYS_close, number as u64)?;
        got
    });
    held.poke(at, text)?;
    held.set(&registers)?;
    made
}

/// An error, and what was being done.
fn while_(doing: &'static str) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{doing}: {error}"))
}

/// Whether a process has [`BOUNCE`] loaded.
fn bounces(process: OuterPid) -> io::Result<bool> {
    let maps = std::fs::read(format!("/proc/{process}/maps"))?;
    let mut files =
        maps.split(|byte| *byte == b'\n').filter_map(|line| line.rsplit(|byte| *byte == b'/').next());
    Ok(files.any(|name| name == BOUNCE.as_bytes()))
}

/// Waits until every thread of the process stands.
fn await_stop(process: OuterPid) -> io::Result<()> {
    let until = Instant::now() + PATIENCE;
    while !stands(process)? {
        if Instant::now() > until {
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

fn stands(process: OuterPid) -> io::Result<bool> {
    for thread in std::fs::read_dir(format!("/proc/{process}/task"))? {
        let stat = match std::fs::read_to_string(thread?.path().join("stat")) {
            Ok(stat) => stat,
            // It has just ended, as whoever looks again will see.
            Err(error) if is_gone(&error) => return Ok(false),
            Err(error) => return Err(error),
        };
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        if state != Some('T') {
            return Ok(false);
        }
    }
    Ok(true)
}

fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
}

/// A descriptor of another process.
fn take(process: OuterPid, number: i64) -> io::Result<OwnedFd> {
    let done = |code: libc::c_long| if code < 0 { Err(io::Error::last_os_error()) } else { Ok(code as i32) };
    // SAFETY: no pointers; what is given is a descriptor of ours.
    let pidfd = unsafe { OwnedFd::from_raw_fd(done(libc::syscall(libc::SYS_pidfd_open, process.0, 0))?) };
    // SAFETY: the same.
    Ok(unsafe {
        OwnedFd::from_raw_fd(done(libc::syscall(libc::SYS_pidfd_getfd, pidfd.as_raw_fd(), number, 0))?)
    })
}

/// The first thread of a process, held; let go of when this is dropped.
struct Held {
    thread: i32,
    /// What filters the process's system calls (seccomp) has no say in those that it is had to make.
    unfiltered: bool,
}

impl Held {
    fn seize(process: OuterPid) -> io::Result<Self> {
        let until = Instant::now() + PATIENCE;
        loop {
            match trace(libc::PTRACE_SEIZE, process.0, 0, 0) {
                // Whoever restored it may still be about to let go of it.
                Err(error) if error.raw_os_error() == Some(libc::EPERM) && Instant::now() < until => {
                    std::thread::sleep(LOOK);
                }
                Err(error) => return Err(error),
                Ok(_) => break,
            }
        }
        let mut held = Self { thread: process.0, unfiltered: false };
        trace(libc::PTRACE_INTERRUPT, held.thread, 0, 0)?;
        held.await_trap()?;
        // Until it is let go of. Who is filtered himself may not do that.
        let suspended =
            trace(libc::PTRACE_SETOPTIONS, held.thread, 0, libc::PTRACE_O_SUSPEND_SECCOMP as usize);
        held.unfiltered =
            suspended.inspect_err(|error| tracing::debug!("{process}: filters stay: {error}")).is_ok();
        Ok(held)
    }

    fn await_trap(&self) -> io::Result<i32> {
        let until = Instant::now() + PATIENCE;
        loop {
            let mut status = 0;
            // SAFETY: a status of our own to be written; the thread is one that this one traces.
            match unsafe { libc::waitpid(self.thread, &raw mut status, libc::__WALL | libc::WNOHANG) } {
                pid if pid == self.thread && libc::WIFSTOPPED(status) => return Ok(status),
                pid if pid == self.thread
                    && libc::WIFSIGNALED(status)
                    && libc::WTERMSIG(status) == libc::SIGSYS =>
                {
                    return Err(self.explained(io::Error::from_raw_os_error(libc::EPERM)));
                }
                0 if Instant::now() < until => std::thread::sleep(LOOK),
                0 => return Err(io::ErrorKind::TimedOut.into()),
                -1 => return Err(io::Error::last_os_error()),
                _ => return Err(io::ErrorKind::NotFound.into()),
            }
        }
    }

    /// What it takes where it may have none.
    fn explained(&self, error: io::Error) -> io::Error {
        let why = match error.raw_os_error() {
            Some(libc::EPERM) if self.unfiltered => {
                "it needs CAP_SYS_PTRACE, or the machine vm.unprivileged_userfaultfd = 1"
            }
            Some(libc::EPERM) => {
                "it needs CAP_SYS_PTRACE, or the machine vm.unprivileged_userfaultfd = 1; or a filter of its system calls (seccomp) forbids it, and \
                 dormouse, which is filtered itself, may not leave that aside"
            }
            _ => return error,
        };
        io::Error::new(io::ErrorKind::PermissionDenied, format!("it may have no userfaultfd: {why}"))
    }

    fn registers(&self) -> io::Result<libc::user_regs_struct> {
        // SAFETY: numbers, of which zero is one.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        trace(libc::PTRACE_GETREGS, self.thread, 0, &raw mut registers as usize)?;
        Ok(registers)
    }

    fn set(&self, registers: &libc::user_regs_struct) -> io::Result<()> {
        trace(libc::PTRACE_SETREGS, self.thread, 0, std::ptr::from_ref(registers) as usize).map(drop)
    }

    fn peek(&self, at: usize) -> io::Result<libc::c_long> {
        // A word may look like an error, so the number is what tells.
        // SAFETY: this thread's own.
        unsafe { *libc::__errno_location() = 0 };
        // SAFETY: an address of the other process.
        let word =
            unsafe { libc::ptrace(libc::PTRACE_PEEKTEXT, self.thread, at, null_mut::<libc::c_void>()) };
        let error = io::Error::last_os_error();
        if word == -1 && error.raw_os_error() != Some(0) { Err(error) } else { Ok(word) }
    }

    fn poke(&self, at: usize, word: libc::c_long) -> io::Result<()> {
        trace(libc::PTRACE_POKETEXT, self.thread, at, word as usize).map(drop)
    }

    /// Has the thread make a system call with one argument, where `syscall` is under its program counter.
    fn call(&self, before: &libc::user_regs_struct, number: libc::c_long, argument: u64) -> io::Result<i64> {
        let mut registers = *before;
        registers.rax = number as u64;
        registers.rdi = argument;
        // It is in no system call that the kernel could restart.
        registers.orig_rax = u64::MAX;
        self.set(&registers)?;
        trace(libc::PTRACE_SINGLESTEP, self.thread, 0, 0)?;
        // A stop of the whole process may be told first.
        let until = Instant::now() + PATIENCE;
        while libc::WSTOPSIG(self.await_trap()?) != libc::SIGTRAP || self.registers()?.rip == before.rip {
            if Instant::now() > until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            trace(libc::PTRACE_SINGLESTEP, self.thread, 0, 0)?;
        }
        let answer = self.registers()?.rax as i64;
        if answer < 0 { Err(io::Error::from_raw_os_error(-answer as i32)) } else { Ok(answer) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Err(error) = trace(libc::PTRACE_DETACH, self.thread, 0, 0) {
            tracing::debug!("process {} has ended: {error}", self.thread);
        }
    }
}

fn trace(request: libc::c_uint, thread: i32, address: usize, data: usize) -> io::Result<libc::c_long> {
    // SAFETY: an address of ours is given by those alone who have it there, for what the request reads or writes.
    let done = unsafe { libc::ptrace(request, thread, address, data) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn a_stopped_process_makes_one_and_goes_on_as_it_was() {
        let child = Command::new("sh")
            .args(["-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo $i"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let process = OuterPid(i32::try_from(child.id()).unwrap());
        let signal = |signal| {
            // SAFETY: a child of ours that has not been waited for.
            assert_eq!(unsafe { libc::kill(process.0, signal) }, 0);
        };
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(2));
            signal(libc::SIGSTOP);
            let userfault = of(process).unwrap();
            let link = std::fs::read_link(format!("/proc/self/fd/{}", userfault.as_raw_fd())).unwrap();
            assert!(link.to_string_lossy().contains("userfaultfd"), "{link:?}");
            let theirs = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
            let theirs = theirs.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
            assert!(theirs.into_iter().all(|link| !link.to_string_lossy().contains("userfaultfd")));
            await_stop(process).unwrap();
            signal(libc::SIGCONT);
        }
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        assert_eq!(output.stdout, b"200000\n");
    }

    /// A process that may have none of system calls: told so, or given one of user mode if it has the library for that.
    #[test]
    fn who_may_have_none_gets_one_of_user_mode_if_that_will_do() {
        if all_may() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let library = dir.path().join(BOUNCE);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let libc = maps
            .lines()
            .find_map(|line| line.split(' ').next_back().filter(|file| file.ends_with("/libc.so.6")));
        std::fs::copy(libc.unwrap(), &library).unwrap();
        for (preloaded, is_given) in [(None, false), (Some(&library), true)] {
            let mut child = Command::new("setpriv")
                .args(["--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace", "sleep", "60"])
                .envs(preloaded.map(|library| ("LD_PRELOAD", library)))
                .spawn()
                .unwrap();
            let process = OuterPid(i32::try_from(child.id()).unwrap());
            let until = Instant::now() + PATIENCE;
            let is_there = || {
                let sleeps = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap() == "sleep\n";
                sleeps && (!is_given || bounces(process).unwrap())
            };
            while !is_there() {
                assert!(Instant::now() < until, "it does not start");
                std::thread::sleep(LOOK);
            }
            // SAFETY: a child of ours that has not been waited for.
            assert_eq!(unsafe { libc::kill(process.0, libc::SIGSTOP) }, 0);
            let given = of(process);
            child.kill().unwrap();
            child.wait().unwrap();
            match given {
                Ok(_) => assert!(is_given),
                Err(error) => assert!(!is_given && error.to_string().contains("CAP_SYS_PTRACE"), "{error}"),
            }
        }
    }
}
