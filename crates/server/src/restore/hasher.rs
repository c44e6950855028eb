//! The hash of whole chunks on the device that holds them (`blake3.ptx`): what a processor needs 1.5 ms for.

use crate::buffers::{BufferPool, Buffers};
use crate::capture::PTX;
use crate::lock;
use crate::objects::Marker;
use crate::transfer::{OwnStream, TransferError};
use backend::{Backend, LinkInput, LoadError, RawFunction, RawModule};
use image::{CHUNK_SIZE, ChunkId};
use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const CODE: &str = include_str!("blake3.ptx");
const THREADS: u32 = 256;
/// Blocks of a chunk, each of which makes one value.
const EIGHTHS: usize = 8;
/// Chunks of one launch, at most.
pub(super) const CHUNKS: usize = 16;

/// The chaining values of a chunk's eighths.
type Values = [[u8; 32]; EIGHTHS];
/// Of a slot: addresses of chunks, and behind them their values.
const TABLE_BYTES: usize = CHUNKS * size_of::<u64>();
const SLOT_BYTES: usize = TABLE_BYTES + CHUNKS * size_of::<Values>();
const SLOTS: usize = CHUNK_SIZE / SLOT_BYTES;

/// Words of the state that a round mixes, columns first.
const MIXED: [[usize; 4]; 8] = [
    [0, 4, 8, 12],
    [1, 5, 9, 13],
    [2, 6, 10, 14],
    [3, 7, 11, 15],
    [0, 5, 10, 15],
    [1, 6, 11, 12],
    [2, 7, 8, 13],
    [3, 4, 9, 14],
];
/// Where a word of the message is in the round after.
const PERMUTED: [usize; 16] = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8];

/// The code, with a round in it.
fn code() -> String {
    CODE.replace("\nROUND\n", &format!("\n{}", round()))
}

/// A round of the compression, and the message of the next one.
fn round() -> String {
    let mut text = String::new();
    let mut line = |instruction: std::fmt::Arguments<'_>| {
        // A `String` takes everything.
        let _ = writeln!(text, "    {instruction};");
    };
    for (number, [a, b, c, d]) in MIXED.into_iter().enumerate() {
        for (half, [first, second]) in [[16, 12], [8, 7]].into_iter().enumerate() {
            line(format_args!("add.u32 %v{a}, %v{a}, %v{b}"));
            line(format_args!("add.u32 %v{a}, %v{a}, %m{}", 2 * number + half));
            line(format_args!("xor.b32 %v{d}, %v{d}, %v{a}"));
            line(format_args!("shf.r.wrap.b32 %v{d}, %v{d}, %v{d}, {first}"));
            line(format_args!("add.u32 %v{c}, %v{c}, %v{d}"));
            line(format_args!("xor.b32 %v{b}, %v{b}, %v{c}"));
            line(format_args!("shf.r.wrap.b32 %v{b}, %v{b}, %v{b}, {second}"));
        }
    }
    for (to, from) in PERMUTED.into_iter().enumerate() {
        line(format_args!("mov.u32 %n{to}, %m{from}"));
    }
    for word in 0..PERMUTED.len() {
        line(format_args!("mov.u32 %m{word}, %n{word}"));
    }
    text
}

/// The kernel in a stream's context, for the threads that write in that stream.
pub(super) struct Hasher {
    backend: Arc<dyn Backend>,
    stream: OwnStream,
    module: RawModule,
    function: RawFunction,
    /// Slots: what a launch is told, and what it answers.
    room: Mutex<Buffers>,
    room_base: u64,
    /// How many slots somebody has.
    taken: AtomicUsize,
}

impl Hasher {
    /// Compiles it, which takes a while.
    ///
    /// # Errors
    /// The device library's.
    pub(super) fn compile(backend: &dyn Backend, stream: &OwnStream) -> Result<Vec<u8>, LoadError> {
        let code = code();
        let input = LinkInput { kind: PTX, name: "blake3.ptx", data: code.as_bytes() };
        Ok(backend.link(stream.context().raw, &[input], &[])?.code)
    }

    /// Loads what was compiled.
    ///
    /// # Errors
    /// The device library's, or that there is no room for values.
    pub(super) fn load(pool: &Arc<BufferPool>, stream: &OwnStream, code: &[u8]) -> Result<Self, LoadError> {
        let no_room = |error: TransferError| LoadError {
            code: error.code().unwrap_or(wire::CuError::OUT_OF_MEMORY),
            detail: error.to_string(),
        };
        let room = pool.take(1).map_err(no_room)?;
        let (backend, ctx) = (pool.backend(), stream.context().raw);
        let module = backend.module_load(ctx, code, &[], &[])?.code;
        let function = backend.function(ctx, module, "subtrees").inspect_err(|_| {
            let _ = backend.module_unload(ctx, module);
        })?;
        let room_base = room.range().base;
        let (room, taken) = (Mutex::new(room), AtomicUsize::new(0));
        let (backend, stream) = (Arc::clone(backend), stream.clone());
        Ok(Self { backend, stream, module, function, room, room_base, taken })
    }

