//! Operands.

use ptx::ast::{Address, AddressBase, Immediate, Operand, ScalarType, Symbol};

use super::{Home, Lower, Reason, Result, SymbolHome};
use crate::exec::{Compute, Condition, GENERIC, IN_FRAME, Inst, NARROW, Op, Pred, Slot, Space, un};
use crate::{exec, isa};

/// What remains to be done after an instruction whose result has another size than its register.
#[derive(Clone, Copy, Debug)]
pub struct Widening {
    to: Slot,
    from: Slot,
    handler: Compute,
}

/// Rows that a value of a type takes.
pub fn rows(ty: ScalarType) -> usize {
    if ty.size() > 4 { 2 } else { 1 }
}

fn is_signed(ty: ScalarType) -> bool {
    matches!(ty, ScalarType::S8 | ScalarType::S16 | ScalarType::S32 | ScalarType::S64)
}

impl Lower<'_> {
    /// A source of an instruction that wants type `ty`.
    pub fn src(&mut self, operand: &Operand, ty: ScalarType) -> Result<Slot> {
        match operand {
            Operand::Reg(reg) => match (self.home(*reg), rows(ty)) {
                (Home::Narrow(slot), 1) | (Home::Wide(slot), 2) => Ok(slot),
                (Home::Wide(slot), _) => Ok(self.truncate(slot)),
                (Home::Narrow(slot), _) => {
                    let to = self.scratch(2);
                    self.copy(to, slot, un(|a: u32| u64::from(a)));
                    Ok(to)
                }
                (Home::Pred(_), _) => Err(self.misfit(operand)),
            },
            Operand::Imm(immediate) => Ok(self.constant(bits(*immediate, ty), rows(ty))),
            Operand::Special(register) => {
                let slot = self.scratch(rows(ty));
                let code =
                    isa::special::code(*register).ok_or_else(|| Reason::Unsupported(register.to_string()))?;
                let read = if rows(ty) == 2 {
                    isa::special::read::<u64>
                } else {
                    isa::special::read::<u32> as Compute
                };
                let mut inst = self.inst(Op::Compute(read));
                inst.d[0] = slot;
                inst.imm = code;
                self.push(inst);
                Ok(slot)
            }
            Operand::Symbol(symbol, offset) => {
                let home = self.symbol(symbol)?;
                self.address_of(home, *offset, rows(ty))
            }
            _ => Err(self.misfit(operand)),
        }
    }

    /// A destination for a result of type `ty`; what is given with it goes to [`Self::finish_dst`].
    pub fn dst(&mut self, operand: &Operand, ty: ScalarType) -> Result<(Slot, Option<Widening>)> {
        match operand {
            Operand::Sink => Ok((self.scratch(rows(ty)), None)),
            Operand::Reg(reg) => match (self.home(*reg), rows(ty)) {
                (Home::Narrow(slot), 1) | (Home::Wide(slot), 2) => Ok((slot, None)),
                (Home::Wide(to), _) => {
                    let from = self.scratch(1);
                    let handler =
                        if is_signed(ty) { un(|a: i32| i64::from(a)) } else { un(|a: u32| u64::from(a)) };
                    Ok((from, Some(Widening { to, from, handler })))
                }
                _ => Err(self.misfit(operand)),
            },
            _ => Err(self.misfit(operand)),
        }
    }

    /// Does what [`Self::dst`] left to be done.
    pub fn finish_dst(&mut self, widening: Option<Widening>) {
        if let Some(Widening { to, from, handler }) = widening {
            self.copy(to, from, handler);
        }
    }

    /// A predicate destination.
    pub fn pred_dst(&self, operand: &Operand) -> Result<Pred> {
        match operand {
            Operand::Sink => Ok(Pred::SINK),
            Operand::Reg(reg) => self.pred_home(*reg),
            _ => Err(self.misfit(operand)),
        }
    }

    /// A predicate source.
    pub fn condition(&self, operand: &Operand) -> Result<Condition> {
        match operand {
            Operand::Reg(reg) => Ok(Condition { pred: self.pred_home(*reg)?, negated: false }),
            Operand::Not(reg) => Ok(Condition { pred: self.pred_home(*reg)?, negated: true }),
            Operand::Imm(Immediate::Int(0)) => Ok(Condition { pred: Pred::FALSE, negated: false }),
            Operand::Imm(Immediate::Int(_)) => Ok(Condition::ALWAYS),
            _ => Err(self.misfit(operand)),
        }
    }

    /// Whether an operand is a 64-bit register.
    pub fn is_wide(&self, operand: &Operand) -> bool {
        matches!(operand, Operand::Reg(reg) if matches!(self.home(*reg), Home::Wide(_)))
    }

    /// A constant of type `ty` in a slot of that many rows.
    pub fn constant_operand(&mut self, operand: &Operand, ty: ScalarType, rows: usize) -> Result<Slot> {
        match operand {
            Operand::Imm(immediate) => Ok(self.constant(bits(*immediate, ty), rows)),
            _ => Err(self.misfit(operand)),
        }
    }

    /// Whether an operand is a predicate register.
    pub fn is_pred(&self, operand: &Operand) -> bool {
        matches!(operand, Operand::Reg(reg) | Operand::Not(reg) if matches!(self.home(*reg), Home::Pred(_)))
    }

    /// What a symbol stands for.
    pub fn symbol(&self, symbol: &Symbol) -> Result<SymbolHome> {
        match symbol {
            Symbol::Module(name) => {
                let function = self.env.functions.get(name.as_str());
                let function = function.map(|index| SymbolHome::Absolute(exec::Image::address(*index)));
                let home = function.or_else(|| self.env.variables.get(name.as_str()).copied());
                home.ok_or_else(|| Reason::Undefined(name.to_string()))
            }
            Symbol::Local(local) => Ok(self.local_home(*local)),
            Symbol::Param(param) if self.is_kernel() => {
                Ok(SymbolHome::Param(self.params[param.index()].offset))
            }
            Symbol::Param(param) => Ok(SymbolHome::Frame(self.params[param.index()].offset)),
            Symbol::Return(result) => Ok(SymbolHome::Frame(self.returns[result.index()].offset)),
        }
    }

    /// A slot with the address (within its state space) of what a symbol stands for.
    pub fn address_of(&mut self, home: SymbolHome, offset: i64, rows: usize) -> Result<Slot> {
        let offset = offset as u64;
        let handler: Compute = match (home, rows) {
            (SymbolHome::Absolute(at) | SymbolHome::Shared(at) | SymbolHome::Param(at), _) => {
                return Ok(self.constant(at.wrapping_add(offset), rows));
            }
            (SymbolHome::Frame(_), 1) => isa::special::frame_address::<u32>,
            (SymbolHome::Frame(_), _) => isa::special::frame_address::<u64>,
            (SymbolHome::DynamicShared, 1) => isa::special::dynamic_shared::<u32>,
            (SymbolHome::DynamicShared, _) => isa::special::dynamic_shared::<u64>,
        };
        let mut inst = self.inst(Op::Compute(handler));
        inst.imm = offset.wrapping_add(if let SymbolHome::Frame(at) = home { at } else { 0 });
        inst.d[0] = self.scratch(rows);
        let slot = inst.d[0];
        self.push(inst);
        Ok(slot)
    }

    /// Fills in the address of a memory access; `space` is what the opcode says. Gives the state space to access.
    pub fn address(&mut self, inst: &mut Inst, address: &Address, space: Option<Space>) -> Result<Space> {
        inst.imm = address.offset as u64;
        match &address.base {
            AddressBase::Reg(reg) => {
                match self.home(*reg) {
                    Home::Wide(slot) => inst.s[0] = slot,
                    Home::Narrow(slot) => {
                        inst.s[0] = slot;
                        inst.mode |= NARROW;
                    }
                    Home::Pred(_) => return Err(self.misfit(&Operand::Reg(*reg))),
                }
                // In a function that is not a kernel, parameters lie in the frame.
                Ok(match space {
                    Some(exec::PARAM) if !self.is_kernel() => exec::LOCAL,
                    Some(space) => space,
                    None => GENERIC,
                })
            }
            AddressBase::Absolute => {
                inst.s[0] = self.constant(0, 2);
                Ok(space.unwrap_or(GENERIC))
            }
            AddressBase::Symbol(symbol) => {
                let home = self.symbol(symbol)?;
                match home {
                    SymbolHome::Frame(at) => {
                        inst.s[0] = self.constant(0, 2);
                        inst.imm = inst.imm.wrapping_add(at);
                        inst.mode |= IN_FRAME;
                    }
                    _ => inst.s[0] = self.address_of(home, 0, 2)?,
                }
                Ok(Self::space_of(home))
            }
        }
    }

    fn misfit(&self, operand: &Operand) -> Reason {
        Reason::Operands(format!("operand {operand:?}"))
    }
}

/// A constant's bits as an instruction of type `ty` takes it.
fn bits(immediate: Immediate, ty: ScalarType) -> u64 {
    match (immediate, ty) {
        (Immediate::Int(value), ScalarType::F32) => u64::from((value as f32).to_bits()),
        (Immediate::Int(value), ScalarType::F64) => (value as f64).to_bits(),
        (Immediate::F32(bits), ScalarType::F64) => f64::from(f32::from_bits(bits)).to_bits(),
        (Immediate::F64(bits), _) if rows(ty) == 1 => u64::from((f64::from_bits(bits) as f32).to_bits()),
        (Immediate::F32(bits), _) => bits.into(),
        (Immediate::F64(bits), _) => bits,
        (Immediate::Int(value), _) if ty.size() == 2 => u64::from(value as u16),
        (Immediate::Int(value), _) => value as u64,
    }
}
