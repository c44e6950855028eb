//! What stands at a pointer, and how long it is.

use crate::{
    bytes::Bytes,
    elf::{self, ElfError},
    fatbinary,
};

/// First word of a wrapper.
const WRAPPER_MAGIC: u32 = 0x4662_43B1;

/// Bytes of a wrapper.
pub const WRAPPER_SIZE: usize = 24;

/// Memory that an image lies in, e.g. that of the process which was given a pointer to it.
///
/// [`measure`] only asks for bytes that an image of the kind seen so far must have.
pub trait Source {
    /// Fills `buffer` with the bytes at `offset`; false when they cannot be read.
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> bool;

    /// The offset of the first NUL before `limit`. Replace it where there is a faster way than byte by byte.
    ///
    /// # Errors
    /// When memory ends, or `limit` comes, before a NUL.
    fn find_nul(&mut self, limit: u64) -> Result<u64, MeasureError> {
        for offset in 0..limit {
            if byte(self, offset)? == 0 {
                return Ok(offset);
            }
        }
        Err(MeasureError::TooLong { limit })
    }
}

impl Source for &[u8] {
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> bool {
        let bytes = usize::try_from(offset).ok().and_then(|start| self.get(start..)?.get(..buffer.len()));
        bytes.map(|bytes| buffer.copy_from_slice(bytes)).is_some()
    }
}

impl<F: FnMut(u64, &mut [u8]) -> bool> Source for F {
    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> bool {
        self(offset, buffer)
    }
}

/// What the first bytes of an image say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ImageKind {
    /// Points to a fatbinary: read it with [`Wrapper::parse`], and measure what it points to.
    Wrapper,
    /// A fatbinary.
    Fatbinary,
    /// A cubin: ELF.
    Cubin,
    /// PTX; its length includes the NUL that ends it.
    Ptx,
}

/// An image's kind and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measured {
    /// What it is.
    pub kind: ImageKind,
    /// In bytes, from its start.
    pub length: u64,
}

/// An image whose length cannot be told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MeasureError {
    /// Memory that cannot be read.
    #[error("device code cannot be read at byte {offset}")]
    Unreadable {
        /// From the image's start.
        offset: u64,
    },
    /// No end within the limit.
    #[error("device code is longer than the {limit} bytes that are accepted")]
    TooLong {
        /// The limit.
        limit: u64,
    },
    /// ELF, but no cubin.
    #[error(transparent)]
    Elf(#[from] ElfError),
}

/// Tells what stands at the start of `source` and how long it is.
///
/// # Errors
/// When memory cannot be read, when it is ELF but not for CUDA, or when its length is beyond `limit` bytes.
pub fn measure(source: &mut impl Source, limit: u64) -> Result<Measured, MeasureError> {
    let (kind, length) = if starts_with(source, WRAPPER_MAGIC.to_le_bytes())? {
        (ImageKind::Wrapper, Some(WRAPPER_SIZE as u64))
    } else if starts_with(source, fatbinary::MAGIC.to_le_bytes())? {
        (ImageKind::Fatbinary, fatbinary_length(source)?)
    } else if starts_with(source, elf::MAGIC)? {
        (ImageKind::Cubin, cubin_length(source, limit)?)
    } else {
        (ImageKind::Ptx, Some(source.find_nul(limit)? + 1))
    };
    match length.filter(|length| *length <= limit) {
        Some(length) => Ok(Measured { kind, length }),
        None => Err(MeasureError::TooLong { limit }),
    }
}

fn read<const N: usize>(source: &mut (impl Source + ?Sized), offset: u64) -> Result<[u8; N], MeasureError> {
    let mut buffer = [0; N];
    match source.read(offset, &mut buffer) {
        true => Ok(buffer),
        false => Err(MeasureError::Unreadable { offset }),
    }
}

fn byte(source: &mut (impl Source + ?Sized), offset: u64) -> Result<u8, MeasureError> {
    read(source, offset).map(|[byte]| byte)
}

/// Byte by byte: a text may be shorter than the magic, and memory may end behind it.
fn starts_with(source: &mut impl Source, magic: [u8; 4]) -> Result<bool, MeasureError> {
    for (offset, expected) in (0..).zip(magic) {
        if byte(source, offset)? != expected {
            return Ok(false);
        }
    }
    Ok(true)
}

fn fatbinary_length(source: &mut impl Source) -> Result<Option<u64>, MeasureError> {
    let header = u16::from_le_bytes(read(source, 6)?);
    let body = u64::from_le_bytes(read(source, 8)?);
    Ok(u64::from(header).checked_add(body))
}

/// Up to the last byte of any table, section or segment; `None` when that overflows or the tables alone are
/// longer than `limit`.
fn cubin_length(source: &mut impl Source, limit: u64) -> Result<Option<u64>, MeasureError> {
    let header = elf::Header::parse(&read::<{ elf::HEADER as usize }>(source, 0)?)?;
    let mut sections = header.sections;
    if header.sections_at != 0 && sections == 0 {
        sections = u64::from_le_bytes(read(source, header.sections_at.saturating_add(32))?);
    }
    let table_end = |at: u64, count: u64, size: u64| {
        count.checked_mul(size).and_then(|length| at.checked_add(length)).filter(|end| *end <= limit)
    };
    let Some(sections_end) = table_end(header.sections_at, sections, elf::SECTION_HEADER) else {
        return Ok(None);
    };
    let Some(programs_end) = table_end(header.programs_at, header.programs, elf::PROGRAM_HEADER) else {
        return Ok(None);
    };
    let mut end = Some(elf::HEADER.max(sections_end).max(programs_end));
    let mut extend = |offset: [u8; 8], size: [u8; 8]| {
        let part = u64::from_le_bytes(offset).checked_add(u64::from_le_bytes(size));
        end = end.zip(part).map(|(end, part)| end.max(part));
    };
    for index in 0..sections {
        let at = header.sections_at + index * elf::SECTION_HEADER;
        let kind = u32::from_le_bytes(read(source, at + 4)?);
        if elf::has_contents(kind) {
            extend(read(source, at + 24)?, read(source, at + 32)?);
        }
    }
    for index in 0..header.programs {
        let at = header.programs_at + index * elf::PROGRAM_HEADER;
        extend(read(source, at + 8)?, read(source, at + 32)?);
    }
    Ok(end)
}

/// What cudart registers and passes on: where a fatbinary is, in the memory of the same process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wrapper {
    /// 1; 2 for relocatable device code.
    pub version: u32,
    /// Address of a fatbinary.
    pub fatbinary: u64,
    /// Version 1: address of a file name, or 0. Version 2: address of an array of addresses of prelinked
    /// fatbinaries, ended by a 0.
    pub extra: u64,
}

impl Wrapper {
    /// Reads a wrapper; `None` when it is none.
    pub fn parse(bytes: &[u8; WRAPPER_SIZE]) -> Option<Self> {
        let bytes = Bytes(bytes);
        Some(Self {
            version: bytes.u32(4).filter(|_| bytes.u32(0) == Some(WRAPPER_MAGIC))?,
            fatbinary: bytes.u64(8)?,
            extra: bytes.u64(16)?,
        })
    }
}
