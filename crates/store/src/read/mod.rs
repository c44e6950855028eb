//! The way out: an image, its objects, their chunks.

mod fetch;
mod image;

pub(crate) use fetch::{BadCopy, Fetcher, Scratch};
pub(crate) use image::chunk_error;
pub use image::{ChunkReader, Image, Piece};
