//! Allocations that other sessions may have: the blocks they lie in are shared, whole.

use super::arena::Holder;
use super::device::DeviceMemory;
use crate::failure::{Failure, Result};
use crate::lock;
use crate::sharing::{Gift, Given, fresh};
use backend::Range;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use wire::{Claim, CuError, ShareId};

/// What of a device's memory other sessions may have, as it goes into an image.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Exports {
    /// Blocks, by first address.
    blocks: BTreeMap<u64, ShareId>,
    /// Allocations, by address, and the number of each.
    numbers: BTreeMap<u64, u64>,
    /// How many there have been.
    count: u64,
}

impl Exports {
    /// Whether there is any.
    pub(crate) fn is_any(&self) -> bool {
        !self.blocks.is_empty()
    }

    /// An allocation is freed: nobody can open it any more.
    pub(super) fn forget(&mut self, address: u64) {
        self.numbers.remove(&address);
    }

    /// A block is gone; its name, if it had one.
    pub(super) fn withdraw(&mut self, block: u64) -> Option<ShareId> {
        self.blocks.remove(&block)
    }
}

fn none(address: u64) -> Failure {
    Failure::new(CuError::INVALID_VALUE, format!("{address:#x} lies in no allocation that others could have"))
}

impl DeviceMemory {
    /// The allocation that `address` lies in, for others; `Ok(None)` when it is not of this device.
    ///
    /// # Errors
    /// `INVALID_VALUE` for memory of a pool.
    pub fn export(&self, address: u64) -> Result<Option<Claim>> {
        let mut inner = lock(&self.inner);
        let Some(allocation) = inner.arena.find(address) else { return Ok(None) };
        if allocation.holder != Holder::Plain {
            return Err(none(address));
        }
        let block = inner.arena.block_around(allocation.range.base).ok_or_else(|| none(address))?;
        let share = match inner.exports.blocks.get(&block.base) {
            Some(share) => *share,
            None => {
                let share = fresh()?;
                inner.exports.blocks.insert(block.base, share);
                self.sharing.hold(share);
                share
            }
        };
        let Range { base, bytes } = allocation.range;
        let number = match inner.exports.numbers.get(&base) {
            Some(number) => *number,
            None => {
                // As many as an image may say there have been.
                let number = inner.exports.count.checked_add(1).ok_or(CuError::OUT_OF_MEMORY)?;
                inner.exports.count = number;
                inner.exports.numbers.insert(base, number);
                number
            }
        };
        Ok(Some(Claim { share, offset: base - block.base, bytes, number }))
    }

    /// Gives a block, if the allocation that is claimed is there; `Ok(None)` when it is not of this device.
    ///
    /// # Errors
    /// `INVALID_HANDLE` when the allocation is gone; the backend's.
    pub fn give(&self, share: ShareId, claim: Option<Claim>) -> Result<Option<Given>> {
        let inner = lock(&self.inner);
        let Some(&base) =
            inner.exports.blocks.iter().find(|(_, found)| **found == share).map(|(base, _)| base)
        else {
            return Ok(None);
        };
        let block = inner.arena.block_around(base).ok_or_else(|| none(base))?;
        if let Some(Claim { offset, bytes, number, .. }) = claim {
            let address = base.checked_add(offset).ok_or(CuError::INVALID_HANDLE)?;
            let there =
                inner.arena.find(address).is_some_and(|found| found.range == Range { base: address, bytes });
            if !there || inner.exports.numbers.get(&address) != Some(&number) {
                return Err(Failure::new(CuError::INVALID_HANDLE, "the allocation has been freed"));
            }
        }
        let raw = *inner.blocks.get(&base).ok_or_else(|| none(base))?;
        let physical = self.backend.block_physical(raw)?;
        drop(inner);
        let file = self.backend.physical_export(physical);
        self.backend.physical_release(physical)?;
        let gift = Gift::Memory {
            device: self.device as u32,
            bytes: block.bytes,
            handle_types: 0,
            compressible: false,
        };
        Ok(Some((gift, Some(file?))))
    }

    /// Whether that is a block of this device.
    #[must_use]
    pub fn has_exported(&self, share: ShareId) -> bool {
        lock(&self.inner).exports.blocks.values().any(|found| *found == share)
    }

    /// What others may have.
    #[must_use]
    pub fn exports(&self) -> Exports {
        lock(&self.inner).exports.clone()
    }

    /// The same again, after a restart; the arena is there.
    ///
    /// # Errors
    /// `INVALID_VALUE` when a block is not.
    pub fn restore_exports(&self, exports: &Exports) -> Result<()> {
        let mut inner = lock(&self.inner);
        for (base, share) in &exports.blocks {
            if !inner.blocks.contains_key(base) {
                return Err(none(*base));
            }
            self.sharing.hold(*share);
        }
        inner.exports = exports.clone();
        Ok(())
    }
}
