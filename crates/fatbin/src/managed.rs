//! Variables in managed memory (`__managed__`): what they are, and putting them where the host has them too.
//!
//! Code reaches such a variable through relocations against its symbol. [`bind`] carries these out, for addresses that are known
//! before the code is loaded, and takes them out, so that the driver has nothing to do with the variables.

use crate::{
    cubin::{self, Cubin, CubinError, MANAGED},
    elf::{Elf, ElfError, Relocation, SECTION_HEADER, SYMBOL, Section, Symbol},
    facts::FactsError,
    image::Code,
};

/// `R_CUDA_64`, `R_CUDA_G64`: an address, of 64 bits.
const WORDS: [u32; 2] = [2, 4];
/// `R_CUDA_ABS32_LO_32`, `R_CUDA_ABS32_HI_32`: the lower and upper half of an address, in the second word of an instruction.
const HALVES: [u32; 2] = [56, 57];
/// Where the second word of an instruction is.
const IMMEDIATE: u64 = 4;
/// Where a section's size stands in its header.
const SIZE: u64 = 32;
/// Where `st_other` stands in a symbol.
const OTHER: u64 = 5;

/// A variable in managed memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagedVariable {
    /// Its symbol.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// In bytes.
    pub align: u64,
    /// What it holds at first, as far as that is not zeros; no longer than `size`.
    pub initial: Vec<u8>,
    /// Addresses in it.
    pub pointers: Vec<Pointer>,
}

/// The address of a variable in managed memory, in the initial contents of another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// Where its eight bytes begin.
    pub offset: u64,
    /// The other's symbol.
    pub target: String,
    /// Added to the address.
    pub addend: u64,
}

/// Why variables in managed memory cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManagedError {
    /// A damaged cubin.
    #[error(transparent)]
    Cubin(#[from] CubinError),
    /// Wrong PTX.
    #[error(transparent)]
    Facts(#[from] FactsError),
    /// A variable of which a section says something else.
    #[error("cubin is damaged: {0} is not in its section")]
    Outside(String),
    /// One that begins with something that is known only when the code is loaded.
    #[error(
        "the variable {variable} in managed memory begins with the address of {symbol}, which is not in managed memory"
    )]
    Initial {
        /// The variable.
        variable: String,
        /// What it refers to.
        symbol: String,
    },
    /// Two variables that share bytes.
    #[error("cubin is damaged: the variables {0} and {1} in managed memory overlap")]
    Overlap(String, String),
    /// Two variables of one name.
    #[error("there are two variables {0} in managed memory")]
    Twice(String),
    /// A variable that nobody has said an address of.
    #[error("the variable {0} in managed memory has no address")]
    Unbound(String),
    /// A way to refer to a variable that is not known.
    #[error(
        "the code refers to the variable {variable} in managed memory in a way that is not known (relocation {kind} in {section})"
    )]
    Relocation {
        /// The variable.
        variable: String,
        /// Number of the relocation's type.
        kind: u32,
        /// Section that it is in.
        section: String,
    },
}

impl From<ElfError> for ManagedError {
    fn from(error: ElfError) -> Self {
        Self::Cubin(error.into())
    }
}

