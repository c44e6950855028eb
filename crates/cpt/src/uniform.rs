//! Whether all threads of a group come to a place together.

use std::collections::BTreeSet;

use ptx::ast::{Address, AddressBase, Body, Instruction, Operand, SpecialRegister, Statement, Symbol};
use ptx::{BitSet, BlockId, Cfg};

use crate::Group;
use crate::control::{Control, Edge};
use crate::group::{all_lanes, brings_together};

/// What differs from thread to thread of a group.
///
/// The way to a barrier is taken to be that of all threads that have not left: the program would be wrong otherwise.
pub(crate) struct Divergence {
    /// Blocks that are not executed by all threads, or not as often by all.
    blocks: BitSet,
}

impl Divergence {
    pub(crate) fn of(body: &Body, cfg: &Cfg, control: &Control, group: Group) -> Self {
        let (mut kept, all) = (BTreeSet::new(), all_lanes(body));
        for (number, block) in cfg.blocks.iter().enumerate() {
            let brings = |statement: &Statement| match statement {
                Statement::Instruction(instruction) if instruction.guard.is_none() => {
                    brings_together(instruction, &all).is_some_and(|threads| threads >= group)
                }
                _ => false,
            };
            if body.statements[block.statements.clone()].iter().any(brings) {
                kept.extend(control.deciders(BlockId(number as u32)));
            }
        }
        let mut found = Search { group, registers: BitSet::new(body.registers.len()), changed: true };
        let (mut blocks, mut branches) = (BitSet::new(cfg.blocks.len()), BitSet::new(cfg.blocks.len()));
        while std::mem::take(&mut found.changed) {
            for (number, block) in cfg.blocks.iter().enumerate() {
                let differs =
                    |way: &Edge| blocks.contains(way.0) || branches.contains(way.0) && !kept.contains(way);
                if !blocks.contains(number) && control.direct(number).iter().any(differs) {
                    blocks.insert(number);
                    found.changed = true;
                }
                for statement in &body.statements[block.statements.clone()] {
                    if let Statement::Instruction(instruction) = statement {
                        found.step(instruction, blocks.contains(number));
                    }
                }
                let last = body.statements[block.statements.clone()].last();
                if let Some(Statement::Instruction(instruction)) = last
                    && block.successors.len() + usize::from(block.exits) > 1
                    && !branches.contains(number)
                    && found.reads_divergent(instruction)
                {
                    branches.insert(number);
                    found.changed = true;
                }
            }
        }
        Self { blocks }
    }

    /// Whether all threads that have not left execute a block together, and as often.
    pub(crate) fn is_uniform(&self, block: BlockId) -> bool {
        !self.blocks.contains(block.index())
    }
}

struct Search {
    group: Group,
    /// Registers whose value may differ.
    registers: BitSet,
    changed: bool,
}

impl Search {
    /// Finds out what an instruction makes differ.
    fn step(&mut self, instruction: &Instruction, divergent: bool) {
        if !(divergent || self.makes_divergent(instruction) || self.reads_divergent(instruction)) {
            return;
        }
        let (registers, changed) = (&mut self.registers, &mut self.changed);
        instruction.for_each_register(|register, access| {
            if access.writes() && !registers.contains(register.index()) {
                registers.insert(register.index());
                *changed = true;
            }
        });
    }

    fn reads_divergent(&self, instruction: &Instruction) -> bool {
        // One value for the whole block, whatever each thread gives.
        if is_of_block(instruction) {
            return instruction.guard.is_some_and(|guard| self.registers.contains(guard.reg.index()));
        }
        let mut found = false;
        instruction.for_each_register(|register, access| {
            found |= access.reads() && self.registers.contains(register.index());
        });
        found
    }

    /// Whether an instruction has different results for different threads, whatever it reads.
    fn makes_divergent(&self, instruction: &Instruction) -> bool {
        let opcode = &instruction.opcode;
        let from_memory = match opcode.mnemonic() {
            // Results of functions are in this space, too.
            "ld" if opcode.has("param") => !instruction.operands.iter().any(is_parameter),
            "ld" => !(opcode.has("const") || opcode.has("nc")),
            "ldu" => false,
            "bar" | "barrier" => !is_of_block(instruction),
            "atom"
            | "call"
            | "shfl"
            | "vote"
            | "match"
            | "redux"
            | "activemask"
            | "elect"
            | "tex"
            | "tld4"
            | "suld"
            | "mma"
            | "wmma"
            | "ldmatrix"
            | "movmatrix"
            | "clusterlaunchcontrol"
            | "isspacep" => true,
            _ => false,
        };
        from_memory || instruction.operands.iter().any(|operand| self.is_of_thread(operand))
    }

    fn is_of_thread(&self, operand: &Operand) -> bool {
        use SpecialRegister as Special;
        match operand {
            Operand::Special(special) => match special {
                Special::Tid(_)
                | Special::LaneId
                | Special::LaneMaskEq
                | Special::LaneMaskLe
                | Special::LaneMaskLt
                | Special::LaneMaskGe
                | Special::LaneMaskGt
                | Special::Clock
                | Special::ClockHi
                | Special::Clock64
                | Special::GlobalTimer
                | Special::GlobalTimerLo
                | Special::GlobalTimerHi
                | Special::Pm(_)
                | Special::Pm64(_) => true,
                Special::WarpId => self.group == Group::Block,
                _ => false,
            },
            Operand::Vector(all) => all.iter().any(|one| self.is_of_thread(one)),
            _ => false,
        }
    }
}

/// Whether it is what the kernel was launched with.
fn is_parameter(operand: &Operand) -> bool {
    matches!(operand, Operand::Address(Address { base: AddressBase::Symbol(Symbol::Param(_)), .. }))
}

/// Whether it has one result for all threads of a block.
fn is_of_block(instruction: &Instruction) -> bool {
    matches!(instruction.opcode.mnemonic(), "bar" | "barrier")
        && instruction.opcode.has("red")
        && brings_together(instruction, &BitSet::new(0)) == Some(Group::Block)
}
