//! Device memory to host memory and back, in pieces through registered buffers: the device copies one piece while the
//! host deals with another.

use crate::objects::{Context, Marker};
use backend::{Backend, Fill, Range, StreamArg};
use image::CHUNK_SIZE;
use rustix::mm::{MapFlags, ProtFlags};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Arc;
use thiserror::Error;
use wire::CuError;

/// Buffers of a [`Reader`].
const BUFFERS: usize = 8;

/// Why memory was not copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum TransferError {
    /// No buffer.
    #[error("no buffer for copies: {0}")]
    Buffer(rustix::io::Errno),
    /// The device library refused or failed.
    #[error("device memory {range} cannot be copied: {code}")]
    Device {
        /// Which piece.
        range: Range,
        /// What it answered.
        code: CuError,
    },
}

impl From<TransferError> for std::io::Error {
    fn from(error: TransferError) -> Self {
        Self::other(error)
    }
}

/// Registered host memory of one chunk for each buffer.
struct Buffers {
    address: *mut c_void,
    count: usize,
    backend: Arc<dyn Backend>,
}

// SAFETY: the memory belongs to the value alone and has no ties to a thread.
unsafe impl Send for Buffers {}

impl Buffers {
    fn new(backend: &Arc<dyn Backend>, count: usize) -> Result<Self, TransferError> {
        // SAFETY: a new mapping, wherever there is room.
        let address = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                count * CHUNK_SIZE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .map_err(TransferError::Buffer)?;
        let buffers = Self { address, count, backend: Arc::clone(backend) };
        let range = buffers.range();
        backend.register_host(range).map_err(|code| TransferError::Device { range, code })?;
        Ok(buffers)
    }

    fn range(&self) -> Range {
        Range { base: self.address as u64, bytes: (self.count * CHUNK_SIZE) as u64 }
    }

    fn buffer(&self, number: usize) -> *mut u8 {
        // SAFETY: the mapping has `count` chunks, and the number is taken modulo that.
        unsafe { self.address.cast::<u8>().add(number % self.count * CHUNK_SIZE) }
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        let _ = self.backend.unregister_host(self.range());
        // SAFETY: the mapping is ours, and no copy uses it: whoever made one has waited for it.
        let _ = unsafe { rustix::mm::munmap(self.address, self.count * CHUNK_SIZE) };
    }
}

/// Reads device memory front to back, several pieces ahead.
pub(crate) struct Reader {
    ctx: Arc<Context>,
    buffers: Buffers,
    backend: Arc<dyn Backend>,
}

impl Reader {
    /// A reader for the device of `ctx`.
    pub(crate) fn new(backend: &Arc<dyn Backend>, ctx: &Arc<Context>) -> Result<Self, TransferError> {
        let buffers = Buffers::new(backend, BUFFERS)?;
        Ok(Self { ctx: Arc::clone(ctx), buffers, backend: Arc::clone(backend) })
    }

    /// Begins to read `range`; ask for all of it, in pieces of a chunk.
    pub(crate) fn begin(&mut self, range: Range) -> Pieces<'_> {
        Pieces { reader: self, rest: range, under_way: VecDeque::with_capacity(BUFFERS), issued: 0 }
    }

    /// Reads a small range whole.
    pub(crate) fn read(&mut self, range: Range) -> Result<Vec<u8>, TransferError> {
        let mut bytes = vec![0; range.bytes as usize];
        let mut pieces = self.begin(range);
        for piece in bytes.chunks_mut(CHUNK_SIZE) {
            pieces.next(piece)?;
        }
        Ok(bytes)
    }
}

/// The pieces of a range that is being read.
pub(crate) struct Pieces<'a> {
    reader: &'a mut Reader,
    rest: Range,
    under_way: VecDeque<(usize, Range, Marker)>,
    issued: usize,
}

