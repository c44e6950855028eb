//! What a module holds, told alike of a cubin and of PTX.

use std::borrow::Cow;

use ptx::ast;

use crate::{
    compression::DecompressError,
    cubin::{Cubin, CubinError},
    fatbinary::{Entry, EntryKind},
};

/// What a module holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleFacts {
    /// Kernels that it defines.
    pub kernels: Vec<KernelFacts>,
    /// Variables in global and constant memory that it defines, `static` ones included.
    pub variables: Vec<VariableFacts>,
    /// Functions that it calls and does not define: of the driver's (`malloc`, `vprintf`), or of another module
    /// that it has to be linked with.
    pub imports: Vec<String>,
}

/// A kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelFacts {
    /// Its symbol.
    pub name: String,
    /// Who can see it.
    pub linkage: Linkage,
    /// Its parameters, in order.
    pub params: Vec<ParamFacts>,
    /// Size of the parameter buffer, in bytes.
    pub param_bytes: u64,
    /// Registers of each thread, which PTX does not tell.
    pub registers: Option<u32>,
}

/// A kernel parameter's place in the parameter buffer, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamFacts {
    /// From the start of the buffer.
    pub offset: u64,
    /// Without padding.
    pub size: u64,
}

/// A variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VariableFacts {
    /// Its symbol.
    pub name: String,
    /// Where it lives.
    pub space: VariableSpace,
    /// In bytes.
    pub size: u64,
    /// Who can see it.
    pub linkage: Linkage,
    /// Whether the module gives it contents; else it starts as zeros. (A cubin does not tell for constants, which
    /// count as initialised.)
    pub initialised: bool,
    /// `__managed__`: the CPU uses it too.
    pub managed: bool,
}

/// Where a variable lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum VariableSpace {
    /// Kernels can write it.
    Global,
    /// Only the host can write it.
    Constant,
}

/// Which symbols a linker lets other modules see. The driver's look-up by name finds all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Linkage {
    /// Only its own module.
    Local,
    /// All modules.
    Global,
    /// All modules; one of several definitions counts.
    Weak,
}

