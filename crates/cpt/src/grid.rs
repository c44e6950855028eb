//! Barriers of the whole grid, as cooperative groups make them (`cooperative_groups/details/sync.h`): between two barriers of the block one of its threads adds to a word, whose address the driver tells in `%envreg1` and
//! `%envreg2`, and waits until that word's highest bit has changed.
//!
//! Of a grid all blocks have to stop behind the same one of these, since others would wait at the next one for ever. So that is where threads stop, whichever place in the same loop the marks are at.

use std::collections::BTreeSet;

use ptx::ast::{AddressBase, Body, Instruction, Operand, RegId, SpecialRegister, Statement};
use ptx::{BitSet, BlockId, Cfg};

use crate::graph::{Dominators, Graph, Loops};
use crate::marker::{MARK, markers};
use crate::{Reason, poll::is_plain};

/// A kernel that has such barriers.
pub(crate) struct Grid {
    /// Statements of the body that [`Grid::of`] makes: they stand before those by which a block arrives, and are to be replaced.
    pub(crate) arrivals: Vec<usize>,
    /// Registers with the word's address, or with what was in it.
    registers: BitSet,
}

/// Registers by which a barrier of the grid is found, and the instructions that use it.
struct Word {
    addresses: BitSet,
    contents: BitSet,
    arrivals: Vec<usize>,
    waits: Vec<usize>,
}

impl Grid {
    /// Those of a kernel, if it has any, and its body with its marks behind them.
    ///
    /// # Errors
    /// The statement, and why threads cannot stop there: it is none of cooperative groups', or a mark is not in a loop with one.
    pub(crate) fn of(body: &Body) -> Result<Option<(Body, Self)>, (usize, Reason)> {
        let word = Word::of(body)?;
        if word.arrivals.is_empty() && word.waits.is_empty() {
            return Ok(None);
        }
        let first = word.waits.first().or(word.arrivals.first()).copied().unwrap_or_default();
        let cfg = Cfg::new(body).map_err(|error| (first, error.into()))?;
        let graph = Graph::of_blocks(&cfg);
        let dominators = Dominators::of(&graph, 0);
        let mut ends = BTreeSet::new();
        for wait in &word.waits {
            ends.insert(end_of(body, &cfg, &dominators, *wait).ok_or((*wait, Reason::State(OTHER)))?);
        }
        let (loops, marks) = (Loops::of(&graph, 0), markers(body));
        let block_of = |statement: usize| cfg.block_at(statement).index();
        let is_beside = |mark: usize| {
            let within = loops.innermost[block_of(mark)];
            ends.iter().any(|end| within.is_none_or(|within| loops.is_in(block_of(*end), within)))
        };
        if let Some(mark) = marks.iter().find(|mark| !is_beside(**mark)) {
            return Err((*mark, Reason::BesideGrid));
        }
        let (mut made, mut arrivals) = (Vec::with_capacity(body.statements.len()), Vec::new());
        for (at, statement) in body.statements.iter().enumerate() {
            if word.arrivals.binary_search(&at).is_ok() {
                arrivals.push(made.len());
                made.push(Statement::Pragma(vec![ARRIVAL.into()]));
            }
            if marks.binary_search(&at).is_err() {
                made.push(statement.clone());
            }
            if ends.contains(&at) {
                made.push(Statement::Pragma(vec![MARK.into()]));
            }
        }
        let Word { addresses: mut registers, contents, .. } = word;
        contents.iter().for_each(|register| registers.insert(register));
        Ok(Some((Body { statements: made, ..body.clone() }, Self { arrivals, registers })))
    }

    /// Whether a register has to do with a launch's own word: it says nothing to the next launch.
    pub(crate) fn has(&self, register: RegId) -> bool {
        self.registers.contains(register.index())
    }
}

/// Stands before an arrival in a body that was looked at.
const ARRIVAL: &str = "arrival";
const OTHER: &str = "a barrier of the whole grid (%envreg) that is not one of cooperative groups'";

