//! Pid 1 of a job: starts the application, passes signals on, reaps, and ends the job when the supervisor is gone.

use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{PollFd, PollFlags};

use super::instructions::{INSTRUCTIONS, Instructions, READY, STATUS, StartFailure};
use super::setup::host_path;
use super::terminal::Terminal;
use super::{application, inherited, read_instructions, report};

/// Signals that are passed on to the application.
const FORWARDED: [i32; 9] = [
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGCONT,
    libc::SIGTSTP,
    libc::SIGALRM,
];

/// Those of them that end the job once the application itself is over and only orphans are left.
const ENDING: [i32; 4] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];

/// Signals that arrived, a bit each.
static ARRIVED: AtomicU64 = AtomicU64::new(0);

extern "C" fn note(signal: libc::c_int) {
    ARRIVED.fetch_or(1 << signal, Ordering::Relaxed);
}

pub(super) fn main() -> ExitCode {
    let told = match read_instructions(&host_path(INSTRUCTIONS)) {
        Ok(told) => told,
        Err(_) => return ExitCode::FAILURE,
    };
    let started = catch_signals().map_err(StartFailure::setup("catching signals")).and_then(|()| {
        rustix::process::setsid()
            .map_err(io::Error::from)
            .map_err(StartFailure::setup("starting a session"))?;
        let terminal = told.terminal.as_ref().map(Terminal::open).transpose();
        let terminal = terminal.map_err(StartFailure::setup("making the job's terminal"))?;
        await_start(&told).map_err(StartFailure::setup("waiting for the supervisor"))?;
        let pid = application::start(&told, terminal.as_ref())?;
        Ok((pid, terminal))
    });
    match started {
        Ok((application, terminal)) => {
            application::close_passed(&told);
            // SAFETY: taken here only.
            let alive = unsafe { inherited(told.alive) };
            // init's image need not hold the environment of the application.
            drop(told);
            Init { application: Some(application), terminal, alive }.serve()
        }
        Err(failure) => {
            report(told.report, &failure);
            ExitCode::FAILURE
        }
    }
}

/// Says that all is mounted, and waits until the supervisor has looked at it.
fn await_start(told: &Instructions) -> io::Result<()> {
    // SAFETY: both are open, and stay so.
    let (report, alive) =
        unsafe { (BorrowedFd::borrow_raw(told.report), BorrowedFd::borrow_raw(told.alive)) };
    rustix::io::write(report, &[READY])?;
    let mut byte = [0];
    match rustix::io::read(alive, &mut byte)? {
        1 => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Catches what init acts on and blocks everything, so that signals arrive only while it waits.
fn catch_signals() -> io::Result<()> {
    // SAFETY: the handler only sets a bit in an atomic; the structures are plain data, initialised here.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        if libc::sigprocmask(libc::SIG_SETMASK, &all, std::ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
        let mut action: libc::sigaction = std::mem::zeroed();
        let handler: extern "C" fn(libc::c_int) = note;
        action.sa_sigaction = handler as usize;
        action.sa_mask = all;
        for signal in FORWARDED.into_iter().chain([libc::SIGCHLD, libc::SIGWINCH]) {
            if libc::sigaction(signal, &action, std::ptr::null_mut()) != 0 {
                return Err(io::Error::last_os_error());
            }
        }
    }
    Ok(())
}

struct Init {
    /// None once it is over.
    application: Option<libc::pid_t>,
    terminal: Option<Terminal>,
    /// Hangs up when the supervisor dies, however it dies.
    alive: OwnedFd,
}

impl Init {
    fn serve(mut self) -> ExitCode {
        loop {
            if !self.wait() {
                return ExitCode::FAILURE;
            }
            if let Some(terminal) = &mut self.terminal {
                terminal.pump();
            }
            let arrived = ARRIVED.swap(0, Ordering::Relaxed);
            if arrived & (1 << libc::SIGWINCH) != 0
                && let Some(terminal) = &self.terminal
            {
                terminal.resize();
            }
            for signal in FORWARDED.into_iter().filter(|s| arrived & (1 << s) != 0) {
                match self.application {
                    // SAFETY: sends a signal to a child that has not been reaped.
                    Some(pid) => drop(unsafe { libc::kill(pid, signal) }),
                    None if ENDING.contains(&signal) => return ExitCode::FAILURE,
                    None => {}
                }
            }
            if arrived & (1 << libc::SIGCHLD) != 0 && self.reap() {
                return self.leave();
            }
        }
    }

    /// Sleeps until something happens. False when the supervisor is gone.
    fn wait(&self) -> bool {
        let mut fds = vec![PollFd::new(&self.alive, PollFlags::IN)];
        if let Some(terminal) = &self.terminal {
            fds.extend(terminal.interest());
        }
        poll_with_signals(&mut fds);
        !fds[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
    }

    /// Collects every process that has ended. True when none is left.
    fn reap(&mut self) -> bool {
        loop {
            let mut status = 0;
            // SAFETY: `status` is ours.
            match unsafe { libc::waitpid(-1, &mut status, libc::WNOHANG | libc::WUNTRACED) } {
                0 => return false,
                -1 => return io::Error::last_os_error().raw_os_error() == Some(libc::ECHILD),
                pid if libc::WIFSTOPPED(status) => {
                    if let Some(terminal) = &self.terminal
                        && Some(pid) == self.application
                        && libc::WSTOPSIG(status) == libc::SIGTSTP
                    {
                        terminal.report_stop();
                    }
                }
                pid if Some(pid) == self.application => {
                    self.application = None;
                    let new = host_path("status.new");
                    let written = fs::write(&new, status.to_string());
                    let _ = written.and_then(|()| fs::rename(new, host_path(STATUS)));
                }
                _ => {}
            }
        }
    }

    /// Passes on what the last process wrote to the terminal, then ends the job.
    fn leave(mut self) -> ExitCode {
        while let Some(terminal) = &mut self.terminal {
            terminal.pump();
            if terminal.drained() {
                break;
            }
            if terminal.is_held_up() && !self.wait() {
                return ExitCode::FAILURE;
            }
        }
        ExitCode::SUCCESS
    }
}

/// Waits for one of `fds`, letting signals arrive only meanwhile.
fn poll_with_signals(fds: &mut [PollFd<'_>]) {
    // SAFETY: PollFd is documented to have the layout of struct pollfd; the empty set is plain data, initialised here.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::ppoll(fds.as_mut_ptr().cast(), fds.len() as libc::nfds_t, std::ptr::null(), &none);
    }
}
