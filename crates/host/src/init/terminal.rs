//! The job's pty, both ends of it inside the job so that CRIU carries it, relayed through two pipes of the supervisor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags};
use rustix::pty::OpenptFlags;

use super::instructions::{InnerTerminal, WINDOW};
use super::setup::host_path;
use crate::stdio::Window;

const BUFFER: usize = 16 * 1024;

/// The pty and its relay.
pub(super) struct Terminal {
    master: OwnedFd,
    /// Held so that the master does not hang up between two users of the terminal.
    slave: OwnedFd,
    /// Keys, from the supervisor. None at its end.
    input: Option<OwnedFd>,
    output: OwnedFd,
    stops: OwnedFd,
    keys: Vec<u8>,
    shown: Vec<u8>,
    /// The last read found nothing. Only a read tells: what was written may still be on its way to where FIONREAD counts.
    silent: bool,
}

impl Terminal {
    /// Makes the pty and, this process being a session leader, its controlling terminal.
    pub(super) fn open(told: &InnerTerminal) -> io::Result<Self> {
        let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        rustix::pty::unlockpt(&master)?;
        let name = rustix::pty::ptsname(&master, Vec::new())?;
        let slave = rustix::fs::open(&*name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
        rustix::process::ioctl_tiocsctty(&slave)?;
        told.modes.apply(slave.as_fd())?;
        if let Some(window) = told.window {
            window.apply(master.as_fd())?;
        }
        // SAFETY: the supervisor passed all three for this purpose; they are taken once.
        let [input, output, stops] =
            [told.input, told.output, told.stops].map(|fd| unsafe { super::inherited(fd) });
        for fd in [&master, &input, &output, &stops] {
            let flags = rustix::fs::fcntl_getfl(fd)?;
            rustix::fs::fcntl_setfl(fd, flags | OFlags::NONBLOCK)?;
            rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::CLOEXEC)?;
        }
        let buffer = || Vec::with_capacity(2 * BUFFER);
        Ok(Self {
            master,
            slave,
            input: Some(input),
            output,
            stops,
            keys: buffer(),
            shown: buffer(),
            silent: false,
        })
    }

    pub(super) fn slave(&self) -> BorrowedFd<'_> {
        self.slave.as_fd()
    }

    /// Takes over the size that the supervisor wrote down; the kernel sends SIGWINCH.
    pub(super) fn resize(&self) {
        let written = std::fs::read(host_path(WINDOW)).ok();
        if let Some(window) = written.and_then(|b| Window::from_bytes(&b)) {
            let _ = window.apply(self.master.as_fd());
        }
    }

    /// The application has been stopped from the keyboard: the user is to have the shell back.
    pub(super) fn report_stop(&self) {
        let _ = rustix::io::write(&self.stops, b"\n");
    }

    /// What to wait for.
    pub(super) fn interest(&self) -> Vec<PollFd<'_>> {
        let mut master = PollFlags::empty();
        master.set(PollFlags::IN, self.shown.len() < BUFFER);
        master.set(PollFlags::OUT, !self.keys.is_empty());
        let mut fds = vec![PollFd::new(&self.master, master)];
        if !self.shown.is_empty() {
            fds.push(PollFd::new(&self.output, PollFlags::OUT));
        }
        if let Some(input) = self.input.as_ref().filter(|_| self.keys.len() < BUFFER) {
            fds.push(PollFd::new(input, PollFlags::IN));
        }
        fds
    }

    /// Moves what can be moved without waiting.
    pub(super) fn pump(&mut self) {
        if self.keys.len() < BUFFER
            && let Some(input) = &self.input
            && fill(input.as_fd(), &mut self.keys) == Filled::Ended
        {
            self.input = None;
        }
        empty(self.master.as_fd(), &mut self.keys);
        self.silent = self.shown.len() < BUFFER && fill(self.master.as_fd(), &mut self.shown) != Filled::Some;
        empty(self.output.as_fd(), &mut self.shown);
    }

    /// Whether everything that processes wrote has left, now that none is there to write more.
    pub(super) fn drained(&self) -> bool {
        self.shown.is_empty() && self.silent
    }

    /// Whether the supervisor has to take something before more can be moved.
    pub(super) fn is_held_up(&self) -> bool {
        !self.shown.is_empty()
    }
}

#[derive(PartialEq, Eq)]
enum Filled {
    Some,
    Nothing,
    Ended,
}

fn fill(from: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> Filled {
    let mut bytes = [0; BUFFER];
    match rustix::io::read(from, &mut bytes) {
        Ok(0) => Filled::Ended,
        Ok(n) => {
            buffer.extend_from_slice(&bytes[..n]);
            Filled::Some
        }
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => Filled::Nothing,
        Err(_) => Filled::Ended,
    }
}

fn empty(to: BorrowedFd<'_>, buffer: &mut Vec<u8>) {
    if buffer.is_empty() {
        return;
    }
    match rustix::io::write(to, buffer) {
        Ok(n) => drop(buffer.drain(..n)),
        Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
        // Nobody shows it any more.
        Err(_) => buffer.clear(),
    }
}
