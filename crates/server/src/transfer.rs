//! Device memory to host memory and back, in pieces through registered buffers: the device copies one piece while the
//! host deals with another.

use crate::buffers::{BufferPool, Buffers};
use crate::memory::Packed;
use crate::objects::{Context, Marker};
use backend::{Backend, Fill, Launch, Range, RawFunction, StreamArg};
use image::CHUNK_SIZE;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use thiserror::Error;
use wire::{ContextId, CuError};

/// Buffers of a [`Reader`].
const BUFFERS: usize = 8;
/// Buffers of a [`Writer`] in a stream that others use: a copy of its own waits for theirs.
const BESIDE_OTHERS: usize = 3;
/// How long whoever waits for a copy stays awake.
const AWAKE: Duration = Duration::from_millis(1);
/// Between two looks after that.
const PAUSE: Duration = Duration::from_micros(50);

/// Why memory was not copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum TransferError {
    /// No buffer.
    #[error("no buffer for copies: {0}")]
    Buffer(rustix::io::Errno),
    /// The copies that a capture makes.
    #[error("device memory cannot be copied: {0}")]
    Copies(CuError),
    /// No stream.
    #[error("no stream for copies: {0}")]
    Stream(CuError),
    /// The device library refused or failed.
    #[error("device memory {range} cannot be copied: {code}")]
    Device {
        /// Which piece.
        range: Range,
        /// What it answered.
        code: CuError,
    },
    /// The room that its copy had on the device was needed, and the host had none for it.
    #[error(
        "the copy of device memory at {0} gave way to what the program allocated, and the host's memory is too short for it: the checkpoint \
         can be tried again"
    )]
    GivenUp(Range),
    /// An array could not be copied.
    #[error("array {handle:#x} cannot be copied: {code}")]
    Array {
        /// Its handle.
        handle: u64,
        /// What the device library answered.
        code: CuError,
    },
}

impl TransferError {
    /// What the device library answered.
    pub(crate) fn code(&self) -> Option<CuError> {
        match self {
            Self::Device { code, .. }
            | Self::Array { code, .. }
            | Self::Copies(code)
            | Self::Stream(code) => Some(*code),
            Self::Buffer(_) | Self::GivenUp(_) => None,
        }
    }
}

/// What a failure is told of.
#[derive(Clone, Copy)]
enum Place {
    Memory(Range),
    Array(u64),
}

impl Place {
    fn failed(self, code: CuError) -> TransferError {
        match self {
            Self::Memory(range) => TransferError::Device { range, code },
            Self::Array(handle) => TransferError::Array { handle, code },
        }
    }
}

/// What is read: bytes that lie side by side, or as if they did.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// Device memory.
    Memory(Range),
    /// An array.
    Array(&'a Packed),
}

/// Where bytes go.
#[derive(Clone, Copy)]
pub(crate) enum Target<'a> {
    /// To device memory from this address on.
    Memory(u64),
    /// Into an array, from this byte of it on.
    Array(&'a Packed, u64),
}

impl Source<'_> {
    /// So many bytes of it, from this one on; an array is read whole.
    pub(crate) fn part(self, offset: u64, bytes: u64) -> Self {
        match self {
            Self::Memory(range) => Self::Memory(Range { base: range.base + offset, bytes }),
            Self::Array(_) => self,
        }
    }

    /// How many bytes they are.
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Self::Memory(range) => range.bytes,
            Self::Array(packed) => packed.bytes(),
        }
    }

    /// What it is when the device library answers `code`.
    pub(crate) fn failed(&self, code: CuError) -> TransferError {
        match self {
            Self::Memory(range) => Place::Memory(*range).failed(code),
            Self::Array(packed) => Place::Array(packed.handle).failed(code),
        }
    }

    /// Has `bytes` bytes, from number `first` on, copied in a stream to memory at `to`, the host's or the device's.
    pub(crate) fn read(
        &self,
        backend: &dyn Backend,
        (ctx, stream): (&Context, StreamArg),
        first: u64,
        bytes: u64,
        to: u64,
    ) -> backend::Result<()> {
        match self {
            Self::Memory(range) => backend.copy(ctx.raw, stream, to, range.base + first, bytes),
            Self::Array(packed) => packed
                .copies(first, bytes, to, false)
                .try_for_each(|copy| backend.copy_box(ctx.raw, stream, &copy)),
        }
    }
}

