//! The job's standard streams, and whatever else is open for it: each keeps its kind (terminal, file, pipe), and `2>&1` stays shared.
//!
//! Everything that crosses the job's border does so through a pipe of the supervisor (a channel of the `border` module), because CRIU can
//! dump such a pipe as external and restore it onto a new one. Regular files are handed over as they are, which CRIU can do likewise
//! (the `shared` module); devices are reopened by path inside the job; and a terminal becomes a pty *inside* the job, which init
//! relays through two such pipes.

pub(crate) mod border;
mod inherited;
mod kind;
mod relay;
pub(crate) mod shared;
mod terminal;

pub use border::{ChannelRecord, Role};
pub use kind::{Stdio, StreamKind};
pub use shared::{FileKey, SharedFile};
pub(crate) use terminal::{RawMode, Window};
pub use terminal::{TerminalModes, window_size};
