//! The supervisor's signals: what it was started with, and passing on what arrives.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Arc, OnceLock, Weak};

use rustix::event::{PollFd, PollFlags, poll};

use crate::job::{Job, Target};

/// Signals that the supervisor passes on. SIGKILL and SIGSTOP cannot be.
const FORWARDED: [i32; 8] = [
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGTSTP,
    libc::SIGWINCH,
];

/// What was blocked before [`Forwarder::block`] blocked more.
static BLOCKED_BEFORE: OnceLock<Vec<i32>> = OnceLock::new();

/// What a program inherits besides its environment and descriptors.
#[derive(Debug)]
pub(crate) struct Inherited {
    pub(crate) umask: u32,
    pub(crate) ignored: Vec<i32>,
    pub(crate) blocked: Vec<i32>,
}

impl Inherited {
    pub(crate) fn of_this_process() -> io::Result<Self> {
        let status = fs::read_to_string("/proc/thread-self/status")?;
        let field = |name: &str| status.lines().find_map(|l| l.strip_prefix(name)).map(str::trim);
        let set =
            |name| signals_in(field(name).and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0));
        Ok(Self {
            umask: field("Umask:").and_then(|octal| u32::from_str_radix(octal, 8).ok()).unwrap_or(0o022),
            // Rust's own start-up ignores SIGPIPE.
            ignored: set("SigIgn:").into_iter().filter(|&s| s != libc::SIGPIPE).collect(),
            blocked: BLOCKED_BEFORE.get().cloned().unwrap_or_else(|| set("SigBlk:")),
        })
    }
}

fn signals_in(set: u64) -> Vec<i32> {
    (1..=64).filter(|s| set & (1 << (s - 1)) != 0).collect()
}

/// What ends a process that has not said otherwise.
const ENDING: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// What [`last_words`] has blocked.
static WAITED_FOR: OnceLock<libc::sigset_t> = OnceLock::new();

/// Has this process, when it is sent a signal that ends it, call `words` before that. Call it before any other thread exists. What this process
/// starts and is to be ended by such signals has to be [`unblocked`].
///
/// # Errors
/// When no thread can be started.
pub fn last_words(words: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let ignored = Inherited::of_this_process()?.ignored;
    // SAFETY: sigset_t is plain data that sigemptyset initialises; this thread is the only one.
    let set = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in ENDING.into_iter().filter(|signal| !ignored.contains(signal)) {
            libc::sigaddset(&mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        set
    };
    WAITED_FOR.get_or_init(|| set);
    let wait = move || {
        let mut signal = 0;
        // SAFETY: both are ours.
        while unsafe { libc::sigwait(&set, &mut signal) } != 0 {}
        words();
        // SAFETY: nobody has set another action for it, so this ends the process, as it would have without all this.
        unsafe {
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut());
            libc::raise(signal);
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).map(drop)
}

/// Ends this process without anything that libraries would do on its way out, which may wait for others.
pub fn exit_at_once(code: u8) -> ! {
    // SAFETY: it does nothing but end the process.
    unsafe { libc::_exit(code.into()) }
}

/// Has what `command` starts be ended by the signals that this process waits for with [`last_words`]: a child inherits what is blocked.
pub fn unblocked(command: &mut Command) -> &mut Command {
    let Some(&set) = WAITED_FOR.get() else { return command };
    let unblock = move || {
        // SAFETY: `set` is initialised.
        match unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &set, std::ptr::null_mut()) } {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    };
    // SAFETY: between fork and exec it makes one system call, and neither allocates nor locks.
    unsafe { command.pre_exec(unblock) }
}

/// The signal that this process has been sent in order to end it, if one is pending. It stays pending.
#[must_use]
pub fn asked_to_end() -> Option<i32> {
    // SAFETY: sigset_t is plain data that sigpending fills.
    let pending = unsafe {
        let mut pending: libc::sigset_t = std::mem::zeroed();
        libc::sigpending(&mut pending);
        pending
    };
    // SAFETY: `pending` is initialised.
    ENDING.into_iter().find(|signal| unsafe { libc::sigismember(&pending, *signal) } == 1)
}

/// Passes the supervisor's signals on to a job.
#[derive(Debug)]
pub struct Forwarder {
    set: libc::sigset_t,
}

impl Forwarder {
    /// Blocks the signals that are to be passed on, in this thread and those it starts. Call it before any other thread exists.
    ///
    /// # Errors
    /// When the kernel refuses, which it does not.
    pub fn block() -> io::Result<Self> {
        let before = Inherited::of_this_process()?;
        BLOCKED_BEFORE.get_or_init(|| before.blocked);
        // SAFETY: sigset_t is plain data that sigemptyset initialises.
        let set = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            for signal in FORWARDED.into_iter().filter(|s| !before.ignored.contains(s)) {
                libc::sigaddset(&mut set, signal);
            }
            set
        };
        // SAFETY: `set` is initialised.
        match unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) } {
            0 => Ok(Self { set }),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Starts a thread that passes on what arrives, for as long as `job` is held elsewhere too; and, where the job reads from the
    /// user's terminal, one that stops this process when the user stops the application.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn forward_to(self, job: &Arc<Job>) -> io::Result<()> {
        if let Some(stops) = job.stops() {
            let (job, ended) = (Arc::downgrade(job), job.pidfd().try_clone()?);
            std::thread::Builder::new()
                .name("stops".into())
                .spawn(move || follow_stops(&job, &stops, &ended))?;
        }
        let job = Arc::downgrade(job);
        std::thread::Builder::new().name("signals".into()).spawn(move || self.forward(&job))?;
        Ok(())
    }

    fn forward(&self, job: &Weak<Job>) {
        loop {
            // SAFETY: siginfo_t is plain data that the call fills.
            let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
            // SAFETY: both are ours.
            let signal = unsafe { libc::sigwaitinfo(&self.set, &mut info) };
            if signal < 0 {
                continue;
            }
            let Some(job) = job.upgrade() else { return };
            pass_on(&job, signal, info.si_code);
        }
    }
}

/// Waits for the application to be stopped from the keyboard, until the job has ended.
fn follow_stops(job: &Weak<Job>, stops: &OwnedFd, ended: &OwnedFd) {
    loop {
        let mut fds = [PollFd::new(ended, PollFlags::IN), PollFd::new(stops, PollFlags::IN)];
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => continue,
            Ok(_) if fds[0].revents().is_empty() => {}
            _ => return,
        }
        let mut bytes = [0; 64];
        let (Ok(1..), Some(job)) = (rustix::io::read(stops, &mut bytes), job.upgrade()) else { return };
        stop_until_continued(&job, Target::Group);
    }
}

/// Gives the user the shell back; `fg` continues here.
fn stop_until_continued(job: &Job, target: Target) {
    job.suspended(|| {
        // Sent to this thread, so that it does not run on until another one has taken the signal.
        // SAFETY: stops this process.
        unsafe { libc::raise(libc::SIGSTOP) };
    });
    let _ = job.signal(libc::SIGCONT, target);
    job.resize();
}

fn pass_on(job: &Job, signal: i32, code: i32) {
    // A terminal signals the whole foreground group, kill(1) one process.
    const SI_KERNEL: i32 = 0x80;
    let target = if code == SI_KERNEL { Target::Group } else { Target::Application };
    match signal {
        libc::SIGWINCH => job.resize(),
        libc::SIGTSTP => {
            let _ = job.signal(libc::SIGTSTP, target);
            stop_until_continued(job, target);
        }
        _ => drop(job.signal(signal, target)),
    }
}
