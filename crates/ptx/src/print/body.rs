//! Bodies. Names of the body are unique, so everything is declared in one scope, at the top.

use std::fmt::{self, Display, Formatter};

use crate::ast::{
    Address, AddressBase, Body, Call, CallTargets, Callee, Function, Guard, Immediate, Instruction, Loc,
    Name, Operand, RegId, Register, ScalarType, Statement, Symbol,
};

use super::{Params, Pragma};

/// Names on one line of a register declaration.
const NAMES_PER_LINE: usize = 16;

pub(super) fn print(f: &mut Formatter<'_>, function: &Function, body: &Body) -> fmt::Result {
    for ty in ScalarType::ALL {
        let declared: Vec<&Register> = body
            .registers
            .iter()
            .filter(|register| register.ty == *ty && register.formal.is_none())
            .collect();
        for names in declared.chunks(NAMES_PER_LINE) {
            write!(f, "\t.reg {ty} ")?;
            list(f, names, |f, register| register.name.fmt(f))?;
            f.write_str(";\n")?;
        }
    }
    body.locals.iter().try_for_each(|local| writeln!(f, "\t{local}"))?;
    for table in &body.call_tables {
        write!(f, "{}: .calltargets ", table.name)?;
        list(f, &table.functions, |f, name| name.fmt(f))?;
        f.write_str(";\n")?;
    }
    for prototype in &body.prototypes {
        write!(f, "{}: .callprototype ", prototype.name)?;
        if !prototype.returns.is_empty() {
            write!(f, "{} ", Params(&prototype.returns))?;
        }
        write!(f, "_ {}", Params(&prototype.params))?;
        f.write_str(if prototype.noreturn { " .noreturn" } else { "" })?;
        writeln!(f, "{};", prototype.abi)?;
    }
    for table in &body.branch_tables {
        write!(f, "{}: .branchtargets ", table.name)?;
        list(f, &table.targets, |f, target| body.label(*target).fmt(f))?;
        f.write_str(";\n")?;
    }
    let names = Names { function, body };
    body.statements.iter().try_for_each(|statement| names.statement(f, statement))
}

/// Items with commas between them.
fn list<T>(
    f: &mut Formatter<'_>,
    items: &[T],
    mut print: impl FnMut(&mut Formatter<'_>, &T) -> fmt::Result,
) -> fmt::Result {
    for (index, item) in items.iter().enumerate() {
        f.write_str(if index == 0 { "" } else { ", " })?;
        print(f, item)?;
    }
    Ok(())
}

/// The tables that ids index into.
struct Names<'a> {
    function: &'a Function,
    body: &'a Body,
}

