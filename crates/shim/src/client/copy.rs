//! Copies: by where the two sides are, and whether the caller waits.
//!
//! Device and pinned memory have the same addresses in the server, which copies between them by itself. What lies in this
//! process alone (pageable memory) travels in messages when it is small, and through the ring's staging slots when it is not.

use std::collections::VecDeque;

use wire::{
    ContextId, Copy, CopyFromInline, CopyFromSlot, CopyToInline, CopyToSlot, CopyToSlotWait, CopyWait,
    SlotWait, Stream, StreamSynchronize,
};

use cuda_abi::{CuError, CuResult};
use transport::{SLOT_BYTES, SLOTS};

use super::copiers::{Copiers, Ticket};
use super::memory::Place;
use super::thread::{Call, FEW_SLOTS};

/// Up to so many bytes travel in the message; more is quicker through a slot, which the device reads and writes by itself.
const INLINE_BEST: u64 = 8 << 10;
const _: () = assert!(INLINE_BEST <= wire::INLINE_MAX as u64);
/// From so many bytes on several threads copy.
const BULK: u64 = 1 << 20;
/// The smallest piece that is worth a message of its own.
const PIECE_MIN: u64 = 256 << 10;

/// Whether the call returns before a copy is done that needs this process no more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// `cuMemcpy*`.
    UntilDone,
    /// `cuMemcpy*Async`.
    No,
}

/// What the caller says that a side of a copy is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Memory of the host, pinned or not.
    Host(u64),
    /// Device memory, or pinned memory at its device address.
    Device(u64),
    /// Whatever the address says (unified addressing).
    Any(u64),
}

impl Side {
    /// The address.
    pub fn address(self) -> u64 {
        match self {
            Self::Host(address) | Self::Device(address) | Self::Any(address) => address,
        }
    }

    /// The same side `bytes` further on.
    pub fn offset(self, bytes: u64) -> Self {
        match self {
            Self::Host(address) => Self::Host(address.wrapping_add(bytes)),
            Self::Device(address) => Self::Device(address.wrapping_add(bytes)),
            Self::Any(address) => Self::Any(address.wrapping_add(bytes)),
        }
    }
}

/// Where a copy happens.
#[derive(Clone, Copy, Debug)]
pub struct Lane {
    /// The stream's context.
    pub ctx: ContextId,
    /// The stream.
    pub stream: Stream,
    /// Whether the caller waits.
    pub wait: Wait,
}

