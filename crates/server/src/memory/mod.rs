//! Device memory: where allocations lie, and when a freed one may be used again; pinned memory.

mod addresses;
pub mod arena;
mod aside;
mod claims;
mod device;
mod excluded;
mod exports;
mod imports;
mod managed;
mod ordered;
mod packed;
mod pending;
mod pinned;
mod placement;
pub mod pool;
mod regions;
mod rows;
mod shadows;
mod side;
mod slabs;
mod staging;
mod virtual_memory;

pub use claims::Claims;
pub use device::{DeviceMemory, RestoreError, Room};
pub use excluded::Excluded;
pub use exports::Exports;
pub use imports::{ImportRecord, Imports};
pub use managed::Managed;
pub(crate) use packed::Packed;
pub use pinned::{PinnedMemory, PinnedRecord};
pub use placement::Home;
#[cfg(test)]
pub(crate) use shadows::testing::that_cannot_be_settled;
pub use shadows::{PAGE, ShadowRecord, Shadows};
pub use slabs::SlabRecord;
pub use virtual_memory::{PhysicalRecord, View, Views, VirtualMemory, VirtualState};

use backend::Range;

/// Bytes of address space claimed for one device: what fits many times over whatever a device has, so that large
/// allocations find a gap.
pub const ARENA_BYTES: u64 = 1 << 40;
/// From one device's arena to the next.
const ARENA_STRIDE: u64 = 4 << 40;
/// Bytes of address space for the pinned memory of a session.
pub const PINNED_BYTES: u64 = 64 << 30;

/// Where what the application reserves itself begins, and where it ends.
const RESERVED: std::ops::Range<u64> = 0x4000_0000_0000..0x5000_0000_0000;
/// Where pinned memory begins.
const PINNED: u64 = 0x5000_0000_0000;
/// How many sessions' pinned memory lies side by side.
const SIDE_BY_SIDE: u32 = 64;

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
            pinned: PINNED + u64::from(session % SIDE_BY_SIDE) * PINNED_BYTES,
            reserved: RESERVED.start,
        }
    }

    /// The layout of session number `session` of a job inside of a job, on one device: its driver is Dormouse's own, and for that one
    /// all memory is the application's, reserved by itself. Pinned memory lies behind the outer job's.
    #[must_use]
    pub fn nested(session: u32) -> Self {
        Self {
            arena: RESERVED.start,
            pinned: Self::of_session(session).pinned + u64::from(SIDE_BY_SIDE) * PINNED_BYTES,
            reserved: RESERVED.end - ARENA_BYTES,
        }
    }

    /// Where the ranges lie that the application reserves itself.
    #[must_use]
    pub fn reservations(&self) -> Range {
        Range { base: self.reserved, bytes: RESERVED.end - self.reserved }
    }

    /// Where managed regions of a device are mapped a second time while they move.
    #[must_use]
    pub fn passage(&self, device: usize) -> Range {
        Range { base: self.arena(device).base + ARENA_BYTES, bytes: ARENA_BYTES }
    }

    /// Where memory of other sessions is mapped that lies on a device.
    #[must_use]
    pub fn imports(&self, device: usize) -> Range {
        Range { base: self.arena(device).base + 2 * ARENA_BYTES, bytes: ARENA_BYTES }
    }

    /// Where copies of a device's memory lie that a checkpoint has not written yet. No program sees an address of theirs.
    #[must_use]
    pub fn copies(&self, device: usize) -> Range {
        Range { base: self.arena(device).base + 3 * ARENA_BYTES, bytes: ARENA_BYTES }
    }

    /// The arena of a device.
    #[must_use]
    pub fn arena(&self, device: usize) -> Range {
        Range { base: self.arena + device as u64 * ARENA_STRIDE, bytes: ARENA_BYTES }
    }
}
