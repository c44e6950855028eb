//! The host half of a checkpoint and of a restart.

mod chunks;
mod copies;
mod dump;
mod dump_error;
mod left_out;
mod nameless;
mod record;
mod refusals;
mod release;
mod restore;
mod room;
mod setback;
mod several;
mod withheld;

pub(crate) use copies::Known as KnownCopies;
pub use dump::{DumpOptions, DumpReport, Frozen, MemoryWay, ReadyDump};
pub use dump_error::DumpError;
pub use left_out::LeftOut;
pub use record::{HostRecord, MountRecord, TaskRecord};
pub use refusals::Unstoppable;
pub use restore::{RestoreError, RestoreSpec, Restored, may_be_link};
pub use room::CopyRoom;
pub(crate) use setback::Setback;
pub use several::by_threads;
