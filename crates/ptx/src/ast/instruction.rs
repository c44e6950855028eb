//! Statements, instructions and their operands.

use super::{
    BranchTableId, CallTableId, LabelId, LocalId, Name, Opcode, ParamId, PrototypeId, RegId, ReturnId,
    SpecialRegister,
};

/// One statement of a body.
#[derive(Clone, Debug, PartialEq)]
pub enum Statement {
    /// `name:`; each label of a body stands exactly once.
    Label(LabelId),
    /// An instruction.
    Instruction(Instruction),
    /// `.pragma "…", "…";`
    Pragma(Vec<Box<str>>),
    /// `.loc`: where the instructions that follow come from.
    Loc(Loc),
}

/// A source position (`.loc`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loc {
    /// Index of a [`File`](super::File) directive.
    pub file: u32,
    /// Line in that file.
    pub line: u32,
    /// Column in that line.
    pub column: u32,
    /// The call that inlining removed, if any.
    pub inlined_at: Option<InlinedAt>,
}

/// `function_name label[+offset], inlined_at file line column` of a `.loc`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InlinedAt {
    /// Label of the inlined function's name in section `.debug_str`.
    pub function: Name,
    /// Added to the label.
    pub offset: i64,
    /// Index of a [`File`](super::File) directive.
    pub file: u32,
    /// Line of the call.
    pub line: u32,
    /// Column of the call.
    pub column: u32,
}

/// `@p opcode operands;`
#[derive(Clone, Debug, PartialEq)]
pub struct Instruction {
    /// The predicate that guards it.
    pub guard: Option<Guard>,
    /// Mnemonic and modifiers.
    pub opcode: Opcode,
    /// Operands in order. A `call` has exactly one, [`Operand::Call`].
    pub operands: Vec<Operand>,
    /// Line of the PTX text, counted from 1; 0 for an instruction that a pass made.
    pub line: u32,
}

/// `@p` or `@!p`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard {
    /// A predicate register.
    pub reg: RegId,
    /// Whether the instruction is executed when the predicate is false.
    pub negated: bool,
}

/// An operand.
#[derive(Clone, Debug, PartialEq)]
pub enum Operand {
    /// A register.
    Reg(RegId),
    /// `!p`: the complement of a predicate register.
    Not(RegId),
    /// `r.b0`, `r.h1`, `r.b7610`: parts of a register, in video instructions. The selector has no dot.
    Part(RegId, Name),
    /// `%tid.x`. A special register without an axis where a vector is wanted appears as [`Operand::Vector`].
    Special(SpecialRegister),
    /// A constant. Constant expressions and `WARP_SZ` are evaluated by the parser.
    Imm(Immediate),
    /// The address of a variable, parameter or function, plus an offset in bytes.
    Symbol(Symbol, i64),
    /// `[a+8]`
    Address(Address),
    /// `[texture, {x, y}]`, `[texture, sampler, {x, y}]`, `[tensor_map, {x, y}]`
    Indexed {
        /// Texture, surface or tensor map.
        base: Address,
        /// Sampler, in independent texturing mode.
        sampler: Option<Address>,
        /// Coordinates.
        coordinates: Vec<Operand>,
    },
    /// `{a, b, c, d}`
    Vector(Vec<Operand>),
    /// `a|b`: two results (`setp p|q`, `shfl.sync r|p`).
    Pair(Box<(Operand, Operand)>),
    /// `_`: a result that is not wanted.
    Sink,
    /// Target of a branch.
    Label(LabelId),
    /// Targets of a `brx.idx`.
    BranchTable(BranchTableId),
    /// All operands of a `call`.
    Call(Box<Call>),
}

/// A constant operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Immediate {
    /// An integer, as the 64 bits that PTX computes constants with.
    Int(i64),
    /// Bits of a single-precision constant (`0f3F800000`).
    F32(u32),
    /// Bits of a double-precision constant (`0d3FF0000000000000`, `1.0`); converts to the instruction's type.
    F64(u64),
}

/// What an address is taken of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Symbol {
    /// A variable or function of the module, or one that another module defines.
    Module(Name),
    /// A variable declared in the body.
    Local(LocalId),
    /// A formal parameter of the function.
    Param(ParamId),
    /// A formal return parameter of the function.
    Return(ReturnId),
}

/// `[base+offset]`, `[base+offset].unified`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// What the offset is added to.
    pub base: AddressBase,
    /// In bytes.
    pub offset: i64,
    /// `[…].unified`: the address is the same on all devices.
    pub unified: bool,
}

/// The first part of an [`Address`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AddressBase {
    /// A register.
    Reg(RegId),
    /// A variable or parameter.
    Symbol(Symbol),
    /// None: the offset is the address.
    Absolute,
}

/// `(returns), callee, (arguments), targets`
#[derive(Clone, Debug, PartialEq)]
pub struct Call {
    /// Where results go: registers, `.param` variables of the body, [`Operand::Sink`].
    pub returns: Vec<Operand>,
    /// What is called.
    pub callee: Callee,
    /// Registers, constants, or `.param` variables of the body.
    pub arguments: Vec<Operand>,
}

/// What a `call` calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Callee {
    /// A function of the module, or one that another module defines.
    Function(Name),
    /// The function whose address is in a register, of a given signature.
    Indirect(RegId, CallTargets),
}

/// What an indirect call may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallTargets {
    /// Any function with this signature.
    Prototype(PrototypeId),
    /// Any function of this list.
    Table(CallTableId),
}
