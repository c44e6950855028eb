//! Managed regions with shadow pages: each has a piece of memory of its own behind its addresses, on the device or on the host, and may get another
//! between two pieces of work (`docs/shadow-pages.md`).

use super::arena::{Allocation, Holder, SMALL_MAX};
use super::device::{DeviceMemory, Inner};
use super::placement::{Exchange, Home, Placement};
use crate::capture::LEFT_TO_OTHERS;
use crate::lock;
use backend::{Range, RawPhysical};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;
use wire::{ContextId, CuError};

/// The memory behind the regions of a device.
#[derive(Default)]
pub(super) struct Regions {
    /// By the address of its block.
    behind: BTreeMap<u64, RawPhysical>,
    /// Pages of files that the device reaches at addresses of regions, in place of what is behind them, by the address of the block.
    coherent: BTreeMap<u64, Range>,
    pub(super) placement: Placement,
    /// The host's memory that a region has left last, and its bytes: the next that goes there is often as large, and to have the kernel make room takes ten times as
    /// long as to fill it. There is none when all regions are on the device.
    spare: Option<(u64, RawPhysical)>,
    /// Whether there are addresses for those that move.
    reserved: bool,
}

impl Regions {
    /// The file's pages that the device reaches at a region, if it is coherent for a while.
    pub(super) fn file_at(&self, base: u64) -> Option<Range> {
        self.coherent.get(&base).copied()
    }
}

impl Inner {
    /// The block of the region that begins there, and the piece of memory that is its own.
    fn behind(&self, base: u64) -> backend::Result<(Range, RawPhysical)> {
        let known = self.arena.block_around(base).zip(self.regions.behind.get(&base).copied());
        known.ok_or(CuError::INVALID_VALUE)
    }
}

/// Copies so many bytes to an address from another, and waits for that.
pub(crate) type Mover<'a> = &'a dyn Fn(u64, u64, u64) -> backend::Result<()>;

