//! The way in: a draft, its writers, their receipts.

mod carry;
mod copy;
mod delivery;
mod draft;
mod elsewhere;
mod object;
mod pace;
mod pack;
mod packing;
mod pipeline;
mod receipt;
mod repack;
mod room;

use image::{CHUNK_SIZE, Compress};

pub use copy::{CopiedImage, CopyOptions, CopyReport, UncopiedImage};
pub use delivery::Delivery;
pub use draft::Draft;
pub(crate) use elsewhere::Elsewhere;
pub use object::ObjectWriter;
pub use pipeline::ChunkWriter;
pub use receipt::Receipt;
pub use repack::{Repack, Rewriting};

/// How a [`ChunkWriter`] works.
#[derive(Debug, Clone)]
pub struct WriteOptions {
    /// What it may do to make chunks smaller.
    pub compress: Compress,
    /// How many threads hash and compress, at most; at least one.
    pub threads: usize,
    /// How much memory it takes, in bytes: for what is read, hashed, compressed and being written. Beside it each object that is begun and
    /// has an unfinished chunk takes the room of that. No less than [`WriteOptions::LEAST_MEMORY`] is of use.
    pub memory: u64,
    /// Length at which a pack is closed and the next begun, in bytes; at most 3 GiB.
    pub pack_len: u64,
    /// Whether what the store has is read before it is used again, and written again where it has rotted: for an image that is to be all
    /// that is left of a job.
    pub reread: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            compress: Compress::default(),
            threads: cpus.min(8),
            memory: 128 << 20,
            pack_len: 256 << 20,
            reread: false,
        }
    }
}

impl WriteOptions {
    /// The least memory that a writer makes do with.
    pub const LEAST_MEMORY: u64 = FIXED + 2 * CHUNK + THREAD;
    /// The length of packs where somebody [follows](Delivery::follow) them, or waits for them on the other side.
    pub const FOLLOWED: u64 = 32 << 20;

    /// How many threads there may be, and how many chunks under way.
    fn within_memory(&self) -> (usize, usize) {
        let left = self.memory.saturating_sub(FIXED);
        // For each thread two chunks: while one is compressed, another is written.
        let threads = (left / (2 * CHUNK + THREAD)).clamp(1, self.threads.max(1) as u64);
        let most = (left.saturating_sub(threads * THREAD) / CHUNK).clamp(2, 4 * threads);
        (threads as usize, most as usize)
    }
}

/// What is being written to the medium, and gathered for it: of three packs and one that is made durable.
const FIXED: u64 = 14 << 20;
/// What a chunk takes: itself, and its frame, for which a compressor wants more room than it will take.
const CHUNK: u64 = 2 * CHUNK_SIZE as u64 + CHUNK_SIZE as u64 / 4;
/// What a thread takes to compress or to read again.
const THREAD: u64 = 4 << 20;
