//! Copies of a device's memory on the device itself: made in the time that the device takes for it, and written to the store while the
//! application goes on. They are in nobody's way: who needs their room gets it, and what is not written yet moves to the host's memory.

use crate::buffers::BufferPool;
use crate::lock;
use crate::objects::Context;
use crate::transfer::{Reader, Source, TransferError};
use backend::{BLOCK_GRANULARITY, Range, RawBlock};
use image::CHUNK_SIZE;
use std::sync::{Arc, Mutex};
use wire::ContextId;

/// How many slabs there are at most: each takes 0.1 ms to be had (measured on an H200), for which the application stands still.
const SLABS_MOST: u64 = 16;
/// The least that a slab has, bytes.
const SLAB_LEAST: u64 = 64 << 20;
/// Host memory that is left to others when copies or managed regions move there, bytes.
pub(crate) const LEFT_TO_OTHERS: u64 = 256 << 20;

/// The copies on one device, back to back in slabs: who needs room gets as many of those as it takes.
pub(crate) struct DeviceCopies {
    range: Range,
    /// Bytes of each slab but the last.
    slab: u64,
    buffers: Arc<BufferPool>,
    state: Mutex<State>,
}

enum State {
    /// What is still to be written is in these, from this offset on. The reader is made when it is needed: that takes time, and the application goes on by then.
    Kept { reader: Option<Box<Reader>>, ctx: Arc<Context>, slabs: Vec<Slab>, from: u64 },
    /// Nowhere.
    Lost(TransferError),
    /// In the store, or given up.
    Gone,
}

/// A part of the copies.
enum Slab {
    Device(Block),
    /// In the host's memory, from this offset of all copies on.
    Host {
        bytes: Vec<u8>,
        first: u64,
    },
    /// Written.
    Passed,
}

impl Slab {
    /// Where it is on the device, if it is there.
    fn on_device(&self) -> Option<Range> {
        if let Self::Device(block) = self { Some(block.range) } else { None }
    }
}

/// A mapped block.
struct Block {
    raw: RawBlock,
    range: Range,
    buffers: Arc<BufferPool>,
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Err(error) = self.buffers.backend().unmap_block(self.raw) {
            tracing::warn!(%error, "copies of device memory stay on the device");
        }
    }
}

impl DeviceCopies {
    /// Room for copies in `range`, whose addresses are reserved; they are read in `ctx`, beside the application's work.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`, or the backend's.
    pub(super) fn map(buffers: &Arc<BufferPool>, ctx: &Arc<Context>, range: Range) -> backend::Result<Self> {
        let slab = (range.bytes / SLABS_MOST).max(SLAB_LEAST).next_multiple_of(BLOCK_GRANULARITY);
        let parts = (0..range.bytes)
            .step_by(slab as usize)
            .map(|first| Range { base: range.base + first, bytes: slab.min(range.bytes - first) });
        let mapped = |part: Range| {
            let raw = buffers.backend().map_block(ctx.device(), part)?;
            Ok(Slab::Device(Block { raw, range: part, buffers: Arc::clone(buffers) }))
        };
        let slabs = parts.map(mapped).collect::<backend::Result<Vec<Slab>>>()?;
        let state = State::Kept { reader: None, ctx: Arc::clone(ctx), slabs, from: 0 };
        Ok(Self { range, slab, buffers: Arc::clone(buffers), state: Mutex::new(state) })
    }