impl Target<'_> {
    /// The same place `bytes` bytes further on.
    fn offset(self, bytes: u64) -> Self {
        match self {
            Self::Memory(address) => Self::Memory(address + bytes),
            Self::Array(packed, first) => Self::Array(packed, first + bytes),
        }
    }

    fn place(self, bytes: u64) -> Place {
        match self {
            Self::Memory(base) => Place::Memory(Range { base, bytes }),
            Self::Array(packed, _) => Place::Array(packed.handle),
        }
    }

    /// Has `bytes` bytes of host memory at `from` copied there in a stream.
    fn write(
        self,
        backend: &dyn Backend,
        (ctx, stream): (&Context, StreamArg),
        from: u64,
        bytes: u64,
    ) -> backend::Result<()> {
        match self {
            Self::Memory(address) => backend.copy(ctx.raw, stream, address, from, bytes),
            Self::Array(packed, first) => packed
                .copies(first, bytes, from, true)
                .try_for_each(|copy| backend.copy_box(ctx.raw, stream, &copy)),
        }
    }
}

impl From<TransferError> for std::io::Error {
    fn from(error: TransferError) -> Self {
        Self::other(error)
    }
}

/// A stream of a context's that waits for nothing that the application does, nor the application for it. Others may use it, too.
#[derive(Clone)]
pub(crate) struct OwnStream {
    arg: StreamArg,
    ctx: Arc<Context>,
}

impl OwnStream {
    /// One of the context's.
    ///
    /// # Errors
    /// [`TransferError`].
    pub(crate) fn of(ctx: &Arc<Context>) -> Result<Self, TransferError> {
        let arg = ctx.own_stream().map_err(TransferError::Stream)?;
        Ok(Self { arg, ctx: Arc::clone(ctx) })
    }

    /// Where it is.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.ctx
    }

    /// Has a kernel of the context's run behind what is in it, in so many blocks of so many threads; tells when that is over.
    ///
    /// # Errors
    /// The device library's.
    pub(crate) fn launch(
        &self,
        function: RawFunction,
        (blocks, threads): (u32, u32),
        params: &[u8],
    ) -> backend::Result<Marker> {
        let (grid, block, stream) = ([blocks, 1, 1], [threads, 1, 1], self.arg);
        let launch = Launch { function, grid, block, shared: 0, stream, attributes: &[], params };
        self.ctx.backend().launch(self.ctx.raw, &launch)?;
        self.ctx.mark(stream)
    }

    /// Waits for all that is in it.
    ///
    /// # Errors
    /// The context's failure.
    pub(crate) fn synchronize(&self) -> backend::Result<()> {
        self.ctx.backend().stream_synchronize(self.ctx.raw, self.arg)
    }
}

/// Reads device memory front to back, several pieces ahead.
pub(crate) struct Reader {
    buffers: Buffers,
    /// In which it reads.
    stream: StreamArg,
    ctx: Arc<Context>,
    backend: Arc<dyn Backend>,
}

impl Reader {
    /// A reader for the device of `ctx`.
    fn new(pool: &Arc<BufferPool>, ctx: &Arc<Context>) -> Result<Self, TransferError> {
        let (buffers, backend) = (pool.take(BUFFERS)?, Arc::clone(pool.backend()));
        Ok(Self { buffers, stream: StreamArg::Legacy, ctx: Arc::clone(ctx), backend })
    }

    /// A reader that waits for nothing that the application does, nor the application for it.
    ///
    /// # Errors
    /// [`TransferError`].
    pub(crate) fn beside(pool: &Arc<BufferPool>, ctx: &Arc<Context>) -> Result<Self, TransferError> {
        let mut reader = Self::new(pool, ctx)?;
        reader.stream = OwnStream::of(ctx)?.arg;
        Ok(reader)
    }

