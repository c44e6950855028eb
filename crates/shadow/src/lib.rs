//! Shadow pages: managed memory as the processor sees it (`docs/shadow-pages.md`).
//!
//! A managed region is device memory in the server and, at the same address in the application, a mapping of a file whose pages are
//! *shadows*: each is fetched from the device when the processor first touches it, written back before work that may reach it is given
//! to the device, and dropped then, or when work is known to be complete. The kernel tells of the first touch and the first
//! write through a userfaultfd of the application's memory, which whoever keeps the shadows holds.
//!
//! `pages.rs` has what is known of a region's pages and what follows from it, without any I/O. [`Keeper`] does what follows.

mod access;
mod ahead;
mod changes;
mod crew;
mod device;
mod guess;
mod habit;
mod keeper;
mod pages;
mod protected;
mod range;
mod region;
mod returns;
mod serve;
mod trial;
mod twins;
mod userfault;
mod vigil;
mod window;
mod work;

pub use access::Access;
pub use device::{Device, DeviceError, Step};
pub use keeper::{Keeper, Reach, Scope};
pub use pages::Fault;
pub use range::{PAGE, Range};
pub use userfault::Userfault;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Why shadows could not be kept in step.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The device could not be read or written.
    #[error(
        "{range} of managed memory cannot be {done} on the device (if it has failed for good, restart the job from its last image)"
    )]
    Device {
        /// What was to be transferred.
        range: Range,
        /// "read", "written" or "had again".
        done: &'static str,
        /// What the device says.
        source: DeviceError,
    },
    /// The kernel refused something.
    #[error(
        "{range} of managed memory: the kernel has refused {what} (restart the job from its last image; a new run with --managed=coherent needs none of this)"
    )]
    Kernel {
        /// The pages.
        range: Range,
        /// What was asked of the kernel.
        what: &'static str,
        /// Its answer.
        source: std::io::Error,
    },
    /// Faults are told or served no more.
    #[error(
        "all managed memory with shadow pages: its faults are served no more: {0}; restart the job from its last image, and report this"
    )]
    Unheard(std::io::Error),
    /// No page is left for shadows, although all others have been given up.
    #[error(
        "no memory is left for the shadow of {0}: the job's tmpfs is full, and so may be the machine; --shared-memory makes it larger"
    )]
    NoRoom(Range),
    /// The application has moved or doubled a mapping of a region, where it cannot be kept.
    #[error(
        "the program has moved or doubled managed memory with mremap, from {from:#x} to {to:#x}, where nobody may touch it natively either; \
         --managed=coherent lets it"
    )]
    Moved {
        /// Where it was.
        from: u64,
        /// Where it is.
        to: u64,
    },
    /// A region cannot be where another one is, or what is no region was named.
    #[error(
        "{0} is not a region of managed memory, or overlaps with one: Dormouse has lost count; restart the job from its last image, and report this"
    )]
    NoRegion(Range),
}

/// What a call of this crate answers.
pub type Result<T> = std::result::Result<T, Error>;

/// A thread that panicked has left nothing half done that others could not see.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
