//! What can be wrong with bytes that claim to be part of an image.

use std::io;

use crate::ChunkId;

/// Bytes that are not, or not any more, what they should be.
///
/// Offsets count from the start of the file. The caller knows the file's name and adds it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FormatError {
    /// The magic is not this kind of file's.
    #[error("it does not begin as {expected} does")]
    Magic {
        /// The kind of file that was expected.
        expected: &'static str,
    },
    /// The file ends too early.
    #[error("it is cut short: {what} needs {need} bytes at offset {at}, {have} are there")]
    Truncated {
        /// The part that is incomplete.
        what: &'static str,
        /// Where the part begins.
        at: u64,
        /// Its length.
        need: u64,
        /// How much of it there is.
        have: u64,
    },
    /// A checksum does not fit.
    #[error("its checksum is wrong: bytes of {what} have changed since they were written")]
    Checksum {
        /// What the checksum covers.
        what: &'static str,
    },
    /// Something is longer than the format allows.
    #[error("{what} at offset {at} is {len} long, the limit is {limit}")]
    TooLong {
        /// The offending part.
        what: &'static str,
        /// Where it is.
        at: u64,
        /// Its length.
        len: u64,
        /// The most that is allowed.
        limit: u64,
    },
    /// The file is intact, but of a format that this program does not know.
    #[error(
        "it has format version {found}, this dormouse reads versions 1 to {supported}: use a newer dormouse"
    )]
    Newer {
        /// The file's version.
        found: u16,
        /// The newest version known here.
        supported: u16,
    },
    /// The file is intact, but uses a feature that this program does not know.
    #[error("it has flags {0:#x} that this dormouse does not know: use a newer dormouse")]
    UnknownFlags(u32),
    /// The file is intact, but has a field that must be understood and is not known.
    #[error(
        "field {id} of {message} at offset {at} is not known to this dormouse and may not be skipped: use a newer dormouse"
    )]
    UnknownField {
        /// The message that has the field.
        message: &'static str,
        /// The field's number.
        id: u16,
        /// Where the field begins.
        at: u64,
    },
    /// The checksum fits and the content is still wrong: a fault of the program that wrote it.
    #[error("{message} at offset {at}: {what}")]
    Invalid {
        /// The message or part that is wrong.
        message: &'static str,
        /// Where it is wrong.
        at: u64,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A block of an encrypted file does not open.
    #[error(
        "its encrypted bytes at offset {at} are not those that were written there (or were not written with this store's secret)"
    )]
    Cover {
        /// Where the block begins in the file, as it is stored.
        at: u64,
    },
    /// Reading failed.
    #[error("it cannot be read: {0}")]
    Read(io::Error),
}

impl FormatError {
    /// What is wrong with a file that cannot be read: of an encrypted one the format's error comes inside that of reading.
    #[must_use]
    pub fn of_reading(error: io::Error) -> Self {
        error.downcast().unwrap_or_else(Self::Read)
    }

    /// Whether the bytes are fine and a newer program could read them.
    #[must_use]
    pub fn is_newer(&self) -> bool {
        matches!(self, Self::Newer { .. } | Self::UnknownFlags(_) | Self::UnknownField { .. })
    }
}

/// A stored chunk that is not what its entry says.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChunkError {
    /// The stored bytes are not those that were written.
    #[error(
        "the stored bytes of chunk {id} have changed since they were written (check {found:#018x}, written {expected:#018x})"
    )]
    Check {
        /// The chunk.
        id: ChunkId,
        /// The check of the bytes that are there.
        found: u64,
        /// The check in the index.
        expected: u64,
    },
    /// The stored bytes are those that were written, yet do not decompress to the chunk's length.
    #[error("chunk {id} does not decompress to {plain_len} bytes: {reason}")]
    Decompress {
        /// The chunk.
        id: ChunkId,
        /// Its length.
        plain_len: u32,
        /// What the decompressor said.
        reason: String,
    },
    /// The bytes are not the chunk.
    #[error("the bytes stored for chunk {id} are those of chunk {found}")]
    Identity {
        /// The chunk that was wanted.
        id: ChunkId,
        /// What the bytes hash to.
        found: ChunkId,
    },
    /// The caller's buffer, or the bytes read, do not have the length that the entry says.
    #[error("chunk {id} has {expected} bytes, {found} were given")]
    Length {
        /// The chunk.
        id: ChunkId,
        /// The length in the entry.
        expected: u64,
        /// The length found.
        found: u64,
    },
    /// Compressing failed.
    #[error("chunk {id} cannot be compressed: {reason}")]
    Compress {
        /// The chunk.
        id: ChunkId,
        /// What the compressor said.
        reason: String,
    },
}