    /// Begins to read `source`; ask for all of it, in pieces of a chunk.
    pub(crate) fn begin<'a>(&'a mut self, source: Source<'a>) -> Pieces<'a> {
        Pieces { reader: self, source, next: 0, under_way: VecDeque::with_capacity(BUFFERS), issued: 0 }
    }

    /// Reads a small range whole.
    pub(crate) fn read(&mut self, range: Range) -> Result<Vec<u8>, TransferError> {
        let mut bytes = vec![0; range.bytes as usize];
        let mut pieces = self.begin(Source::Memory(range));
        for piece in bytes.chunks_mut(CHUNK_SIZE) {
            pieces.next(piece)?;
        }
        Ok(bytes)
    }
}

/// Readers, one for each context: registering buffers takes time in which the job stands still.
pub(crate) struct Readers<'a> {
    pool: &'a Arc<BufferPool>,
    made: BTreeMap<ContextId, Reader>,
}

impl<'a> Readers<'a> {
    /// None yet.
    pub(crate) fn new(pool: &'a Arc<BufferPool>) -> Self {
        Self { pool, made: BTreeMap::new() }
    }

    /// The reader of a context.
    pub(crate) fn of(&mut self, ctx: &Arc<Context>) -> Result<&mut Reader, TransferError> {
        match self.made.entry(ctx.id()) {
            Entry::Occupied(known) => Ok(known.into_mut()),
            Entry::Vacant(new) => Ok(new.insert(Reader::new(self.pool, ctx)?)),
        }
    }
}

/// The pieces of what is being read.
pub(crate) struct Pieces<'a> {
    reader: &'a mut Reader,
    source: Source<'a>,
    next: u64,
    /// Buffer, bytes, and what tells that they are there.
    under_way: VecDeque<(usize, u64, Marker)>,
    issued: usize,
}

impl Pieces<'_> {
    /// Fills `room` with the next piece: a chunk, or what is left.
    pub(crate) fn next(&mut self, room: &mut [u8]) -> Result<(), TransferError> {
        self.issue()?;
        let Some((buffer, bytes, marker)) = self.under_way.pop_front() else {
            return Err(self.source.failed(CuError::INVALID_VALUE));
        };
        await_marker(&marker).map_err(|code| self.source.failed(code))?;
        let bytes = room.len().min(bytes as usize);
        // SAFETY: the buffer has a chunk, a piece has no more, and the device has finished writing it.
        unsafe {
            std::ptr::copy_nonoverlapping(self.reader.buffers.buffer(buffer), room.as_mut_ptr(), bytes)
        };
        Ok(())
    }

    fn issue(&mut self) -> Result<(), TransferError> {
        let all = self.source.bytes();
        while self.under_way.len() < BUFFERS && self.next < all {
            let bytes = (all - self.next).min(CHUNK_SIZE as u64);
            let Reader { stream, ctx, buffers, backend } = &*self.reader;
            let stream = *stream;
            let to = buffers.buffer(self.issued) as u64;
            let failed = |code| self.source.failed(code);
            self.source.read(&**backend, (ctx, stream), self.next, bytes, to).map_err(failed)?;
            let marker = ctx.mark(stream).map_err(failed)?;
            self.under_way.push_back((self.issued, bytes, marker));
            self.next += bytes;
            self.issued += 1;
        }
        Ok(())
    }
}

impl Drop for Pieces<'_> {
    fn drop(&mut self) {
        // No copy may outlive its buffer's next use.
        for (_, _, marker) in self.under_way.drain(..) {
            let _ = await_marker(&marker);
        }
    }
}

/// Waits for what it marks: awake as long as a chunk may take, then with pauses, so that a long copy costs no core.
pub(crate) fn await_marker(marker: &Marker) -> backend::Result<()> {
    await_awake(marker, AWAKE)
}

/// The same, awake for so long.
pub(crate) fn await_awake(marker: &Marker, awake: Duration) -> backend::Result<()> {
    let began = Instant::now();
    while !marker.poll()? {
        if began.elapsed() < awake {
            std::thread::yield_now();
        } else {
            std::thread::sleep(PAUSE);
        }
    }
    Ok(())
}

