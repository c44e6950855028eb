//! The checkpoint image format, as `docs/image-format.md` describes it: bytes to types and back.
//!
//! Nothing here does I/O beyond [`std::io::Read`]; where files lie, and in which order they become visible, is the
//! `store` crate's. Everything parsed is untrusted: lengths are bounded before allocation, checksums are looked at before
//! anything is decoded, and a parser answers with a [`FormatError`], never with a panic.
//!
//! From the outside in: [`sealed`] is the header and checksum around every metadata file, [`Manifest`] says what an image holds,
//! [`Object`] and [`Extent`] which chunks make up each part, [`Index`] and [`PackIndex`] where chunks lie, and [`chunk`] how one is stored. [`cover`] is around
//! all of them in an encrypted store.
#![forbid(unsafe_code)]
#![deny(
    clippy::host_endian_bytes,
    clippy::big_endian_bytes,
    clippy::cast_possible_truncation,
    clippy::indexing_slicing
)]
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::cast_possible_truncation))]

pub mod chunk;
mod condemned;
pub mod cover;
mod error;
mod glimpse;
mod id;
mod index;
pub mod limits;
mod manifest;
mod message;
mod object;
pub mod pack;
pub mod sealed;
mod store_config;

pub use chunk::{CHUNK_SIZE, Codec, Compress, Entry};
pub use condemned::{Condemned, CondemnedPacks};
pub use error::{ChunkError, FormatError};
pub use glimpse::Glimpse;
pub use id::{
    ChunkId, DeviceOrdinal, ImageId, Lineage, Machine, PackId, ParseIdError, RawPath, SessionId, StoreId,
};
pub use index::Index;
pub use manifest::{
    Command, CutTimes, DeviceFacts, FileAction, HostFacts, JobFile, Manifest, MappedFile, StoredBytes,
};
pub use object::{Extent, MemoryKind, Object, ObjectKind};
pub use pack::PackIndex;
pub use store_config::{Encryption, StoreConfig};
