//! Compressed payloads, with bounds.

use std::{borrow::Cow, io::Read};

/// Longest payload that is decompressed, in bytes; the largest known (cuBLAS, cuDNN) are below a tenth of it.
pub const MAX_DECOMPRESSED: u64 = 1 << 30;

/// A block of LZ4 cannot grow by more than this factor.
const LZ4_MAX_RATIO: u64 = 255;

/// How a payload is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Compression {
    /// As it is, followed by padding.
    None,
    /// One raw LZ4 block.
    Lz4,
    /// One Zstandard frame.
    Zstd,
}

/// A payload that cannot be decompressed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecompressError {
    /// Longer than accepted.
    #[error(
        "compressed device code claims {claimed} bytes, more than the {MAX_DECOMPRESSED} that are accepted"
    )]
    TooLong {
        /// Length that the entry's header claims.
        claimed: u64,
    },
    /// Damaged LZ4.
    #[error("device code compressed with LZ4 is damaged")]
    Lz4(#[source] lz4_flex::block::DecompressError),
    /// Damaged Zstandard.
    #[error("device code compressed with zstd is damaged")]
    Zstd(#[source] std::io::Error),
    /// Not as long as the header says.
    #[error("compressed device code has another length than the {claimed} bytes that its header claims")]
    Length {
        /// Length that the entry's header claims.
        claimed: u64,
    },
}

/// The `claimed` bytes that `data` stands for. What is allocated is bounded by what `data` can really hold.
pub(crate) fn decompress(
    compression: Compression,
    data: &[u8],
    claimed: u64,
) -> Result<Cow<'_, [u8]>, DecompressError> {
    if compression == Compression::None {
        return Ok(Cow::Borrowed(data));
    }
    if claimed > MAX_DECOMPRESSED {
        return Err(DecompressError::TooLong { claimed });
    }
    let output = match compression {
        Compression::Lz4 if claimed > LZ4_MAX_RATIO * data.len() as u64 => {
            return Err(DecompressError::Length { claimed });
        }
        Compression::Lz4 => {
            let mut output = vec![0; claimed as usize];
            let length = lz4_flex::block::decompress_into(data, &mut output).map_err(DecompressError::Lz4)?;
            output.truncate(length);
            output
        }
        _ => zstd_frame(data, claimed).map_err(DecompressError::Zstd)?,
    };
    match output.len() as u64 == claimed {
        true => Ok(Cow::Owned(output)),
        false => Err(DecompressError::Length { claimed }),
    }
}

/// Streams, so that memory grows only with what really comes out.
fn zstd_frame(data: &[u8], claimed: u64) -> std::io::Result<Vec<u8>> {
    let mut decoder = zstd::stream::read::Decoder::with_buffer(data)?.single_frame();
    // A frame's window need not exceed its contents; zstd's own limit is 27.
    decoder.window_log_max(claimed.next_power_of_two().ilog2().clamp(27, 30))?;
    let mut output = Vec::new();
    decoder.take(claimed + 1).read_to_end(&mut output)?;
    Ok(output)
}
