//! Copies of a device's memory on the device itself: made in the time that the device takes for it, and written to the store while the
//! application goes on. They are in nobody's way: who needs their room gets it, and what is not written yet moves to the host's memory.

use crate::buffers::BufferPool;
use crate::lock;
use crate::objects::Context;
use crate::transfer::{Reader, Source, TransferError};
use backend::{Range, RawBlock};
use image::CHUNK_SIZE;
use std::sync::{Arc, Mutex};
use wire::ContextId;

/// Host memory that is left to others when copies or managed regions move there, bytes.
pub(crate) const LEFT_TO_OTHERS: u64 = 256 << 20;

/// The copies on one device, back to back in one block.
pub(crate) struct DeviceCopies {
    range: Range,
    place: Mutex<Place>,
}

/// Where what is still to be written lies.
enum Place {
    /// On the device, from this offset on. The reader is made when it is needed: that takes time, and the application goes on by then.
    Device { reader: Option<Box<Reader>>, ctx: Arc<Context>, block: Block, from: u64 },
    /// In the host's memory, from this offset on.
    Host { bytes: Vec<u8>, from: u64 },
    /// Nowhere.
    Lost(TransferError),
    /// In the store, or given up.
    Gone,
}

/// A mapped block.
pub(crate) struct Block {
    raw: RawBlock,
    buffers: Arc<BufferPool>,
}

impl Block {
    /// A block of `range`, whose addresses are reserved.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY`, or the backend's.
    pub(super) fn map(buffers: &Arc<BufferPool>, device: usize, range: Range) -> backend::Result<Self> {
        Ok(Self { raw: buffers.backend().map_block(device, range)?, buffers: Arc::clone(buffers) })
    }

    /// The reader of it, made now if it is not.
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

impl Drop for Block {
    fn drop(&mut self) {
        if let Err(error) = self.buffers.backend().unmap_block(self.raw) {
            tracing::warn!(%error, "copies of device memory stay on the device");
        }
    }
}

impl DeviceCopies {
    /// Copies in `block` of `range`, which are read in `ctx`, beside the application's work.
    pub(super) fn of(ctx: &Arc<Context>, block: Block, range: Range) -> Self {
        let place = Place::Device { reader: None, ctx: Arc::clone(ctx), block, from: 0 };
        Self { range, place: Mutex::new(place) }
    }

    /// Fills `room`, a chunk at most, with the bytes from `offset` on. What lies before is not read again.
    ///
    /// # Errors
    /// [`TransferError`] when the device fails, or the copies have been given up and found no room.
    pub(super) fn read(&self, offset: u64, room: &mut [u8]) -> Result<(), TransferError> {
        let range = Range { base: self.range.base + offset, bytes: room.len() as u64 };
        match &mut *lock(&self.place) {
            Place::Device { reader, ctx, block, from } => {
                *from = offset;
                block.reader(reader, ctx)?.begin(Source::Memory(range)).next(room)
            }
            Place::Host { bytes, from } => {
                let first = offset.checked_sub(*from).and_then(|first| usize::try_from(first).ok());
                let found = first.and_then(|first| bytes.get(first..)?.get(..room.len()));
                room.copy_from_slice(found.ok_or(TransferError::GivenUp(range))?);
                Ok(())
            }
            Place::Lost(error) => Err(*error),
            Place::Gone => Err(TransferError::GivenUp(range)),
        }
    }

    /// Makes ready to read them, as long as the device has room for that.
    pub(super) fn make_ready(&self) {
        if let Place::Device { reader, ctx, block, .. } = &mut *lock(&self.place)
            && let Err(error) = block.reader(reader, ctx)
        {
            tracing::debug!(%error, "copies cannot be read yet");
        }
    }

    /// Ends them. Who asks for their room meanwhile, or ends their context, waits until both have been let go.
    pub(super) fn end(&self) {
        *lock(&self.place) = Place::Gone;
    }

    /// Moves what is not written yet to the host's memory, if it is on the device. False when there was nothing to move.
    pub(crate) fn give_up(&self) -> bool {
        let mut place = lock(&self.place);
        let Place::Device { reader, ctx, block, from } = &mut *place else { return false };
        let rest = Range { base: self.range.base + *from, bytes: self.range.bytes - *from };
        let now = match block.reader(reader, ctx).and_then(|reader| to_host(reader, rest)) {
            Ok(bytes) => Place::Host { bytes, from: *from },
            Err(error) => Place::Lost(error),
        };
        *place = now;
        true
    }

    /// Whether they are on the device, and need this context.
    pub(crate) fn need(&self, ctx: ContextId) -> bool {
        matches!(&*lock(&self.place), Place::Device { ctx: own, .. } if own.id() == ctx)
    }

    /// Bytes of the device that they take.
    pub(crate) fn bytes(&self) -> u64 {
        match &*lock(&self.place) {
            Place::Device { .. } => self.range.bytes,
            Place::Host { .. } | Place::Lost(_) | Place::Gone => 0,
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
