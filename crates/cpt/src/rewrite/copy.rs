//! Copies of what follows a kernel's marks, for threads that come there in another way than from the mark before.
//!
//! A loop that can be entered in its middle is none that `ptxas` knows: it would neither see that its rounds are the same for all threads of a warp, nor do much else for it. So threads that go on half-way do so in a copy, which leads back
//! into the kernel where that comes to the beginning of an outermost loop with a mark; and those that were to stop and found no room, in another, which never leads back, since `ptxas` takes them for threads that have parted. Threads that poll apart go on in the
//! first, too.

use std::collections::{BTreeMap, BTreeSet};

use ptx::ast::{Body, BranchTable, BranchTableId, LabelId, Operand, Statement};
use ptx::{BitSet, BlockId, Cfg};

use super::Form;
use crate::additions::{made, push_label, renamed};
use crate::graph::{Graph, Loops};

/// Which code it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Part {
    /// The kernel's own.
    Kernel,
    /// The copy for threads that go on half-way, or have polled apart.
    Again,
    /// The copy for threads that found no room to stop; there are no polls in it.
    Rest,
}

impl Part {
    /// What labels behind marks begin with.
    pub(super) fn label(self) -> &'static str {
        match self {
            Self::Kernel => "on",
            Self::Again => "go",
            Self::Rest => "rest",
        }
    }
}

/// A piece of the copy.
pub(super) enum Piece {
    /// The statement of that number, as it is rewritten.
    Rewritten(usize),
    /// One of its own.
    Own(Statement),
}

/// The copy of what follows the marks. Its labels are added to the body, with names that begin with `tag`.
pub(super) fn copy(
    body: &mut Body,
    cfg: &Cfg,
    marks: &[usize],
    (part, form, tag): (Part, Form, &str),
) -> Vec<Piece> {
    let entered = entered(body, cfg, marks, (part, form));
    let mut labels: Vec<Option<LabelId>> = vec![None; body.labels.len()];
    for at in entered.iter().flat_map(|block| cfg.blocks[block].statements.clone()) {
        if let Statement::Label(label) = body.statements[at] {
            let name = renamed(body.label(label), &format!("{tag}{}_", part.label()));
            labels[label.index()] = Some(push_label(body, name));
        }
    }
    let used = body.instructions().flat_map(|instruction| &instruction.operands);
    let used: BTreeSet<usize> =
        used.filter_map(|operand| table(operand).map(|table| table.index())).collect();
    let mut tables: BTreeMap<usize, BranchTableId> = BTreeMap::new();
    for table in used {
        let BranchTable { name, targets } = &body.branch_tables[table];
        let name = renamed(name, &format!("{tag}{}_", part.label()));
        let targets = targets.iter().map(|label| labels[label.index()].unwrap_or(*label)).collect();
        tables.insert(table, BranchTableId(body.branch_tables.len() as u32));
        body.branch_tables.push(BranchTable { name, targets });
    }
    let mut pieces = Vec::new();
    for (number, block) in cfg.blocks.iter().enumerate() {
        let mark = marks.get(marks.partition_point(|mark| *mark < block.statements.start));
        let begin = match mark.filter(|mark| **mark < block.statements.end) {
            _ if entered.contains(number) => block.statements.start,
            Some(mark) => *mark,
            None => continue,
        };
        pieces.extend((begin..block.statements.end).map(|at| match &body.statements[at] {
            Statement::Label(label) => Piece::Own(Statement::Label(labels[label.index()].unwrap_or(*label))),
            Statement::Instruction(branch) if matches!(branch.opcode.mnemonic(), "bra" | "brx") => {
                let mut branch = branch.clone();
                for operand in &mut branch.operands {
                    match operand {
                        Operand::Label(label) => *label = labels[label.index()].unwrap_or(*label),
                        Operand::BranchTable(table) => *table = tables[&table.index()],
                        _ => {}
                    }
                }
                Piece::Own(Statement::Instruction(branch))
            }
            _ => Piece::Rewritten(at),
        }));
        let next = number + 1;
        if cfg.falls_through(body, BlockId(number as u32))
            && !entered.contains(next)
            && let Some(label) = cfg.blocks.get(next).and_then(|next| label(body, next))
        {
            let branch = made("bra", None, vec![Operand::Label(label)]);
            pieces.push(Piece::Own(Statement::Instruction(branch)));
        }
    }
    pieces
}

/// The blocks that are come to from marks, before an outermost loop begins if the copy leads back there: one with a mark, so that all threads that decide together come to it. To another
/// some may not, and those of a warp would be in two places when they meet.
fn entered(body: &Body, cfg: &Cfg, marks: &[usize], (part, form): (Part, Form)) -> BitSet {
    let mut begins = BitSet::new(cfg.blocks.len());
    if part == Part::Again {
        let loops = Loops::of(&Graph::of_blocks(cfg), 0);
        let has_mark = |number| marks.iter().any(|mark| loops.is_in(cfg.block_at(*mark).index(), number));
        loops
            .outermost()
            .filter(|(number, head)| {
                (form == Form::Known || has_mark(*number)) && label(body, &cfg.blocks[*head]).is_some()
            })
            .for_each(|(_, head)| begins.insert(head));
    }
    let mut entered = BitSet::new(cfg.blocks.len() + 1);
    let mut ahead: Vec<usize> = marks.iter().map(|mark| cfg.block_at(*mark).index()).collect();
    while let Some(number) = ahead.pop() {
        for next in cfg.blocks[number].successors.iter().map(|next| next.index()) {
            if !begins.contains(next) && !entered.contains(next) {
                entered.insert(next);
                ahead.push(next);
            }
        }
    }
    entered
}

/// The table that an operand is.
fn table(operand: &Operand) -> Option<BranchTableId> {
    if let Operand::BranchTable(table) = operand { Some(*table) } else { None }
}

fn label(body: &Body, block: &ptx::Block) -> Option<LabelId> {
    match &body.statements[block.statements.start] {
        Statement::Label(label) => Some(*label),
        _ => None,
    }
}
