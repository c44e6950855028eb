//! Terminals: their modes and size, and raw mode while a job's pty is relayed.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::termios::{OptionalActions, Termios, Winsize, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr};
use serde::{Deserialize, Serialize};

/// Rows, columns, and the size in pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Window(pub(crate) [u16; 4]);

impl Window {
    pub(crate) fn of(fd: BorrowedFd<'_>) -> Option<Self> {
        tcgetwinsize(fd).ok().map(|w| Self([w.ws_row, w.ws_col, w.ws_xpixel, w.ws_ypixel]))
    }

    pub(crate) fn apply(self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let [ws_row, ws_col, ws_xpixel, ws_ypixel] = self.0;
        Ok(rustix::termios::tcsetwinsize(fd, Winsize { ws_row, ws_col, ws_xpixel, ws_ypixel })?)
    }

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        self.0.iter().flat_map(|v| v.to_le_bytes()).collect()
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; 8] = bytes.try_into().ok()?;
        let mut fields = [0; 4];
        for (field, pair) in fields.iter_mut().zip(bytes.chunks_exact(2)) {
            *field = u16::from_le_bytes([pair[0], pair[1]]);
        }
        Some(Self(fields))
    }
}

/// Rows and columns of the terminal behind `fd`, if it is one.
#[must_use]
pub fn window_size(fd: BorrowedFd<'_>) -> Option<(u16, u16)> {
    Window::of(fd).map(|Window([rows, columns, ..])| (rows, columns))
}

/// The modes of a terminal (echo, line editing, special characters), as the job's pty is to start with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalModes {
    flags: [u32; 4],
    line: u8,
    characters: Vec<u8>,
}

impl TerminalModes {
    /// The modes of the terminal behind `fd`.
    pub(crate) fn of(fd: BorrowedFd<'_>) -> Option<Self> {
        // SAFETY: termios is plain data, for which zero is a valid value; the call fills it.
        let mut t: libc::termios = unsafe { std::mem::zeroed() };
        // SAFETY: `t` is a termios we own.
        (unsafe { libc::tcgetattr(fd.as_raw_fd(), &mut t) } == 0).then(|| Self {
            flags: [t.c_iflag, t.c_oflag, t.c_cflag, t.c_lflag],
            line: t.c_line,
            characters: t.c_cc.to_vec(),
        })
    }

    /// Gives the terminal behind `fd` these modes.
    pub(crate) fn apply(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        // SAFETY: as in `of`.
        let mut t: libc::termios = unsafe { std::mem::zeroed() };
        // SAFETY: `t` is a termios we own; it starts from what the terminal has (its speeds, for instance).
        if unsafe { libc::tcgetattr(fd.as_raw_fd(), &mut t) } != 0 {
            return Err(io::Error::last_os_error());
        }
        [t.c_iflag, t.c_oflag, t.c_cflag, t.c_lflag] = self.flags;
        t.c_line = self.line;
        for (to, from) in t.c_cc.iter_mut().zip(&self.characters) {
            *to = *from;
        }
        // SAFETY: `t` is fully initialised.
        match unsafe { libc::tcsetattr(fd.as_raw_fd(), libc::TCSANOW, &t) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// The user's terminal in raw mode, so that every key reaches the job's own pty; given back its modes when dropped.
#[derive(Debug)]
pub(crate) struct RawMode {
    terminal: OwnedFd,
    before: Termios,
}

impl RawMode {
    /// Switches `terminal`, unless this process is in the background of it.
    pub(crate) fn enter(terminal: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        if tcgetpgrp(terminal).ok() != Some(rustix::process::getpgrp()) {
            return Ok(None);
        }
        let raw_mode = Self { terminal: terminal.try_clone_to_owned()?, before: tcgetattr(terminal)? };
        raw_mode.again()?;
        Ok(Some(raw_mode))
    }

    /// Raw once more, after [`Self::suspend`].
    pub(crate) fn again(&self) -> io::Result<()> {
        let mut modes = self.before.clone();
        modes.make_raw();
        Ok(tcsetattr(self.terminal.as_fd(), OptionalActions::Now, &modes)?)
    }

    /// The modes from before, for as long as the supervisor is stopped.
    pub(crate) fn suspend(&self) {
        let _ = tcsetattr(self.terminal.as_fd(), OptionalActions::Now, &self.before);
    }
}

impl Drop for RawMode {
    fn drop(&mut self) {
        self.suspend();
    }
}