/// A write that may not be complete.
struct UnderWay {
    place: Place,
    marker: Marker,
    /// Whether it reads a buffer; zeros need none.
    buffered: bool,
}

/// Writes device memory, a piece at a time; one for each thread that does.
pub(crate) struct Writer {
    ctx: Arc<Context>,
    /// In which it writes.
    stream: StreamArg,
    buffers: Buffers,
    under_way: VecDeque<UnderWay>,
    /// How many of them read a buffer.
    buffered: usize,
    next: usize,
    backend: Arc<dyn Backend>,
}

impl Writer {
    /// A writer for the device of `ctx`.
    pub(crate) fn new(pool: &Arc<BufferPool>, ctx: &Arc<Context>) -> Result<Self, TransferError> {
        Self::with_buffers(pool, ctx, 2)
    }

    fn with_buffers(pool: &Arc<BufferPool>, ctx: &Arc<Context>, count: usize) -> Result<Self, TransferError> {
        let buffers = pool.take(count)?;
        let (ctx, backend) = (Arc::clone(ctx), Arc::clone(pool.backend()));
        Ok(Self {
            ctx,
            stream: StreamArg::Legacy,
            buffers,
            under_way: VecDeque::new(),
            buffered: 0,
            next: 0,
            backend,
        })
    }

    /// A writer in a stream that others may use, too.
    ///
    /// # Errors
    /// [`TransferError`].
    pub(crate) fn in_stream(pool: &Arc<BufferPool>, stream: &OwnStream) -> Result<Self, TransferError> {
        let mut writer = Self::with_buffers(pool, &stream.ctx, BESIDE_OTHERS)?;
        writer.stream = stream.arg;
        Ok(writer)
    }

    /// How many writes may not be complete. They become so in the order in which they were begun.
    pub(crate) fn left(&self) -> usize {
        self.under_way.len()
    }

    /// Has `bytes` written to `target`; complete after [`Writer::finish`].
    pub(crate) fn write(&mut self, target: Target<'_>, bytes: &[u8]) -> Result<(), TransferError> {
        for (number, piece) in bytes.chunks(CHUNK_SIZE).enumerate() {
            self.buffer()?[..piece.len()].copy_from_slice(piece);
            self.write_buffer(target.offset((number * CHUNK_SIZE) as u64), piece.len())?;
        }
        Ok(())
    }

    /// Room for a chunk, for [`Writer::write_buffer`].
    pub(crate) fn buffer(&mut self) -> Result<&mut [u8], TransferError> {
        while self.buffered >= self.buffers.count() && self.await_first()? {}
        // SAFETY: the buffer has a chunk, whatever is in it, the copy that used it last is complete, and nobody else has it.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.buffers.buffer(self.next), CHUNK_SIZE) })
    }

    /// Has the first `bytes` of what was put into [`Writer::buffer`] written to `target`; complete after [`Writer::finish`].
    pub(crate) fn write_buffer(&mut self, target: Target<'_>, bytes: usize) -> Result<(), TransferError> {
        let (buffer, bytes) = (self.buffers.buffer(self.next), bytes.min(CHUNK_SIZE) as u64);
        self.next += 1;
        let (place, stream) = (target.place(bytes), self.stream);
        let marker = target.write(&*self.backend, (&self.ctx, stream), buffer as u64, bytes);
        let marker = marker.and_then(|()| self.ctx.mark(stream));
        self.under_way(place, marker, true)
    }

    fn under_way(
        &mut self,
        place: Place,
        marker: backend::Result<Marker>,
        buffered: bool,
    ) -> Result<(), TransferError> {
        let marker = marker.map_err(|code| place.failed(code))?;
        self.buffered += usize::from(buffered);
        self.under_way.push_back(UnderWay { place, marker, buffered });
        Ok(())
    }