impl ManagedVariable {
    /// All that the code defines.
    ///
    /// # Errors
    /// When the code is damaged, or one of them begins with what is not known before the code is loaded.
    pub fn all_of(code: &Code<'_>) -> Result<Vec<Self>, ManagedError> {
        let all = match code {
            Code::Cubin(bytes) => Self::of_cubin(bytes)?,
            Code::Ptx(text) => Self::of_ptx(text)?,
        };
        let mut names: Vec<&str> = all.iter().map(|variable| variable.name.as_str()).collect();
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(ManagedError::Twice(pair[0].to_owned())),
            None => Ok(all),
        }
    }

    fn of_cubin(bytes: &[u8]) -> Result<Vec<Self>, ManagedError> {
        let Cubin { elf } = Cubin::parse(bytes)?;
        let symbols = elf.symbols()?;
        let mut ours: Vec<&Symbol<'_>> = symbols.iter().filter(|symbol| cubin::is_managed(symbol)).collect();
        ours.sort_by_key(|symbol| (symbol.section, symbol.value));
        // What they hold together is no more than the file does.
        let overlap = |pair: &&[&Symbol<'_>]| {
            let (one, next) = (pair[0], pair[1]);
            one.section == next.section && next.value - one.value < one.size
        };
        if let Some(pair) = ours.windows(2).find(overlap) {
            return Err(ManagedError::Overlap(cubin::name(pair[0])?, cubin::name(pair[1])?));
        }
        let mut all: Vec<Self> = ours.iter().map(|it| of_symbol(&elf, it)).collect::<Result<_, _>>()?;
        for relocations in elf.relocations() {
            let target = relocations.target;
            let section = elf.sections.iter().position(|section| std::ptr::eq(section, target));
            for relocation in relocations.iter() {
                let behind =
                    ours.partition_point(|it| (it.section, it.value) <= (section, relocation.offset));
                let Some(index) = behind.checked_sub(1) else { continue };
                let (symbol, variable) = (ours[index], &mut all[index]);
                let offset = relocation.offset.wrapping_sub(symbol.value);
                if symbol.section == section && offset < symbol.size {
                    variable.pointers.push(pointer(&variable.name, &symbols, &relocation, target, offset)?);
                }
            }
        }
        Ok(all)
    }

    fn of_ptx(text: &[u8]) -> Result<Vec<Self>, ManagedError> {
        let text = String::from_utf8_lossy(text);
        let module = ptx::parse(&text).map_err(FactsError::from)?;
        let is_ours = |v: &&ptx::ast::Variable| v.is_managed() && v.linkage != ptx::ast::Linkage::Extern;
        let managed: Vec<_> = module.variables().filter(is_ours).collect();
        let of_variable = |variable: &&ptx::ast::Variable| {
            let name = variable.name.to_string();
            let too_large = || FactsError::Variable { variable: name.clone() };
            let size = variable.size().ok_or_else(too_large)?;
            let init = variable.init.clone().unwrap_or_default();
            let pointer = |relocation: &ptx::ast::Relocation| {
                let symbol = relocation.symbol.to_string();
                let whole = variable.ty.size() == 8 && relocation.mask.is_none();
                match whole && managed.iter().any(|other| other.name == relocation.symbol) {
                    true => Ok(Pointer {
                        offset: relocation.offset,
                        target: symbol,
                        addend: relocation.addend as u64,
                    }),
                    false => Err(ManagedError::Initial { variable: name.clone(), symbol }),
                }
            };
            let pointers = init.relocations.iter().map(pointer).collect::<Result<_, _>>()?;
            let mut initial = init.data;
            initial.truncate(usize::try_from(size).unwrap_or(usize::MAX));
            Ok(Self { align: variable.alignment(), size, initial, pointers, name: name.clone() })
        };
        managed.iter().map(of_variable).collect()
    }
}

/// A variable, without the pointers in it.
fn of_symbol(elf: &Elf<'_>, symbol: &Symbol<'_>) -> Result<ManagedVariable, ManagedError> {
    let name = cubin::name(symbol)?;
    let outside = || ManagedError::Outside(name.clone());
    let section = symbol.section.and_then(|index| elf.sections.get(index)).ok_or_else(outside)?;
    symbol.value.checked_add(symbol.size).ok_or_else(outside)?;
    let initial = match section.data {
        [] => Vec::new(),
        data => {
            let range = bounds(symbol.value, symbol.size);
            range.and_then(|range| data.get(range)).ok_or_else(outside)?.to_vec()
        }
    };
    let (size, align, pointers) = (symbol.size, section.align.max(1), Vec::new());
    Ok(ManagedVariable { name, size, align, initial, pointers })
}

