//! The threads that serve faults.

use crate::Error;
use crate::device::Step;
use crate::keeper::Shared;
use crate::userfault::Event;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// How long what a side has written may stay unknown to the other while work is in flight: nobody who waits for it waits for ever.
const REFRESH: Duration = Duration::from_millis(100);

/// Serves faults until there is something in `stop`. Should that end otherwise, who touches a page would wait for ever.
pub(crate) fn run(shared: &Shared, stop: &OwnedFd) {
    let _ = shared.device.begun();
    let served = catch_unwind(AssertUnwindSafe(|| faults(shared, stop)));
    match served.unwrap_or_else(|_| Err(io::Error::other("a thread panicked"))) {
        Ok(()) => {}
        Err(error) => shared.device.failed(Error::Unheard(error)),
    }
}

fn faults(shared: &Shared, stop: &OwnedFd) -> io::Result<()> {
    let mut refreshed = Instant::now();
    loop {
        if refreshed.elapsed() >= REFRESH {
            refreshed = Instant::now();
            shared.vigil.refreshed();
            if let Err(error) = shared.settle() {
                // The next call is told; nobody waits for this.
                tracing::debug!(%error, "managed memory is not brought up to date");
            }
        }
        let patience = shared.serve_waiting().unwrap_or(REFRESH);
        let mut ready = [PollFd::new(&shared.userfault, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut ready, Timespec::try_from(patience).ok().as_ref()) {
            Err(Errno::INTR) => continue,
            polled => polled?,
        };
        let [faults, stop] = ready.map(|ready| ready.revents());
        if !stop.is_empty() {
            return Ok(());
        }
        if faults.intersects(PollFlags::ERR | PollFlags::HUP | PollFlags::NVAL) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if let Some(event) = shared.userfault.next()? {
            shared.device.between(Step::Heard);
            let served = match event {
                Event::Fault(touch) => shared.serve(touch),
                Event::Moved { from, to } => Err(Error::Moved { from, to }),
            };
            if let Err(error) = served {
                shared.device.failed(error);
            }
        }
    }
}
