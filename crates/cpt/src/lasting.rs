//! Values that are the same however often a kernel is launched with the same arguments: what follows from its parameters, from constants, and from the thread's own number. They are computed again where a thread goes on,
//! not saved: frames are smaller, and `ptxas` sees that trip counts are the same for all threads, as it does in the kernel without marks.

use ptx::BitSet;
use ptx::ast::{Body, Instruction, Operand, RegId, SpecialRegister};

use crate::uniform::{is_parameter, is_place_in_block};

/// Opcodes whose result depends on nothing but what they read, and that do nothing else.
const PURE: [&str; 49] = [
    "abs", "add", "and", "bfe", "bfi", "bfind", "bmsk", "brev", "clz", "cnot", "copysign", "cos", "cvt",
    "cvta", "div", "ex2", "fma", "fns", "lg2", "lop3", "mad", "mad24", "max", "min", "mov", "mul", "mul24",
    "neg", "not", "or", "popc", "prmt", "rcp", "rem", "rsqrt", "sad", "selp", "set", "setp", "shf", "shl",
    "shr", "sin", "slct", "sqrt", "sub", "szext", "testp", "xor",
];

/// What a twin computes before anything else.
pub(crate) struct Lasting {
    /// The statements that do, each behind those whose results it reads.
    pub(crate) statements: Vec<usize>,
    registers: BitSet,
}

impl Lasting {
    /// What of `wanted`, and what it takes to compute that, lasts.
    pub(crate) fn of(body: &Body, wanted: &[Vec<RegId>]) -> Self {
        let writers = sole_writers(body);
        // For each instruction that may be one: of how many registers that it reads nothing is known yet, and for each register who reads it.
        let mut missing = vec![0usize; body.statements.len()];
        let mut readers: Vec<Vec<(usize, &Instruction)>> = vec![Vec::new(); body.registers.len()];
        let mut ready = Vec::new();
        for (at, instruction) in body.numbered_instructions() {
            let mut is_only_writer = true;
            instruction.for_each_written(|register| is_only_writer &= writers[register.index()] == Some(at));
            if !is_only_writer || !is_pure(instruction) {
                continue;
            }
            instruction.for_each_register(|register, access| {
                if access.reads() {
                    missing[at] += 1;
                    readers[register.index()].push((at, instruction));
                }
            });
            if missing[at] == 0 {
                ready.push((at, instruction));
            }
        }
        let mut lasting = Vec::new();
        while let Some((at, instruction)) = ready.pop() {
            lasting.push((at, instruction));
            instruction.for_each_written(|register| {
                for &(reader, instruction) in &readers[register.index()] {
                    missing[reader] -= 1;
                    if missing[reader] == 0 {
                        ready.push((reader, instruction));
                    }
                }
            });
        }
        let mut needed = BitSet::new(body.registers.len());
        wanted.iter().flatten().for_each(|register| needed.insert(register.index()));
        let mut found = Self { statements: Vec::new(), registers: BitSet::new(body.registers.len()) };
        for (at, instruction) in lasting.into_iter().rev() {
            let mut is_needed = false;
            instruction.for_each_written(|register| is_needed |= needed.contains(register.index()));
            if is_needed {
                found.statements.push(at);
                instruction.for_each_register(|register, _| needed.insert(register.index()));
                instruction.for_each_written(|register| found.registers.insert(register.index()));
            }
        }
        found.statements.reverse();
        found
    }

    /// Whether it is computed again.
    pub(crate) fn has(&self, register: RegId) -> bool {
        self.registers.contains(register.index())
    }
}

/// For each register the statement that writes it, if there is one alone.
fn sole_writers(body: &Body) -> Vec<Option<usize>> {
    let (mut writers, mut written) = (vec![None; body.registers.len()], BitSet::new(body.registers.len()));
    for (at, instruction) in body.numbered_instructions() {
        instruction.for_each_written(|register| {
            let register = register.index();
            writers[register] = (!written.contains(register)).then_some(at);
            written.insert(register);
        });
    }
    writers
}

/// Whether what it computes depends on registers, the launch and the thread's place in it alone.
fn is_pure(instruction: &Instruction) -> bool {
    let opcode = &instruction.opcode;
    let is_known = match opcode.mnemonic() {
        "ld" => opcode.has("param") && instruction.operands.iter().any(is_parameter),
        mnemonic => PURE.binary_search(&mnemonic).is_ok(),
    };
    is_known && instruction.guard.is_none() && !opcode.has("cc") && instruction.operands.iter().all(lasts)
}

/// Whether an operand is the same each time, as far as it is no register.
fn lasts(operand: &Operand) -> bool {
    use SpecialRegister as Special;
    match operand {
        Operand::Special(special) => {
            // Where a grid has its barrier is another place each time, and told anew.
            matches!(
                special,
                Special::Ntid(_) | Special::Ctaid(_) | Special::Nctaid(_) | Special::EnvReg(1 | 2)
            ) || is_place_in_block(special)
        }
        Operand::Vector(all) => all.iter().all(lasts),
        _ => true,
    }
}
