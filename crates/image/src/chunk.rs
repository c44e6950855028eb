//! One chunk: its identity, and how it is stored.

use std::fmt;
use std::str::FromStr;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::sealed::split;
use crate::{ChunkError, ChunkId, FormatError};

/// The longest chunk, and the distance at which objects are cut: 2 MiB.
pub const CHUNK_SIZE: usize = 2 << 20;
/// Length of an encoded [`Entry`].
pub(crate) const ENTRY_LEN: usize = 49;

/// A stretch of a chunk that is compressed on trial.
const SAMPLE: usize = 16 << 10;
/// How many stretches, spread over the chunk.
const SAMPLES: usize = 4;
/// A frame must be smaller than its chunk by one part in this many.
const LEAST_GAIN: usize = 16;
/// Zstandard's fastest ordinary level: an image competes with the disk, not with an archive.
const ZSTD_LEVEL: i32 = 1;

/// How a chunk's bytes are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Codec {
    /// As they are.
    Plain = 0,
    /// One LZ4 block.
    Lz4 = 1,
    /// One Zstandard frame.
    Zstd = 2,
}

/// What a writer may do to make chunks smaller; each chunk is tried, and stored plain where little is gained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compress {
    /// Nothing.
    None,
    /// LZ4.
    Lz4,
    /// Zstandard at its fastest ordinary level: measured on text, on sparse and on regular numbers as fast to write as LZ4 (as the `lz4_flex`
    /// crate does it), 0.85 to 3 times as fast to read, and 1.4 to 25 times smaller.
    Zstd,
    /// Whichever of these has a chunk stored soonest, as the store and the processor are ([`Encoder::pace`]).
    #[default]
    Auto,
}

impl Compress {
    /// Every way to do it, in the order to show them in: what [`Self::Auto`] chooses from.
    pub const ALL: [Self; 3] = [Self::None, Self::Lz4, Self::Zstd];

    /// The name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
            Self::Auto => "auto",
        }
    }
}

impl fmt::Display for Compress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that names no way to compress.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no way to compress: say auto, none, lz4 or zstd")]
pub struct ParseCompressError(String);

impl FromStr for Compress {
    type Err = ParseCompressError;
    fn from_str(text: &str) -> Result<Self, ParseCompressError> {
        let all = Self::ALL.into_iter().chain([Self::Auto]);
        all.into_iter()
            .find(|choice| choice.name() == text)
            .ok_or_else(|| ParseCompressError(text.chars().take(80).collect()))
    }
}

/// What an index says of one stored chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The chunk.
    pub id: ChunkId,
    /// Length of the chunk: 1 to [`CHUNK_SIZE`].
    pub plain_len: u32,
    /// Length of the frame: at most `plain_len`, and less unless plain.
    pub frame_len: u32,
    /// The first eight bytes of the frame's hash.
    pub check: u64,
    /// How the frame holds the chunk.
    pub codec: Codec,
}