impl Word {
    fn of(body: &Body) -> Result<Self, (usize, Reason)> {
        let none = || BitSet::new(body.registers.len());
        let mut word = Self { addresses: none(), contents: none(), arrivals: Vec::new(), waits: Vec::new() };
        let mut is_known = false;
        while !is_known {
            is_known = true;
            for instruction in body.instructions() {
                if !computes(instruction) || !word.reads(instruction) {
                    continue;
                }
                instruction.for_each_written(|register| {
                    is_known &= word.addresses.contains(register.index());
                    word.addresses.insert(register.index());
                });
            }
        }
        for (at, statement) in body.statements.iter().enumerate() {
            let Statement::Instruction(instruction) = statement else { continue };
            if computes(instruction) || !word.reads(instruction) {
                continue;
            }
            let opcode = &instruction.opcode;
            match opcode.mnemonic() {
                // Whether there is one is all that they ask.
                "setp" => continue,
                "atom" if is_access(instruction) && opcode.has("add") => word.arrivals.push(at),
                "ld" if is_access(instruction) && (opcode.has("acquire") || opcode.has("volatile")) => {
                    word.waits.push(at);
                }
                _ => return Err((at, Reason::State(OTHER))),
            }
            instruction.for_each_written(|register| word.contents.insert(register.index()));
        }
        Ok(word)
    }

    /// Whether an instruction reads the word's address.
    fn reads(&self, instruction: &Instruction) -> bool {
        let mut found = reads_workspace(instruction);
        instruction.for_each_register(|register, access| {
            found |= access.reads() && self.addresses.contains(register.index());
        });
        found
    }
}

/// Whether an instruction reads where the driver says that the word is.
pub(crate) fn reads_workspace(instruction: &Instruction) -> bool {
    let is = |operand: &Operand| matches!(operand, Operand::Special(SpecialRegister::EnvReg(1 | 2)));
    instruction.operands.iter().any(is)
}

/// Whether what it writes may be an address, made of what it reads.
fn computes(instruction: &Instruction) -> bool {
    matches!(
        instruction.opcode.mnemonic(),
        "mov" | "cvt" | "cvta" | "bfi" | "shl" | "or" | "add" | "sub" | "mad" | "selp" | "prmt"
    )
}

/// Whether it reads or changes one word of 32 bits that all threads of the device see, by all threads that come to it.
fn is_access(instruction: &Instruction) -> bool {
    let opcode = &instruction.opcode;
    let at_word = |operand: &Operand| matches!(operand, Operand::Address(address) if matches!(address.base, AddressBase::Reg(_)));
    opcode.has("u32")
        && !opcode.has("cta")
        && instruction.guard.is_none()
        && instruction.operands.get(1).is_some_and(at_word)
}

/// The barrier of the block that ends the one of the grid at which a block waits: the first that is come to behind that, whatever way.
fn end_of(body: &Body, cfg: &Cfg, dominators: &Dominators, wait: usize) -> Option<usize> {
    let of_block = |statement: usize| match &body.statements[statement] {
        Statement::Instruction(instruction) => is_plain(instruction),
        _ => false,
    };
    let block = cfg.block_at(wait);
    let mut ends = BTreeSet::new();
    let mut seen = BitSet::new(cfg.blocks.len());
    let mut ahead = vec![(block, wait + 1)];
    while let Some((block, from)) = ahead.pop() {
        let within = &cfg.blocks[block.index()];
        if let Some(end) = (from..within.statements.end).find(|at| of_block(*at)) {
            ends.insert(end);
            continue;
        }
        if within.successors.is_empty() {
            return None;
        }
        for next in within.successors.iter().filter(|next| !seen.contains(next.index())) {
            ahead.push((*next, cfg.blocks[next.index()].statements.start));
        }
        within.successors.iter().for_each(|next| seen.insert(next.index()));
    }
    let end = ends.pop_first().filter(|_| ends.is_empty())?;
    // It must be that barrier's alone.
    let begin = last_before(cfg, dominators, (block, wait), of_block)?;
    let end_block = cfg.block_at(end);
    let is_behind = match cfg.block_at(begin) {
        same if same == end_block => begin < end,
        begin => dominators.dominates(begin.index(), end_block.index()),
    };
    is_behind.then_some(end)
}

/// The last such statement that all ways to another one lead over.
fn last_before(
    cfg: &Cfg,
    dominators: &Dominators,
    (block, before): (BlockId, usize),
    is_such: impl Fn(usize) -> bool,
) -> Option<usize> {
    let (mut block, mut end) = (block.index(), before);
    loop {
        if let Some(found) = (cfg.blocks[block].statements.start..end).rev().find(|at| is_such(*at)) {
            return Some(found);
        }
        let next = dominators.next[block].filter(|next| *next != block)?;
        (block, end) = (next, cfg.blocks[next].statements.end);
    }
}
