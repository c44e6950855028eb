//! Which threads stop together.

use std::collections::BTreeMap;

use ptx::BitSet;
use ptx::ast::{Body, Immediate, Instruction, Operand};

/// The threads that have to decide alike whether they stop at a marker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Group {
    /// Each for itself: nothing in the kernel brings them together.
    Thread,
    /// Those of a warp: it exchanges values between them, or all of them come to each mark anyway.
    Warp,
    /// Those of a block: it has barriers, or shared memory.
    Block,
    /// All that there are: the kernel has barriers of the whole grid.
    Grid,
}

impl Group {
    /// What of a kernel makes it this one.
    pub(crate) fn why(self) -> &'static str {
        match self {
            Self::Thread => "without barriers",
            Self::Warp => "with operations of a warp",
            Self::Block => "with barriers or shared memory",
            Self::Grid => "with barriers of the whole grid",
        }
    }
}

impl std::fmt::Display for Group {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Thread => "thread",
            Self::Warp => "warp",
            Self::Block => "block",
            Self::Grid => "grid",
        })
    }
}

/// Registers that never have another value than one number.
pub(crate) struct Constants(BTreeMap<usize, u32>);

impl Constants {
    pub(crate) fn of(body: &Body) -> Self {
        let (mut found, mut others) = (BTreeMap::new(), BitSet::new(body.registers.len()));
        for instruction in body.instructions() {
            let is_move = instruction.opcode.mnemonic() == "mov" && instruction.guard.is_none();
            let number = match &instruction.operands[..] {
                [_, Operand::Imm(Immediate::Int(number))] if is_move => Some(*number as u32),
                _ => None,
            };
            instruction.for_each_written(|register| {
                let register = register.index();
                if number.is_none_or(|number| *found.entry(register).or_insert(number) != number) {
                    others.insert(register);
                }
            });
        }
        found.retain(|register, _| !others.contains(*register));
        Self(found)
    }

    fn is(&self, operand: Option<&Operand>, number: u32) -> bool {
        match operand {
            Some(Operand::Imm(Immediate::Int(known))) => *known as u32 == number,
            Some(Operand::Reg(register)) => self.0.get(&register.index()) == Some(&number),
            _ => false,
        }
    }
}

/// Whether it is a barrier of the whole block: all its threads that have not left come to it together.
pub(crate) fn is_barrier(instruction: &Instruction) -> bool {
    let opcode = &instruction.opcode;
    // `barrier a, b` is for b threads of the block.
    let operands = instruction.operands.len().saturating_sub(usize::from(opcode.has("red")) * 2);
    matches!(opcode.mnemonic(), "bar" | "barrier")
        && operands <= 1
        && !["warp", "arrive"].iter().any(|other| opcode.has(other))
}

/// Whether it has one result for all threads of a warp that execute it together, whatever each of them gives: but for the lane that a value is taken of, which
/// they have to agree on.
pub(crate) fn tells_warp(instruction: &Instruction, constants: &Constants) -> bool {
    let opcode = &instruction.opcode;
    let is_of_all = opcode.has("sync") && constants.is(instruction.operands.last(), u32::MAX);
    is_of_all
        && match opcode.mnemonic() {
            "vote" | "redux" => true,
            "match" => opcode.has("all"),
            "shfl" => opcode.has("idx") && constants.is(instruction.operands.get(3), LAST_LANE),
            _ => false,
        }
}

/// What bounds the lanes of `shfl.sync` where they are those of the whole warp.
const LAST_LANE: u32 = 31;

/// The threads that an instruction may bring together, as many of them as that may be; that of a call is not known here.
pub(crate) fn may_bring_together(instruction: &Instruction) -> Group {
    match instruction.opcode.mnemonic() {
        "bar" | "barrier" if !instruction.opcode.has("warp") => Group::Block,
        "bar" | "barrier" | "shfl" | "vote" | "match" | "redux" | "activemask" | "elect" | "mma" | "wmma"
        | "ldmatrix" | "stmatrix" | "movmatrix" => Group::Warp,
        _ => Group::Thread,
    }
}

/// The same of a whole body.
pub(crate) fn of_body(body: &Body) -> Group {
    body.instructions().map(may_bring_together).max().unwrap_or(Group::Thread)
}

/// Whether a thread may wait for another one of its warp, by memory: for a lock, or a flag. It would wait for ever for one that is at a mark, until all are.
pub(crate) fn may_wait_for_others(body: &Body) -> bool {
    let mut read = BitSet::new(body.registers.len());
    for instruction in body.instructions() {
        instruction.for_each_register(|register, access| {
            if access.reads() {
                read.insert(register.index());
            }
        });
    }
    body.instructions().any(|instruction| {
        let opcode = &instruction.opcode;
        match opcode.mnemonic() {
            "atom" => {
                let mut is_read = false;
                instruction.for_each_written(|register| is_read |= read.contains(register.index()));
                is_read
            }
            "ld" => ["volatile", "relaxed", "acquire", "mmio"].iter().any(|kind| opcode.has(kind)),
            _ => false,
        }
    })
}
