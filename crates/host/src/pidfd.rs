//! Processes by their descriptors.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Signal, pidfd_send_signal};
use rustix::time::Timespec;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// How long one that was killed may take to be gone.
const DYING: Duration = Duration::from_secs(10);

/// Kills the process of this pidfd, and waits until it runs no more.
///
/// # Errors
/// `TimedOut` when it does after 10 s.
pub fn end(pidfd: &OwnedFd) -> io::Result<()> {
    match pidfd_send_signal(pidfd, Signal::KILL) {
        Err(Errno::SRCH) => return Ok(()),
        sent => sent?,
    }
    let until = Instant::now() + DYING;
    loop {
        let rest = until.saturating_duration_since(Instant::now());
        let mut ended = [PollFd::new(pidfd, PollFlags::IN)];
        match poll(&mut ended, Timespec::try_from(rest).ok().as_ref()) {
            Err(Errno::INTR) => {}
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            polled => return polled.map(drop).map_err(io::Error::from),
        }
    }
}
