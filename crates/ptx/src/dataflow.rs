//! Which registers an instruction reads and writes.

use crate::ast::{Address, AddressBase, Body, Call, Callee, Formal, Instruction, Operand, RegId};

/// What an instruction does to a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Reads it.
    Read,
    /// Writes all of it, in lanes where the guard holds.
    Write,
    /// Reads it, then writes it or part of it.
    ReadWrite,
}

impl Access {
    /// Whether the value before the instruction matters.
    pub fn reads(self) -> bool {
        self != Self::Write
    }

    /// Whether the value after the instruction may differ.
    pub fn writes(self) -> bool {
        self != Self::Read
    }
}

impl Instruction {
    /// Calls `visit` for every register operand, the guard included; a register that stands in several places
    /// is visited several times.
    ///
    /// Not visited: the carry flag of `add.cc` and its like, special registers, and the `.reg` return
    /// parameters that a `ret` hands out ([`Body::returned`]).
    pub fn for_each_register(&self, mut visit: impl FnMut(RegId, Access)) {
        if let Some(guard) = self.guard {
            visit(guard.reg, Access::Read);
        }
        let mut operands = self.operands.iter();
        if let Some(access) = self.destination_access()
            && let Some(destination) = operands.next()
        {
            walk(destination, access, &mut visit);
        }
        operands.for_each(|operand| walk(operand, Access::Read, &mut visit));
    }

    /// Calls `visit` for every register that it writes, all or part of it.
    pub fn for_each_written(&self, mut visit: impl FnMut(RegId)) {
        self.for_each_register(|register, access| {
            if access.writes() {
                visit(register);
            }
        });
    }

    /// How the first operand is accessed, if it is a destination.
    fn destination_access(&self) -> Option<Access> {
        let first = self.operands.first()?;
        if matches!(
            first,
            Operand::Address(_) | Operand::Indexed { .. } | Operand::Call(_) | Operand::Label(_)
        ) {
            return None;
        }
        match self.opcode.mnemonic() {
            "bar" | "barrier" => self.opcode.has("red").then_some(Access::Write),
            "brx" | "nanosleep" | "pmevent" | "setmaxnreg" | "stackrestore" => None,
            // Accumulates in place.
            "wgmma" => self.opcode.has("mma_async").then_some(Access::ReadWrite),
            "cp" | "fence" | "griddepcontrol" | "membar" => None,
            "tcgen05" if self.opcode.has("dealloc") || self.opcode.has("st") => None,
            _ => Some(Access::Write),
        }
    }
}

impl Body {
    /// The registers that hold the function's results when it returns.
    pub fn returned(&self) -> impl Iterator<Item = RegId> {
        self.registers
            .iter()
            .enumerate()
            .filter(|(_, register)| matches!(register.formal, Some(Formal::Return(_))))
            .map(|(index, _)| RegId(index as u32))
    }
}

fn walk(operand: &Operand, access: Access, visit: &mut impl FnMut(RegId, Access)) {
    match operand {
        Operand::Reg(reg) => visit(*reg, access),
        Operand::Not(reg) => visit(*reg, Access::Read),
        // Writing a part leaves the rest.
        Operand::Part(reg, _) if access == Access::Write => visit(*reg, Access::ReadWrite),
        Operand::Part(reg, _) => visit(*reg, access),
        Operand::Address(address) => walk_address(address, visit),
        Operand::Indexed { base, sampler, coordinates } => {
            walk_address(base, visit);
            sampler.iter().for_each(|sampler| walk_address(sampler, visit));
            coordinates.iter().for_each(|coordinate| walk(coordinate, Access::Read, visit));
        }
        // Neither nests: the parser makes vectors and pairs of scalars, a pair's first may be a vector.
        Operand::Vector(elements) => elements.iter().for_each(|element| walk(element, access, visit)),
        Operand::Pair(pair) => {
            walk(&pair.0, access, visit);
            walk(&pair.1, access, visit);
        }
        Operand::Call(call) => walk_call(call, visit),
        Operand::Special(_)
        | Operand::Imm(_)
        | Operand::Symbol(..)
        | Operand::Sink
        | Operand::Label(_)
        | Operand::BranchTable(_) => {}
    }
}

fn walk_address(address: &Address, visit: &mut impl FnMut(RegId, Access)) {
    if let AddressBase::Reg(reg) = address.base {
        visit(reg, Access::Read);
    }
}

fn walk_call(call: &Call, visit: &mut impl FnMut(RegId, Access)) {
    if let Callee::Indirect(reg, _) = call.callee {
        visit(reg, Access::Read);
    }
    call.arguments.iter().for_each(|argument| walk(argument, Access::Read, visit));
    call.returns.iter().for_each(|result| walk(result, Access::Write, visit));
}
