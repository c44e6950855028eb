//! Staging slots: where bulk data of pageable memory passes between the two processes.

use crate::layout::{RingIndex, SLOT_BYTES, SLOTS};
use crate::map::Mapping;
use crate::{Result, TransportError};
use std::ptr::NonNull;

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

    /// Fills the front of the slot from the application's memory.
    ///
    /// # Errors
    /// [`TransportError::OutOfBounds`] when it is longer than the slot.
    ///
    /// # Safety
    /// `from` must be readable for `len` bytes, outside of this session's mappings, and the caller's thread must own the
    /// slot: no message that uses it may be under way.
    pub unsafe fn fill(self, from: *const u8, len: usize) -> Result<()> {
        Self::check(len)?;
        // SAFETY: the slot has `SLOT_BYTES >= len`, is the caller's alone, and does not overlap `from`, as the caller says.
        unsafe { std::ptr::copy_nonoverlapping(from, self.base.as_ptr(), len) };
        Ok(())
    }

    /// Copies the front of the slot to the application's memory.
    ///
    /// # Errors
    /// [`TransportError::OutOfBounds`] when it is longer than the slot.
    ///
    /// # Safety
    /// As for [`Slot::fill`], with `to` writable.
    pub unsafe fn drain(self, to: *mut u8, len: usize) -> Result<()> {
        Self::check(len)?;
        // SAFETY: as in `fill`.
        unsafe { std::ptr::copy_nonoverlapping(self.base.as_ptr(), to, len) };
        Ok(())
    }

    fn check(len: usize) -> Result<()> {
        if len <= SLOT_BYTES {
            Ok(())
        } else {
            Err(TransportError::OutOfBounds { what: "staged length", value: len })
        }
    }
}