impl Call<'_> {
    /// What a side of a copy is.
    ///
    /// # Errors
    /// `INVALID_VALUE` when it is not what the caller says, or not all of one allocation.
    pub fn place_of(&self, side: Side, bytes: u64) -> CuResult<Place> {
        let place = self.session.memory.place(side.address(), bytes).ok_or(CuError::INVALID_VALUE)?;
        match (side, place) {
            (Side::Host(_), Place::Device) | (Side::Device(_), Place::Host | Place::Registered) => {
                Err(CuError::INVALID_VALUE)
            }
            _ => Ok(place),
        }
    }

    /// Copies `bytes` bytes.
    ///
    /// # Errors
    /// As the driver's copies.
    ///
    /// # Safety
    /// A side in memory of the host must be the caller's to read or write.
    pub unsafe fn copy(&mut self, lane: Lane, dst: Side, src: Side, bytes: u64) -> CuResult {
        if bytes == 0 {
            return self.check();
        }
        let places = (self.place_of(dst, bytes)?, self.place_of(src, bytes)?);
        let (dst, src) = (dst.address(), src.address());
        let Lane { ctx, stream, wait } = lane;
        match places {
            (Place::Device, Place::Device) => self.submit(&Copy { ctx, stream, dst, src, bytes }),
            (Place::Device | Place::Pinned, Place::Device | Place::Pinned) if wait == Wait::No => {
                self.submit(&Copy { ctx, stream, dst, src, bytes })
            }
            (Place::Device | Place::Pinned, Place::Device | Place::Pinned) => {
                self.ask(&CopyWait { ctx, stream, dst, src, bytes })
            }
            (Place::Device | Place::Pinned, Place::Host | Place::Registered) => {
                self.wait_for_source(lane, places.1)?;
                // SAFETY: the side is the caller's to read.
                unsafe { self.send(lane, dst, pointer(src), bytes) }?;
                self.wait_for_target(lane, places.0)
            }
            // SAFETY: the side is the caller's to write.
            (Place::Host | Place::Registered, Place::Device | Place::Pinned) => unsafe {
                self.fetch(lane, pointer(dst).cast_mut(), src, bytes)
            },
            (Place::Host | Place::Registered, Place::Host | Place::Registered) => {
                self.await_work(&StreamSynchronize { ctx, stream })?;
                // SAFETY: both sides are the caller's; they may overlap.
                unsafe { std::ptr::copy(pointer(src), pointer(dst).cast_mut(), bytes as usize) };
                Ok(())
            }
        }
    }

    /// Waits until memory of this process holds what a copy is to read: what comes before it in the stream may be a host
    /// function that writes it. A driver reads registered memory when the stream gets there, and waits for the stream itself
    /// before a synchronous copy from pageable memory.
    pub(super) fn wait_for_source(&mut self, lane: Lane, source: Place) -> CuResult {
        let Lane { ctx, stream, wait } = lane;
        let written = wait == Wait::UntilDone && self.session.callbacks.any_pending();
        if source == Place::Registered || written {
            self.await_work(&StreamSynchronize { ctx, stream })
        } else {
            Ok(())
        }
    }

    /// Waits until what was submitted last is done, where the caller waits and can look at what it was written to: pinned and
    /// managed memory. Device memory nobody sees without another call.
    ///
    /// # Errors
    /// What work of the stream has failed with.
    pub fn wait_for_target(&mut self, lane: Lane, target: Place) -> CuResult {
        let Lane { ctx, stream, wait } = lane;
        if wait == Wait::UntilDone && target == Place::Pinned {
            self.await_work(&StreamSynchronize { ctx, stream })
        } else {
            Ok(())
        }
    }

    /// From pageable memory: the bytes are taken before the call returns.
    ///
    /// # Safety
    /// `src` must be readable for `bytes`.
    unsafe fn send(&mut self, lane: Lane, dst: u64, src: *const u8, bytes: u64) -> CuResult {
        let Lane { ctx, stream, .. } = lane;
        if bytes <= INLINE_BEST {
            // SAFETY: readable, as the caller says.
            let data = unsafe { std::slice::from_raw_parts(src, bytes as usize) };
            return self
                .submit_with(&CopyFromInline { ctx, stream, dst, data: wire::Bytes::default() }, data);
        }
        let src = src as usize;
        self.send_pieces(
            bytes,
            pieces(bytes, piece_of(bytes)),
            move |slot, (offset, len)| {
                // SAFETY: readable, as the caller says; nothing else uses the slot, which has room for a piece.
                unsafe { std::ptr::copy_nonoverlapping(pointer(src as u64 + offset), slot, len as usize) };
            },
            |call, slot, (offset, len)| {
                call.submit(&CopyFromSlot { ctx, stream, dst: dst + offset, slot, bytes: len as u32 })
            },
        )
    }

    /// To pageable memory: the bytes are there when the call returns.
    ///
    /// # Safety
    /// `dst` must be writable for `bytes`.
    unsafe fn fetch(&mut self, lane: Lane, dst: *mut u8, src: u64, bytes: u64) -> CuResult {
        let Lane { ctx, stream, .. } = lane;
        if bytes <= INLINE_BEST {
            let data = self.ask(&CopyToInline { ctx, stream, src, bytes: bytes as u32 })?;
            if data.0.len() as u64 != bytes {
                return Err(CuError::UNKNOWN);
            }
            // SAFETY: writable, as the caller says.
            unsafe { std::ptr::copy_nonoverlapping(data.0.as_ptr(), dst, data.0.len()) };
            return Ok(());
        }
        let dst = dst as usize;
        self.fetch_pieces(
            bytes,
            pieces(bytes, piece_of(bytes)),
            |call, slot, (offset, len)| {
                call.submit(&CopyToSlot { ctx, stream, src: src + offset, slot, bytes: len as u32 })
            },
            move |slot, (offset, len)| {
                let to = pointer(dst as u64 + offset).cast_mut();
                // SAFETY: writable, as the caller says; the slot's copy is complete.
                unsafe { std::ptr::copy_nonoverlapping(slot, to, len as usize) };
            },
        )
    }

    /// Sends pieces through the slots, by many threads if they are `bytes` bytes of large pieces: `fill` puts a piece into a slot, on any thread, before this returns; `submit`
    /// sends its copy from there.
    pub(super) fn send_pieces<P: std::marker::Copy + Send + 'static>(
        &mut self,
        bytes: u64,
        pieces: impl Iterator<Item = P>,
        fill: impl Fn(*mut u8, P) + std::marker::Copy + Send + 'static,
        mut submit: impl FnMut(&mut Self, u32, P) -> CuResult,
    ) -> CuResult {
        let crew = Crew::new(&self.session.copiers, bytes);
        let slots = self.line()?.usable_slots(crew.slots())?;
        // A slot is known to be in use only when its copy is sent: no more are filled at a time than there are, and as many others
        // are under way.
        let depth = slots / 2;
        let mut filling = VecDeque::with_capacity(depth);
        let mut pieces = pieces.peekable();
        while pieces.peek().is_some() || !filling.is_empty() {
            if let (true, Some(piece)) = (filling.len() < depth, pieces.peek().copied()) {
                pieces.next();
                let slot = self.free_slot(slots)?;
                let memory = SlotMemory(self.line()?.slot(slot)?.address().as_ptr());
                filling.push_back((slot, piece, crew.begin(move || fill(memory.address(), piece))));
            } else if let Some((slot, piece, filled)) = filling.pop_front() {
                drop(filled);
                self.line()?.slots.busy[slot] = true;
                submit(self, slot as u32, piece)?;
            }
        }
        Ok(())
    }

    /// Fetches `bytes` bytes in pieces through the slots: `start` sends a piece's copy to a slot; `take` empties the slot when it is
    /// there, on any thread, before this returns.
    pub(super) fn fetch_pieces<P: std::marker::Copy + Send + 'static>(
        &mut self,
        bytes: u64,
        pieces: impl Iterator<Item = P>,
        mut start: impl FnMut(&mut Self, u32, P) -> CuResult,
        take: impl Fn(*const u8, P) + std::marker::Copy + Send + 'static,
    ) -> CuResult {
        let crew = Crew::new(&self.session.copiers, bytes);
        let slots = self.line()?.usable_slots(crew.slots())?;
        let depth = slots / 2;
        // Together they never have more slots than there are, so a slot is not used again before it is empty.
        let (mut coming, mut emptying) = (VecDeque::with_capacity(depth), VecDeque::with_capacity(depth));
        let mut pieces = pieces.peekable();
        while pieces.peek().is_some() || !coming.is_empty() {
            if let (true, Some(piece)) = (coming.len() < depth, pieces.peek().copied()) {
                pieces.next();
                let slot = self.free_slot(slots)?;
                self.line()?.slots.busy[slot] = true;
                start(self, slot as u32, piece)?;
                coming.push_back((slot, piece));
            } else if let Some((slot, piece)) = coming.pop_front() {
                self.ask(&CopyToSlotWait { slot: slot as u32 })?;
                self.line()?.slots.busy[slot] = false;
                let memory = SlotMemory(self.line()?.slot(slot)?.address().as_ptr());
                if emptying.len() == depth {
                    emptying.pop_front();
                }
                emptying.push_back(crew.begin(move || take(memory.address(), piece)));
            }
        }
        Ok(())
    }

    /// One of the first `among` slots that nothing uses, waiting for the copy that does.
    fn free_slot(&mut self, among: usize) -> CuResult<usize> {
        let slots = &mut self.line()?.slots;
        let slot = if slots.next < among { slots.next } else { 0 };
        slots.next = (slot + 1) % among;
        if slots.busy[slot] {
            self.ask(&SlotWait { slot: slot as u32 })?;
            self.line()?.slots.busy[slot] = false;
        }
        Ok(slot)
    }
}

