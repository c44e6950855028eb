//! Cubins: machine code in ELF.

use std::collections::BTreeMap;

use crate::{
    elf::{Binding, Elf, ElfError, Symbol},
    facts::{KernelFacts, Linkage, ModuleFacts, ParamFacts, VariableFacts, VariableSpace},
    nvinfo::{self, KernelParam},
};

/// `STT_FUNC`
const FUNC: u8 = 2;
/// `STT_OBJECT`, and `STT_CUDA_OBJECT` of code that is not linked yet.
const OBJECTS: [u8; 2] = [1, 13];
/// `STO_CUDA_ENTRY` in `st_other`: a kernel.
const ENTRY: u8 = 0x10;
/// `STO_CUDA_MANAGED` in `st_other`.
pub(crate) const MANAGED: u8 = 0x04;
/// `EI_OSABI` of cubins since CUDA 13; before, the architecture stood in the low byte of the flags.
const OSABI: u8 = 0x41;

/// Bytes that are no cubin, or a damaged one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CubinError {
    /// Its ELF.
    #[error(transparent)]
    Elf(#[from] ElfError),
    /// A name that is not text.
    #[error("cubin is damaged: a symbol's name is not UTF-8")]
    Name,
    /// A kernel's description.
    #[error("cubin is damaged: the parameters of kernel {kernel} are not described in full")]
    Params {
        /// The kernel.
        kernel: String,
    },
}

/// A cubin.
#[derive(Clone, Debug)]
pub struct Cubin<'a> {
    pub(crate) elf: Elf<'a>,
}

impl<'a> Cubin<'a> {
    /// Reads the section table.
    ///
    /// # Errors
    /// When `bytes` is no ELF for CUDA or is cut off.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, CubinError> {
        Ok(Self { elf: Elf::parse(bytes)? })
    }

    /// Compute capability that the code is for, major times ten plus minor.
    pub fn sm(&self) -> u32 {
        match self.elf.header.osabi {
            OSABI => self.elf.header.flags >> 8 & 0xFF,
            _ => self.elf.header.flags & 0xFF,
        }
    }

    /// The contents of the section of that name, e.g. `.text.kernel`.
    pub fn section(&self, name: &str) -> Option<&'a [u8]> {
        self.elf.section(name.as_bytes()).map(|section| section.data)
    }

    /// What the module holds.
    ///
    /// # Errors
    /// When the symbol table or a kernel's description is damaged.
    pub fn facts(&self) -> Result<ModuleFacts, CubinError> {
        let mut facts = ModuleFacts::default();
        let of_module = nvinfo::attributes(self.section(".nv.info").unwrap_or_default());
        let registers: BTreeMap<usize, u32> =
            of_module.flatten().filter_map(|each| nvinfo::registers(&each)).collect();
        for (number, symbol) in self.elf.symbols()?.into_iter().enumerate() {
            if symbol.undefined {
                if symbol.kind == FUNC {
                    facts.imports.push(name(&symbol)?);
                }
            } else if symbol.kind == FUNC && symbol.other & ENTRY != 0 {
                let kernel = self.kernel(name(&symbol)?, linkage(symbol.binding))?;
                facts.kernels.push(KernelFacts { registers: registers.get(&number).copied(), ..kernel });
            } else if OBJECTS.contains(&symbol.kind)
                && let Some((space, initialised)) = self.space(&symbol)
            {
                facts.variables.push(VariableFacts {
                    name: name(&symbol)?,
                    space,
                    size: symbol.size,
                    linkage: linkage(symbol.binding),
                    initialised,
                    managed: symbol.other & MANAGED != 0,
                });
            }
        }
        Ok(facts)
    }

    /// The space of a variable that the program can write or ask the address of, and whether it starts with
    /// other contents than zeros.
    fn space(&self, symbol: &Symbol<'_>) -> Option<(VariableSpace, bool)> {
        match self.elf.sections.get(symbol.section?)?.name {
            b".nv.global" => Some((VariableSpace::Global, false)),
            b".nv.global.init" => Some((VariableSpace::Global, true)),
            b".nv.constant3" => Some((VariableSpace::Constant, true)),
            _ => None,
        }
    }

    fn kernel(&self, name: String, linkage: Linkage) -> Result<KernelFacts, CubinError> {
        let mut params = Vec::new();
        let mut size = None;
        let info = self.section(&format!(".nv.info.{name}")).unwrap_or_default();
        for attribute in nvinfo::attributes(info) {
            let damaged = || CubinError::Params { kernel: name.clone() };
            let attribute = attribute.ok_or_else(damaged)?;
            if attribute.id == nvinfo::CBANK_PARAM_SIZE {
                size = Some(attribute.value);
            }
            if let Some(param) = KernelParam::of(&attribute) {
                params.push(param.ok_or_else(damaged)?);
            }
        }
        // They are listed last first.
        params.sort_by_key(|param| param.ordinal);
        if params.iter().enumerate().any(|(index, param)| usize::from(param.ordinal) != index) {
            return Err(CubinError::Params { kernel: name });
        }
        let params: Vec<_> =
            params.iter().map(|p| ParamFacts { offset: p.offset.into(), size: p.size.into() }).collect();
        let end = params.iter().map(|param| param.offset + param.size).max().unwrap_or(0);
        Ok(KernelFacts {
            name,
            linkage,
            params,
            param_bytes: size.map_or(end, u64::from).max(end),
            registers: None,
        })
    }
}

/// Whether a symbol is a variable in managed memory that the cubin defines.
pub(crate) fn is_managed(symbol: &Symbol<'_>) -> bool {
    !symbol.undefined && OBJECTS.contains(&symbol.kind) && symbol.other & MANAGED != 0
}

pub(crate) fn name(symbol: &Symbol<'_>) -> Result<String, CubinError> {
    std::str::from_utf8(symbol.name).map(Into::into).map_err(|_| CubinError::Name)
}

fn linkage(binding: Binding) -> Linkage {
    match binding {
        Binding::Local => Linkage::Local,
        Binding::Global => Linkage::Global,
        Binding::Weak => Linkage::Weak,
    }
}
