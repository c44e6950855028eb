//! The host half of a checkpoint and of a restart.

mod dump;
mod record;
mod refusals;
mod release;
mod restore;

pub use dump::{DumpError, DumpOptions, DumpReport, Frozen};
pub use record::{HostRecord, MountRecord, TaskRecord};
pub use restore::{RestoreError, RestoreSpec, Restored, may_be_link};
