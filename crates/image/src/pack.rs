//! Packs: files of frames. The parts around the frames, and where each frame lies.

use std::io::Read;

use serde::{Deserialize, Serialize};

use crate::chunk::ENTRY_LEN;
use crate::message::{Field, Writer};
use crate::sealed::{self, Kind, VERSION, split};
use crate::{Entry, FormatError, Machine, PackId, limits};

/// Length of a pack's header: the offset of the first frame.
pub const HEADER_LEN: usize = 64;
/// Length of what follows the trailer.
pub const END_LEN: usize = 16;

const MAGIC: [u8; 8] = *b"\x89DMSPCK\n";
const END_MAGIC: [u8; 8] = *b"\x89DMSEND\n";

/// What a pack holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackIndex {
    /// The pack.
    pub id: PackId,
    /// Length of its file in bytes.
    pub file_len: u64,
    /// Its frames in the order in which they lie there, back to back.
    pub entries: Vec<Entry>,
}

impl PackIndex {
    /// The frames and their offsets in the file.
    pub fn frames(&self) -> impl Iterator<Item = (u64, &Entry)> {
        self.entries.iter().scan(HEADER_LEN as u64, |next, entry| {
            let at = *next;
            *next += u64::from(entry.frame_len);
            Some((at, entry))
        })
    }

    /// Offset of the trailer: where the last frame ends.
    #[must_use]
    pub fn trailer_at(&self) -> u64 {
        HEADER_LEN as u64 + self.entries.iter().map(|entry| u64::from(entry.frame_len)).sum::<u64>()
    }

    /// Checks what an index or another process says of a pack.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn validate(&self) -> Result<(), &'static str> {
        self.entries.iter().try_for_each(Entry::validate)?;
        let least = self.trailer_at() + (sealed::HEADER_LEN + END_LEN) as u64;
        if self.file_len > limits::PACK_FILE || self.file_len < least {
            return Err("the pack's length does not fit its entries");
        }
        Ok(())
    }

    pub(crate) fn encode(&self, out: &mut Writer) {
        out.bytes(1, &self.id.0);
        out.u64(2, self.file_len);
        out.field(3, |out| encode_entries(&self.entries, out));
    }

    pub(crate) fn decode(field: Field<'_>) -> Result<Self, FormatError> {
        let mut fields = field.message("a pack");
        let id = PackId(fields.need(1, "it has no id")?.array()?);
        let file_len = fields.need(2, "it has no length")?.u64()?;
        let entries = decode_entries(fields.need(3, "it has no entries")?)?;
        fields.end()?;
        let pack = Self { id, file_len, entries };
        pack.validate().map_err(|what| field.invalid(what))?;
        Ok(pack)
    }
}

/// The first bytes of the pack `id`.
#[must_use]
pub fn header(id: PackId) -> [u8; HEADER_LEN] {
    let mut header = Vec::with_capacity(HEADER_LEN);
    header.extend_from_slice(&MAGIC);
    header.extend_from_slice(&VERSION.to_le_bytes());
    header.extend_from_slice(&[0; 6]);
    header.extend_from_slice(&id.0);
    let hash = blake3::hash(&header);
    header.extend_from_slice(hash.as_bytes());
    split(&header).0
}

/// Reads a pack's header and says which pack it is.
///
/// # Errors
/// [`FormatError::Magic`], [`FormatError::Checksum`], [`FormatError::Newer`], [`FormatError::UnknownFlags`].
pub fn parse_header(bytes: &[u8; HEADER_LEN]) -> Result<PackId, FormatError> {
    let (magic, rest) = split::<8>(bytes);
    if magic != MAGIC {
        return Err(FormatError::Magic { expected: "a pack" });
    }
    let (version, rest) = split::<2>(rest);
    let (_machine, rest) = split::<2>(rest);
    let (flags, rest) = split::<4>(rest);
    let (id, rest) = split::<16>(rest);
    if blake3::hash(bytes.split_at(32).0).as_bytes() != rest {
        return Err(FormatError::Checksum { what: "a pack's header" });
    }
    match (u16::from_le_bytes(version), u32::from_le_bytes(flags)) {
        (1..=VERSION, 0) => Ok(PackId(id)),
        (1..=VERSION, flags) => Err(FormatError::UnknownFlags(flags)),
        (found, _) => Err(FormatError::Newer { found, supported: VERSION }),
    }
}

/// What follows the last frame: trailer and end.
///
/// # Errors
/// [`FormatError::TooLong`] where there are too many entries.
pub fn trailer(id: PackId, entries: &[Entry]) -> Result<Vec<u8>, FormatError> {
    let mut body = Writer::default();
    body.bytes(1, &id.0);
    body.field(2, |out| encode_entries(entries, out));
    let mut trailer = sealed::seal(Kind::Trailer, Machine::ANY, body)?;
    let len = trailer.len() as u64;
    trailer.extend_from_slice(&len.to_le_bytes());
    trailer.extend_from_slice(&END_MAGIC);
    Ok(trailer)
}

/// Reads the last [`END_LEN`] bytes of a pack of `file_len` bytes: where its trailer begins.
///
/// # Errors
/// [`FormatError::Magic`], [`FormatError::Truncated`], [`FormatError::TooLong`].
pub fn trailer_offset(end: &[u8; END_LEN], file_len: u64) -> Result<u64, FormatError> {
    let (len, magic) = split::<8>(end);
    if magic != END_MAGIC {
        return Err(FormatError::Magic { expected: "the end of a pack" });
    }
    let len = u64::from_le_bytes(len);
    let need = (HEADER_LEN + END_LEN) as u64;
    let Some(room) = file_len.checked_sub(need) else {
        return Err(FormatError::Truncated { what: "a pack", at: 0, need, have: file_len });
    };
    let limit = room.min(limits::TRAILER_BODY + sealed::HEADER_LEN as u64);
    if len > limit {
        let at = file_len.saturating_sub(END_LEN as u64);
        return Err(FormatError::TooLong { what: "a pack's trailer", at, len, limit });
    }
    Ok(HEADER_LEN as u64 + room - len)
}

/// Reads a trailer, without the end: which pack it belongs to, and what the pack holds.
///
/// # Errors
/// Any [`FormatError`]. Offsets in it count from the start of the trailer.
pub fn parse_trailer(from: impl Read) -> Result<(PackId, Vec<Entry>), FormatError> {
    let sealed = sealed::open(Kind::Trailer, from)?;
    let mut fields = sealed.fields();
    let id = PackId(fields.need(1, "it has no pack id")?.array()?);
    let entries = decode_entries(fields.need(2, "it has no entries")?)?;
    fields.end()?;
    Ok((id, entries))
}

fn encode_entries(entries: &[Entry], out: &mut Vec<u8>) {
    entries.iter().for_each(|entry| entry.encode(out));
}

fn decode_entries(field: Field<'_>) -> Result<Vec<Entry>, FormatError> {
    let (entries, rest) = field.payload.as_chunks::<ENTRY_LEN>();
    if !rest.is_empty() {
        return Err(field.invalid("its last entry is cut short"));
    }
    let offsets = (field.at..).step_by(ENTRY_LEN);
    entries.iter().zip(offsets).map(|(entry, at)| Entry::decode(entry, at)).collect()
}
