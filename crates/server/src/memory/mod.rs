//! Device memory: where allocations lie, and when a freed one may be used again; pinned memory.

pub mod arena;
mod device;
mod exports;
mod imports;
mod ordered;
mod packed;
mod pending;
mod pinned;
pub mod pool;
mod virtual_memory;

pub use device::{DeviceMemory, RestoreError, Room};
pub use exports::Exports;
pub use imports::{ImportRecord, Imports};
pub(crate) use packed::Packed;
pub use pinned::{PinnedMemory, PinnedRecord};
pub use virtual_memory::{PhysicalRecord, View, Views, VirtualMemory, VirtualState};

use backend::Range;

/// Bytes of address space claimed for one device: what fits many times over whatever a device has, so that large
/// allocations find a gap.
pub const ARENA_BYTES: u64 = 1 << 40;
/// From one device's arena to the next.
const ARENA_STRIDE: u64 = 4 << 40;
/// Bytes of address space for the pinned memory of a session.
pub const PINNED_BYTES: u64 = 64 << 30;

/// Bytes of address space for what the application reserves itself.
const RESERVATION_BYTES: u64 = 0x400_0000_0000;

/// Where a session's memory lies in the address space; the same after each restart.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Layout {
    /// The first device's arena.
    pub arena: u64,
    /// The pinned memory.
    pub pinned: u64,
    /// The ranges that the application reserves itself.
    pub reserved: u64,
}

impl Layout {
    /// The layout of session number `session`.
    #[must_use]
    pub fn of_session(session: u32) -> Self {
        Self {
            arena: 0x2000_0000_0000,
            pinned: 0x5000_0000_0000 + u64::from(session % 64) * PINNED_BYTES,
            reserved: 0x4000_0000_0000,
        }
    }

    /// Where the ranges lie that the application reserves itself.
    #[must_use]
    pub fn reservations(&self) -> Range {
        Range { base: self.reserved, bytes: RESERVATION_BYTES }
    }

    /// Where memory of other sessions is mapped that lies on a device.
    #[must_use]
    pub fn imports(&self, device: usize) -> Range {
        Range { base: self.arena(device).base + 2 * ARENA_BYTES, bytes: ARENA_BYTES }
    }

    /// The arena of a device.
    #[must_use]
    pub fn arena(&self, device: usize) -> Range {
        Range { base: self.arena + device as u64 * ARENA_STRIDE, bytes: ARENA_BYTES }
    }
}