impl Entry {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.0);
        out.extend_from_slice(&self.plain_len.to_le_bytes());
        out.extend_from_slice(&self.frame_len.to_le_bytes());
        out.extend_from_slice(&self.check.to_le_bytes());
        out.push(self.codec as u8);
    }

    /// Reads an entry that lies at offset `at` of its file.
    pub(crate) fn decode(bytes: &[u8; ENTRY_LEN], at: u64) -> Result<Self, FormatError> {
        let invalid = |what| FormatError::Invalid { message: "an entry", at, what };
        let (id, rest) = split::<32>(bytes);
        let (plain_len, rest) = split::<4>(rest);
        let (frame_len, rest) = split::<4>(rest);
        let (check, rest) = split::<8>(rest);
        let ([codec], _) = split::<1>(rest);
        let codec = match codec {
            0 => Codec::Plain,
            1 => Codec::Lz4,
            2 => Codec::Zstd,
            _ => return Err(invalid("its codec is not known")),
        };
        let entry = Self {
            id: ChunkId(id),
            plain_len: u32::from_le_bytes(plain_len),
            frame_len: u32::from_le_bytes(frame_len),
            check: u64::from_le_bytes(check),
            codec,
        };
        entry.validate().map_err(invalid)?;
        Ok(entry)
    }

    /// Checks the lengths, and the check of a plain frame, which follows from the identity.
    pub(crate) fn validate(&self) -> Result<(), &'static str> {
        let plain = self.codec == Codec::Plain;
        if self.plain_len == 0 || self.plain_len as usize > CHUNK_SIZE {
            return Err("the chunk's length is not 1 byte to 2 MiB");
        }
        if self.frame_len == 0
            || self.frame_len > self.plain_len
            || (self.frame_len == self.plain_len) != plain
        {
            return Err("the frame's length does not fit its chunk and codec");
        }
        if plain && self.check != check_of_plain(&self.id) {
            return Err("the check of a plain chunk is not the start of its identity");
        }
        Ok(())
    }
}

/// Whether every byte is zero.
#[must_use]
pub fn is_zero(bytes: &[u8]) -> bool {
    // Whole blocks without an early exit: that is what becomes vector code.
    bytes.chunks(4096).all(|block| block.iter().fold(0, |or, byte| or | byte) == 0)
}

fn check_of_plain(id: &ChunkId) -> u64 {
    u64::from_le_bytes(split(&id.0).0)
}

fn check_of(frame: &[u8]) -> u64 {
    check_of_plain(&ChunkId::of(frame))
}

/// Turns chunks into frames. Keeps its working memory from one chunk to the next.
pub struct Encoder {
    compress: Compress,
    /// How long a byte of a frame takes from here on, ns.
    pace: f64,
    zstd: Option<zstd::bulk::Compressor<'static>>,
    sample: Vec<u8>,
}

/// What a chunk of one length becomes if it is compressed in one way.
#[derive(Debug, Clone, Copy)]
struct Trial {
    codec: Codec,
    /// Of its length.
    part: f64,
    /// For each byte of it, ns.
    time: f64,
}

/// The codec with which a chunk is through soonest, where each byte of a frame takes `pace` ns from then on, while the next chunk is compressed. Of those
/// that are as fast, the one that makes it smallest.
fn soonest(pace: f64, trials: [Trial; 2]) -> Codec {
    let worth = 1.0 - 1.0 / LEAST_GAIN as f64;
    let plain = Trial { codec: Codec::Plain, part: 1.0, time: 0.0 };
    let tried = trials.into_iter().filter(|trial| trial.part < worth);
    let through = |trial: &Trial| (trial.part * pace).max(trial.time);
    let faster = |a: &Trial, b: &Trial| through(a).total_cmp(&through(b)).then(a.part.total_cmp(&b.part));
    std::iter::once(plain).chain(tried).min_by(faster).map_or(Codec::Plain, |trial| trial.codec)
}

impl fmt::Debug for Encoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Encoder").field("compress", &self.compress).finish_non_exhaustive()
    }
}

impl Encoder {
    /// An encoder that may compress as `compress` says.
    #[must_use]
    pub fn new(compress: Compress) -> Self {
        Self { compress, pace: f64::MAX, zstd: None, sample: Vec::new() }
    }

    /// How long a byte of a frame takes once it has left this encoder, in ns, for [`Compress::Auto`]: as long as nobody says so, smaller is better
    /// whatever that costs.
    pub fn pace(&mut self, ns: f64) {
        self.pace = ns;
    }

