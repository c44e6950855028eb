//! The fatbinary: a header and entries, each with code for one architecture.

use std::borrow::Cow;

use crate::{
    arch::{Arch, Architectures, Variant},
    bytes::Bytes,
    compression::{Compression, DecompressError, decompress},
    text::Ptx,
};

/// First word of a fatbinary.
pub(crate) const MAGIC: u32 = 0xBA55_ED50;

/// Bytes of the header that every version has.
pub(crate) const HEADER: u64 = 16;

/// Bytes of an entry's header up to the uncompressed size.
const ENTRY_HEADER: u64 = 64;

mod flags {
    pub const DEBUG: u64 = 0x2;
    pub const LZ4: u64 = 0x2000;
    pub const ZSTD: u64 = 0x8000;
    pub const SPECIFIC: u64 = 0x10_0000;
    pub const FAMILY: u64 = 0x20_0000;
}

/// Bytes that are no fatbinary.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FatbinaryError {
    /// Another first word.
    #[error("not a fatbinary: it starts with {found:#010x} instead of {MAGIC:#010x}")]
    Magic {
        /// The first word.
        found: u32,
    },
    /// A version that this crate does not know.
    #[error("fatbinary of version {version}; only version 1 is known")]
    Version {
        /// The version.
        version: u16,
    },
    /// A part that reaches beyond the end.
    #[error("fatbinary of {have} bytes is cut off: its {what} at byte {offset} needs {need}")]
    Truncated {
        /// The part.
        what: &'static str,
        /// Where it starts.
        offset: u64,
        /// Bytes that it needs.
        need: u64,
        /// Bytes that there are.
        have: u64,
    },
    /// A field that contradicts another.
    #[error("fatbinary entry at byte {offset} is damaged: {what}")]
    Entry {
        /// Where the entry starts.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },
}

/// A fatbinary.
#[derive(Clone, Debug)]
pub struct Fatbinary<'a> {
    entries: Vec<Entry<'a>>,
    /// What it was linked of, where that is known.
    units: Vec<Fatbinary<'a>>,
}

/// What an entry holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EntryKind {
    /// PTX text.
    Ptx,
    /// A cubin: machine code (SASS) in ELF.
    Elf,
    /// Intermediate code for link-time optimisation.
    LtoIr,
    /// Anything else.
    Other(u16),
}

/// One entry of a fatbinary.
#[derive(Clone, Debug)]
pub struct Entry<'a> {
    /// What it holds.
    pub kind: EntryKind,
    /// What it is for.
    pub arch: Arch,
    /// Of PTX: its ISA, as major and minor. Of a cubin: the version of its ABI.
    pub version: (u16, u16),
    /// All flags.
    pub flags: u64,
    /// Name of the source file, where the entry has one (`-rdc=true`).
    pub identifier: Option<&'a str>,
    /// Options of ptxas that the driver applies to PTX, or a blob that only the driver reads.
    pub options: Option<&'a [u8]>,
    /// How the payload is stored.
    pub compression: Compression,
    /// The payload as stored: without padding where compressed.
    payload: &'a [u8],
    uncompressed: u64,
    /// All of it: header, payload and padding.
    whole: &'a [u8],
}

