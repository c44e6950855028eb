//! One device's memory: its arena, the blocks behind it, and freed allocations that work may still touch.

use super::Layout;
use super::arena::{Allocation, Arena, ArenaState, BlockState, Freed, Holder, RETAIN, StateError};
use super::excluded::Excluded;
use super::exports::Exports;
use super::ordered::StreamFrees;
use super::placement::Home;
use super::pool::{Pool, PoolKey};
use super::regions::Regions;
use crate::buffers::BufferPool;
use crate::capture::DeviceCopies;
use crate::failure::{self, Failure};
use crate::lock;
use crate::objects::Marker;
use crate::sharing::Sharing;
use crate::watch::Watch;
use backend::{Access, Backend, Range, RawBlock};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, Weak};
use wire::{ContextId, CuError};

/// A freed allocation, and what has to be complete before its place is used again.
pub(super) struct Ticket {
    freed: Freed,
    markers: Vec<Marker>,
}

pub(super) struct Inner {
    pub(super) arena: Arena,
    reserved: bool,
    pub(super) blocks: BTreeMap<u64, RawBlock>,
    /// Behind blocks of managed regions.
    pub(super) regions: Regions,
    /// What other sessions may have.
    pub(super) exports: Exports,
    /// What need not be saved of live allocations.
    pub(super) excluded: Excluded,
    /// What was freed, oldest first.
    pub(super) tickets: VecDeque<Ticket>,
    /// What was freed in stream order.
    pub(super) streams: Vec<StreamFrees>,
    pub(super) pools: BTreeMap<PoolKey, Pool>,
    /// Whether pools have been used since somebody waited for the device.
    pub(super) unsynchronized: bool,
    /// The arena's clock at the last [`DeviceMemory::tidy`].
    tidied: u64,
    /// The devices that reach what is allocated here: a context of theirs has been given access (`cuCtxEnablePeerAccess`).
    peers: BTreeSet<usize>,
    /// Who is told what is allocated and freed.
    pub(super) watch: Arc<Watch>,
}

/// The memory of one device.
pub struct DeviceMemory {
    pub(super) device: usize,
    range: Range,
    /// Where managed regions are mapped a second time while they move.
    pub(super) passage: Range,
    /// Whether there are managed regions that are not on the device.
    pub(super) short: AtomicBool,
    pub(super) sharing: Arc<Sharing>,
    pub(super) backend: Arc<dyn Backend>,
    /// What a checkpoint has copied and not written yet; they give way to the application.
    copies: Mutex<Copies>,
    pub(super) inner: Mutex<Inner>,
}

#[derive(Default)]
struct Copies {
    /// Whether there are addresses for them.
    reserved: bool,
    newest: Weak<DeviceCopies>,
    /// What others are copied to.
    buffers: Option<Arc<BufferPool>>,
}

