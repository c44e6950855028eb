//! Registers that point into shared and local memory. Where such memory lies another device decides anew, and another process, and another
//! compiler: so what is saved of such a register is how far behind its variable it points.
//!
//! A register is followed to what all its writers make of it, whatever the order of the code. Where that says too little the kernel is
//! [bound](crate::Kernel::is_bound): something points into either of several variables, or is nothing at times; a number is made of an address
//! (one that is rounded up, too: how far that is from its variable depends on where the variable lies); or an address is written to memory.

use std::collections::{BTreeMap, HashSet};

use ptx::ast::{
    Address, AddressBase, Body, Callee, Immediate, Instruction, Module, Name, Operand, RegId, ScalarType,
    Space, Symbol, Variable,
};

use crate::rewrite::BUILT_IN;

/// An address some way behind a variable in shared or local memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pointer {
    /// The variable.
    pub variable: Name,
    /// Where that is.
    pub space: Space,
    /// Whether it is an address of all memory (`cvta`), not of that space.
    pub is_generic: bool,
}

/// What a register has in it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    /// Nothing that was seen so far.
    Unwritten,
    /// No such pointer.
    Number,
    /// Such a pointer.
    Into(Pointer),
    /// Now this, now that; or made of a pointer in a way that is not followed.
    Mixed,
}

impl Value {
    fn join(self, other: Self) -> Self {
        match (self, other) {
            (Self::Unwritten, one) | (one, Self::Unwritten) => one,
            (one, other) if one == other => one,
            _ => Self::Mixed,
        }
    }

    fn is_pointer(&self) -> bool {
        matches!(self, Self::Into(_) | Self::Mixed)
    }
}

/// What the registers of a body point into.
pub(crate) struct Pointers<'a> {
    body: &'a Body,
    /// Variables of the module in shared memory.
    shared: BTreeMap<&'a Name, &'a Variable>,
    values: Vec<Value>,
}

impl<'a> Pointers<'a> {
    pub(crate) fn of(module: &'a Module, body: &'a Body) -> Self {
        let shared = module.variables().filter(|variable| variable.space == Space::Shared);
        let shared = shared.map(|variable| (&variable.name, variable)).collect();
        let mut found = Self { body, shared, values: vec![Value::Unwritten; body.registers.len()] };
        let mut readers: Vec<Vec<&Instruction>> = vec![Vec::new(); body.registers.len()];
        for instruction in body.instructions() {
            instruction.for_each_register(|register, access| {
                if access.reads() {
                    readers[register.index()].push(instruction);
                }
            });
        }
        let mut ahead: Vec<&Instruction> = body.instructions().collect();
        loop {
            while let Some(instruction) = ahead.pop() {
                let Some(made) = found.made(instruction) else { continue };
                instruction.for_each_written(|register| {
                    let value = &mut found.values[register.index()];
                    let joined = value.clone().join(made.clone());
                    if joined != *value {
                        *value = joined;
                        ahead.extend(&readers[register.index()]);
                    }
                });
            }
            // What nobody writes, or only who reads what nobody writes, is as good as any number.
            for (value, readers) in found.values.iter_mut().zip(&readers) {
                if *value == Value::Unwritten {
                    *value = Value::Number;
                    ahead.extend(readers);
                }
            }
            if ahead.is_empty() {
                return found;
            }
        }
    }

    /// The pointer in a register, if it always has one into the same variable, of which a distance can be saved.
    pub(crate) fn pointer(&self, register: RegId) -> Option<Pointer> {
        match &self.values[register.index()] {
            Value::Into(pointer) if can_be_told(pointer, self.body.register(register).ty) => {
                Some(pointer.clone())
            }
            _ => None,
        }
    }

    /// Whether anything depends on where memory lies but what [`Self::pointer`] tells, live or not: what it leads to may be.
    pub(crate) fn are_bound(&self) -> bool {
        let mut registers = (0..self.values.len() as u32).map(RegId);
        registers
            .any(|register| self.values[register.index()].is_pointer() && self.pointer(register).is_none())
            || self.escape()
    }

    /// Whether a pointer may be written to memory, or be given to a function.
    fn escape(&self) -> bool {
        let operands = || self.body.instructions().flat_map(|instruction| &instruction.operands);
        let foreign = operands().filter_map(|operand| match operand {
            Operand::Call(call) if !is_built_in(&call.callee) => Some(&call.arguments),
            _ => None,
        });
        let arguments: HashSet<&Symbol> = foreign
            .flatten()
            .filter_map(|argument| match argument {
                Operand::Symbol(symbol, _) => Some(symbol),
                _ => None,
            })
            .collect();
        let is_handed_on = |operand: &Operand| match operand {
            Operand::Address(Address { base: AddressBase::Symbol(symbol), .. }) => {
                arguments.contains(symbol) || matches!(symbol, Symbol::Return(_))
            }
            _ => false,
        };
        let escapes = |instruction: &Instruction| {
            let (opcode, operands) = (&instruction.opcode, &instruction.operands);
            let is_parameter = opcode.mnemonic() == "st" && opcode.has("param");
            if !operands.iter().any(is_memory) || is_parameter && !operands.iter().any(is_handed_on) {
                return false;
            }
            let has_result = !operands.first().is_some_and(is_memory);
            operands.iter().skip(usize::from(has_result)).any(|operand| match operand {
                Operand::Call(call) => {
                    !is_built_in(&call.callee)
                        && call.arguments.iter().any(|argument| self.operand(argument).is_pointer())
                }
                operand => self.operand(operand).is_pointer(),
            })
        };
        self.body.instructions().any(escapes)
            || self.body.returned().any(|register| self.values[register.index()].is_pointer())
    }

