//! As much of ELF64 as cubins need. (Measuring an image needs its header anyhow, where no slice is at hand.)

use std::collections::HashMap;

use crate::bytes::Bytes;

/// First bytes of an ELF file.
pub(crate) const MAGIC: [u8; 4] = *b"\x7FELF";

/// Bytes of the header.
pub(crate) const HEADER: u64 = 64;

/// Bytes of an entry of the section table.
pub(crate) const SECTION_HEADER: u64 = 64;

/// Bytes of an entry of the program table.
pub(crate) const PROGRAM_HEADER: u64 = 56;

/// Bytes of a symbol.
pub(crate) const SYMBOL: u64 = 24;

const SHT_NULL: u32 = 0;
const SHT_SYMTAB: u32 = 2;
const SHT_RELA: u32 = 4;
const SHT_NOBITS: u32 = 8;
const SHT_REL: u32 = 9;
const SHF_ALLOC: u64 = 2;
/// In code that is not linked yet, NVIDIA's own types stand for memory without contents: global, local, shared,
/// reserved shared.
const SHT_CUDA_NOBITS: [u32; 4] = [0x7000_0007, 0x7000_0009, 0x7000_000A, 0x7000_0015];

/// Whether a section of this type has contents in the file.
pub(crate) fn has_contents(section: u32) -> bool {
    section != SHT_NULL && section != SHT_NOBITS && !SHT_CUDA_NOBITS.contains(&section)
}
/// `EM_CUDA`
const MACHINE: u16 = 190;

/// Bytes that are no cubin's ELF.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ElfError {
    /// Another beginning.
    #[error("not a 64-bit little-endian ELF file")]
    Magic,
    /// Code for something else.
    #[error("ELF file for machine {machine}, not for CUDA ({MACHINE})")]
    Machine {
        /// `e_machine`
        machine: u16,
    },
    /// A table that is not what it should be.
    #[error("cubin is damaged: its {what} is cut off or has entries of an unknown size")]
    Damaged {
        /// The table.
        what: &'static str,
    },
}

/// What the header says about the tables.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub flags: u32,
    pub osabi: u8,
    pub programs_at: u64,
    pub programs: u64,
    pub sections_at: u64,
    /// 0 when there are too many for the field: then section 0's size is the number.
    pub sections: u64,
    names: u16,
}

impl Header {
    /// Reads the first [`HEADER`] bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, ElfError> {
        let header = Bytes(bytes);
        let identification = bytes.get(..8).ok_or(ElfError::Magic)?;
        // Class 2 (64 bits), data 1 (little-endian), version 1.
        if identification[..4] != MAGIC || identification[4..7] != [2, 1, 1] {
            return Err(ElfError::Magic);
        }
        let damaged = ElfError::Damaged { what: "header" };
        let machine = header.u16(18).ok_or(damaged.clone())?;
        if machine != MACHINE {
            return Err(ElfError::Machine { machine });
        }
        let parse = || {
            let sizes = (header.u16(54)?, header.u16(58)?);
            let this = Self {
                flags: header.u32(48)?,
                osabi: header.u8(7)?,
                programs_at: header.u64(32)?,
                programs: header.u16(56)?.into(),
                sections_at: header.u64(40)?,
                sections: header.u16(60)?.into(),
                names: header.u16(62)?,
            };
            let programs = this.programs == 0 || u64::from(sizes.0) == PROGRAM_HEADER;
            let sections = this.sections_at == 0 || u64::from(sizes.1) == SECTION_HEADER;
            (programs && sections).then_some(this)
        };
        parse().ok_or(damaged)
    }
}

/// A section's header.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Section<'a> {
    pub name: &'a [u8],
    pub kind: u32,
    pub link: u32,
    pub info: u32,
    /// Whether it is loaded with the code.
    pub is_loaded: bool,
    pub align: u64,
    /// Where its entry of the section table stands in the file.
    pub header_at: u64,
    /// Where its contents stand in the file.
    pub data_at: u64,
    /// Empty for a section without contents in the file.
    pub data: &'a [u8],
}

/// Which symbols the linker lets others see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Binding {
    Local,
    Global,
    Weak,
}

/// A symbol.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbol<'a> {
    pub name: &'a [u8],
    pub binding: Binding,
    /// `STT_…`
    pub kind: u8,
    /// `st_other`, of which NVIDIA uses more bits than visibility.
    pub other: u8,
    /// Index of its section; `None` when undefined or special.
    pub section: Option<usize>,
    /// Whether it is undefined.
    pub undefined: bool,
    /// Where it is in its section.
    pub value: u64,
    pub size: u64,
}

/// An ELF file.
#[derive(Clone, Debug)]
pub(crate) struct Elf<'a> {
    pub header: Header,
    pub sections: Vec<Section<'a>>,
    by_name: HashMap<&'a [u8], usize>,
}

