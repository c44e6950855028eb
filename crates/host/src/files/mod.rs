//! Files outside the image: those the job has written, and those it is made of.

mod handle;
mod held;
mod known;
mod maps;
mod needed;
mod on_disk;
mod programs;
mod tracker;
mod written;

pub(crate) use held::{carried_by, held_by, nameless};
pub(crate) use known::Written;
pub use needed::NeededFile;
pub(crate) use needed::{lacking, needed_by};
pub(crate) use on_disk::Doubtful;
pub use on_disk::OnDisk;
pub use programs::{Identity, ProgramFile};
pub(crate) use programs::{changed, mapped_by};
pub(crate) use tracker::Tracker;
pub(crate) use written::{Collected, Limits, collect, put_back, restorable};
pub use written::{FileError, Restoration, WrittenFile};
