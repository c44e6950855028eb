//! The sealed file: a fixed header that every version of Dormouse can read, and a checksum over everything.

use std::io::Read;

use crate::message::{Fields, Writer};
use crate::{FormatError, Machine, limits};

/// The format version that is written, and the newest that is read.
pub const VERSION: u16 = 1;
/// Length of the header in bytes.
pub const HEADER_LEN: usize = 64;

/// What a sealed file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A store's `config`.
    Config,
    /// An image's manifest.
    Manifest,
    /// An index of packs.
    Index,
    /// The trailer of a pack.
    Trailer,
    /// What is to go from a store.
    Condemned,
}

impl Kind {
    /// The first eight bytes.
    #[must_use]
    pub const fn magic(self) -> [u8; 8] {
        match self {
            Self::Config => *b"\x89DMSSTO\n",
            Self::Manifest => *b"\x89DMSIMG\n",
            Self::Index => *b"\x89DMSIDX\n",
            Self::Trailer => *b"\x89DMSTRL\n",
            Self::Condemned => *b"\x89DMSCND\n",
        }
    }

    /// The longest body.
    #[must_use]
    pub const fn limit(self) -> u64 {
        match self {
            Self::Config => limits::CONFIG_BODY,
            Self::Manifest => limits::MANIFEST_BODY,
            Self::Index => limits::INDEX_BODY,
            Self::Trailer => limits::TRAILER_BODY,
            Self::Condemned => limits::CONDEMNED_BODY,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Config => "a store's config",
            Self::Manifest => "an image's manifest",
            Self::Index => "an index",
            Self::Trailer => "a pack's trailer",
            Self::Condemned => "a list of condemned packs",
        }
    }
}

/// The header's fields; §3 of `docs/image-format.md`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Format version.
    pub version: u16,
    /// Machine the image was taken on.
    pub machine: Machine,
    /// Feature flags; none are defined yet.
    pub flags: u32,
    /// Length of the body in bytes.
    pub body_len: u64,
    hash: [u8; 32],
}

impl Header {
    /// Reads a header without looking at the body: magic and length only are checked.
    ///
    /// # Errors
    /// [`FormatError::Magic`], [`FormatError::TooLong`].
    pub fn parse(kind: Kind, bytes: &[u8; HEADER_LEN]) -> Result<Self, FormatError> {
        let (magic, rest) = split::<8>(bytes);
        if magic != kind.magic() {
            return Err(FormatError::Magic { expected: kind.name() });
        }
        let (version, rest) = split::<2>(rest);
        let (machine, rest) = split::<2>(rest);
        let (flags, rest) = split::<4>(rest);
        let (body_len, rest) = split::<8>(rest);
        let (_reserved, rest) = split::<8>(rest);
        let (hash, _) = split::<32>(rest);
        let header = Self {
            version: u16::from_le_bytes(version),
            machine: Machine(u16::from_le_bytes(machine)),
            flags: u32::from_le_bytes(flags),
            body_len: u64::from_le_bytes(body_len),
            hash,
        };
        if header.body_len > kind.limit() {
            return Err(FormatError::TooLong {
                what: kind.name(),
                at: 16,
                len: header.body_len,
                limit: kind.limit(),
            });
        }
        Ok(header)
    }
}

/// Splits off a field of a fixed layout; zeros where the bytes end, which the fixed lengths of the callers exclude.
pub(crate) fn split<const N: usize>(bytes: &[u8]) -> ([u8; N], &[u8]) {
    bytes.split_first_chunk::<N>().map_or(([0; N], &[]), |(head, rest)| (*head, rest))
}

/// Puts header and checksum around `body`.
///
/// # Errors
/// [`FormatError::TooLong`] where the body is longer than a reader would accept.
pub(crate) fn seal(kind: Kind, machine: Machine, body: Writer) -> Result<Vec<u8>, FormatError> {
    let body = body.finish();
    let body_len = body.len() as u64;
    if body_len > kind.limit() {
        return Err(FormatError::TooLong { what: kind.name(), at: 16, len: body_len, limit: kind.limit() });
    }
    let mut file = Vec::with_capacity(HEADER_LEN + body.len());
    file.extend_from_slice(&kind.magic());
    file.extend_from_slice(&VERSION.to_le_bytes());
    file.extend_from_slice(&machine.0.to_le_bytes());
    file.extend_from_slice(&0u32.to_le_bytes());
    file.extend_from_slice(&body_len.to_le_bytes());
    file.extend_from_slice(&0u64.to_le_bytes());
    let mut hasher = blake3::Hasher::new();
    hasher.update(&file).update(&body);
    file.extend_from_slice(hasher.finalize().as_bytes());
    file.extend_from_slice(&body);
    Ok(file)
}