impl<'a> Fatbinary<'a> {
    /// Reads the headers of all entries.
    ///
    /// # Errors
    /// When `bytes` is no fatbinary or is cut off. Bytes after its end are ignored.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, FatbinaryError> {
        Self::parse_first(bytes).map(|(first, _)| first)
    }

    /// The same, with those behind it: what it was linked of (`nvcc -rdc=true`).
    pub(crate) fn parse_linked(bytes: &'a [u8]) -> Result<Self, FatbinaryError> {
        let (mut linked, mut rest) = Self::parse_first(bytes)?;
        while rest.starts_with(&MAGIC.to_le_bytes()) {
            let (unit, behind) = Self::parse_first(rest)?;
            linked.units.push(unit);
            rest = behind;
        }
        Ok(linked)
    }

    /// One, and the bytes behind it.
    fn parse_first(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), FatbinaryError> {
        let all = Bytes(bytes);
        let have = bytes.len() as u64;
        let truncated = |what, offset, need| FatbinaryError::Truncated { what, offset, need, have };
        let header = |field: Option<u64>| field.ok_or_else(|| truncated("header", 0, HEADER));
        let found = header(all.u32(0).map(u64::from))? as u32;
        if found != MAGIC {
            return Err(FatbinaryError::Magic { found });
        }
        let version = header(all.u16(4).map(u64::from))? as u16;
        if version != 1 {
            return Err(FatbinaryError::Version { version });
        }
        let start = header(all.u16(6).map(u64::from))?;
        let size = header(all.u64(8))?;
        let body = start
            .checked_add(size)
            .filter(|end| *end >= HEADER)
            .and_then(|end| all.get(0, end))
            .ok_or_else(|| truncated("body", start, size))?;
        let mut entries = Vec::new();
        let mut offset = start;
        while offset < body.len() as u64 {
            let (entry, length) = Entry::parse(Bytes(body), offset)?;
            entries.push(entry);
            offset += length;
        }
        Ok((Self { entries, units: Vec::new() }, &bytes[body.len()..]))
    }

    /// The entries, in order.
    pub fn entries(&self) -> &[Entry<'a>] {
        &self.entries
    }

    /// A fatbinary with its PTX, and nothing else.
    pub fn ptx_alone(&self) -> Vec<u8> {
        let ptx = self.entries.iter().filter(|entry| entry.kind == EntryKind::Ptx);
        let body: Vec<u8> = ptx.flat_map(|entry| entry.whole).copied().collect();
        let mut bytes = MAGIC.to_le_bytes().to_vec();
        bytes.extend(1u16.to_le_bytes());
        bytes.extend((HEADER as u16).to_le_bytes());
        bytes.extend((body.len() as u64).to_le_bytes());
        bytes.extend(body);
        bytes
    }

    /// What the fatbinary has code for.
    pub fn architectures(&self) -> Architectures {
        Architectures::of(&self.entries)
    }

    /// The machine code that fits compute capability `device` best, as the driver chooses: the nearest, most
    /// specific one.
    pub fn cubin_for(&self, device: u32) -> Option<&Entry<'a>> {
        self.best(|entry| entry.kind == EntryKind::Elf && entry.arch.cubin_runs_on(device))
    }

    /// The PTX that fits compute capability `device` best.
    pub fn ptx_for(&self, device: u32) -> Option<&Entry<'a>> {
        self.best(|entry| entry.kind == EntryKind::Ptx && entry.arch.ptx_runs_on(device))
    }

    /// The PTX that a device of compute capability `device` runs, in it or in what it was linked of; `None` where there is none.
    ///
    /// # Errors
    /// When it cannot be decompressed.
    pub fn ptx(&self, device: u32) -> Result<Option<Ptx<'a>>, DecompressError> {
        let own = std::slice::from_ref(self);
        let from = if self.ptx_for(device).is_some() { own } else { &self.units };
        Ptx::of(from.iter().map(|unit| unit.ptx_for(device)))
    }

    fn best(&self, accept: impl Fn(&Entry<'a>) -> bool) -> Option<&Entry<'a>> {
        self.entries.iter().filter(|entry| accept(entry)).max_by_key(|entry| entry.arch)
    }
}

impl<'a> Entry<'a> {
    /// The entry at `offset` and its whole length, which is not zero.
    fn parse(body: Bytes<'a>, offset: u64) -> Result<(Self, u64), FatbinaryError> {
        let damaged = |what| FatbinaryError::Entry { offset, what };
        let truncated =
            |what, need| FatbinaryError::Truncated { what, offset, need, have: body.0.len() as u64 };
        let short = || truncated("entry's header", ENTRY_HEADER);
        let at = |field: u64| offset + field;
        body.get(offset, ENTRY_HEADER).ok_or_else(short)?;
        let kind = body.u16(at(0)).ok_or_else(short)?;
        let header_size = u64::from(body.u32(at(4)).ok_or_else(short)?);
        let payload_size = body.u64(at(8)).ok_or_else(short)?;
        let compressed = u64::from(body.u32(at(16)).ok_or_else(short)?);
        let options_at = u64::from(body.u32(at(20)).ok_or_else(short)?);
        let minor = body.u16(at(24)).ok_or_else(short)?;
        let major = body.u16(at(26)).ok_or_else(short)?;
        let sm = body.u32(at(28)).ok_or_else(short)?;
        let identifier_at = u64::from(body.u32(at(32)).ok_or_else(short)?);
        let identifier_size = u64::from(body.u32(at(36)).ok_or_else(short)?);
        let flags = body.u64(at(40)).ok_or_else(short)?;
        let uncompressed = body.u64(at(56)).ok_or_else(short)?;

        if header_size < ENTRY_HEADER {
            return Err(damaged("its header is too small"));
        }
        let header = body.get(offset, header_size).ok_or_else(|| truncated("entry's header", header_size))?;
        let header = Bytes(header);
        let payload_at = at(header_size);
        let payload = body.get(payload_at, payload_size);
        let payload = payload.ok_or_else(|| truncated("entry's payload", payload_size))?;
        let length = header_size + payload_size;
        let whole = body.get(offset, length).ok_or_else(|| truncated("entry", length))?;

        let compression = match (flags & flags::LZ4 != 0, flags & flags::ZSTD != 0) {
            (false, false) => Compression::None,
            (true, false) => Compression::Lz4,
            (false, true) => Compression::Zstd,
            (true, true) => return Err(damaged("it is compressed in two ways")),
        };
        let payload = match compression {
            Compression::None => payload,
            _ => Bytes(payload)
                .get(0, compressed)
                .ok_or_else(|| damaged("its compressed size is too large"))?,
        };
        let identifier = match identifier_at {
            0 => None,
            at => {
                let name = header.get(at, identifier_size);
                let name = name.ok_or_else(|| damaged("its identifier is not in its header"))?;
                std::str::from_utf8(name).ok()
            }
        };
        let options = match options_at {
            0 => None,
            at => {
                let range = header.u32(at).zip(header.u32(at + 4));
                let options = range.and_then(|(at, size)| header.get(at.into(), size.into()));
                options.ok_or_else(|| damaged("its options are not in its header"))?.into()
            }
        };
        let variant = match (flags & flags::SPECIFIC != 0, flags & flags::FAMILY != 0) {
            (true, _) => Variant::Specific,
            (false, true) => Variant::Family,
            (false, false) => Variant::Base,
        };
        let entry = Self {
            kind: match kind {
                1 => EntryKind::Ptx,
                2 => EntryKind::Elf,
                8 => EntryKind::LtoIr,
                other => EntryKind::Other(other),
            },
            arch: Arch { sm, variant },
            version: (major, minor),
            flags,
            identifier,
            options: options.filter(|options: &&[u8]| !options.is_empty()),
            compression,
            payload,
            uncompressed,
            whole,
        };
        Ok((entry, length))
    }

    /// Whether the code was compiled for debugging (`-G`).
    pub fn is_debug(&self) -> bool {
        self.flags & flags::DEBUG != 0
    }

    /// Bytes that the payload takes in the fatbinary, padding apart.
    pub fn stored_size(&self) -> u64 {
        self.payload.len() as u64
    }

    /// The code. PTX comes without NULs and padding at its end.
    ///
    /// # Errors
    /// When the payload is damaged or longer than [`MAX_DECOMPRESSED`](crate::MAX_DECOMPRESSED).
    pub fn code(&self) -> Result<Cow<'a, [u8]>, DecompressError> {
        let mut code = decompress(self.compression, self.payload, self.uncompressed)?;
        if self.kind == EntryKind::Ptx {
            let length = code.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            match &mut code {
                Cow::Borrowed(code) => *code = &code[..length],
                Cow::Owned(code) => code.truncate(length),
            }
        }
        Ok(code)
    }
}
