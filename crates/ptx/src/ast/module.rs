//! Modules and variables.

use std::fmt;

use super::{Function, FunctionKind, Name, ScalarType};

/// A PTX module: what one PTX text declares and defines.
#[derive(Clone, Debug, PartialEq)]
pub struct Module {
    /// `.version`
    pub version: Version,
    /// `.target`
    pub target: Target,
    /// `.address_size`: 32 or 64.
    pub address_size: u32,
    /// Everything else, in the order of the text (an initialiser may only refer to what stands before it).
    pub items: Vec<Item>,
}

impl Module {
    /// Variables, in order: definitions and `.extern` declarations.
    pub fn variables(&self) -> impl Iterator<Item = &Variable> {
        self.items.iter().filter_map(|item| match item {
            Item::Variable(variable) => Some(variable),
            _ => None,
        })
    }

    /// Functions, in order: declarations and definitions, so a name may come twice.
    pub fn functions(&self) -> impl Iterator<Item = &Function> {
        self.items.iter().filter_map(|item| match item {
            Item::Function(function) => Some(function),
            _ => None,
        })
    }

    /// Functions that have a body.
    pub fn definitions(&self) -> impl Iterator<Item = &Function> {
        self.functions().filter(|function| function.body.is_some())
    }

    /// Kernels that have a body.
    pub fn kernels(&self) -> impl Iterator<Item = &Function> {
        self.definitions().filter(|function| function.kind == FunctionKind::Entry)
    }

    /// The function of that name: its definition, else its declaration.
    pub fn function(&self, name: &str) -> Option<&Function> {
        let named = || self.functions().filter(|function| &*function.name == name);
        named().find(|function| function.body.is_some()).or_else(|| named().next())
    }

    /// The variable of that name.
    pub fn variable(&self, name: &str) -> Option<&Variable> {
        self.variables().find(|variable| &*variable.name == name)
    }
}

/// An ISA version, `major.minor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// What a module is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The architecture as written: `sm_90`, `sm_90a`, `sm_100f`.
    pub arch: Name,
    /// Further options: `texmode_independent`, `debug`.
    pub options: Vec<Name>,
}

impl Target {
    /// The compute capability as PTX spells it, major times ten plus minor: 90 for `sm_90a`.
    pub fn sm(&self) -> Option<u32> {
        let digits = self.arch.strip_prefix("sm_")?.trim_end_matches(|c: char| c.is_ascii_lowercase());
        digits.parse().ok()
    }
}

/// A directive at module level.
#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant)]
pub enum Item {
    /// A variable.
    Variable(Variable),
    /// A function.
    Function(Function),
    /// `.alias name, target;`
    Alias(Alias),
    /// `.file index "name"[, timestamp, size]`
    File(File),
    /// `.section name { … }`
    Section(Section),
    /// `.pragma "…";`
    Pragma(Vec<Box<str>>),
}

/// `.alias name, target;`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alias {
    /// The new name, of a function declared before.
    pub name: Name,
    /// The function it stands for.
    pub target: Name,
}

/// `.file index "name"[, timestamp, size]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// What `.loc` refers to it by.
    pub index: u32,
    /// Path, as written between the quotes.
    pub name: Box<str>,
    /// Modification time and size in bytes, if given.
    pub stamp: Option<(u64, u64)>,
}

/// A debug section; its contents are kept as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// With its leading dot.
    pub name: Name,
    /// Its directives, one on each line.
    pub lines: Vec<Box<str>>,
}

/// Who can see a symbol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Linkage {
    /// Only this module (CUDA's `static`).
    #[default]
    Internal,
    /// `.visible`
    Visible,
    /// `.extern`: defined elsewhere; or, for `.shared`, dynamic shared memory.
    Extern,
    /// `.weak`
    Weak,
    /// `.common`
    Common,
}

/// A state space that has addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum Space {
    Const,
    Global,
    Local,
    Param,
    Shared,
}

impl Space {
    /// The space's spelling, without its dot.
    pub fn name(self) -> &'static str {
        match self {
            Self::Const => "const",
            Self::Global => "global",
            Self::Local => "local",
            Self::Param => "param",
            Self::Shared => "shared",
        }
    }

    /// The space with that spelling (without the dot).
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "const" => Some(Self::Const),
            "global" => Some(Self::Global),
            "local" => Some(Self::Local),
            "param" => Some(Self::Param),
            "shared" => Some(Self::Shared),
            _ => None,
        }
    }
}

/// A variable of the module or of a body.
#[derive(Clone, Debug, PartialEq)]
pub struct Variable {
    /// Its symbol.
    pub name: Name,
    /// Who can see it.
    pub linkage: Linkage,
    /// Where it lives.
    pub space: Space,
    /// `.attribute(…)`
    pub attributes: Vec<Attribute>,
    /// `.align`, if given.
    pub align: Option<u32>,
    /// Type of an element.
    pub ty: ScalarType,
    /// Elements of a vector (`.v2`, `.v4`, `.v8`); 1 for a scalar.
    pub vector: u32,
    /// Dimensions of an array; only the first may be `None` (`[]`), and only where no initialiser sizes it.
    pub dims: Vec<Option<u64>>,
    /// Initial value; without one, memory of `.global` and `.const` starts as zeros.
    pub init: Option<Initializer>,
}

impl Variable {
    /// Size in bytes; 0 when the array has no size (`extern .shared x[]`), `None` when it overflows.
    pub fn size(&self) -> Option<u64> {
        let element = self.ty.size().checked_mul(u64::from(self.vector))?;
        self.dims.iter().try_fold(element, |size, dim| size.checked_mul(dim.unwrap_or(0)))
    }

    /// Alignment in bytes: as given, else that of the element.
    pub fn alignment(&self) -> u64 {
        self.align.map_or(self.ty.size() * u64::from(self.vector), u64::from)
    }

    /// Whether it is `.attribute(.managed)`: addressable by the CPU.
    pub fn is_managed(&self) -> bool {
        self.attributes.contains(&Attribute::Managed)
    }
}

/// `.attribute(…)`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attribute {
    /// `.managed`
    Managed,
    /// `.unified(uuid1, uuid2)`
    Unified(u64, u64),
}

/// An initial value, as the bytes it puts into memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Initializer {
    /// Little-endian contents from the variable's start, whole elements; what lies beyond is zero. Relocated
    /// elements are zero here.
    pub data: Vec<u8>,
    /// Elements that depend on an address, by increasing offset.
    pub relocations: Vec<Relocation>,
    /// Fields of a texture, sampler or surface reference (`addr_mode_0 = clamp_to_edge`).
    pub opaque: Vec<(Name, Name)>,
}

/// An element that holds (a part of) an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relocation {
    /// Of the element, in bytes.
    pub offset: u64,
    /// A variable or function of the module, or one that another module defines.
    pub symbol: Name,
    /// Added to the address.
    pub addend: i64,
    /// `generic(symbol)`: the generic address, not the one within the symbol's state space.
    pub generic: bool,
    /// `0xFF00(symbol)`: the element is these bits of the sum, shifted down to bit 0. `None`: all.
    pub mask: Option<u64>,
}
