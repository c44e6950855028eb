//! The way in: a draft, its writers, their receipts.

mod copy;
mod draft;
mod object;
mod pack;
mod pipeline;
mod receipt;

use image::Compress;

pub use copy::{CopiedImage, CopyOptions, CopyReport, UncopiedImage};
pub use draft::Draft;
pub use object::ObjectWriter;
pub use pipeline::ChunkWriter;
pub use receipt::Receipt;

/// How a [`ChunkWriter`] works.
#[derive(Debug, Clone)]
pub struct WriteOptions {
    /// What it may do to make chunks smaller.
    pub compress: Compress,
    /// How many threads hash and compress; at least one. Memory used is about 8 MiB for each.
    pub threads: usize,
    /// Length at which a pack is closed and the next begun, in bytes; at most 3 GiB.
    pub pack_len: u64,
    /// Whether what the store has is read before it is used again, and written again where it has rotted: for an image that is to be all
    /// that is left of a job.
    pub reread: bool,
}

impl Default for WriteOptions {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self { compress: Compress::default(), threads: cpus.min(8), pack_len: 256 << 20, reread: false }
    }
}