impl Pieces<'_> {
    /// Fills `room` with the next piece: a chunk, or what is left.
    pub(crate) fn next(&mut self, room: &mut [u8]) -> Result<(), TransferError> {
        self.issue()?;
        let Some((buffer, range, marker)) = self.under_way.pop_front() else {
            let range = Range { base: self.rest.base, bytes: room.len() as u64 };
            return Err(TransferError::Device { range, code: CuError::INVALID_VALUE });
        };
        await_marker(&marker, range)?;
        let bytes = room.len().min(range.bytes as usize);
        // SAFETY: the buffer has a chunk, a piece has no more, and the device has finished writing it.
        unsafe {
            std::ptr::copy_nonoverlapping(self.reader.buffers.buffer(buffer), room.as_mut_ptr(), bytes)
        };
        Ok(())
    }

    fn issue(&mut self) -> Result<(), TransferError> {
        while self.under_way.len() < BUFFERS && self.rest.bytes > 0 {
            let range = Range { base: self.rest.base, bytes: self.rest.bytes.min(CHUNK_SIZE as u64) };
            self.rest = Range { base: range.end(), bytes: self.rest.bytes - range.bytes };
            let Reader { ctx, buffers, backend } = &*self.reader;
            let to = buffers.buffer(self.issued) as u64;
            let failed = |code| TransferError::Device { range, code };
            backend.copy(ctx.raw, StreamArg::Legacy, to, range.base, range.bytes).map_err(failed)?;
            let marker = ctx.mark(StreamArg::Legacy).map_err(failed)?;
            self.under_way.push_back((self.issued, range, marker));
            self.issued += 1;
        }
        Ok(())
    }
}

impl Drop for Pieces<'_> {
    fn drop(&mut self) {
        // No copy may outlive its buffer's next use.
        for (_, range, marker) in self.under_way.drain(..) {
            let _ = await_marker(&marker, range);
        }
    }
}

fn await_marker(marker: &Marker, range: Range) -> Result<(), TransferError> {
    while !marker.poll().map_err(|code| TransferError::Device { range, code })? {
        std::thread::yield_now();
    }
    Ok(())
}

/// Writes device memory, a piece at a time; one for each thread that does.
pub(crate) struct Writer {
    ctx: Arc<Context>,
    buffers: Buffers,
    used: VecDeque<(Range, Marker)>,
    next: usize,
    backend: Arc<dyn Backend>,
}

impl Writer {
    /// A writer for the device of `ctx`.
    pub(crate) fn new(backend: &Arc<dyn Backend>, ctx: &Arc<Context>) -> Result<Self, TransferError> {
        let buffers = Buffers::new(backend, 2)?;
        let (ctx, backend) = (Arc::clone(ctx), Arc::clone(backend));
        Ok(Self { ctx, buffers, used: VecDeque::new(), next: 0, backend })
    }

    /// Has `bytes` written to `address`; complete after [`Writer::finish`].
    pub(crate) fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), TransferError> {
        for (number, piece) in bytes.chunks(CHUNK_SIZE).enumerate() {
            let base = address + (number * CHUNK_SIZE) as u64;
            let range = Range { base, bytes: piece.len() as u64 };
            if self.used.len() >= self.buffers.count
                && let Some((range, marker)) = self.used.pop_front()
            {
                await_marker(&marker, range)?;
            }
            let buffer = self.buffers.buffer(self.next);
            self.next += 1;
            // SAFETY: the buffer has a chunk, a piece has no more, and the copy that used it last is complete.
            unsafe { std::ptr::copy_nonoverlapping(piece.as_ptr(), buffer, piece.len()) };
            let failed = |code| TransferError::Device { range, code };
            self.backend
                .copy(self.ctx.raw, StreamArg::Legacy, base, buffer as u64, range.bytes)
                .map_err(failed)?;
            self.used.push_back((range, self.ctx.mark(StreamArg::Legacy).map_err(failed)?));
        }
        Ok(())
    }

    /// Has zeros written; complete after [`Writer::finish`].
    pub(crate) fn zeros(&mut self, range: Range) -> Result<(), TransferError> {
        let fill =
            Fill { dst: range.base, pitch: range.bytes, element: 1, value: 0, width: range.bytes, height: 1 };
        let failed = |code| TransferError::Device { range, code };
        self.backend.fill(self.ctx.raw, StreamArg::Legacy, &fill).map_err(failed)?;
        self.used.push_back((range, self.ctx.mark(StreamArg::Legacy).map_err(failed)?));
        Ok(())
    }

    /// Waits until everything is written.
    pub(crate) fn finish(&mut self) -> Result<(), TransferError> {
        while let Some((range, marker)) = self.used.pop_front() {
            await_marker(&marker, range)?;
        }
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}