impl Names<'_> {
    fn reg(&self, reg: RegId) -> &Name {
        &self.body.register(reg).name
    }

    fn symbol<'a>(&'a self, symbol: &'a Symbol) -> &'a Name {
        match symbol {
            Symbol::Module(name) => name,
            Symbol::Local(local) => &self.body.local(*local).name,
            Symbol::Param(param) => &self.function.params[param.index()].name,
            Symbol::Return(param) => &self.function.returns[param.index()].name,
        }
    }

    fn statement(&self, f: &mut Formatter<'_>, statement: &Statement) -> fmt::Result {
        match statement {
            Statement::Label(label) => writeln!(f, "{}:", self.body.label(*label)),
            Statement::Instruction(instruction) => self.instruction(f, instruction),
            Statement::Pragma(strings) => writeln!(f, "\t{}", Pragma(strings)),
            Statement::Loc(loc) => writeln!(f, "\t{loc}"),
        }
    }

    fn instruction(&self, f: &mut Formatter<'_>, instruction: &Instruction) -> fmt::Result {
        f.write_str("\t")?;
        if let Some(Guard { reg, negated }) = instruction.guard {
            write!(f, "@{}{} ", if negated { "!" } else { "" }, self.reg(reg))?;
        }
        write!(f, "{}", instruction.opcode)?;
        f.write_str(if instruction.operands.is_empty() { "" } else { " " })?;
        list(f, &instruction.operands, |f, operand| self.operand(f, operand))?;
        f.write_str(";\n")
    }

    fn operand(&self, f: &mut Formatter<'_>, operand: &Operand) -> fmt::Result {
        match operand {
            Operand::Reg(reg) => self.reg(*reg).fmt(f),
            Operand::Not(reg) => write!(f, "!{}", self.reg(*reg)),
            Operand::Part(reg, selector) => write!(f, "{}.{selector}", self.reg(*reg)),
            Operand::Special(special) => special.fmt(f),
            Operand::Imm(immediate) => immediate.fmt(f),
            Operand::Symbol(symbol, offset) => write!(f, "{}{}", self.symbol(symbol), Offset(*offset)),
            Operand::Address(address) => {
                write!(f, "[")?;
                self.address(f, address)?;
                write!(f, "]{}", if address.unified { ".unified" } else { "" })
            }
            Operand::Indexed { base, sampler, coordinates } => {
                write!(f, "[")?;
                self.address(f, base)?;
                if let Some(sampler) = sampler {
                    write!(f, ", ")?;
                    self.address(f, sampler)?;
                }
                write!(f, ", ")?;
                self.vector(f, coordinates)?;
                write!(f, "]")
            }
            Operand::Vector(elements) => self.vector(f, elements),
            Operand::Pair(pair) => {
                self.operand(f, &pair.0)?;
                f.write_str("|")?;
                self.operand(f, &pair.1)
            }
            Operand::Sink => f.write_str("_"),
            Operand::Label(label) => self.body.label(*label).fmt(f),
            Operand::BranchTable(table) => self.body.branch_tables[table.index()].name.fmt(f),
            Operand::Call(call) => self.call(f, call),
        }
    }

    fn vector(&self, f: &mut Formatter<'_>, elements: &[Operand]) -> fmt::Result {
        f.write_str("{")?;
        list(f, elements, |f, element| self.operand(f, element))?;
        f.write_str("}")
    }

    fn address(&self, f: &mut Formatter<'_>, address: &Address) -> fmt::Result {
        match &address.base {
            AddressBase::Reg(reg) => write!(f, "{}{}", self.reg(*reg), Offset(address.offset)),
            AddressBase::Symbol(symbol) => write!(f, "{}{}", self.symbol(symbol), Offset(address.offset)),
            AddressBase::Absolute => address.offset.fmt(f),
        }
    }

    fn call(&self, f: &mut Formatter<'_>, call: &Call) -> fmt::Result {
        if !call.returns.is_empty() {
            f.write_str("(")?;
            list(f, &call.returns, |f, operand| self.operand(f, operand))?;
            f.write_str("), ")?;
        }
        match &call.callee {
            Callee::Function(name) => name.fmt(f)?,
            Callee::Indirect(reg, _) => self.reg(*reg).fmt(f)?,
        }
        if !call.arguments.is_empty() {
            f.write_str(", (")?;
            list(f, &call.arguments, |f, operand| self.operand(f, operand))?;
            f.write_str(")")?;
        }
        match call.callee {
            Callee::Indirect(_, CallTargets::Prototype(id)) => {
                write!(f, ", {}", self.body.prototypes[id.index()].name)
            }
            Callee::Indirect(_, CallTargets::Table(id)) => {
                write!(f, ", {}", self.body.call_tables[id.index()].name)
            }
            Callee::Function(_) => Ok(()),
        }
    }
}

/// `+8`, `+-8` (ptxas wants it so), or nothing for 0.
struct Offset(i64);

impl Display for Offset {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(f, "+{}", self.0) }
    }
}

impl Display for Immediate {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(value) => value.fmt(f),
            Self::F32(bits) => write!(f, "0f{bits:08X}"),
            Self::F64(bits) => write!(f, "0d{bits:016X}"),
        }
    }
}

impl Display for Loc {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, ".loc {} {} {}", self.file, self.line, self.column)?;
        if let Some(inlined) = &self.inlined_at {
            write!(f, ", function_name {}{}", inlined.function, Offset(inlined.offset))?;
            write!(f, ", inlined_at {} {} {}", inlined.file, inlined.line, inlined.column)?;
        }
        Ok(())
    }
}
