//! Staging slots: where bulk data of pageable memory passes between the two processes.

use crate::layout::{RingIndex, SLOT_BYTES, SLOTS};
use crate::map::Mapping;
use crate::{Result, TransportError};
use std::ops::Range;
use std::ptr::NonNull;

/// Makes room for slots of a ring.
///
/// # Errors
/// [`TransportError::NoRoom`]; [`TransportError::OutOfBounds`] when there are no such slots.
pub(crate) fn make_room(staging: &Mapping, ring: RingIndex, slots: Range<usize>) -> Result<()> {
    if slots.end > SLOTS {
        return Err(TransportError::OutOfBounds { what: "staging slot", value: slots.end });
    }
    let offset = |slot| (ring.get() * SLOTS + slot) * SLOT_BYTES;
    staging.make_room(offset(slots.start)..offset(slots.end))
}

/// One slot of one ring. Who may touch its bytes is agreed by messages (`CopyFromSlot`, `SlotWait`, ...).
#[derive(Clone, Copy)]
pub struct Slot<'a> {
    base: NonNull<u8>,
    _mapping: &'a Mapping,
}

impl<'a> Slot<'a> {
    pub(crate) fn new(staging: &'a Mapping, ring: RingIndex, slot: usize) -> Result<Self> {
        if slot >= SLOTS {
            return Err(TransportError::OutOfBounds { what: "staging slot", value: slot });
        }
        let offset = (ring.get() * SLOTS + slot) * SLOT_BYTES;
        // SAFETY: the mapping has `STAGING_BYTES`, and both numbers are below their limits.
        let base = unsafe { staging.base().add(offset) };
        Ok(Self { base, _mapping: staging })
    }

    /// Where the slot lies in this process; it has [`SLOT_BYTES`].
    #[must_use]
    pub fn address(self) -> NonNull<u8> {
        self.base
    }
}