impl DeviceMemory {
    /// Device number `device` with nothing allocated; its arena in `layout` is claimed at the first [`DeviceMemory::reserve`].
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>, device: usize, layout: Layout, sharing: Arc<Sharing>) -> Self {
        let (range, passage) = (layout.arena(device), layout.passage(device));
        let inner = Inner {
            arena: Arena::new(range),
            reserved: false,
            blocks: BTreeMap::new(),
            regions: Regions::default(),
            exports: Exports::default(),
            excluded: Excluded::default(),
            tickets: VecDeque::new(),
            streams: Vec::new(),
            pools: BTreeMap::new(),
            unsynchronized: false,
            tidied: 0,
            peers: BTreeSet::new(),
            watch: Arc::default(),
        };
        let (short, copies) = (AtomicBool::new(false), Mutex::default());
        Self { device, range, passage, short, sharing, backend, copies, inner: Mutex::new(inner) }
    }

    /// The same, with somebody told what is allocated and freed.
    #[must_use]
    pub fn watched(self, watch: &Arc<Watch>) -> Self {
        lock(&self.inner).watch = Arc::clone(watch);
        self
    }

    /// Each live allocation.
    pub(crate) fn each_allocation(&self, see: impl FnMut(Range)) {
        lock(&self.inner).arena.allocations().map(|allocation| allocation.range).for_each(see);
    }

    /// The number of the device.
    pub(crate) fn device(&self) -> usize {
        self.device
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
        match self.allocate_in(&mut inner, Holder::Plain, ctx, bytes)? {
            None if inner.is_settled() => Err(CuError::OUT_OF_MEMORY),
            found => Ok(found),
        }
    }

    /// Allocates in what is available now, mapping what is missing; empty blocks are given back first when it must be.
    /// `Ok(None)` when the device is full.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` when no room would ever do, or the backend's.
    pub(super) fn allocate_in(
        &self,
        inner: &mut Inner,
        holder: Holder,
        ctx: ContextId,
        bytes: u64,
    ) -> backend::Result<Option<Allocation>> {
        let mut gave_up = false;
        loop {
            let plan = inner.arena.plan(holder, bytes).ok_or(CuError::OUT_OF_MEMORY)?;
            if let Some(block) = plan.block_to_map() {
                match self.map(inner, holder, block) {
                    Ok(()) => {}
                    Err(CuError::OUT_OF_MEMORY) if !gave_up && self.give_up_empty(inner)? => {
                        gave_up = true;
                        continue;
                    }
                    Err(CuError::OUT_OF_MEMORY) if self.give_up_copies() => continue,
                    Err(CuError::OUT_OF_MEMORY) => return Ok(None),
                    Err(error) => return Err(error),
                }
            }
            let allocation = inner.arena.commit(plan, ctx);
            inner.count(&allocation);
            return Ok(Some(allocation));
        }
    }

    /// Puts memory behind a block.
    fn map(&self, inner: &mut Inner, holder: Holder, block: Range) -> backend::Result<()> {
        if let Holder::Region(home) = holder {
            return self.put_behind(inner, block, home);
        }
        let raw = self.backend.map_block(self.device, block)?;
        let opened = inner.peers.iter().try_for_each(|peer| self.open(*peer, block));
        if let Err(error) = opened {
            self.backend.unmap_block(raw)?;
            return Err(error);
        }
        inner.blocks.insert(block.base, raw);
        Ok(())
    }

    pub(super) fn open(&self, device: usize, range: Range) -> backend::Result<()> {
        self.backend.set_access(device, range, Access::ReadWrite)
    }

    /// Has another device reach what is allocated here, now and later: to give its contexts access is enough natively, and is not for memory that is mapped as this is
    /// (`cuMemSetAccess`). Nobody is kept out again: who has no access must not try.
    ///
    /// # Errors
    /// The backend's.
    pub(crate) fn open_to(&self, device: usize) -> backend::Result<()> {
        let mut inner = lock(&self.inner);
        if device == self.device || inner.peers.contains(&device) {
            return Ok(());
        }
        let plain = |range: &Range| inner.blocks.contains_key(&range.base);
        inner.arena.blocks().filter(plain).try_for_each(|block| self.open(device, block))?;
        inner.peers.insert(device);
        Ok(())
    }

    /// The same for every device that could reach it: there is managed memory in blocks with other allocations.
    ///
    /// # Errors
    /// The backend's.
    pub(crate) fn open_to_all(&self) -> backend::Result<()> {
        self.neighbours()?.into_iter().try_for_each(|device| self.open_to(device))
    }

    /// The devices that could reach what is allocated here.
    ///
    /// # Errors
    /// The backend's.
    pub(super) fn neighbours(&self) -> backend::Result<Vec<usize>> {
        let others = (0..self.backend.devices().len()).filter(|other| *other != self.device);
        let can = others.map(|other| Ok((other, self.backend.can_access_peer(other, self.device)?)));
        let can: backend::Result<Vec<_>> = can.collect();
        Ok(can?.into_iter().filter(|(_, can)| *can).map(|(other, _)| other).collect())
    }

    /// Whether all devices could reach what is allocated here, as they do managed memory.
    ///
    /// # Errors
    /// The backend's.
    pub(crate) fn is_for_all(&self) -> backend::Result<bool> {
        Ok(self.neighbours()?.len() + 1 == self.backend.devices().len())
    }

    /// Unmaps everything with nothing in it, for whoever needs `bytes` bytes of the device otherwise, of which `free` bytes are
    /// there.
    ///
    /// # Errors
    /// The backend's.
    pub fn make_room(&self, bytes: u64, free: u64) -> backend::Result<Room> {
        let mut inner = lock(&self.inner);
        inner.settle();
        if self.give_up_empty(&mut inner)? || self.give_up_copies() {
            return Ok(Room::More);
        }
        let later = inner.unsettled_bytes();
        Ok(if later > 0 && bytes <= free.saturating_add(later) { Room::Later } else { Room::Same })
    }

    /// Unmaps everything with nothing in it, that of pools too; false when there was nothing.
    pub(super) fn give_up_empty(&self, inner: &mut Inner) -> backend::Result<bool> {
        let Inner { arena, pools, .. } = &mut *inner;
        pools.values().for_each(|pool| arena.release(pool.holder(), 0));
        let any = arena.empty_bytes() > 0;
        self.trim(inner, 0, u64::MAX)?;
        Ok(self.drop_empty_regions(inner)? || any)
    }

    /// Frees the allocation at exactly `address`; its place is used again when all of `markers` are complete. False when
    /// there is no such allocation.
    pub fn free(&self, address: u64, markers: Vec<Marker>) -> bool {
        let mut inner = lock(&self.inner);
        let Some(freed) = self.end(&mut inner, address) else { return false };
        inner.tickets.push_back(Ticket { freed, markers });
        inner.settle();
        true
    }

    /// Ends the allocation at exactly `address`, a region's too; `None` when there is none.
    pub(super) fn end(&self, inner: &mut Inner, address: u64) -> Option<Freed> {
        let freed = inner.free(address)?;
        self.forget_region(inner, address);
        Some(freed)
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
            if let Some(freed) = self.end(&mut inner, address) {
                inner.arena.reclaim(freed);
            }
        }
        inner.forget_frees(Some(ctx));
        inner.settle();
        self.drop_empty_regions(&mut inner)?;
        self.trim(&mut inner, 0, u64::MAX)
    }

    /// Gives back what has been empty since the last call, but for [`RETAIN`] bytes. Called now and then, so that memory which the application has
    /// freed is soon there for others.
    ///
    /// # Errors
    /// The backend's, from unmapping.
    pub fn tidy(&self) -> backend::Result<()> {
        let mut inner = lock(&self.inner);
        inner.settle();
        let now = inner.arena.clock();
        let since = std::mem::replace(&mut inner.tidied, now);
        self.drop_empty_regions(&mut inner)?;
        self.trim(&mut inner, RETAIN, since)
    }

    /// Gives back blocks that have been empty since the arena's clock was `since`, as long as more than `keep` bytes are empty.
    fn trim(&self, inner: &mut Inner, keep: u64, since: u64) -> backend::Result<()> {
        for range in inner.arena.trim(keep, since) {
            if let Some(raw) = inner.blocks.remove(&range.base) {
                self.backend.unmap_block(raw)?;
            }
            if let Some(share) = inner.exports.withdraw(range.base) {
                self.sharing.release(share);
            }
        }
        Ok(())
    }

    /// Bytes that are mapped and free; the rest that is free is the device's again.
    ///
    /// # Errors
    /// The backend's, from unmapping.
    pub fn empty_bytes(&self) -> backend::Result<u64> {
        let mut inner = lock(&self.inner);
        inner.settle();
        self.drop_empty_regions(&mut inner)?;
        Ok(inner.arena.empty_bytes())
    }

    /// Bytes of live allocations.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        lock(&self.inner).arena.allocations().map(|allocation| allocation.range.bytes).sum()
    }

    /// Excludes the contents of a range from images, until it is included or its allocation is freed; `None` when it lies in no allocation here.
    ///
    /// # Errors
    /// `NOT_SUPPORTED` of managed memory, `INVALID_VALUE` when it is not all of one allocation, `OUT_OF_MEMORY` when there are too many ranges.
    pub fn exclude(&self, range: Range) -> Option<failure::Result<()>> {
        let mut inner = lock(&self.inner);
        let found = inner.arena.find(range.base)?;
        Some(match found.holder {
            Holder::Region(_) => Err(Failure::new(CuError::NOT_SUPPORTED, "managed memory is always saved")),
            _ if !found.range.contains(range.base, range.bytes) => {
                Err(Failure::new(CuError::INVALID_VALUE, format!("{range} is no part of one allocation")))
            }
            _ => inner.excluded.add(range),
        })
    }

    /// Saves it again; whether it lies in an allocation here.
    pub fn include(&self, range: Range) -> bool {
        let mut inner = lock(&self.inner);
        inner.excluded.remove(range);
        inner.arena.find(range.base).is_some()
    }

    /// What need not be saved.
    pub(crate) fn excluded(&self) -> Excluded {
        lock(&self.inner).excluded.clone()
    }

    /// Bytes of live allocations that are not excluded.
    pub(crate) fn bytes_to_save(&self) -> u64 {
        self.live_bytes().saturating_sub(lock(&self.inner).excluded.bytes())
    }

    /// Claims the addresses for copies, once. Those for which the device has no room go to `buffers`.
    ///
    /// # Errors
    /// The backend's, when they cannot be had.
    pub(crate) fn reserve_copies(&self, window: Range, buffers: &Arc<BufferPool>) -> backend::Result<()> {
        let mut copies = lock(&self.copies);
        copies.buffers.get_or_insert_with(|| Arc::clone(buffers));
        if !copies.reserved {
            self.backend.reserve(window)?;
            copies.reserved = true;
        }
        Ok(())
    }

    /// Has these copies give way to the application, as long as somebody else keeps them. There are none before.
    pub(crate) fn keep_copies(&self, copies: &Arc<DeviceCopies>) {
        lock(&self.copies).newest = Arc::downgrade(copies);
    }

    fn copies(&self) -> Option<Arc<DeviceCopies>> {
        lock(&self.copies).newest.upgrade()
    }

    /// Bytes that copies take: the application counts them as free.
    #[must_use]
    pub fn copied_bytes(&self) -> u64 {
        self.copies().map_or(0, |copies| copies.bytes())
    }

    /// Moves some copies to the host's memory, or has what was registered for those there unregistered; false when none of it helps.
    fn give_up_copies(&self) -> bool {
        let buffers = || lock(&self.copies).buffers.clone();
        self.copies().is_some_and(|copies| copies.give_up())
            || buffers().is_some_and(|buffers| buffers.let_go())
    }

    /// Moves copies to the host's memory that are read in this context: it ends.
    pub(crate) fn leave_copies(&self, ctx: ContextId) {
        if let Some(copies) = self.copies() {
            copies.leave(ctx);
        }
    }

    /// The live allocation that contains `address`.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<Allocation> {
        lock(&self.inner).arena.find(address)
    }

    /// Whether this process, too, reaches the bytes, if they lie in one live allocation: those of a managed region that is coherent for a while.
    pub(crate) fn is_here(&self, address: u64, bytes: u64) -> Option<bool> {
        let inner = lock(&self.inner);
        let allocation = inner.arena.find(address).filter(|found| found.range.contains(address, bytes))?;
        Some(inner.regions.file_at(allocation.range.base).is_some_and(|pages| pages.contains(address, bytes)))
    }

    /// The block that an allocation lies in, with others if it is small.
    pub(crate) fn block_around(&self, address: u64) -> Option<Range> {
        lock(&self.inner).arena.block_around(address)
    }

    /// Forgets what freed allocations wait for: the device is idle.
    pub fn settle_idle(&self) {
        let mut inner = lock(&self.inner);
        inner.tickets.iter_mut().for_each(|ticket| ticket.markers.clear());
        inner.forget_frees(None);
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
        // What can lie elsewhere comes last.
        let (regions, others): (Vec<_>, Vec<_>) =
            state.blocks.iter().partition(|block| matches!(block.holder, Holder::Region(_)));
        for &BlockState { range, holder, .. } in others.into_iter().chain(regions) {
            let mapped = match self.map(&mut inner, holder, range) {
                Err(CuError::OUT_OF_MEMORY) if holder == Holder::Region(Home::Device) => {
                    inner.arena.rehome(range.base, Home::Host);
                    self.map(&mut inner, Holder::Region(Home::Host), range)
                }
                mapped => mapped,
            };
            mapped.map_err(|code| RestoreError::Map { range, code })?;
        }
        Ok(())
    }
}

/// What came of making room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Room {
    /// There is more of it.
    More,
    /// Not before work on what was freed is complete.
    Later,
    /// There is none to be made.
    Same,
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
    /// Bytes that are freed and that work may still touch.
    fn unsettled_bytes(&self) -> u64 {
        let tickets = self.tickets.iter().map(|ticket| ticket.freed.bytes());
        tickets.chain(self.streams.iter().map(StreamFrees::bytes)).sum()
    }

    /// Makes the places of freed allocations available whose work is complete. A free waits for every stream that is busy, so what was
    /// freed later is not complete earlier, and nobody has to look at more than the first that is not.
    pub(super) fn settle(&mut self) {
        while let Some(first) = self.tickets.front_mut() {
            first.markers.retain(|marker| !marker.is_complete());
            if !first.markers.is_empty() {
                break;
            }
            if let Some(Ticket { freed, .. }) = self.tickets.pop_front() {
                self.arena.reclaim(freed);
            }
        }
        self.settle_streams();
    }
}
