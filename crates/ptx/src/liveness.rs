//! Liveness: which registers still matter, and where.

use std::ops::Range;

use crate::{
    ast::{Body, RegId, Statement},
    bits::BitSet,
    cfg::{BlockId, Cfg, TooComplex},
};

/// Most bits of one set for each block.
const MAX_BITS: usize = 1 << 32;

/// Registers live at the borders of each block of a body.
///
/// Per thread, as PTX is written: a register is live where some path leads to a read of it with no write that is
/// sure to come before. A guarded write is not sure.
///
/// Most registers live and die inside one block, so the equations are solved for the others only.
#[derive(Clone, Debug)]
pub struct Liveness {
    registers: usize,
    /// The registers that can be live at a border; sets for borders hold indices into this.
    crossing: Vec<RegId>,
    live_in: Vec<BitSet>,
    live_out: Vec<BitSet>,
}

impl Liveness {
    /// Solves the data-flow equations of `body`, whose graph is `cfg`.
    ///
    /// # Errors
    /// When the solution would be larger than any sensible body's.
    pub fn new(body: &Body, cfg: &Cfg) -> Result<Self, TooComplex> {
        let crossing = crossing(body, cfg);
        if crossing.len().saturating_mul(cfg.blocks.len()) > MAX_BITS {
            return Err(TooComplex { what: "registers times basic blocks", limit: MAX_BITS });
        }
        let mut numbers = vec![None; body.registers.len()];
        for (number, reg) in crossing.iter().enumerate() {
            numbers[reg.index()] = Some(number);
        }
        let empty = || vec![BitSet::new(crossing.len()); cfg.blocks.len()];
        let (mut live_in, mut live_out) = (empty(), empty());
        let blocks = cfg.blocks.iter();
        let transfers: Vec<_> = blocks
            .map(|block| Transfer::of(body, block.statements.clone(), &numbers, crossing.len()))
            .collect();
        for (block, out) in cfg.blocks.iter().zip(&mut live_out) {
            if block.exits {
                body.returned().filter_map(|reg| numbers[reg.index()]).for_each(|number| out.insert(number));
            }
        }
        // Last blocks first; predecessors come back on the list when what they see changes.
        let mut listed = vec![true; cfg.blocks.len()];
        let mut work: Vec<usize> = (0..cfg.blocks.len()).collect();
        while let Some(index) = work.pop() {
            listed[index] = false;
            for successor in &cfg.blocks[index].successors {
                live_out[index].union_with(&live_in[successor.index()]);
            }
            let Transfer { uses, kills } = &transfers[index];
            if live_in[index].assign_transfer(&live_out[index], kills, uses) {
                for predecessor in &cfg.blocks[index].predecessors {
                    if !std::mem::replace(&mut listed[predecessor.index()], true) {
                        work.push(predecessor.index());
                    }
                }
            }
        }
        Ok(Self { registers: body.registers.len(), crossing, live_in, live_out })
    }

    /// Registers live before the first statement of the block.
    ///
    /// # Panics
    /// When `block` belongs to another body.
    pub fn live_in(&self, block: BlockId) -> BitSet {
        self.expand(&self.live_in[block.index()])
    }

    /// Registers live after the last statement of the block.
    ///
    /// # Panics
    /// When `block` belongs to another body.
    pub fn live_out(&self, block: BlockId) -> BitSet {
        self.expand(&self.live_out[block.index()])
    }

    fn expand(&self, numbers: &BitSet) -> BitSet {
        let mut set = BitSet::new(self.registers);
        numbers.iter().for_each(|number| set.insert(self.crossing[number].index()));
        set
    }

    /// Walks the block backwards; `visit` gets each statement's index and the registers live *after* it.
    ///
    /// # Panics
    /// When `block` belongs to another body.
    pub fn for_each_backward(
        &self,
        body: &Body,
        cfg: &Cfg,
        block: BlockId,
        mut visit: impl FnMut(usize, &BitSet),
    ) {
        let mut live = self.live_out(block);
        for index in cfg.blocks[block.index()].statements.clone().rev() {
            visit(index, &live);
            step_back(&body.statements[index], &mut live);
        }
    }

    /// Registers live before the statement, e.g. what has to be saved to stop a thread there.
    ///
    /// # Panics
    /// When `block` belongs to another body, or `statement` to another block.
    pub fn live_before(&self, body: &Body, cfg: &Cfg, block: BlockId, statement: usize) -> BitSet {
        let range = cfg.blocks[block.index()].statements.clone();
        assert!(range.contains(&statement), "statement {statement} is not in block {}", block.0);
        let mut live = self.live_out(block);
        (statement..range.end).rev().for_each(|index| step_back(&body.statements[index], &mut live));
        live
    }
}

/// What lies before a statement, from what lies after it.
fn step_back(statement: &Statement, live: &mut BitSet) {
    let Statement::Instruction(instruction) = statement else { return };
    let sure = instruction.guard.is_none();
    instruction.for_each_register(|reg, access| {
        if sure && access.writes() {
            live.remove(reg.index());
        }
    });
    instruction.for_each_register(|reg, access| {
        if access.reads() {
            live.insert(reg.index());
        }
    });
}

/// Registers that some block reads before it is sure to have written them, and those a function returns.
fn crossing(body: &Body, cfg: &Cfg) -> Vec<RegId> {
    let mut exposed = BitSet::new(body.registers.len());
    body.returned().for_each(|reg| exposed.insert(reg.index()));
    // The last block (plus one) that was seen to write a register.
    let mut written = vec![0; body.registers.len()];
    for (number, block) in (1..).zip(&cfg.blocks) {
        for statement in &body.statements[block.statements.clone()] {
            let Statement::Instruction(instruction) = statement else { continue };
            instruction.for_each_register(|reg, access| {
                if access.reads() && written[reg.index()] != number {
                    exposed.insert(reg.index());
                }
            });
            if instruction.guard.is_some() {
                continue;
            }
            instruction.for_each_register(|reg, access| {
                if access.writes() {
                    written[reg.index()] = number;
                }
            });
        }
    }
    exposed.registers().collect()
}

/// A block's effect: `live_in = uses ∪ (live_out ∖ kills)`.
struct Transfer {
    uses: BitSet,
    kills: BitSet,
}

impl Transfer {
    fn of(body: &Body, statements: Range<usize>, numbers: &[Option<usize>], crossing: usize) -> Self {
        let (mut uses, mut kills) = (BitSet::new(crossing), BitSet::new(crossing));
        for statement in body.statements[statements].iter().rev() {
            let Statement::Instruction(instruction) = statement else { continue };
            if instruction.guard.is_none() {
                instruction.for_each_register(|reg, access| {
                    if let Some(number) = numbers[reg.index()].filter(|_| access.writes()) {
                        kills.insert(number);
                        uses.remove(number);
                    }
                });
            }
            instruction.for_each_register(|reg, access| {
                if let Some(number) = numbers[reg.index()].filter(|_| access.reads()) {
                    uses.insert(number);
                }
            });
        }
        Self { uses, kills }
    }
}

impl BitSet {
    /// The set as registers.
    pub fn registers(&self) -> impl Iterator<Item = RegId> {
        self.iter().map(|index| RegId(index as u32))
    }
}