impl<'a> Elf<'a> {
    /// Reads the section table.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ElfError> {
        let header = Header::parse(bytes)?;
        let file = Bytes(bytes);
        let damaged = || ElfError::Damaged { what: "section table" };
        if header.sections_at == 0 {
            return Ok(Self { header, sections: Vec::new(), by_name: HashMap::new() });
        }
        let first = Bytes(file.get(header.sections_at, SECTION_HEADER).ok_or_else(damaged)?);
        let count = match header.sections {
            0 => first.u64(32).ok_or_else(damaged)?,
            count => count,
        };
        let names = match header.names {
            0xFFFF => first.u32(40).ok_or_else(damaged)?.into(),
            names => u64::from(names),
        };
        let length = count.checked_mul(SECTION_HEADER).ok_or_else(damaged)?;
        let table = file.get(header.sections_at, length).ok_or_else(damaged)?;
        let raw: Option<Vec<_>> = table
            .chunks_exact(SECTION_HEADER as usize)
            .map(|entry| RawSection::parse(Bytes(entry)))
            .collect();
        let raw = raw.ok_or_else(damaged)?;
        let names = usize::try_from(names).ok().and_then(|names| raw.get(names)).ok_or_else(damaged)?;
        let names = Bytes(file.get(names.offset, names.size).ok_or_else(damaged)?);
        let section = |(index, raw): (usize, &RawSection)| {
            Some(Section {
                name: names.c_string(raw.name.into())?,
                kind: raw.kind,
                link: raw.link,
                info: raw.info,
                is_loaded: raw.flags & SHF_ALLOC != 0,
                align: raw.align,
                header_at: header.sections_at + index as u64 * SECTION_HEADER,
                data_at: raw.offset,
                data: if has_contents(raw.kind) { file.get(raw.offset, raw.size)? } else { &[] },
            })
        };
        let sections: Vec<_> =
            raw.iter().enumerate().map(section).collect::<Option<_>>().ok_or_else(damaged)?;
        let by_name = sections.iter().enumerate().map(|(index, section)| (section.name, index)).collect();
        Ok(Self { header, sections, by_name })
    }

    /// The section of that name.
    pub fn section(&self, name: &[u8]) -> Option<&Section<'a>> {
        self.by_name.get(name).and_then(|index| self.sections.get(*index))
    }

    /// The (one) symbol table.
    pub fn symbol_table(&self) -> Option<&Section<'a>> {
        self.sections.iter().find(|section| section.kind == SHT_SYMTAB)
    }

    /// The sections of relocations of sections that are loaded.
    pub fn relocations(&self) -> impl Iterator<Item = Relocations<'_, 'a>> {
        self.sections.iter().filter_map(|section| {
            let entry = match section.kind {
                SHT_RELA => 24,
                SHT_REL => 16,
                _ => return None,
            };
            let target = self.sections.get(section.info as usize).filter(|target| target.is_loaded)?;
            Some(Relocations { section, target, entry })
        })
    }

    /// The symbols of the (one) symbol table, in order.
    pub fn symbols(&self) -> Result<Vec<Symbol<'a>>, ElfError> {
        let damaged = || ElfError::Damaged { what: "symbol table" };
        let Some(table) = self.symbol_table() else { return Ok(Vec::new()) };
        let names = self.sections.get(table.link as usize).ok_or_else(damaged)?;
        let extended = self.section(b".symtab_shndx").map_or(Bytes(&[]), |section| Bytes(section.data));
        let symbols = table.data.chunks_exact(SYMBOL as usize).enumerate();
        symbols
            .map(|(index, entry)| Symbol::parse(Bytes(entry), Bytes(names.data), extended, index))
            .collect::<Option<_>>()
            .ok_or_else(damaged)
    }
}

/// A section of relocations.
pub(crate) struct Relocations<'e, 'a> {
    pub section: &'e Section<'a>,
    /// What is relocated.
    pub target: &'e Section<'a>,
    /// Bytes of an entry.
    entry: usize,
}

/// A relocation.
pub(crate) struct Relocation<'a> {
    /// Where in its target.
    pub offset: u64,
    /// Of the symbol table.
    pub symbol: usize,
    /// `R_CUDA_…`
    pub kind: u32,
    /// `None` where it stands in the target.
    pub addend: Option<u64>,
    /// All of it.
    pub entry: &'a [u8],
}

impl<'a> Relocations<'_, 'a> {
    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = Relocation<'a>> {
        self.section.data.chunks_exact(self.entry).filter_map(|entry| {
            let bytes = Bytes(entry);
            let info = bytes.u64(8)?;
            let (symbol, kind) = ((info >> 32) as usize, info as u32);
            Some(Relocation { offset: bytes.u64(0)?, symbol, kind, addend: bytes.u64(16), entry })
        })
    }
}

struct RawSection {
    name: u32,
    kind: u32,
    flags: u64,
    offset: u64,
    size: u64,
    link: u32,
    info: u32,
    align: u64,
}

impl RawSection {
    fn parse(entry: Bytes<'_>) -> Option<Self> {
        Some(Self {
            name: entry.u32(0)?,
            kind: entry.u32(4)?,
            flags: entry.u64(8)?,
            offset: entry.u64(24)?,
            size: entry.u64(32)?,
            link: entry.u32(40)?,
            info: entry.u32(44)?,
            align: entry.u64(48)?,
        })
    }
}

impl<'a> Symbol<'a> {
    fn parse(entry: Bytes<'a>, names: Bytes<'a>, extended: Bytes<'_>, index: usize) -> Option<Self> {
        let info = entry.u8(4)?;
        let section = entry.u16(6)?;
        Some(Self {
            name: names.c_string(entry.u32(0)?.into())?,
            binding: match info >> 4 {
                0 => Binding::Local,
                2 => Binding::Weak,
                _ => Binding::Global,
            },
            kind: info & 0xF,
            other: entry.u8(5)?,
            section: match section {
                0 => None,
                // SHN_XINDEX: too many sections for the field.
                0xFFFF => Some(extended.u32(index as u64 * 4)? as usize),
                0xFF00.. => None,
                section => Some(section.into()),
            },
            undefined: section == 0,
            value: entry.u64(8)?,
            size: entry.u64(16)?,
        })
    }
}