    /// Waits for the first write that is under way; false when there is none.
    fn await_first(&mut self) -> Result<bool, TransferError> {
        let Some(UnderWay { place, marker, buffered }) = self.under_way.pop_front() else { return Ok(false) };
        self.buffered -= usize::from(buffered);
        // Each look takes the device library's lock, which the others who write in the same stream need.
        let awake = if self.stream != StreamArg::Legacy { Duration::ZERO } else { AWAKE };
        await_awake(&marker, awake).map_err(|code| place.failed(code))?;
        Ok(true)
    }

    /// Has zeros written; complete after [`Writer::finish`].
    pub(crate) fn zeros(&mut self, target: Target<'_>, bytes: u64) -> Result<(), TransferError> {
        let Target::Memory(dst) = target else {
            // Arrays cannot be filled.
            let zeros = vec![0; CHUNK_SIZE.min(bytes as usize)];
            let mut done = 0;
            while done < bytes {
                let piece = (bytes - done).min(CHUNK_SIZE as u64);
                self.write(target.offset(done), &zeros[..piece as usize])?;
                done += piece;
            }
            return Ok(());
        };
        let fill = Fill { dst, pitch: bytes, element: 1, value: 0, width: bytes, height: 1 };
        let place = target.place(bytes);
        let stream = self.stream;
        let marker = self.backend.fill(self.ctx.raw, stream, &fill);
        let marker = marker.and_then(|()| self.ctx.mark(stream));
        self.under_way(place, marker, false)
    }

    /// Waits until everything is written.
    pub(crate) fn finish(&mut self) -> Result<(), TransferError> {
        while self.await_first()? {}
        Ok(())
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.finish();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::objects::{ContextRecord, Making, Placement, Placer};

    /// Zeros take no buffer, and must not be taken for what uses the next one.
    #[test]
    fn buffers_are_used_again_when_their_copies_are_complete() {
        const PIECE: u64 = 64 << 10;
        const PIECES: u64 = 512;
        let backend: Arc<dyn Backend> = Arc::new(backend_soft::SoftBackend::default());
        let placer = Placer::new(Arc::clone(&backend), 0);
        let pool = BufferPool::new(&backend);
        let placement = Placement::default();
        let record = ContextRecord { id: ContextId(1), device: 0, flags: 0, primary: false, placement };
        let ctx = Context::make(&placer, record, Making::New).unwrap();
        let range = Range { base: 0x2000_0000_0000, bytes: PIECE * PIECES };
        backend.reserve(range).unwrap();
        backend.map_block(0, range).unwrap();
        let contents = |piece: u64| vec![piece as u8 | 1; PIECE as usize];
        let is_zero = |piece: u64| piece.is_multiple_of(3);
        let mut writer = Writer::new(&pool, &ctx).unwrap();
        for piece in 0..PIECES {
            let target = Target::Memory(range.base + piece * PIECE);
            if is_zero(piece) {
                writer.zeros(target, PIECE).unwrap();
            } else {
                writer.write(target, &contents(piece)).unwrap();
            }
        }
        writer.finish().unwrap();
        let read = Readers::new(&pool).of(&ctx).unwrap().read(range).unwrap();
        for (piece, found) in (0..).zip(read.chunks(PIECE as usize)) {
            let wanted = if is_zero(piece) { vec![0; PIECE as usize] } else { contents(piece) };
            assert!(found == wanted, "piece {piece}");
        }
    }

    #[test]
    fn a_context_has_one_reader() {
        let backend: Arc<dyn Backend> = Arc::new(backend_soft::SoftBackend::default());
        let (placer, pool) = (Placer::new(Arc::clone(&backend), 0), BufferPool::new(&backend));
        let mut readers = Readers::new(&pool);
        let mut addresses = [1, 2].map(|id| {
            let placement = Placement::default();
            let record = ContextRecord { id: ContextId(id), device: 0, flags: 0, primary: false, placement };
            let ctx = Context::make(&placer, record, Making::New).unwrap();
            let mut address = || readers.of(&ctx).unwrap().buffers.range().base;
            let first = address();
            assert_eq!(address(), first);
            first
        });
        addresses.sort_unstable();
        assert_ne!(addresses[0], addresses[1]);
    }
}