/// What a relocation puts into the variable of that name.
fn pointer(
    variable: &str,
    symbols: &[Symbol<'_>],
    relocation: &Relocation<'_>,
    section: &Section<'_>,
    offset: u64,
) -> Result<Pointer, ManagedError> {
    let outside = || ManagedError::Outside(variable.to_owned());
    let to = symbols.get(relocation.symbol).ok_or_else(outside)?;
    let target = cubin::name(to)?;
    if !cubin::is_managed(to) || !WORDS.contains(&relocation.kind) {
        return Err(ManagedError::Initial { variable: variable.to_owned(), symbol: target });
    }
    let addend = addend(relocation, section).ok_or_else(outside)?;
    Ok(Pointer { offset, target, addend })
}

fn bounds(start: u64, length: u64) -> Option<std::ops::Range<usize>> {
    let start = usize::try_from(start).ok()?;
    Some(start..start.checked_add(usize::try_from(length).ok()?)?)
}

/// What is added to the address: it stands in the relocation, or where the address is to be.
fn addend(relocation: &Relocation<'_>, target: &Section<'_>) -> Option<u64> {
    if relocation.addend.is_some() {
        return relocation.addend;
    }
    let bytes = target.data.get(bounds(relocation.offset, 8)?)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

/// The cubin with its variables in managed memory at the addresses that `place` tells.
///
/// # Errors
/// When it is damaged, `place` does not know a variable, or the code refers to one in a way that is not known.
pub fn bind(bytes: &[u8], place: impl Fn(&str) -> Option<u64>) -> Result<Vec<u8>, ManagedError> {
    let Cubin { elf } = Cubin::parse(bytes)?;
    let symbols = elf.symbols()?;
    let mut bound = bytes.to_vec();
    let mut addresses = vec![None; symbols.len()];
    for (index, symbol) in symbols.iter().enumerate().filter(|(_, symbol)| cubin::is_managed(symbol)) {
        let name = cubin::name(symbol)?;
        addresses[index] = Some(place(&name).ok_or(ManagedError::Unbound(name))?);
        // The driver makes no memory of its own kind for it then.
        let at = elf.symbol_table().map_or(0, |table| table.data_at) + index as u64 * SYMBOL + OTHER;
        put(&mut bound, at, &[symbol.other & !MANAGED]);
    }
    for relocations in elf.relocations() {
        let (section, target) = (relocations.section, relocations.target);
        let mut kept = Vec::with_capacity(section.data.len());
        for relocation in relocations.iter() {
            let Some(address) = addresses.get(relocation.symbol).copied().flatten() else {
                kept.extend_from_slice(relocation.entry);
                continue;
            };
            let unknown = || ManagedError::Relocation {
                variable: symbols
                    .get(relocation.symbol)
                    .and_then(|it| cubin::name(it).ok())
                    .unwrap_or_default(),
                kind: relocation.kind,
                section: String::from_utf8_lossy(target.name).into_owned(),
            };
            let (offset, value) = value(&relocation, target, address).ok_or_else(unknown)?;
            put(&mut bound, target.data_at + offset, &value);
        }
        if kept.len() != section.data.len() {
            put(&mut bound, section.data_at, &kept);
            put(&mut bound, section.header_at + SIZE, &(kept.len() as u64).to_le_bytes());
        }
    }
    Ok(bound)
}

/// What a relocation puts into its target, and where; `None` beyond the end, or where it is of a type that is not known.
fn value(relocation: &Relocation<'_>, target: &Section<'_>, address: u64) -> Option<(u64, Vec<u8>)> {
    let (offset, value) = if WORDS.contains(&relocation.kind) {
        let value = address.wrapping_add(addend(relocation, target)?);
        (relocation.offset, value.to_le_bytes().to_vec())
    } else {
        let half = HALVES.iter().position(|kind| *kind == relocation.kind)?;
        let offset = relocation.offset.checked_add(IMMEDIATE)?;
        let there = target.data.get(bounds(offset, 4)?)?;
        // Half of an address holds half of what is added to it, if anything.
        let addend = relocation.addend.or_else(|| (there == [0; 4]).then_some(0))?;
        let value = address.wrapping_add(addend);
        (offset, value.to_le_bytes()[half * 4..][..4].to_vec())
    };
    target.data.get(bounds(offset, value.len() as u64)?)?;
    Some((offset, value))
}

/// Puts bytes at a place of the file that has been found to be in it.
fn put(file: &mut [u8], at: u64, bytes: &[u8]) {
    if let Some(place) = bounds(at, bytes.len() as u64).and_then(|range| file.get_mut(range)) {
        place.copy_from_slice(bytes);
    }
}

const _: () = assert!(SIZE + 8 <= SECTION_HEADER && OTHER < SYMBOL);

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::Image;
    use std::borrow::Cow;

    const PTX: &[u8] = include_bytes!("../tests/data/managed.ptx");
    const CUBINS: [&[u8]; 4] = [
        include_bytes!("../tests/data/managed80.cubin"),
        include_bytes!("../tests/data/managed90.cubin"),
        include_bytes!("../tests/data/managed80g.cubin"),
        include_bytes!("../tests/data/managed90g.cubin"),
    ];
    const FATBINARY: &[u8] = include_bytes!("../tests/data/speed.fatbin");
    const PLACES: [(&str, u64); 3] =
        [("counter", 0x5012_3456_7000), ("place", 0x5012_3456_7100), ("table", 0x5012_8000_0200)];

    fn place(wanted: &str) -> Option<u64> {
        PLACES.iter().find(|(name, _)| *name == wanted).map(|(_, address)| *address)
    }

    fn by_name(code: &Code<'_>) -> Vec<ManagedVariable> {
        let mut all = ManagedVariable::all_of(code).unwrap();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    #[test]
    fn cubins_and_ptx_tell_the_same() {
        let expected = by_name(&Code::Ptx(Cow::Borrowed(PTX)));
        let told: Vec<_> = expected.iter().map(|v| (v.name.as_str(), v.size, v.align)).collect();
        assert_eq!(told, [("counter", 4, 4), ("place", 8, 8), ("table", 4000, 4)]);
        assert_eq!(expected[0].initial, 5u32.to_le_bytes());
        assert_eq!(expected[1].pointers, [Pointer { offset: 0, target: "counter".into(), addend: 4 }]);
        for cubin in CUBINS {
            let found = by_name(&Code::Cubin(Cow::Borrowed(cubin)));
            for (found, expected) in found.iter().zip(&expected) {
                assert_eq!((&found.name, found.size), (&expected.name, expected.size));
                assert_eq!(found.pointers, expected.pointers);
                assert!(found.align >= expected.align && found.align <= 8);
                assert!(found.initial.starts_with(&expected.initial), "{found:?}");
            }
            assert_eq!(found.len(), 3);
        }
    }

    #[test]
    fn a_program_is_asked_for_the_code_that_runs() {
        let image = Image::parse(FATBINARY).unwrap();
        for (device, is_cubin) in [(80, true), (90, true), (75, false), (120, false)] {
            let code = image.code_for(device).unwrap().unwrap();
            assert_eq!(matches!(code, Code::Cubin(_)), is_cubin);
            let total = &by_name(&code)[0];
            assert_eq!((total.name.as_str(), total.size), ("total", 8));
            assert_eq!(total.initial, 5u64.to_le_bytes());
        }
        assert!(image.code_for(70).unwrap().is_none());
    }

    /// The relocations of what is loaded: section, offset, symbol, kind.
    fn relocations(cubin: &[u8]) -> Vec<(String, u64, String, u32)> {
        let elf = Elf::parse(cubin).unwrap();
        let symbols = elf.symbols().unwrap();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let of_section = |relocations: crate::elf::Relocations<'_, '_>| {
            let section = text(relocations.target.name);
            let all = relocations
                .iter()
                .map(|it| (section.clone(), it.offset, text(symbols[it.symbol].name), it.kind));
            all.collect::<Vec<_>>()
        };
        elf.relocations().flat_map(of_section).collect()
    }

    #[test]
    fn relocations_are_carried_out_and_taken_out() {
        for cubin in CUBINS {
            let bound = bind(cubin, place).unwrap();
            assert!(by_name(&Code::Cubin(Cow::Borrowed(&bound))).is_empty());
            let before = relocations(cubin);
            let (gone, kept): (Vec<_>, Vec<_>) =
                before.into_iter().partition(|(_, _, symbol, _)| place(symbol).is_some());
            assert_eq!(relocations(&bound), kept);
            let elf = Elf::parse(&bound).unwrap();
            let word = |section: &str, offset: u64, bytes: usize| {
                let data = &elf.section(section.as_bytes()).unwrap().data[offset as usize..][..bytes];
                data.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
            };
            for (section, offset, symbol, kind) in &gone {
                let address = place(symbol).unwrap();
                match (section.as_str(), kind) {
                    // `place` is the first there, and holds what is 4 bytes into `counter`.
                    (".nv.global.init", _) if *offset == 0 => assert_eq!(word(section, 0, 8), address + 4),
                    (".nv.global.init" | ".nv.constant4", _) => {
                        assert_eq!(word(section, *offset, 8), address)
                    }
                    (_, 56) => assert_eq!(word(section, offset + 4, 4), address & 0xffff_ffff),
                    (_, 57) => assert_eq!(word(section, offset + 4, 4), address >> 32),
                    (_, kind) => panic!("a relocation of type {kind} in {section}"),
                }
            }
            assert!(gone.len() >= 5);
        }
    }

    #[test]
    fn what_nvcc_makes_is_bound() {
        let image = Image::parse(FATBINARY).unwrap();
        for device in [80, 90] {
            let Some(Code::Cubin(cubin)) = image.code_for(device).unwrap() else { panic!("no cubin") };
            let names = |cubin: &[u8]| {
                relocations(cubin).into_iter().map(|(_, _, symbol, _)| symbol).collect::<Vec<_>>()
            };
            let (before, bound) = (names(&cubin), bind(&cubin, |_| Some(0x5000_0000_0100)).unwrap());
            let others: Vec<_> = before.iter().filter(|symbol| *symbol != "total").cloned().collect();
            assert!(others.len() < before.len());
            assert_eq!(names(&bound), others);
        }
    }

    #[test]
    fn variables_that_share_bytes_are_refused() {
        const VALUE: usize = 8;
        for cubin in CUBINS {
            let elf = Elf::parse(cubin).unwrap();
            let table = elf.symbol_table().unwrap().data_at as usize;
            let symbols = elf.symbols().unwrap();
            let managed = |other: &&(usize, &Symbol<'_>)| cubin::is_managed(other.1);
            let all: Vec<_> = symbols.iter().enumerate().collect();
            let ours: Vec<_> = all.iter().filter(managed).collect();
            let same = |a: &Symbol<'_>, b: &Symbol<'_>| a.section == b.section && a.value < b.value;
            let pair = ours.iter().find_map(|a| Some((a, ours.iter().find(|b| same(a.1, b.1))?)));
            let ((_, one), (index, _)) = pair.unwrap();
            let mut damaged = cubin.to_vec();
            put(
                &mut damaged,
                (table + index * SYMBOL as usize + VALUE) as u64,
                &(one.value + one.size - 1).to_le_bytes(),
            );
            let refused = ManagedVariable::all_of(&Code::Cubin(Cow::Borrowed(&damaged)));
            assert!(matches!(refused, Err(ManagedError::Overlap(..))), "{refused:?}");
        }
    }

    #[test]
    fn what_cannot_be_is_named() {
        let unbound = bind(CUBINS[1], |name| place(name).filter(|_| name != "table")).unwrap_err();
        assert_eq!(unbound.to_string(), "the variable table in managed memory has no address");
        // A relocation of a type that nobody has seen.
        let mut strange = CUBINS[1].to_vec();
        let elf = Elf::parse(CUBINS[1]).unwrap();
        let at = elf.section(b".rela.nv.constant4").unwrap().data_at as usize;
        strange[at + 8] = 99;
        let said = bind(&strange, place).unwrap_err().to_string();
        assert!(said.contains("relocation 99 in .nv.constant4") && said.contains("table"), "{said}");
        let outside = String::from_utf8(PTX.to_vec())
            .unwrap()
            .replace(".attribute(.managed) .align 4 .u32", ".align 4 .u32");
        let said =
            ManagedVariable::all_of(&Code::Ptx(Cow::Borrowed(outside.as_bytes()))).unwrap_err().to_string();
        assert!(said.contains("place") && said.contains("the address of counter"), "{said}");
    }

    proptest::proptest! {
        /// Damage is refused or carried through, and never a panic.
        #[test]
        fn damaged_cubins_are_survived(
            which in 0..CUBINS.len(),
            damage in proptest::collection::vec((proptest::prelude::any::<proptest::sample::Index>(), proptest::prelude::any::<u8>()), 1..8),
        ) {
            let mut cubin = CUBINS[which].to_vec();
            for (at, byte) in damage {
                let at = at.index(cubin.len());
                cubin[at] = byte;
            }
            let _ = ManagedVariable::all_of(&Code::Cubin(Cow::Borrowed(&cubin)));
            if let Ok(bound) = bind(&cubin, |_| Some(0x5000_0000_0000)) {
                proptest::prop_assert_eq!(bound.len(), cubin.len());
            }
        }
    }
}
