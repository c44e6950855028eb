//! The way out: an image, its objects, their chunks.

mod arrival;
mod fetch;
mod image;

pub(crate) use fetch::{BadCopy, Fetcher, Scratch, whole_pack};
pub(crate) use image::chunk_error;
pub use image::{ChunkReader, Image, Piece, Proof};