/// Facts that cannot be had.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FactsError {
    /// A payload that cannot be decompressed.
    #[error(transparent)]
    Decompress(#[from] DecompressError),
    /// A damaged cubin.
    #[error(transparent)]
    Cubin(#[from] CubinError),
    /// Text that is no PTX.
    #[error(transparent)]
    Ptx(#[from] ptx::ParseError),
    /// PTX with parameters that have no size.
    #[error("the parameters of kernel {kernel} have no size")]
    Params {
        /// The kernel.
        kernel: String,
    },
    /// PTX with a variable that no memory can hold.
    #[error("variable {variable} is larger than any memory")]
    Variable {
        /// The variable.
        variable: String,
    },
    /// An entry that is neither PTX nor a cubin.
    #[error("a fatbinary entry of kind {kind:?} holds no code that can be loaded by itself")]
    Kind {
        /// The entry's kind.
        kind: EntryKind,
    },
}

impl ModuleFacts {
    /// Of an entry of a fatbinary.
    ///
    /// # Errors
    /// When the entry is damaged or holds neither PTX nor a cubin.
    pub fn of_entry(entry: &Entry<'_>) -> Result<Self, FactsError> {
        let code = || entry.code();
        match entry.kind {
            EntryKind::Elf => Self::of_cubin(&code()?),
            EntryKind::Ptx => Self::of_ptx_text(&code()?),
            kind => Err(FactsError::Kind { kind }),
        }
    }

    /// Of a cubin.
    ///
    /// # Errors
    /// When it is damaged.
    pub fn of_cubin(bytes: &[u8]) -> Result<Self, FactsError> {
        Ok(Cubin::parse(bytes)?.facts()?)
    }

    /// Of PTX, without a NUL at its end. Bytes that are not UTF-8 may stand in comments.
    ///
    /// # Errors
    /// When it cannot be parsed.
    pub fn of_ptx_text(text: &[u8]) -> Result<Self, FactsError> {
        let text: Cow<'_, str> = String::from_utf8_lossy(text);
        Self::of_ptx(&ptx::parse(&text)?)
    }

    /// Of parsed PTX.
    ///
    /// # Errors
    /// When a kernel's parameters or a variable have no size.
    pub fn of_ptx(module: &ast::Module) -> Result<Self, FactsError> {
        let mut facts = Self::default();
        for kernel in module.kernels() {
            let (params, param_bytes) = kernel
                .param_layout()
                .ok_or_else(|| FactsError::Params { kernel: kernel.name.to_string() })?;
            facts.kernels.push(KernelFacts {
                name: kernel.name.to_string(),
                linkage: linkage(kernel.linkage),
                params: params.iter().map(|p| ParamFacts { offset: p.offset, size: p.size }).collect(),
                param_bytes,
                registers: None,
            });
        }
        for variable in module.variables() {
            facts.variables.extend(variable_facts(variable)?);
        }
        let defined: std::collections::HashSet<_> = module.definitions().map(|f| f.name.as_str()).collect();
        let aliases: std::collections::HashSet<_> = aliases(module).collect();
        for function in module.functions().filter(|function| function.body.is_none()) {
            let name = function.name.as_str();
            if !defined.contains(name) && !aliases.contains(name) {
                facts.imports.push(name.to_owned());
            }
        }
        facts.imports.sort();
        facts.imports.dedup();
        Ok(facts)
    }

    /// Whether kernels allocate from the device heap, whose contents a checkpoint must then hold.
    pub fn uses_heap(&self) -> bool {
        const ALLOCATE: [&str; 3] = ["malloc", "free", "__cuda_syscall_aligned_malloc"];
        self.imports.iter().any(|name| ALLOCATE.contains(&name.as_str()))
    }

    /// Whether kernels print.
    pub fn uses_printf(&self) -> bool {
        self.imports.iter().any(|name| name == "vprintf")
    }

    /// Whether kernels launch kernels.
    pub fn launches_kernels(&self) -> bool {
        const LAUNCHES: [&str; 3] =
            ["cudaLaunchDevice", "__cudaCDP2LaunchDevice", "__cuda_syscall_cnpv2LaunchDevice"];
        self.imports.iter().any(|name| LAUNCHES.iter().any(|launch| name.starts_with(launch)))
    }

    /// The kernel of that name.
    pub fn kernel(&self, name: &str) -> Option<&KernelFacts> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }

    /// The variable of that name.
    pub fn variable(&self, name: &str) -> Option<&VariableFacts> {
        self.variables.iter().find(|variable| variable.name == name)
    }
}

fn aliases(module: &ast::Module) -> impl Iterator<Item = &str> {
    module.items.iter().filter_map(|item| match item {
        ast::Item::Alias(alias) => Some(alias.name.as_str()),
        _ => None,
    })
}

/// `None` for what is no memory of this module: declarations, shared memory, texture references.
fn variable_facts(variable: &ast::Variable) -> Result<Option<VariableFacts>, FactsError> {
    let space = match variable.space {
        ast::Space::Global => VariableSpace::Global,
        ast::Space::Const => VariableSpace::Constant,
        _ => return Ok(None),
    };
    if variable.linkage == ast::Linkage::Extern || variable.ty.is_opaque() {
        return Ok(None);
    }
    let size = variable.size().ok_or_else(|| FactsError::Variable { variable: variable.name.to_string() })?;
    Ok(Some(VariableFacts {
        name: variable.name.to_string(),
        space,
        size,
        linkage: linkage(variable.linkage),
        initialised: variable.init.is_some(),
        managed: variable.is_managed(),
    }))
}

fn linkage(linkage: ast::Linkage) -> Linkage {
    match linkage {
        ast::Linkage::Internal => Linkage::Local,
        ast::Linkage::Visible | ast::Linkage::Extern => Linkage::Global,
        ast::Linkage::Weak | ast::Linkage::Common => Linkage::Weak,
    }
}
