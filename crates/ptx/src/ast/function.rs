//! Functions and bodies.

use super::{
    Attribute, Instruction, LabelId, Linkage, LocalId, Name, ParamId, RegId, ReturnId, ScalarType, Space,
    Statement, Variable,
};

/// What can start a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FunctionKind {
    /// `.entry`: a kernel.
    Entry,
    /// `.func`: called by others.
    Func,
}

/// A declaration (without body) or definition of a function.
#[derive(Clone, Debug, PartialEq)]
pub struct Function {
    /// Kernel or device function.
    pub kind: FunctionKind,
    /// Its symbol.
    pub name: Name,
    /// Who can see it.
    pub linkage: Linkage,
    /// `.attribute(…)`
    pub attributes: Vec<Attribute>,
    /// `.noreturn`
    pub noreturn: bool,
    /// Formal return parameters.
    pub returns: Vec<Param>,
    /// Formal parameters.
    pub params: Vec<Param>,
    /// Launch bounds and the like.
    pub performance: Performance,
    /// Its code; `None` for a declaration.
    pub body: Option<Body>,
}

impl Function {
    /// Where each parameter lies in the parameter buffer, in order, and the size of the whole.
    ///
    /// Parameters are laid out one after the other, each aligned to [`Param::alignment`]. `None` when a
    /// parameter has no size (`[]`) or offsets overflow.
    pub fn param_layout(&self) -> Option<(Vec<ParamLayout>, u64)> {
        let mut end = 0u64;
        let mut layout = Vec::with_capacity(self.params.len());
        for param in &self.params {
            let (size, align) = (param.size()?, param.alignment());
            let offset = end.checked_next_multiple_of(align)?;
            end = offset.checked_add(size)?;
            layout.push(ParamLayout { offset, size });
        }
        Some((layout, end))
    }
}

/// Place of a parameter in the parameter buffer, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParamLayout {
    /// From the start of the buffer.
    pub offset: u64,
    /// Without padding.
    pub size: u64,
}

/// Where a formal parameter of a `.func` lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParamSpace {
    /// `.param`: memory.
    Param,
    /// `.reg`: the register of the body whose [`Register::formal`] names it.
    Reg,
}

/// A formal parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// Its name; `_` in call prototypes.
    pub name: Name,
    /// Memory or register.
    pub space: ParamSpace,
    /// `.align`, if given.
    pub align: Option<u32>,
    /// Type of the value or element.
    pub ty: ScalarType,
    /// Dimensions of an array; the first of a variadic function's last parameter may be `None` (`[]`).
    pub dims: Vec<Option<u64>>,
    /// `.ptr`: what the parameter points to.
    pub pointee: Option<Pointee>,
}

/// `.ptr .space .align n`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pointee {
    /// State space pointed to; `None` for generic.
    pub space: Option<Space>,
    /// Alignment of what is pointed to.
    pub align: Option<u32>,
}

impl Param {
    /// Size in bytes; `None` when it is unsized or overflows.
    pub fn size(&self) -> Option<u64> {
        self.dims.iter().try_fold(self.ty.size(), |size, dim| size.checked_mul((*dim)?))
    }

    /// Alignment in bytes: as given, else that of the type.
    pub fn alignment(&self) -> u64 {
        self.align.map_or(self.ty.size(), u64::from)
    }
}

/// Directives between a function's parameters and its body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Performance {
    /// `.maxntid`: most threads a block may have; missing dimensions are 1.
    pub max_ntid: Option<[u32; 3]>,
    /// `.reqntid`: threads a block must have; missing dimensions are 1.
    pub req_ntid: Option<[u32; 3]>,
    /// `.minnctapersm`
    pub min_ncta_per_sm: Option<u32>,
    /// `.maxnctapersm` (deprecated)
    pub max_ncta_per_sm: Option<u32>,
    /// `.maxnreg`
    pub max_nreg: Option<u32>,
    /// Cluster directives.
    pub cluster: Cluster,
    /// What calls leave unchanged.
    pub abi: Abi,
    /// `.pragma`s before the body.
    pub pragmas: Vec<Box<str>>,
}

/// Registers that a function promises not to change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abi {
    /// `.abi_preserve`: data registers.
    pub preserve: Option<u32>,
    /// `.abi_preserve_control`: control registers.
    pub preserve_control: Option<u32>,
}

/// Directives about clusters of blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// `.explicitcluster`
    pub explicit: bool,
    /// `.reqnctapercluster`; missing dimensions are 1.
    pub req_ncta: Option<[u32; 3]>,
    /// `.maxclusterrank`
    pub max_rank: Option<u32>,
    /// `.blocksareclusters`
    pub blocks_are_clusters: bool,
}

/// A function's code, with nested scopes flattened.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Body {
    /// The registers that are used. A declared but unused register does not appear.
    pub registers: Vec<Register>,
    /// `.local`, `.shared`, `.param`, `.const` and `.global` variables declared inside.
    pub locals: Vec<Variable>,
    /// Names of labels.
    pub labels: Vec<Name>,
    /// `.branchtargets`
    pub branch_tables: Vec<BranchTable>,
    /// `.calltargets`
    pub call_tables: Vec<CallTable>,
    /// `.callprototype`
    pub prototypes: Vec<Prototype>,
    /// The code.
    pub statements: Vec<Statement>,
}

impl Body {
    /// The instructions, in order.
    pub fn instructions(&self) -> impl Iterator<Item = &Instruction> {
        self.numbered_instructions().map(|(_, instruction)| instruction)
    }

    /// The instructions, in order, each with which statement it is.
    pub fn numbered_instructions(&self) -> impl Iterator<Item = (usize, &Instruction)> {
        self.statements.iter().enumerate().filter_map(|(at, statement)| match statement {
            Statement::Instruction(instruction) => Some((at, instruction)),
            _ => None,
        })
    }

    /// The register's declaration.
    ///
    /// # Panics
    /// When `reg` belongs to another body.
    pub fn register(&self, reg: RegId) -> &Register {
        &self.registers[reg.index()]
    }

    /// The variable's declaration.
    ///
    /// # Panics
    /// When `local` belongs to another body.
    pub fn local(&self, local: LocalId) -> &Variable {
        &self.locals[local.index()]
    }

    /// The label's name.
    ///
    /// # Panics
    /// When `label` belongs to another body.
    pub fn label(&self, label: LabelId) -> &Name {
        &self.labels[label.index()]
    }
}

/// A register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Register {
    /// Its name, unique in the body, with its `%` if it has one.
    pub name: Name,
    /// Its type. Vector registers (`.reg .v4 .f32 q`) are split into one register for each component.
    pub ty: ScalarType,
    /// The `.reg` parameter that it is.
    pub formal: Option<Formal>,
}

/// A formal parameter that is a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Formal {
    /// Passed in.
    Param(ParamId),
    /// Passed out.
    Return(ReturnId),
}

/// `name: .branchtargets a, b, c;`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BranchTable {
    /// Its label.
    pub name: Name,
    /// What an index selects from.
    pub targets: Vec<LabelId>,
}

/// `name: .calltargets f, g;`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallTable {
    /// Its label.
    pub name: Name,
    /// Functions of the module.
    pub functions: Vec<Name>,
}

/// `name: .callprototype (returns) _ (params);`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prototype {
    /// Its label.
    pub name: Name,
    /// Formal return parameters.
    pub returns: Vec<Param>,
    /// Formal parameters.
    pub params: Vec<Param>,
    /// `.noreturn`
    pub noreturn: bool,
    /// What calls leave unchanged.
    pub abi: Abi,
}