impl DeviceMemory {
    /// Allocates for a managed region: on the device, or beside it where that has no room. As [`DeviceMemory::allocate`].
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`, or the backend's.
    pub fn allocate_region(&self, ctx: ContextId, bytes: u64) -> backend::Result<Option<Allocation>> {
        if bytes <= SMALL_MAX {
            // One of several in a block.
            self.open_to_all()?;
            return self.allocate(ctx, bytes);
        }
        let mut inner = lock(&self.inner);
        inner.settle();
        self.drop_empty_regions(&mut inner)?;
        match self.allocate_in(&mut inner, Holder::Region(Home::Device), ctx, bytes)? {
            None if inner.is_settled() => {
                let made = self.allocate_in(&mut inner, Holder::Region(Home::Host), ctx, bytes);
                // Whatever the host has against it, the caller knows another way.
                made.ok().flatten().map(Some).ok_or(CuError::OUT_OF_MEMORY)
            }
            found => Ok(found),
        }
    }

    /// Puts memory behind a region's block.
    ///
    /// # Errors
    /// The backend's.
    pub(super) fn put_behind(&self, inner: &mut Inner, block: Range, home: Home) -> backend::Result<()> {
        let piece = self.piece_for(inner, block.bytes, home)?;
        self.map_piece(piece, block).inspect_err(|_| self.let_go(piece))?;
        inner.regions.behind.insert(block.base, piece);
        inner.regions.placement.add(block.base, block.bytes, home);
        self.note_shortage(inner);
        Ok(())
    }

    /// Unmaps the regions' blocks that have nothing in them any more.
    ///
    /// # Errors
    /// The backend's.
    pub(super) fn drop_empty_regions(&self, inner: &mut Inner) -> backend::Result<bool> {
        let empty = inner.arena.trim_regions();
        // Each of them, whatever becomes of the one before it.
        let mut dropped = Ok(!empty.is_empty());
        for range in empty {
            if let Some(piece) = inner.regions.behind.remove(&range.base) {
                let unmapped = self.backend.unmap_physical(range);
                // Also what stays mapped is the driver's to give back then.
                let released = self.backend.physical_release(piece).and(unmapped);
                dropped = dropped.and_then(|any| released.map(|()| any));
            }
        }
        dropped
    }

    /// A region is freed, if one is: nobody counts on its place any more.
    pub(super) fn forget_region(&self, inner: &mut Inner, address: u64) {
        if inner.regions.placement.remove(address) {
            self.note_shortage(inner);
        }
    }

    fn note_shortage(&self, inner: &mut Inner) {
        let is_short = inner.regions.placement.is_short();
        self.short.store(is_short, Ordering::Relaxed);
        if !is_short {
            self.keep_spare(inner, None);
        }
    }

    fn keep_spare(&self, inner: &mut Inner, spare: Option<(u64, RawPhysical)>) {
        if let Some((_, piece)) = std::mem::replace(&mut inner.regions.spare, spare) {
            self.let_go(piece);
        }
    }

    /// Notes the addresses among the parameters of a kernel that is about to be launched, where it matters.
    pub(crate) fn note_use(&self, parameters: &[u8]) {
        if self.short.load(Ordering::Relaxed) {
            let words = parameters.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word));
            lock(&self.inner).regions.placement.used(words);
        }
    }

    /// Notes where the program wants the region around an address.
    pub(crate) fn want(&self, address: u64, home: Home) {
        lock(&self.inner).regions.placement.wanted(address, home);
    }

    /// Whether regions may have to change places.
    pub(crate) fn is_exchange_due(&self) -> bool {
        self.short.load(Ordering::Relaxed) && lock(&self.inner).regions.placement.is_due()
    }

    /// Has regions change places that had better, with so many bytes free on the device, those in empty blocks among them. No work is under way, and none begins.
    ///
    /// # Errors
    /// The backend's; then some may have moved.
    pub(crate) fn exchange(&self, free: u64, mover: Mover<'_>) -> backend::Result<()> {
        let mut inner = lock(&self.inner);
        let Some(Exchange { go, comes }) = inner.regions.placement.exchange(free) else { return Ok(()) };
        let moves = go.iter().map(|base| (*base, Home::Host)).chain([(comes, Home::Device)]);
        for (done, (base, home)) in moves.enumerate() {
            if let Err(error) = self.relocate(&mut inner, base, home, mover) {
                inner.regions.placement.stays(comes);
                // For nothing: those that went come back, where they can.
                for base in &go[..done.min(go.len())] {
                    let _ = self.relocate(&mut inner, *base, Home::Device, mover);
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Moves one region to the host, if so many bytes of the device can be had that way; false where not. No work is under way, and none begins.
    ///
    /// # Errors
    /// The backend's.
    pub(crate) fn give_way(&self, bytes: u64, mover: Mover<'_>) -> backend::Result<bool> {
        let mut inner = lock(&self.inner);
        let Some(base) = inner.regions.placement.first_to_go(bytes) else { return Ok(false) };
        self.relocate(&mut inner, base, Home::Host, mover)?;
        Ok(true)
    }

    /// Whether so many bytes of the device could be had by moving regions.
    pub(crate) fn could_give_way(&self, bytes: u64) -> bool {
        lock(&self.inner).regions.placement.first_to_go(bytes).is_some()
    }

    /// Has the device reach a file's pages at the addresses of a region on it, in place of what is behind them, which stays for later. No work is under way, and none begins.
    ///
    /// # Errors
    /// `NOT_PERMITTED` where regions move, the backend's, or the kernel's; then all is as it was.
    pub(crate) fn cohere(&self, pages: Range, file: BorrowedFd<'_>) -> backend::Result<()> {
        let mut inner = lock(&self.inner);
        let (block, piece) = inner.behind(pages.base)?;
        if inner.regions.placement.is_short() || inner.regions.file_at(block.base).is_some() {
            return Err(CuError::NOT_PERMITTED);
        }
        self.backend.unmap_physical(block)?;
        let registered = map_file(pages, file).and_then(|()| self.backend.register_host(pages));
        if let Err(error) = registered {
            unmap_file(pages)
                .and_then(|()| self.map_piece(piece, block))
                .map_err(|again| lost(block, again))?;
            return Err(error);
        }
        inner.regions.coherent.insert(block.base, pages);
        Ok(())
    }

    /// Has the device reach again what is behind a region, which holds anything. Waits for all work.
    ///
    /// # Errors
    /// The backend's, or the kernel's.
    pub(crate) fn separate(&self, base: u64) -> backend::Result<()> {
        let mut inner = lock(&self.inner);
        let Some(pages) = inner.regions.file_at(base) else { return Ok(()) };
        let (block, piece) = inner.behind(base)?;
        self.backend.unregister_host(pages)?;
        inner.regions.coherent.remove(&base);
        unmap_file(pages).and_then(|()| self.map_piece(piece, block)).map_err(|error| lost(block, error))
    }

    fn relocate(&self, inner: &mut Inner, base: u64, home: Home, mover: Mover<'_>) -> backend::Result<()> {
        let (block, old) = inner.behind(base)?;
        let passage = Range { base: self.passage.base, bytes: block.bytes };
        if !inner.regions.reserved {
            self.backend.reserve(self.passage)?;
            inner.regions.reserved = true;
        }
        let new = match self.piece_for(inner, block.bytes, home) {
            Err(CuError::OUT_OF_MEMORY) if home == Home::Device && self.give_up_empty(inner)? => {
                self.make_piece(block.bytes, home)?
            }
            made => made?,
        };
        let filled = self.map_piece(new, passage).and_then(|()| {
            let copied = mover(passage.base, block.base, block.bytes);
            self.backend.unmap_physical(passage).inspect_err(|error| {
                tracing::warn!(%passage, %error, "managed memory moves no more: what it passes through is still mapped");
            })?;
            copied
        });
        filled.inspect_err(|_| self.let_go(new))?;
        self.backend.unmap_physical(block).inspect_err(|_| self.let_go(new))?;
        if let Err(error) = self.map_piece(new, block) {
            self.let_go(new);
            self.map_piece(old, block).map_err(|again| lost(block, again))?;
            return Err(error);
        }
        match home {
            Home::Device => self.keep_spare(inner, Some((block.bytes, old))),
            Home::Host => self.let_go(old),
        }
        inner.regions.behind.insert(base, new);
        inner.arena.rehome(base, home);
        inner.regions.placement.moved(base, home);
        self.note_shortage(inner);
        tracing::debug!(region = %block, ?home, "managed memory has moved");
        Ok(())
    }

    /// Memory for a region: what another has left, where that is as large.
    fn piece_for(&self, inner: &mut Inner, bytes: u64, home: Home) -> backend::Result<RawPhysical> {
        if home == Home::Host {
            if let Some((_, spare)) = inner.regions.spare.take_if(|(of, _)| *of == bytes) {
                return Ok(spare);
            }
            // It may be in the way.
            self.keep_spare(inner, None);
        }
        self.make_piece(bytes, home)
    }

    fn make_piece(&self, bytes: u64, home: Home) -> backend::Result<RawPhysical> {
        match home {
            Home::Device => Ok(self.backend.physical_create(self.device, bytes, false)?.0),
            // What the machine does not have the kernel would take from its processes, by ending some.
            Home::Host if bytes.saturating_add(LEFT_TO_OTHERS) > host::memory::available() => {
                Err(CuError::OUT_OF_MEMORY)
            }
            Home::Host => self.backend.physical_create_on_host(self.device, bytes),
        }
    }

    /// Maps a piece, for all devices: managed memory every one of them reaches. Where that fails nothing is mapped.
    fn map_piece(&self, piece: RawPhysical, range: Range) -> backend::Result<()> {
        let mut devices = self.neighbours()?.into_iter().chain([self.device]);
        self.backend.map_physical(piece, range)?;
        devices.try_for_each(|device| self.open(device, range)).inspect_err(|_| {
            let _ = self.backend.unmap_physical(range);
        })
    }

    fn let_go(&self, piece: RawPhysical) {
        if let Err(error) = self.backend.physical_release(piece) {
            tracing::warn!(%error, "memory of a managed region is not given back");
        }
    }
}

/// Maps a file's pages, from its beginning, where the device has addresses reserved and nothing behind them.
fn map_file(pages: Range, file: BorrowedFd<'_>) -> backend::Result<()> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let at = pages.base as *mut c_void;
    // SAFETY: addresses of the arena, which this process has reserved, and where nothing is now.
    let mapped =
        unsafe { mmap(at, pages.bytes as usize, access, MapFlags::SHARED | MapFlags::FIXED, file, 0) };
    mapped.map(drop).map_err(|_| CuError::MAP_FAILED)
}

/// Has the addresses reserved again.
fn unmap_file(pages: Range) -> backend::Result<()> {
    let (at, nothing) = (pages.base as *mut c_void, ProtFlags::empty());
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: what `map_file` has put there, which nobody uses any more.
    let reserved = unsafe { mmap_anonymous(at, pages.bytes as usize, nothing, flags) };
    reserved.map(drop).map_err(|_| CuError::MAP_FAILED)
}

/// A region has no memory behind it any more, and what it held is gone: the supervisor ends the program.
fn lost(block: Range, error: CuError) -> CuError {
    tracing::error!(
        "{block} of managed memory is lost: it has changed its place, and cannot be mapped again: {error}; restart the job from its last image, and report this"
    );
    std::process::abort();
}