/// A sealed file whose checksum fits and whose version and flags are known.
#[derive(Debug)]
pub(crate) struct Sealed {
    pub(crate) machine: Machine,
    body: Vec<u8>,
    name: &'static str,
}

impl Sealed {
    pub(crate) fn fields(&self) -> Fields<'_> {
        Fields::new(self.name, &self.body, HEADER_LEN as u64)
    }
}

/// Reads a whole sealed file and checks everything about it but the body's content. Memory grows with what `from` delivers,
/// not with what the header claims.
pub(crate) fn open(kind: Kind, mut from: impl Read) -> Result<Sealed, FormatError> {
    let mut bytes = Vec::with_capacity(HEADER_LEN);
    from.by_ref().take(HEADER_LEN as u64).read_to_end(&mut bytes).map_err(FormatError::of_reading)?;
    let Some(header_bytes) = bytes.first_chunk::<HEADER_LEN>() else {
        let (need, have) = (HEADER_LEN as u64, bytes.len() as u64);
        return Err(FormatError::Truncated { what: kind.name(), at: 0, need, have });
    };
    let header = Header::parse(kind, header_bytes)?;
    let mut body = Vec::new();
    from.by_ref().take(header.body_len).read_to_end(&mut body).map_err(FormatError::of_reading)?;
    let have = body.len() as u64;
    if have < header.body_len {
        return Err(FormatError::Truncated {
            what: kind.name(),
            at: HEADER_LEN as u64,
            need: header.body_len,
            have,
        });
    }
    let mut past_end = Vec::new();
    from.take(1).read_to_end(&mut past_end).map_err(FormatError::of_reading)?;
    if !past_end.is_empty() {
        let at = HEADER_LEN as u64 + have;
        return Err(FormatError::Invalid { message: kind.name(), at, what: "there are bytes after its end" });
    }
    let mut hasher = blake3::Hasher::new();
    hasher.update(header_bytes.split_at(32).0).update(&body);
    if hasher.finalize().as_bytes() != &header.hash {
        return Err(FormatError::Checksum { what: kind.name() });
    }
    if header.version == 0 || header.version > VERSION {
        return Err(FormatError::Newer { found: header.version, supported: VERSION });
    }
    if header.flags != 0 {
        return Err(FormatError::UnknownFlags(header.flags));
    }
    Ok(Sealed { machine: header.machine, body, name: kind.name() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let mut body = Writer::default();
        body.u64(1, 42);
        seal(Kind::Index, Machine::ANY, body).unwrap()
    }

    /// `sample`, changed and given a checksum that fits.
    fn resealed(change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut file = sample();
        change(&mut file);
        let mut hasher = blake3::Hasher::new();
        hasher.update(&file[..32]).update(&file[64..]);
        let hash = *hasher.finalize().as_bytes();
        file[32..64].copy_from_slice(&hash);
        file
    }

    #[test]
    fn every_flip_and_every_cut_is_noticed() {
        let file = sample();
        assert!(open(Kind::Index, &file[..]).is_ok());
        for at in 0..file.len() {
            for bit in 0..8 {
                let mut bad = file.clone();
                bad[at] ^= 1 << bit;
                assert!(open(Kind::Index, &bad[..]).is_err(), "bit {bit} of byte {at}");
            }
            assert!(open(Kind::Index, &file[..at]).is_err(), "cut at {at}");
        }
        let longer = [&file[..], b"x"].concat();
        assert!(open(Kind::Index, &longer[..]).unwrap_err().to_string().contains("after its end"));
        assert!(matches!(open(Kind::Manifest, &file[..]), Err(FormatError::Magic { .. })));
    }

    #[test]
    fn newer_is_told_apart_from_damaged() {
        let newer = resealed(|file| file[8] = 2);
        assert!(matches!(open(Kind::Index, &newer[..]), Err(FormatError::Newer { found: 2, supported: 1 })));
        let flags = resealed(|file| file[12] = 4);
        assert!(matches!(open(Kind::Index, &flags[..]), Err(FormatError::UnknownFlags(4))));
        let mut damaged = sample();
        damaged[8] = 2;
        assert!(matches!(open(Kind::Index, &damaged[..]), Err(FormatError::Checksum { .. })));
    }

    #[test]
    fn an_absurd_length_is_refused_before_reading() {
        let file = resealed(|file| file[16..24].copy_from_slice(&u64::MAX.to_le_bytes()));
        assert!(matches!(open(Kind::Index, &file[..]), Err(FormatError::TooLong { .. })));
    }
}
