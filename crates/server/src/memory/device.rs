//! One device's memory: its arena, the blocks behind it, and freed allocations that work may still touch.

use super::arena::{Allocation, Arena, ArenaState, Freed, RETAIN, StateError};
use crate::lock;
use crate::objects::Marker;
use backend::{Backend, Range, RawBlock};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use wire::{ContextId, CuError};

/// A freed allocation, and what has to be complete before its place is used again.
struct Ticket {
    freed: Freed,
    markers: Vec<Marker>,
}

struct Inner {
    arena: Arena,
    reserved: bool,
    blocks: BTreeMap<u64, RawBlock>,
    tickets: Vec<Ticket>,
}

/// The memory of one device.
pub struct DeviceMemory {
    device: usize,
    range: Range,
    backend: Arc<dyn Backend>,
    inner: Mutex<Inner>,
}

impl DeviceMemory {
    /// Device number `device` with nothing allocated; `range` is claimed at the first [`DeviceMemory::reserve`].
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>, device: usize, range: Range) -> Self {
        let inner =
            Inner { arena: Arena::new(range), reserved: false, blocks: BTreeMap::new(), tickets: Vec::new() };
        Self { device, range, backend, inner: Mutex::new(inner) }
    }

    /// Claims the arena's addresses, once.
    ///
    /// # Errors
    /// The backend's, when they cannot be had.
    pub fn reserve(&self) -> backend::Result<()> {
        let mut inner = lock(&self.inner);
        if !inner.reserved {
            self.backend.reserve(self.range)?;
            inner.reserved = true;
        }
        Ok(())
    }

    /// Allocates; `Ok(None)` when there is no room before a freed allocation is complete: try again later.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`, or the backend's.
    pub fn allocate(&self, ctx: ContextId, bytes: u64) -> backend::Result<Option<Allocation>> {
        let mut inner = lock(&self.inner);
        inner.settle();
        self.trim(&mut inner, RETAIN)?;
        let plan = inner.arena.plan(bytes).ok_or(CuError::OUT_OF_MEMORY)?;
        let Some(block) = plan.block_to_map() else {
            return Ok(Some(inner.arena.commit(plan, ctx)));
        };
        let mut mapped = self.backend.map_block(self.device, block);
        if mapped == Err(CuError::OUT_OF_MEMORY) && inner.arena.empty_bytes() > 0 {
            self.trim(&mut inner, 0)?;
            mapped = self.backend.map_block(self.device, block);
        }
        match mapped {
            Ok(raw) => {
                inner.blocks.insert(block.base, raw);
                Ok(Some(inner.arena.commit(plan, ctx)))
            }
            Err(CuError::OUT_OF_MEMORY) if !inner.tickets.is_empty() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Frees the allocation at exactly `address`; its place is used again when all of `markers` are complete. False when
    /// there is no such allocation.
    pub fn free(&self, address: u64, markers: Vec<Marker>) -> bool {
        let mut inner = lock(&self.inner);
        let Some(freed) = inner.arena.free(address) else { return false };
        inner.tickets.push(Ticket { freed, markers });
        inner.settle();
        true
    }

    /// Frees everything of a context that is ending: nothing can touch it any more.
    ///
    /// # Errors
    /// The backend's, from unmapping.
    pub fn free_context(&self, ctx: ContextId) -> backend::Result<()> {
        let mut inner = lock(&self.inner);
        for ticket in &mut inner.tickets {
            ticket.markers.retain(|marker| marker.context().id() != ctx);
        }
        let gone: Vec<u64> =
            inner.arena.allocations().filter(|each| each.ctx == ctx).map(|each| each.range.base).collect();
        for address in gone {
            if let Some(freed) = inner.arena.free(address) {
                inner.arena.reclaim(freed);
            }
        }
        inner.settle();
        self.trim(&mut inner, 0)
    }

    /// Gives back empty blocks above `keep` bytes.
    fn trim(&self, inner: &mut Inner, keep: u64) -> backend::Result<()> {
        for range in inner.arena.trim(keep) {
            if let Some(raw) = inner.blocks.remove(&range.base) {
                self.backend.unmap_block(raw)?;
            }
        }
        Ok(())
    }

    /// Bytes that are mapped and free.
    #[must_use]
    pub fn empty_bytes(&self) -> u64 {
        let mut inner = lock(&self.inner);
        inner.settle();
        inner.arena.empty_bytes()
    }

    /// The live allocation that contains `address`.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<Allocation> {
        lock(&self.inner).arena.find(address)
    }

    /// Forgets what freed allocations wait for: the device is idle.
    pub fn settle_idle(&self) {
        let mut inner = lock(&self.inner);
        inner.tickets.iter_mut().for_each(|ticket| ticket.markers.clear());
        inner.settle();
    }

    /// The state for an image, when the device is idle; `None` when it was never used.
    #[must_use]
    pub fn state(&self) -> Option<ArenaState> {
        let inner = lock(&self.inner);
        inner.reserved.then(|| inner.arena.state())
    }

    /// Claims the arena and maps the blocks that `state` describes.
    ///
    /// # Errors
    /// [`RestoreError`].
    pub fn restore(&self, state: &ArenaState) -> Result<(), RestoreError> {
        self.reserve().map_err(|code| RestoreError::Reserve { range: self.range, code })?;
        let mut inner = lock(&self.inner);
        inner.arena = Arena::from_state(self.range, state)?;
        for (range, _) in &state.blocks {
            let raw = self
                .backend
                .map_block(self.device, *range)
                .map_err(|code| RestoreError::Map { range: *range, code })?;
            inner.blocks.insert(range.base, raw);
        }
        Ok(())
    }
}

/// Why a device's memory cannot be had again.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The addresses are taken.
    #[error("the addresses {range} for device memory cannot be had: {code}")]
    Reserve {
        /// The arena.
        range: Range,
        /// The backend's answer.
        code: CuError,
    },
    /// No memory for a block.
    #[error("no device memory for the block {range}: {code}; is the device large enough, and free?")]
    Map {
        /// The block.
        range: Range,
        /// The backend's answer.
        code: CuError,
    },
    /// The recorded state makes no sense.
    #[error(transparent)]
    State(#[from] StateError),
}

impl Inner {
    /// Makes the places of freed allocations available whose work is complete.
    fn settle(&mut self) {
        let mut waiting = Vec::with_capacity(self.tickets.len());
        for mut ticket in std::mem::take(&mut self.tickets) {
            ticket.markers.retain(|marker| !marker.is_complete());
            if ticket.markers.is_empty() {
                self.arena.reclaim(ticket.freed);
            } else {
                waiting.push(ticket);
            }
        }
        self.tickets = waiting;
    }
}