    /// What an instruction writes; nothing as long as it reads what is not known.
    fn made(&self, instruction: &Instruction) -> Option<Value> {
        let opcode = &instruction.opcode;
        // What is in memory is seen to by whoever writes it.
        if opcode.mnemonic() == "isspacep" || instruction.operands.iter().any(is_memory) {
            return Some(Value::Number);
        }
        let read: Vec<Value> =
            instruction.operands.iter().skip(1).map(|operand| self.operand(operand)).collect();
        if read.contains(&Value::Unwritten) {
            return None;
        }
        Some(match read.iter().any(Value::is_pointer) {
            true => self.computed(instruction, &read),
            false => Value::Number,
        })
    }

    fn computed(&self, instruction: &Instruction, read: &[Value]) -> Value {
        use Value::{Into, Mixed, Number};
        let opcode = &instruction.opcode;
        let is_whole = |ty| INTEGERS.contains(&ty);
        let is_zero = matches!(instruction.operands.last(), Some(Operand::Imm(Immediate::Int(0))));
        if !opcode.types().all(is_whole) {
            return Mixed;
        }
        match (opcode.mnemonic(), read) {
            // Which of two comes first in their variable, and that it is somewhere.
            ("setp", [Into(one), Into(other)]) if one == other => Number,
            ("setp", [Into(_), Number]) if is_zero => Number,
            // In halves it is none.
            _ if !matches!(instruction.operands.first(), Some(Operand::Reg(_))) => Mixed,
            ("mov", [one]) => one.clone(),
            ("cvta", [Into(pointer)]) => {
                let is_of = match pointer.space {
                    Space::Shared => opcode.has("shared") || opcode.has("shared::cta"),
                    _ => opcode.has("local"),
                };
                let is_generic = !opcode.has("to");
                if !is_of || pointer.is_generic == is_generic {
                    return Mixed;
                }
                Into(Pointer { is_generic, ..pointer.clone() })
            }
            ("cvt", [Into(pointer)]) => {
                let is_kept = !pointer.is_generic || opcode.types().all(|ty| ty.size() == 8);
                if is_kept { Into(pointer.clone()) } else { Mixed }
            }
            ("add", [one @ Into(_), Number] | [Number, one @ Into(_)]) => one.clone(),
            ("sub", [one @ Into(_), Number]) => one.clone(),
            ("sub", [one @ Into(_), other]) if one == other => Number,
            ("mad", [Number, Number, one @ Into(_)]) if opcode.has("lo") || opcode.has("wide") => one.clone(),
            // Of bits that are clear in the variable's address, wherever it lies.
            ("or", [one @ Into(pointer), Number]) => match instruction.operands.get(2) {
                Some(Operand::Imm(Immediate::Int(bits)))
                    if (0..self.alignment(&pointer.variable)).contains(bits) =>
                {
                    one.clone()
                }
                _ => Mixed,
            },
            ("selp", [one, other, _]) | ("min" | "max", [one, other]) => one.clone().join(other.clone()),
            _ => Mixed,
        }
    }

    fn alignment(&self, name: &Name) -> i64 {
        let own = self.body.locals.iter().find(|local| local.name == *name);
        let variable = own.or_else(|| self.shared.get(name).copied());
        variable.map_or(1, |variable| variable.alignment().try_into().unwrap_or(1))
    }

    fn operand(&self, operand: &Operand) -> Value {
        match operand {
            Operand::Reg(register) => self.values[register.index()].clone(),
            Operand::Symbol(symbol, _) => self.address(symbol),
            Operand::Part(register, _) if self.values[register.index()].is_pointer() => Value::Mixed,
            Operand::Vector(all) => match all.iter().any(|one| self.operand(one).is_pointer()) {
                true => Value::Mixed,
                false => Value::Number,
            },
            _ => Value::Number,
        }
    }

    fn address(&self, symbol: &Symbol) -> Value {
        let variable = match symbol {
            Symbol::Module(name) => self.shared.get(name).copied(),
            Symbol::Local(local) => self.body.locals.get(local.index()),
            // Where parameters lie is the compiler's choice, too.
            Symbol::Param(_) | Symbol::Return(_) => return Value::Mixed,
        };
        match variable {
            Some(variable) if matches!(variable.space, Space::Shared | Space::Local) => {
                Value::Into(Pointer {
                    variable: variable.name.clone(),
                    space: variable.space,
                    is_generic: false,
                })
            }
            _ => Value::Number,
        }
    }
}

/// Types of addresses.
const INTEGERS: [ScalarType; 6] =
    [ScalarType::B32, ScalarType::B64, ScalarType::S32, ScalarType::S64, ScalarType::U32, ScalarType::U64];

/// Whether the distance fits a register of a type, and its variable's address another one.
fn can_be_told(pointer: &Pointer, ty: ScalarType) -> bool {
    INTEGERS.contains(&ty) && (ty.size() == 8 || pointer.space == Space::Shared && !pointer.is_generic)
}

fn is_memory(operand: &Operand) -> bool {
    matches!(operand, Operand::Address(_) | Operand::Indexed { .. } | Operand::Call(_))
}

fn is_built_in(callee: &Callee) -> bool {
    matches!(callee, Callee::Function(name) if BUILT_IN.contains(&&**name))
}
