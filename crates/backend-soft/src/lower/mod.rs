//! From the syntax tree of a function to its pre-decoded form.

mod allocate;
mod calls;
mod homes;
mod operands;

pub use homes::{Env, Home, SymbolHome, is_dynamic_shared, lay_out, shared_locals};
pub use operands::rows;

use std::collections::HashMap;
use std::sync::Arc;

use ptx::ast::{Body, FunctionKind, Instruction, Operand, ScalarType, Statement};

use crate::exec::{Access, CallSite, Compute, Condition, Function, Inst, Op, Place, Pred, Row, Slot};
use crate::isa;

/// Why an instruction cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// The device has no such instruction (yet).
    #[error("the software device does not support {0}")]
    Unsupported(String),
    /// Its operands are not what it takes.
    #[error("{0}: operands do not fit the instruction")]
    Operands(String),
    /// It names something that is not in the module.
    #[error("{0} is not defined in the module")]
    Undefined(String),
    /// It is too large.
    #[error("{0}")]
    TooLarge(&'static str),
}

/// A function cannot be carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{function}, line {line} of the PTX: {reason}")]
pub struct LowerError {
    /// Its name.
    pub function: Arc<str>,
    /// Line of the PTX text.
    pub line: u32,
    /// Why.
    pub reason: Reason,
}

type Result<T> = std::result::Result<T, Reason>;

/// Pre-decodes a function that has a body.
///
/// # Errors
/// With the first instruction that the device does not support.
pub fn lower(
    env: &Env<'_>,
    function: &ptx::ast::Function,
    body: &Body,
) -> std::result::Result<Function, LowerError> {
    let name: Arc<str> = Arc::from(function.name.as_str());
    let mut line = 0;
    let lowered = Lower::new(env, function, body).and_then(|mut lower| {
        lower.statements(&mut line)?;
        lower.finish(name.clone())
    });
    lowered.map_err(|reason| LowerError { function: name, line, reason })
}

/// A function being lowered.
pub struct Lower<'a> {
    env: &'a Env<'a>,
    function: &'a ptx::ast::Function,
    body: &'a Body,
    homes: Vec<Home>,
    locals: Vec<SymbolHome>,
    params: Vec<Place>,
    returns: Vec<Place>,
    code: Vec<Inst>,
    consts: Vec<Row>,
    known: HashMap<(u64, usize), Slot>,
    calls: Vec<CallSite>,
    tables: Vec<Vec<u32>>,
    labels: Vec<Option<u32>>,
    rows: usize,
    scratch: usize,
    most_scratch: usize,
    preds: usize,
    local_bytes: u64,
    guard: Condition,
    line: u32,
}

impl<'a> Lower<'a> {
    fn statements(&mut self, line: &mut u32) -> Result<()> {
        self.load_register_params()?;
        for statement in &self.body.statements {
            match statement {
                Statement::Label(label) => self.labels[label.index()] = Some(self.code.len() as u32),
                Statement::Instruction(instruction) => {
                    *line = instruction.line;
                    self.instruction(instruction)?;
                }
                Statement::Pragma(_) | Statement::Loc(_) => {}
            }
        }
        Ok(())
    }

    fn instruction(&mut self, instruction: &Instruction) -> Result<()> {
        self.line = instruction.line;
        self.scratch = 0;
        self.guard = match &instruction.guard {
            None => Condition::ALWAYS,
            Some(guard) => Condition { pred: self.pred_home(guard.reg)?, negated: guard.negated },
        };
        isa::lower(self, instruction)
    }

    fn finish(mut self, name: Arc<str>) -> Result<Function> {
        self.guard = Condition::ALWAYS;
        self.emit(Op::Return);
        let place = |label: u32| -> Result<u32> {
            let target = self.labels.get(label as usize).copied().flatten();
            target.ok_or_else(|| Reason::Undefined(self.body.labels[label as usize].to_string()))
        };
        let mut code = std::mem::take(&mut self.code);
        for inst in &mut code {
            if let Op::Branch(label) = inst.op {
                inst.op = Op::Branch(place(label)?);
            }
        }
        let table = |table: &Vec<u32>| table.iter().map(|label| place(*label)).collect::<Result<Vec<_>>>();
        let tables = self.tables.iter().map(table).collect::<Result<Vec<_>>>()?;
        let rows = self.rows.next_multiple_of(2) + self.most_scratch;
        if i32::try_from(rows).is_err() || i32::try_from(self.consts.len()).is_err() {
            return Err(Reason::TooLarge("the function has too many registers"));
        }
        Ok(Function {
            name,
            code,
            rows,
            preds: self.preds,
            consts: self.consts,
            local_bytes: self.local_bytes,
            params: self.params,
            returns: self.returns,
            calls: self.calls,
            tables,
        })
    }

    /// Whether a kernel is being lowered.
    pub fn is_kernel(&self) -> bool {
        self.function.kind == FunctionKind::Entry
    }

    /// An instruction with the current guard, to be filled in.
    pub fn inst(&self, op: Op) -> Inst {
        let nothing = Slot::constant(0);
        Inst {
            op,
            guard: self.guard,
            d: [nothing; 4],
            s: [nothing; 4],
            p: [Pred::SINK; 2],
            c: [Condition::ALWAYS; 2],
            imm: 0,
            mode: 0,
            width: 1,
            line: self.line,
        }
    }

    /// Appends an instruction without operands.
    pub fn emit(&mut self, op: Op) {
        let inst = self.inst(op);
        self.code.push(inst);
    }

    /// Appends an instruction.
    pub fn push(&mut self, inst: Inst) {
        self.code.push(inst);
    }

    /// Appends an instruction that computes `operands[0]`, of type `d`, from the operands behind it, of types `s`.
    pub fn compute(
        &mut self,
        instruction: &Instruction,
        handler: Compute,
        d: ScalarType,
        s: &[ScalarType],
    ) -> Result<()> {
        let [first, rest @ ..] = instruction.operands.as_slice() else { return Err(wrong(instruction)) };
        if rest.len() != s.len() || s.len() > 4 {
            return Err(wrong(instruction));
        }
        let mut inst = self.inst(Op::Compute(handler));
        for (index, (operand, ty)) in rest.iter().zip(s).enumerate() {
            inst.s[index] = self.src(operand, *ty)?;
        }
        let (slot, after) = self.dst(first, d)?;
        inst.d[0] = slot;
        self.push(inst);
        self.finish_dst(after);
        Ok(())
    }

    /// Appends a move between two slots of one or two rows.
    pub fn copy(&mut self, to: Slot, from: Slot, handler: Compute) {
        let mut inst = self.inst(Op::Compute(handler));
        inst.d[0] = to;
        inst.s[0] = from;
        self.push(inst);
    }

    /// Appends a memory access.
    pub fn access(&mut self, handler: Access) -> Inst {
        self.inst(Op::Access(handler))
    }

    /// The operand with that index.
    pub fn operand<'b>(&self, instruction: &'b Instruction, index: usize) -> Result<&'b Operand> {
        instruction.operands.get(index).ok_or_else(|| wrong(instruction))
    }
}

/// The device has no such instruction.
pub fn unsupported(instruction: &Instruction) -> Reason {
    Reason::Unsupported(instruction.opcode.to_string())
}

/// The operands are not what the instruction takes.
pub fn wrong(instruction: &Instruction) -> Reason {
    Reason::Operands(instruction.opcode.to_string())
}
