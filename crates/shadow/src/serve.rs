//! The threads that serve faults.

use crate::Error;
use crate::device::Step;
use crate::keeper::{REFRESH, Shared};
use crate::userfault::Event;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::time::Timespec;
use std::io;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};

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
    loop {
        shared.refresh();
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
                shared.device.failed(why(shared, error));
            }
        }
    }
}

/// Why a fault was not served. All threads may wait at once for somebody to hear that a mapping is moved.
fn why(shared: &Shared, error: Error) -> Error {
    match error {
        Error::Kernel { ref source, .. } if source.kind() == io::ErrorKind::WouldBlock => {
            shared.userfault.is_moving().map_or(error, |(from, to)| Error::Moved { from, to })
        }
        error => error,
    }
}