    /// Fills `room`, a chunk at most, with the bytes from `offset` on. What lies before is not read again, and no longer takes room.
    ///
    /// # Errors
    /// [`TransferError`] when the device fails, or the copies have been given up and found no room.
    pub(super) fn read(&self, offset: u64, room: &mut [u8]) -> Result<(), TransferError> {
        let asked = Range { base: self.range.base + offset, bytes: room.len() as u64 };
        match &mut *lock(&self.state) {
            State::Kept { reader, ctx, slabs, from } => {
                *from = offset;
                slabs.iter_mut().take((offset / self.slab) as usize).for_each(|slab| *slab = Slab::Passed);
                let (mut at, mut room) = (offset, room);
                while !room.is_empty() {
                    let slab = slabs.get((at / self.slab) as usize).ok_or(TransferError::GivenUp(asked))?;
                    let here = room.len().min((self.slab - at % self.slab) as usize);
                    let (now, rest) = room.split_at_mut(here);
                    match slab {
                        Slab::Device(_) => {
                            let part = Range { base: self.range.base + at, bytes: here as u64 };
                            self.reader(reader, ctx)?.begin(Source::Memory(part)).next(now)?;
                        }
                        Slab::Host { bytes, first } => {
                            let found =
                                at.checked_sub(*first).and_then(|within| bytes.get(within as usize..));
                            let found = found.and_then(|found| found.get(..here));
                            now.copy_from_slice(found.ok_or(TransferError::GivenUp(asked))?);
                        }
                        Slab::Passed => return Err(TransferError::GivenUp(asked)),
                    }
                    (at, room) = (at + here as u64, rest);
                }
                Ok(())
            }
            State::Lost(error) => Err(*error),
            State::Gone => Err(TransferError::GivenUp(asked)),
        }
    }

    /// Makes ready to read them, as long as the device has room for that.
    pub(super) fn make_ready(&self) {
        if let State::Kept { reader, ctx, slabs, .. } = &mut *lock(&self.state)
            && slabs.first().is_some_and(|slab| slab.on_device().is_some())
            && let Err(error) = self.reader(reader, ctx)
        {
            tracing::debug!(%error, "copies cannot be read yet");
        }
    }

    /// Ends them. Who asks for their room meanwhile, or ends their context, waits until both have been let go.
    pub(super) fn end(&self) {
        *lock(&self.state) = State::Gone;
    }

    /// Moves the last slab that is on the device, which is written last, to the host's memory. False when there is none.
    pub(crate) fn give_up(&self) -> bool {
        let mut state = lock(&self.state);
        let State::Kept { reader, ctx, slabs, from } = &mut *state else { return false };
        let Some((range, slab)) = slabs.iter_mut().rev().find_map(|slab| Some((slab.on_device()?, slab)))
        else {
            return false;
        };
        let base = range.base.max(self.range.base + *from);
        let rest = Range { base, bytes: range.end().saturating_sub(base) };
        match self.reader(reader, ctx).and_then(|reader| to_host(reader, rest)) {
            Ok(bytes) => *slab = Slab::Host { bytes, first: base - self.range.base },
            Err(error) => *state = State::Lost(error),
        }
        true
    }

    /// Moves all of them, if they are read in this context.
    pub(crate) fn leave(&self, context: ContextId) {
        let is_its_own = |state: &State| matches!(state, State::Kept { ctx, .. } if ctx.id() == context);
        while is_its_own(&lock(&self.state)) && self.give_up() {}
        let mut state = lock(&self.state);
        if is_its_own(&state)
            && let State::Kept { reader, .. } = &mut *state
        {
            *reader = None;
        }
    }

    /// Bytes of the device that they take.
    pub(crate) fn bytes(&self) -> u64 {
        let State::Kept { slabs, .. } = &*lock(&self.state) else { return 0 };
        slabs.iter().filter_map(Slab::on_device).map(|range| range.bytes).sum()
    }

    /// The reader of what is on the device, made now if it is not.
    fn reader<'r>(
        &self,
        reader: &'r mut Option<Box<Reader>>,
        ctx: &Arc<Context>,
    ) -> Result<&'r mut Reader, TransferError> {
        match reader {
            Some(reader) => Ok(reader),
            none => Ok(none.insert(Box::new(Reader::beside(&self.buffers, ctx)?))),
        }
    }
}

fn to_host(reader: &mut Reader, range: Range) -> Result<Vec<u8>, TransferError> {
    let no_room = TransferError::GivenUp(range);
    if range.bytes.saturating_add(LEFT_TO_OTHERS) > host::memory::available() {
        return Err(no_room);
    }
    let len = usize::try_from(range.bytes).map_err(|_| no_room)?;
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(len).map_err(|_| no_room)?;
    bytes.resize(len, 0);
    let mut pieces = reader.begin(Source::Memory(range));
    bytes.chunks_mut(CHUNK_SIZE).try_for_each(|piece| pieces.next(piece))?;
    drop(pieces);
    Ok(bytes)
}
