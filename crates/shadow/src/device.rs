//! The device, as the keeper of shadows needs it.

use std::ops::Range;
use std::os::fd::BorrowedFd;

/// What went wrong on the device.
pub type DeviceError = Box<dyn std::error::Error + Send + Sync>;

/// The side of managed memory on which the truth is.
pub trait Device: Send + Sync {
    /// Copies memory of the device, without waiting for work in flight, which may itself wait for whoever waits for this: in a stream of its
    /// own that no other holds up, never in the legacy one. Bytes that such work writes may have their old or their new value.
    ///
    /// # Errors
    /// What the device answers.
    fn read(&self, address: u64, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Writes these parts of what is to lie at an address, and no byte beside them, without waiting for work in flight. Work submitted later
    /// sees them.
    ///
    /// # Errors
    /// What the device answers.
    fn write(&self, address: u64, bytes: &[u8], parts: &[Range<usize>]) -> Result<(), DeviceError>;

    /// Whether work that may reach managed memory is in flight. Work counts from before its [`Reach`](crate::Reach) is dropped until
    /// [`Self::read`] sees all that it has written.
    fn is_busy(&self) -> bool;

    /// From now on the device reaches, at the addresses of a region, the file's pages in place of memory of its own, which it keeps and nobody uses. No work
    /// may reach it, and the file has all of its pages, until [`Self::separate`].
    ///
    /// # Errors
    /// When that cannot be; then all is as it was.
    fn cohere(&self, _region: crate::Range, _file: BorrowedFd<'_>) -> Result<(), DeviceError> {
        Err("this device cannot".into())
    }

    /// From now on it reaches memory of its own there, which holds anything. Waits for work that may reach it.
    ///
    /// # Errors
    /// What the device answers.
    fn separate(&self, _region: crate::Range) -> Result<(), DeviceError> {
        Ok(())
    }

    /// Threads of the application wait for a page that they will not get.
    fn failed(&self, error: crate::Error);

    /// A thread of the application seems to wait for what a kernel in flight writes there: it does nothing else, and has not seen it for long. Is
    /// called once.
    fn awaited(&self, _address: u64) {}

    /// A thread of the application has waited for long for the end of work, since what it touches is [exclusive](crate::Access::Exclusive). Is called once.
    fn held(&self, _address: u64) {}

    /// Whether a thread of the application, as it is numbered where it runs, is one that a stream waits for: it cannot wait for the end of all work.
    fn is_awaited(&self, _thread: u32) -> bool {
        false
    }

    /// A thread begins that serves faults, or helps one that does. Whether it goes before the application's own: one that does not would be waited for
    /// behind them, and is not asked for help.
    fn begun(&self) -> bool {
        false
    }

    /// Is called between any two steps; where a test makes a thread wait.
    fn between(&self, _: Step) {}
}

/// What a thread of the keeper has just done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A fault has been read from the userfaultfd.
    Heard,
    /// The region in which it is has been locked, and is known to have pages.
    Locked,
    /// It has been asked whether work may be in flight.
    Asked,
    /// The pages have been read from the device.
    Fetched,
    /// It has been noted that pages are there, or that they may be written; the kernel does not know it yet.
    Noted,
    /// Work has been announced.
    Announced,
    /// Work has been found to be complete, or not.
    Looked,
    /// It has been noted which regions may have pages.
    Listed,
    /// Changed pages can no more be written by the application.
    Protected,
    /// What was changed in them has been written to the device.
    Written,
    /// They have been dropped.
    Dropped,
    /// It has been noted that work is complete; pages that stay are as it left them.
    Settled,
    /// Pages that the application may go on writing have been copied, and are about to be written to the device.
    Ahead,
    /// All of a region's pages are there; the device is about to give up its own, or has got them again.
    Whole,
}
