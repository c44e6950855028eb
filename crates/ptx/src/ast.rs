//! The syntax tree of a PTX module.
//!
//! Names are resolved while parsing: a register, a label, a formal parameter and a variable of the body are ids
//! into the tables of their [`Function`] or [`Body`]; only what a linker may have to find (variables of the
//! module, functions) is referred to by name. Nested `{ }` scopes are flattened: what they declare is renamed
//! where two scopes of one body use the same name, so every name in a body is unique.
//!
//! Opcodes stay text ([`Opcode`]): the parser accepts any spelling, and the consumer that gives instructions a
//! meaning refuses, by name, those it does not know.

mod function;
mod instruction;
mod module;
mod opcode;
mod special;
mod types;

pub use function::{
    Abi, Body, BranchTable, CallTable, Cluster, Formal, Function, FunctionKind, Param, ParamLayout,
    ParamSpace, Performance, Pointee, Prototype, Register,
};
pub use instruction::{
    Address, AddressBase, Call, CallTargets, Callee, Guard, Immediate, InlinedAt, Instruction, Loc, Operand,
    Statement, Symbol,
};
pub use module::{
    Alias, Attribute, File, Initializer, Item, Linkage, Module, Relocation, Section, Space, Target, Variable,
    Version,
};
pub use opcode::Opcode;
pub use special::{Axis, SpecialRegister};
pub use types::{
    BranchTableId, CallTableId, LabelId, LocalId, Name, ParamId, PrototypeId, RegId, ReturnId, ScalarType,
};