    /// Makes the frame of `plain`, whose identity is `id`: it is in `frame` afterwards, unless the entry's codec is
    /// [`Codec::Plain`]; then it is `plain` itself, and `frame` holds nothing of use.
    ///
    /// # Errors
    /// [`ChunkError::Length`] where `plain` is empty or longer than a chunk, [`ChunkError::Compress`].
    pub fn encode(&mut self, id: ChunkId, plain: &[u8], frame: &mut Vec<u8>) -> Result<Entry, ChunkError> {
        let plain_len = match u32::try_from(plain.len()) {
            Ok(len) if len > 0 && plain.len() <= CHUNK_SIZE => len,
            _ => {
                return Err(ChunkError::Length {
                    id,
                    expected: CHUNK_SIZE as u64,
                    found: plain.len() as u64,
                });
            }
        };
        let codec = self.compress(plain, frame).map_err(|reason| ChunkError::Compress { id, reason })?;
        let (frame_len, check) = match codec {
            Codec::Plain => (plain_len, check_of_plain(&id)),
            // A frame that is used is shorter than its chunk, so its length fits as well.
            Codec::Lz4 | Codec::Zstd => (u32::try_from(frame.len()).unwrap_or(plain_len), check_of(frame)),
        };
        Ok(Entry { id, plain_len, frame_len, check, codec })
    }

    /// Compresses into `frame` where that is worth it.
    fn compress(&mut self, plain: &[u8], frame: &mut Vec<u8>) -> Result<Codec, String> {
        let long = plain.len() > 2 * SAMPLE * SAMPLES;
        let codec = match self.compress {
            Compress::None => return Ok(Codec::Plain),
            Compress::Lz4 => Codec::Lz4,
            Compress::Zstd => Codec::Zstd,
            // A trial would take as long as the thing itself.
            Compress::Auto if !long => Codec::Zstd,
            Compress::Auto => {
                let trials =
                    [self.try_codec(Codec::Lz4, plain, frame)?, self.try_codec(Codec::Zstd, plain, frame)?];
                soonest(self.pace, trials)
            }
        };
        if long && self.compress != Compress::Auto {
            let trial = self.try_codec(codec, plain, frame)?;
            if trial.part >= 1.0 - 1.0 / LEAST_GAIN as f64 {
                return Ok(Codec::Plain);
            }
        }
        Ok(if self.compress_whole(codec, plain, frame)? { codec } else { Codec::Plain })
    }

    /// Compresses a few stretches of `plain`; what is in `frame` then is of no use.
    fn try_codec(&mut self, codec: Codec, plain: &[u8], frame: &mut Vec<u8>) -> Result<Trial, String> {
        let mut sample = std::mem::take(&mut self.sample);
        sample.clear();
        for stretch in plain.chunks(plain.len() / SAMPLES) {
            sample.extend_from_slice(stretch.get(..SAMPLE).unwrap_or(stretch));
        }
        let begun = Instant::now();
        let gain = self.compress_whole(codec, &sample, frame)?;
        let bytes = sample.len() as f64;
        let part = if gain { frame.len() as f64 / bytes } else { 1.0 };
        let time = begun.elapsed().as_nanos() as f64 / bytes;
        self.sample = sample;
        Ok(Trial { codec, part, time })
    }

    /// Compresses into `frame` and says whether that gained enough.
    fn compress_whole(&mut self, codec: Codec, plain: &[u8], frame: &mut Vec<u8>) -> Result<bool, String> {
        let worth = plain.len() - plain.len() / LEAST_GAIN;
        let len = match codec {
            Codec::Plain => return Ok(false),
            Codec::Lz4 => {
                frame.resize(lz4_flex::block::get_maximum_output_size(plain.len()), 0);
                lz4_flex::block::compress_into(plain, frame).map_err(|error| error.to_string())?
            }
            Codec::Zstd => {
                let zstd = match &mut self.zstd {
                    Some(zstd) => zstd,
                    none => none
                        .insert(zstd::bulk::Compressor::new(ZSTD_LEVEL).map_err(|error| error.to_string())?),
                };
                frame.resize(zstd::zstd_safe::compress_bound(plain.len()), 0);
                zstd.compress_to_buffer(plain, &mut frame[..]).map_err(|error| error.to_string())?
            }
        };
        frame.truncate(len);
        Ok(len < worth)
    }
}

