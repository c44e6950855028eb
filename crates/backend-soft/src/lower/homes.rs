//! Where registers, variables and parameters live.

use std::collections::HashMap;

use ptx::ast::{Body, Formal, Function, LocalId, ParamSpace, RegId, ScalarType, Space, Variable};

use super::allocate::{allocate, is_wide};
use super::{Lower, Reason, Result};
use crate::exec::{Condition, LOCAL, Place, Pred, Row, Slot, un};

/// Where a register lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Home {
    /// A predicate.
    Pred(Pred),
    /// One row: at most 32 bits.
    Narrow(Slot),
    /// Two rows: 64 bits.
    Wide(Slot),
}

/// What a symbol stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SymbolHome {
    /// A variable in global or constant memory, or a function: its address.
    Absolute(u64),
    /// A variable in shared memory: its offset.
    Shared(u64),
    /// Dynamic shared memory.
    DynamicShared,
    /// A variable or parameter in the local memory of the frame: its offset there.
    Frame(u64),
    /// A kernel's parameter: its offset in the buffer.
    Param(u64),
}

/// What the functions of a module share.
pub struct Env<'a> {
    /// Variables of the module.
    pub variables: HashMap<&'a str, SymbolHome>,
    /// Functions with a body: their indices in the image.
    pub functions: HashMap<&'a str, usize>,
    /// Functions with or without a body.
    pub signatures: HashMap<&'a str, &'a Function>,
    /// Shared variables of bodies: offset of the first, by function.
    pub shared_base: HashMap<&'a str, u64>,
}

/// Lays out variables one behind the other; gives the offsets and the end.
pub fn lay_out<'v>(variables: impl Iterator<Item = &'v Variable>, start: u64) -> Option<(Vec<u64>, u64)> {
    let mut end = start;
    let mut offsets = Vec::new();
    for variable in variables {
        let offset = end.checked_next_multiple_of(variable.alignment())?;
        end = offset.checked_add(variable.size()?)?;
        offsets.push(offset);
    }
    Some((offsets, end))
}

/// Whether a variable is dynamic shared memory.
pub fn is_dynamic_shared(variable: &Variable) -> bool {
    variable.space == Space::Shared && variable.size() == Some(0)
}

/// Shared variables of a body that have a size.
pub fn shared_locals(body: &Body) -> impl Iterator<Item = &Variable> {
    body.locals.iter().filter(|local| local.space == Space::Shared && !is_dynamic_shared(local))
}

const TOO_LARGE: Reason = Reason::TooLarge("the function's variables are too large");

impl<'a> Lower<'a> {
    pub(super) fn new(env: &'a super::Env<'a>, function: &'a Function, body: &'a Body) -> Result<Self> {
        let mut lower = Lower {
            env,
            function,
            body,
            homes: Vec::with_capacity(body.registers.len()),
            locals: Vec::with_capacity(body.locals.len()),
            params: Vec::new(),
            returns: Vec::new(),
            code: Vec::with_capacity(body.statements.len() + 1),
            consts: vec![Row::ZERO; 2],
            known: HashMap::from([((0, 1), Slot::constant(0)), ((0, 2), Slot::constant(0))]),
            calls: Vec::new(),
            tables: Vec::new(),
            labels: vec![None; body.labels.len()],
            rows: 0,
            scratch: 0,
            most_scratch: 0,
            preds: Pred::RESERVED,
            local_bytes: 0,
            guard: Condition::ALWAYS,
            line: 0,
        };
        lower.place_registers()?;
        lower.place_params()?;
        lower.place_locals()?;
        for table in &body.branch_tables {
            lower.tables.push(table.targets.iter().map(|label| label.0).collect());
        }
        Ok(lower)
    }

    fn place_registers(&mut self) -> Result<()> {
        let allocation = allocate(self.body);
        let mut homes = vec![None; self.body.registers.len()];
        for (index, register) in self.body.registers.iter().enumerate() {
            if register.ty.size() > 8 {
                return Err(Reason::Unsupported(format!("a register of type {}", register.ty)));
            }
            let place = allocation.places[index];
            homes[index] = match register.ty {
                ScalarType::Pred => None,
                // Wide registers come first, so that every pair of rows begins at an even one.
                ty if is_wide(ty) => Some(Home::Wide(Slot::register(2 * place))),
                _ => Some(Home::Narrow(Slot::register(2 * allocation.wide + place))),
            };
        }
        self.rows = 2 * allocation.wide + allocation.narrow;
        for home in homes {
            self.homes.push(match home {
                Some(home) => home,
                None => {
                    let pred = u16::try_from(self.preds)
                        .map_err(|_| Reason::TooLarge("the function has too many predicates"))?;
                    self.preds += 1;
                    Home::Pred(Pred(pred))
                }
            });
        }
        Ok(())
    }