    /// A slot for one launch at a time, for good; none when they are all taken.
    pub(super) fn slot(&self) -> Option<Slot> {
        let number = self.taken.fetch_add(1, Ordering::Relaxed);
        (number < SLOTS).then_some(Slot(number))
    }

    /// Hashes the chunks at these addresses, multiples of 16, behind everything that is in the stream; no launch before it may use the slot still.
    ///
    /// # Errors
    /// The device library's.
    pub(super) fn launch(&self, slot: &Slot, chunks: &[u64]) -> backend::Result<Marker> {
        let chunks = &chunks[..chunks.len().min(CHUNKS)];
        let table: Vec<u8> = chunks.iter().flat_map(|chunk| chunk.to_ne_bytes()).collect();
        lock(&self.room).write(slot.table(), &table);
        let places = [slot.table(), slot.values()].map(|offset| self.room_base + offset as u64);
        let blocks = (chunks.len() * EIGHTHS) as u32;
        let launched =
            self.stream.launch(self.function, (blocks, THREADS), &places.map(u64::to_ne_bytes).concat());
        launched.inspect_err(|_| {
            // It may have been launched all the same, and its room is somebody else's soon.
            let _ = self.stream.synchronize();
        })
    }

    /// The identities of so many chunks; their launch is complete.
    pub(super) fn ids(&self, slot: &Slot, count: usize) -> Vec<ChunkId> {
        let mut bytes = vec![0; count.min(CHUNKS) * size_of::<Values>()];
        lock(&self.room).read(slot.values(), &mut bytes);
        let (values, _) = bytes.as_chunks();
        let (chunks, _) = values.as_chunks();
        chunks.iter().map(ChunkId::of_eighths).collect()
    }

    /// Takes the kernel away again, which the program never had; launches are refused from then on.
    pub(super) fn unload(&self) {
        if let Err(error) = self.backend.module_unload(self.stream.context().raw, self.module) {
            tracing::debug!(%error, "what hashes chunks goes with its context");
        }
    }
}

impl Drop for Hasher {
    fn drop(&mut self) {
        self.unload();
    }
}

/// Where a launch finds addresses and leaves values.
#[derive(Debug)]
pub(super) struct Slot(usize);

impl Slot {
    fn table(&self) -> usize {
        self.0 * SLOT_BYTES
    }

    fn values(&self) -> usize {
        self.table() + TABLE_BYTES
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::restore::testing::{Rig, noise};
    use crate::transfer::await_marker;
    use proptest::prelude::*;

    /// What the software device makes of these chunks, in one launch.
    fn ids(rig: &Rig, chunks: &[Vec<u8>]) -> Vec<ChunkId> {
        let code = Hasher::compile(&*rig.backend, &rig.stream).unwrap();
        let hasher = Hasher::load(&rig.pool, &rig.stream, &code).unwrap();
        let memory = rig.pool.take(chunks.len()).unwrap();
        let base = memory.range().base;
        assert!(memory.write(0, &chunks.concat()));
        // The second slot, so that a kernel that looks elsewhere is found out.
        let slot = [hasher.slot().unwrap(), hasher.slot().unwrap()].into_iter().next_back().unwrap();
        let addresses: Vec<u64> = (0..chunks.len()).map(|chunk| base + (chunk * CHUNK_SIZE) as u64).collect();
        await_marker(&hasher.launch(&slot, &addresses).unwrap()).unwrap();
        hasher.ids(&slot, chunks.len())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4))]
        #[test]
        fn the_device_hashes_as_the_processor_does(seed in any::<u64>(), bits in any::<[usize; EIGHTHS]>()) {
            let random = noise(seed, CHUNK_SIZE);
            // One bit of each eighth.
            let (mut changed, eighth) = (random.clone(), CHUNK_SIZE / EIGHTHS);
            for (number, bit) in bits.into_iter().enumerate() {
                changed[number * eighth + bit / 8 % eighth] ^= 1 << (bit % 8);
            }
            let chunks = [random, changed, vec![0; CHUNK_SIZE], vec![0xff; CHUNK_SIZE]];
            let wanted: Vec<_> = chunks.iter().map(|chunk| ChunkId::of(chunk)).collect();
            prop_assert_eq!(ids(&Rig::new(), &chunks), wanted);
        }
    }

    #[test]
    fn slots_end() {
        let rig = Rig::new();
        let code = Hasher::compile(&*rig.backend, &rig.stream).unwrap();
        let hasher = Hasher::load(&rig.pool, &rig.stream, &code).unwrap();
        let slots = std::iter::from_fn(|| hasher.slot()).last().unwrap();
        assert!(slots.values() + CHUNKS * size_of::<Values>() <= CHUNK_SIZE);
    }
}