/// Who copies the pieces of one copy: for a small one the caller alone, through few slots, which is all that it needs.
enum Crew<'a> {
    Caller,
    All(&'a Copiers),
}

impl<'a> Crew<'a> {
    fn new(copiers: &'a Copiers, bytes: u64) -> Self {
        if bytes < BULK { Self::Caller } else { Self::All(copiers) }
    }

    fn slots(&self) -> usize {
        match self {
            Self::Caller => FEW_SLOTS,
            Self::All(_) => SLOTS,
        }
    }

    fn begin(&self, copy: impl FnOnce() + Send + 'static) -> Option<Ticket<'a>> {
        match self {
            Self::Caller => {
                copy();
                None
            }
            Self::All(copiers) => Some(copiers.begin(copy)),
        }
    }
}

/// Where a slot lies.
#[derive(Clone, Copy)]
struct SlotMemory(*mut u8);

// SAFETY: the slot is shared memory, mapped as long as the session lives; who may touch it when is agreed by messages.
unsafe impl Send for SlotMemory {}

impl SlotMemory {
    fn address(self) -> *mut u8 {
        self.0
    }
}

/// The bytes of a piece of a copy: enough pieces for every thread, none too small to be worth a message.
fn piece_of(bytes: u64) -> u64 {
    if bytes < BULK {
        return SLOT_BYTES as u64;
    }
    (bytes / SLOTS as u64).next_multiple_of(PIECE_MIN).clamp(PIECE_MIN, SLOT_BYTES as u64)
}

/// The bytes of a copy whose slices are sent one by one, as far as they count for many threads: with small slices those would only
/// wait for each other.
pub(super) fn bytes_in_slices(slice: u64, slices: u64) -> u64 {
    if slice < PIECE_MIN { slice } else { slice.saturating_mul(slices) }
}

/// Offsets and lengths of the pieces of a whole.
pub(super) fn pieces(whole: u64, piece: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..whole.div_ceil(piece)).map(move |index| (index * piece, piece.min(whole - index * piece)))
}

/// An address of this process.
pub(super) fn pointer(address: u64) -> *const u8 {
    std::ptr::with_exposed_provenance(address as usize)
}

#[cfg(test)]
mod tests {
    use super::pieces;

    #[test]
    fn pieces_make_up_the_whole() {
        assert_eq!(pieces(10, 4).collect::<Vec<_>>(), [(0, 4), (4, 4), (8, 2)]);
        assert_eq!(pieces(8, 4).collect::<Vec<_>>(), [(0, 4), (4, 4)]);
        assert_eq!(pieces(0, 4).count(), 0);
    }
}
