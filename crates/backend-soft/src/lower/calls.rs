//! Calls: arguments and results go through local memory of the frames, whatever they are written as.

use ptx::ast::{Call, CallTargets, Callee as Called, Instruction, Operand, Param, Symbol};

use super::{Home, Lower, Reason, Result, SymbolHome, wrong};
use crate::exec::{Builtin, CallSite, Callee, IN_FRAME, Inst, LOCAL, Op, Place, load, store};

impl Lower<'_> {
    /// Appends a call.
    pub fn call(&mut self, instruction: &Instruction, call: &Call) -> Result<()> {
        let callee = match &call.callee {
            Called::Function(name) => match (self.env.functions.get(name.as_str()), name.as_str()) {
                (Some(index), _) => Callee::Direct(*index),
                (None, "vprintf") => Callee::Builtin(Builtin::Vprintf),
                (None, "__assertfail") => Callee::Builtin(Builtin::AssertFail),
                (None, "cudaGraphSetConditional") => Callee::Builtin(Builtin::SetConditional),
                (None, name) => return Err(Reason::Undefined(format!("function {name}"))),
            },
            Called::Indirect(reg, _) => match self.home(*reg) {
                Home::Wide(slot) => Callee::Indirect(slot),
                _ => return Err(wrong(instruction)),
            },
        };
        let (returns, params) = self.signature(call)?;
        if returns.len() != call.returns.len() || params.len() != call.arguments.len() {
            return Err(wrong(instruction));
        }
        let mut args = Vec::with_capacity(params.len());
        for (operand, param) in call.arguments.iter().zip(&params) {
            args.push(self.argument(instruction, operand, param)?);
        }
        let mut results = Vec::with_capacity(returns.len());
        let mut loads = Vec::new();
        for (operand, result) in call.returns.iter().zip(&returns) {
            let size = result.size().ok_or_else(|| wrong(instruction))?;
            match operand {
                Operand::Symbol(Symbol::Local(local), 0) => {
                    results.push(self.frame_place(instruction, *local, size)?)
                }
                Operand::Sink => {
                    results.push(Place { offset: self.allocate(size, result.alignment())?, size })
                }
                Operand::Reg(reg) => {
                    let offset = self.allocate(size, result.alignment())?;
                    results.push(Place { offset, size });
                    loads.push((self.home(*reg), offset, size));
                }
                _ => return Err(wrong(instruction)),
            }
        }
        let site = self.calls.len() as u32;
        self.calls.push(CallSite { callee, args, returns: results });
        self.emit(Op::Call(site));
        for (home, offset, size) in loads {
            self.frame_load(home, offset, size)?;
        }
        Ok(())
    }

    fn signature(&self, call: &Call) -> Result<(Vec<Param>, Vec<Param>)> {
        let found = match &call.callee {
            Called::Function(name) => {
                self.env.signatures.get(name.as_str()).map(|function| (&function.returns, &function.params))
            }
            Called::Indirect(_, CallTargets::Prototype(id)) => {
                self.body.prototypes.get(id.index()).map(|prototype| (&prototype.returns, &prototype.params))
            }
            Called::Indirect(_, CallTargets::Table(id)) => {
                let first = self.body.call_tables.get(id.index()).and_then(|table| table.functions.first());
                let first = first.and_then(|name| self.env.signatures.get(name.as_str()));
                first.map(|function| (&function.returns, &function.params))
            }
        };
        let (returns, params) = found.ok_or_else(|| Reason::Undefined("the called function".into()))?;
        Ok((returns.clone(), params.clone()))
    }

    fn argument(&mut self, instruction: &Instruction, operand: &Operand, param: &Param) -> Result<Place> {
        let size = param.size().ok_or_else(|| wrong(instruction))?;
        if let Operand::Symbol(Symbol::Local(local), 0) = operand {
            return self.frame_place(instruction, *local, size);
        }
        let slot = self.src(operand, param.ty)?;
        let offset = self.allocate(size, param.alignment())?;
        let home = if size == 8 { Home::Wide(slot) } else { Home::Narrow(slot) };
        self.frame_store(home, offset, size)?;
        Ok(Place { offset, size })
    }

    fn frame_place(&self, instruction: &Instruction, local: ptx::ast::LocalId, size: u64) -> Result<Place> {
        match self.local_home(local) {
            SymbolHome::Frame(offset) if self.body.local(local).size() >= Some(size) => {
                Ok(Place { offset, size })
            }
            _ => Err(wrong(instruction)),
        }
    }

    fn frame_access(&mut self, mut inst: Inst, offset: u64) -> Inst {
        inst.s[0] = self.constant(0, 2);
        inst.imm = offset;
        inst.mode = IN_FRAME;
        inst
    }

    /// Loads a register from the frame's memory.
    pub(super) fn frame_load(&mut self, home: Home, offset: u64, size: u64) -> Result<()> {
        let (handler, slot) = match (home, size) {
            (Home::Wide(slot), 8) => (load::<LOCAL, u64, u64, _>(|a: u64| a), slot),
            (Home::Narrow(slot), 4) => (load::<LOCAL, u32, u32, _>(|a: u32| a), slot),
            (Home::Narrow(slot), 2) => (load::<LOCAL, u16, u32, _>(|a: u16| u32::from(a)), slot),
            (Home::Narrow(slot), 1) => (load::<LOCAL, u8, u32, _>(|a: u8| u32::from(a)), slot),
            _ => return Err(Reason::Operands(format!("a parameter of {size} bytes in a register"))),
        };
        let mut inst = self.access(handler);
        inst.d[0] = slot;
        let inst = self.frame_access(inst, offset);
        self.push(inst);
        Ok(())
    }

    /// Stores a register into the frame's memory.
    pub(super) fn frame_store(&mut self, home: Home, offset: u64, size: u64) -> Result<()> {
        let (handler, slot) = match (home, size) {
            (Home::Wide(slot), 8) => (store::<LOCAL, u64, u64, _>(|a: u64| a), slot),
            (Home::Narrow(slot), 4) => (store::<LOCAL, u32, u32, _>(|a: u32| a), slot),
            (Home::Narrow(slot), 2) => (store::<LOCAL, u32, u16, _>(|a: u32| a as u16), slot),
            (Home::Narrow(slot), 1) => (store::<LOCAL, u32, u8, _>(|a: u32| a as u8), slot),
            _ => return Err(Reason::Operands(format!("a parameter of {size} bytes in a register"))),
        };
        let mut inst = self.access(handler);
        inst.d[0] = slot;
        let inst = self.frame_access(inst, offset);
        self.push(inst);
        Ok(())
    }

    /// Appends a return.
    pub fn ret(&mut self) -> Result<()> {
        self.store_register_results()?;
        self.emit(Op::Return);
        Ok(())
    }
}
