//! Device memory: host memory at the device's own addresses, and the table of what a kernel may touch.

mod extents;
mod pages;
mod physical;
mod table;
mod workspace;

pub use extents::Extents;
pub use table::Memory;
pub use workspace::{Workspace, Workspaces};

use std::io;

/// Generic addresses of shared memory begin here; what follows is the offset in the block's shared memory.
pub const SHARED_WINDOW: u64 = 0x1000_0000_0000;
/// Generic addresses of local memory begin here; what follows is the offset in the thread's local memory.
pub const LOCAL_WINDOW: u64 = SHARED_WINDOW + WINDOW_BYTES;
/// Generic addresses of a kernel's parameters begin here.
pub const PARAM_WINDOW: u64 = LOCAL_WINDOW + WINDOW_BYTES;
/// Size of each window.
pub const WINDOW_BYTES: u64 = 1 << 32;
/// The device keeps the start of each block's shared memory for itself, as GPUs of compute capability 9.0 do: cooperative groups
/// use it. Bytes.
pub const RESERVED_SHARED: u64 = 1 << 10;
/// Variables of modules are placed from here up, in the order of loading.
pub const MODULE_ARENA: u64 = 0x3000_0000_0000;
/// End of the module arena.
pub const MODULE_ARENA_END: u64 = 0x3f00_0000_0000;

/// Why memory could not be had or given back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryError {
    /// Something else lies there.
    #[error("address range {base:#x}+{bytes:#x} cannot be had: {source}")]
    Taken {
        /// First address.
        base: u64,
        /// Bytes.
        bytes: u64,
        /// What the kernel said.
        source: io::Error,
    },
    /// The range is not page-aligned, empty, or wraps.
    #[error("{base:#x}+{bytes:#x} is not a range of whole pages")]
    Malformed {
        /// First address.
        base: u64,
        /// Bytes.
        bytes: u64,
    },
    /// The range is not inside a reservation, or overlaps another block.
    #[error("{base:#x}+{bytes:#x} is not free inside a reserved range")]
    NotReserved {
        /// First address.
        base: u64,
        /// Bytes.
        bytes: u64,
    },
    /// Nothing is mapped or registered there.
    #[error("nothing begins at {0:#x}")]
    Unknown(u64),
    /// The device has not that much left.
    #[error("{asked} bytes of device memory asked for, {free} free")]
    Exhausted {
        /// Bytes asked for.
        asked: u64,
        /// Bytes left.
        free: u64,
    },
}