/// Turns frames back into chunks. Keeps its working memory from one chunk to the next.
#[derive(Default)]
pub struct Decoder {
    zstd: Option<zstd::bulk::Decompressor<'static>>,
}

impl fmt::Debug for Decoder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decoder").finish_non_exhaustive()
    }
}

impl Decoder {
    /// A decoder.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Fills `plain` with the chunk that `frame` holds, and checks that it is the one `entry` names.
    ///
    /// # Errors
    /// Any [`ChunkError`]; `plain` then holds nothing of use.
    pub fn decode(&mut self, entry: &Entry, frame: &[u8], plain: &mut [u8]) -> Result<(), ChunkError> {
        let id = entry.id;
        for (expected, found) in [(entry.frame_len, frame.len()), (entry.plain_len, plain.len())] {
            let (expected, found) = (u64::from(expected), found as u64);
            if expected != found {
                return Err(ChunkError::Length { id, expected, found });
            }
        }
        if entry.codec != Codec::Plain {
            let found = check_of(frame);
            if found != entry.check {
                return Err(ChunkError::Check { id, found, expected: entry.check });
            }
        }
        let fail = |reason: String| ChunkError::Decompress { id, plain_len: entry.plain_len, reason };
        let len = match entry.codec {
            Codec::Plain => {
                plain.copy_from_slice(frame);
                return check_plain(entry, plain);
            }
            Codec::Lz4 => {
                lz4_flex::block::decompress_into(frame, plain).map_err(|error| fail(error.to_string()))?
            }
            Codec::Zstd => {
                let zstd = match &mut self.zstd {
                    Some(zstd) => zstd,
                    none => {
                        none.insert(zstd::bulk::Decompressor::new().map_err(|error| fail(error.to_string()))?)
                    }
                };
                zstd.decompress_to_buffer(frame, plain).map_err(|error| fail(error.to_string()))?
            }
        };
        if len != plain.len() {
            return Err(fail(format!("it gives {len}")));
        }
        let found = ChunkId::of(plain);
        if found != id {
            return Err(ChunkError::Identity { id, found });
        }
        Ok(())
    }
}

/// Checks the frame of a plain chunk that was read straight to where it belongs.
///
/// # Errors
/// [`ChunkError::Length`], [`ChunkError::Check`].
pub fn check_plain(entry: &Entry, plain: &[u8]) -> Result<(), ChunkError> {
    let id = entry.id;
    if plain.len() as u64 != u64::from(entry.plain_len) {
        return Err(ChunkError::Length { id, expected: entry.plain_len.into(), found: plain.len() as u64 });
    }
    let found = ChunkId::of(plain);
    if found != id {
        return Err(ChunkError::Check { id, found: check_of_plain(&found), expected: entry.check });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_store_earns_a_smaller_frame_and_a_fast_one_none() {
        let trials = |lz4: f64, zstd: f64| {
            [
                Trial { codec: Codec::Lz4, part: lz4, time: 1.5 },
                Trial { codec: Codec::Zstd, part: zstd, time: 3.0 },
            ]
        };
        // ns for each byte that is written, what both make of a chunk, and what is best.
        for (pace, lz4, zstd, best) in [
            (0.2, 0.5, 0.3, Codec::Plain),
            (2.0, 0.5, 0.3, Codec::Lz4),
            (100.0, 0.5, 0.3, Codec::Zstd),
            (f64::MAX, 0.5, 0.3, Codec::Zstd),
            (f64::MAX, 0.3, 0.5, Codec::Lz4),
            (100.0, 1.0, 0.95, Codec::Plain),
            (100.0, 0.9, 1.0, Codec::Lz4),
        ] {
            assert_eq!(soonest(pace, trials(lz4, zstd)), best, "{pace} {lz4} {zstd}");
        }
    }
}