    /// A kernel's parameters lie in its launch's buffer, those of other functions (and all results) in the frame.
    fn place_params(&mut self) -> Result<()> {
        let (layout, end) = self.function.param_layout().ok_or(TOO_LARGE)?;
        self.params = layout.iter().map(|param| Place { offset: param.offset, size: param.size }).collect();
        if !self.is_kernel() {
            self.local_bytes = end;
        }
        for result in &self.function.returns {
            let size = result.size().ok_or(TOO_LARGE)?;
            let offset = self.allocate(size, result.alignment())?;
            self.returns.push(Place { offset, size });
        }
        Ok(())
    }

    fn place_locals(&mut self) -> Result<()> {
        let shared_base = self.env.shared_base.get(self.function.name.as_str()).copied().unwrap_or(0);
        let (offsets, _) = lay_out(shared_locals(self.body), shared_base).ok_or(TOO_LARGE)?;
        let mut offsets = offsets.into_iter();
        for local in &self.body.locals {
            let home = match local.space {
                Space::Shared if is_dynamic_shared(local) => SymbolHome::DynamicShared,
                Space::Shared => SymbolHome::Shared(offsets.next().ok_or(TOO_LARGE)?),
                Space::Local | Space::Param => {
                    SymbolHome::Frame(self.allocate(local.size().ok_or(TOO_LARGE)?, local.alignment())?)
                }
                Space::Global | Space::Const => {
                    let home = self.env.variables.get(local.name.as_str());
                    *home.ok_or_else(|| Reason::Undefined(local.name.to_string()))?
                }
            };
            self.locals.push(home);
        }
        Ok(())
    }

    /// Room in the frame's local memory.
    pub(super) fn allocate(&mut self, size: u64, align: u64) -> Result<u64> {
        let offset = self.local_bytes.checked_next_multiple_of(align.max(1)).ok_or(TOO_LARGE)?;
        self.local_bytes = offset.checked_add(size).filter(|end| *end <= 1 << 30).ok_or(TOO_LARGE)?;
        Ok(offset)
    }

    pub(super) fn local_home(&self, local: LocalId) -> SymbolHome {
        self.locals[local.index()]
    }

    pub(super) fn pred_home(&self, reg: RegId) -> Result<Pred> {
        match self.homes[reg.index()] {
            Home::Pred(pred) => Ok(pred),
            _ => Err(Reason::Operands(format!("{} is not a predicate", self.body.register(reg).name))),
        }
    }

    /// Registers that are parameters are filled from the frame's memory at the start, as if they were in `.param` space.
    pub(super) fn load_register_params(&mut self) -> Result<()> {
        for (register, home) in self.body.registers.iter().zip(self.homes.clone()) {
            if let Some(Formal::Param(param)) = register.formal
                && self.function.params[param.index()].space == ParamSpace::Reg
            {
                let offset = self.params[param.index()].offset;
                self.frame_load(home, offset, register.ty.size())?;
            }
        }
        Ok(())
    }

    /// Results that are registers are stored into the frame's memory before a return.
    pub(super) fn store_register_results(&mut self) -> Result<()> {
        for (register, home) in self.body.registers.iter().zip(self.homes.clone()) {
            if let Some(Formal::Return(result)) = register.formal {
                let offset = self.returns[result.index()].offset;
                self.frame_store(home, offset, register.ty.size())?;
            }
        }
        Ok(())
    }

    /// The home of a register.
    pub fn home(&self, reg: RegId) -> Home {
        self.homes[reg.index()]
    }

    /// A row, or two, that live until the end of this instruction.
    pub fn scratch(&mut self, rows: usize) -> Slot {
        let at = self.scratch.next_multiple_of(rows);
        self.scratch = at + rows;
        self.most_scratch = self.most_scratch.max(self.scratch);
        Slot::register(self.rows.next_multiple_of(2) + at)
    }

    /// A constant of one or two rows.
    pub fn constant(&mut self, value: u64, rows: usize) -> Slot {
        let value = if rows == 1 { value & 0xffff_ffff } else { value };
        *self.known.entry((value, rows)).or_insert_with(|| {
            let slot = Slot::constant(self.consts.len());
            match rows {
                1 => self.consts.push(Row::splat(value as u32)),
                _ => self.consts.extend(Row::splat64(value)),
            }
            slot
        })
    }

    /// The memory handlers' state space for a symbol.
    pub fn space_of(home: SymbolHome) -> crate::exec::Space {
        match home {
            SymbolHome::Frame(_) => LOCAL,
            SymbolHome::Absolute(_) => crate::exec::GLOBAL,
            SymbolHome::Shared(_) | SymbolHome::DynamicShared => crate::exec::SHARED,
            SymbolHome::Param(_) => crate::exec::PARAM,
        }
    }

    /// Puts the low half of a wide register into a narrow slot.
    pub fn truncate(&mut self, from: Slot) -> Slot {
        let to = self.scratch(1);
        self.copy(to, from, un(|a: u64| a as u32));
        to
    }
}
