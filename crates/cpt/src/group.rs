//! Which threads stop together.

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

/// Registers that never have another value than the mask of all lanes.
pub(crate) fn all_lanes(body: &Body) -> BitSet {
    let (mut all, mut others) = (BitSet::new(body.registers.len()), BitSet::new(body.registers.len()));
    for instruction in body.instructions() {
        let is_mask = instruction.opcode.mnemonic() == "mov"
            && instruction.guard.is_none()
            && instruction.operands.get(1).is_some_and(is_all_lanes);
        instruction.for_each_written(|register| {
            if is_mask { &mut all } else { &mut others }.insert(register.index());
        });
    }
    others.iter().for_each(|register| all.remove(register));
    all
}

fn is_all_lanes(operand: &Operand) -> bool {
    matches!(operand, Operand::Imm(Immediate::Int(mask)) if *mask as u32 == u32::MAX)
}

/// The threads that an instruction brings together, all of them that have not left; none if it does not. `all` are registers with the mask of all lanes.
pub(crate) fn brings_together(instruction: &Instruction, all: &BitSet) -> Option<Group> {
    let opcode = &instruction.opcode;
    let is_all = |mask: Option<&Operand>| match mask {
        Some(Operand::Reg(register)) => all.contains(register.index()),
        Some(mask) => is_all_lanes(mask),
        None => false,
    };
    match opcode.mnemonic() {
        "bar" | "barrier" if opcode.has("warp") => {
            is_all(instruction.operands.first()).then_some(Group::Warp)
        }
        "bar" | "barrier" => {
            // `barrier a, b` is for b threads of the block.
            let reduces = opcode.has("red");
            let operands = instruction.operands.len() - usize::from(reduces) * 2;
            (operands <= 1 && !opcode.has("arrive")).then_some(Group::Block)
        }
        "shfl" | "vote" | "match" | "redux" if opcode.has("sync") => {
            is_all(instruction.operands.last()).then_some(Group::Warp)
        }
        _ => None,
    }
}

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
