//! Control flow: the basic blocks of a body.

use std::ops::Range;

use crate::ast::{Body, Instruction, LabelId, Operand, Statement};

/// A basic block: index into [`Cfg::blocks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockId(pub u32);

impl BlockId {
    /// The id as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Statements that are executed one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Indices into [`Body::statements`]. Only the last instruction can branch; labels stand only in front.
    pub statements: Range<usize>,
    /// Blocks that may come next, each once.
    pub successors: Vec<BlockId>,
    /// Blocks that may come before, each once.
    pub predecessors: Vec<BlockId>,
    /// Whether a thread can leave the function at the end of the block.
    pub exits: bool,
}

/// The control-flow graph of a body. The first block is the entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cfg {
    /// In the order of the text; together they cover all statements.
    pub blocks: Vec<Block>,
    /// For each label, the block that it starts.
    labels: Vec<BlockId>,
}

/// Most edges of a graph: branch tables let a short text describe very many.
const MAX_EDGES: usize = 1 << 24;

/// A body whose analysis would take more memory than it is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("function is too complex to analyse: more than {limit} {what}")]
pub struct TooComplex {
    /// What there is too much of.
    pub what: &'static str,
    /// How much is accepted.
    pub limit: usize,
}

/// Where control goes after an instruction.
enum Flow {
    Next,
    Branch {
        falls_through: bool,
    },
    /// Out of the function.
    Leave {
        falls_through: bool,
    },
}

impl Flow {
    fn falls_through(&self) -> bool {
        match self {
            Self::Next => true,
            Self::Branch { falls_through } | Self::Leave { falls_through } => *falls_through,
        }
    }
}

impl Cfg {
    /// Builds the graph.
    ///
    /// # Errors
    /// When it would have more edges than any sensible body.
    pub fn new(body: &Body) -> Result<Self, TooComplex> {
        let mut labels = vec![BlockId(0); body.labels.len()];
        let mut blocks: Vec<Block> = Vec::new();
        let mut ends = true;
        let mut in_front = false;
        for (index, statement) in body.statements.iter().enumerate() {
            let label = matches!(statement, Statement::Label(_));
            if ends || (label && !in_front) {
                blocks.push(Block {
                    statements: index..index,
                    successors: Vec::new(),
                    predecessors: Vec::new(),
                    exits: false,
                });
                in_front = true;
            }
            if let Statement::Label(id) = statement {
                labels[id.index()] = BlockId(blocks.len() as u32 - 1);
            }
            in_front &= label;
            ends = matches!(statement, Statement::Instruction(i) if !matches!(flow(i), Flow::Next));
            if let Some(block) = blocks.last_mut() {
                block.statements.end = index + 1;
            }
        }
        let mut cfg = Self { blocks, labels };
        cfg.connect(body)?;
        Ok(cfg)
    }

    /// The block that the label starts.
    ///
    /// # Panics
    /// When `label` belongs to another body.
    pub fn block_of(&self, label: LabelId) -> BlockId {
        self.labels[label.index()]
    }

    /// The block that a statement is in, by its number in the body.
    pub fn block_at(&self, statement: usize) -> BlockId {
        BlockId(self.blocks.partition_point(|block| block.statements.end <= statement) as u32)
    }

    /// Whether control may go on behind a block's last statement.
    pub fn falls_through(&self, body: &Body, block: BlockId) -> bool {
        match &body.statements[self.blocks[block.index()].statements.end - 1] {
            Statement::Instruction(last) => flow(last).falls_through(),
            _ => true,
        }
    }

    /// Whether going from `from` to `to` is a jump backwards: every cycle has at least one.
    pub fn is_back_edge(from: BlockId, to: BlockId) -> bool {
        to <= from
    }

    fn connect(&mut self, body: &Body) -> Result<(), TooComplex> {
        let mut edges = 0usize;
        // A label twice in one table, or a branch to the next block, gives one edge.
        let mut last_source = vec![usize::MAX; self.blocks.len()];
        for from in 0..self.blocks.len() {
            let last = self.blocks[from].statements.end - 1;
            let instruction = match &body.statements[last] {
                Statement::Instruction(instruction) => Some(instruction),
                _ => None,
            };
            let flow = instruction.map_or(Flow::Next, flow);
            let mut targets = Vec::new();
            if let (Flow::Branch { .. }, Some(instruction)) = (&flow, instruction) {
                targets.extend(branch_targets(body, instruction).map(|label| self.block_of(label).index()));
            }
            self.blocks[from].exits = matches!(flow, Flow::Leave { .. });
            if flow.falls_through() {
                match from + 1 < self.blocks.len() {
                    true => targets.push(from + 1),
                    // Control that runs off the end returns.
                    false => self.blocks[from].exits = true,
                }
            }
            edges = edges.saturating_add(targets.len());
            if edges > MAX_EDGES {
                return Err(TooComplex { what: "edges between basic blocks", limit: MAX_EDGES });
            }
            for to in targets {
                if std::mem::replace(&mut last_source[to], from) != from {
                    self.blocks[from].successors.push(BlockId(to as u32));
                    self.blocks[to].predecessors.push(BlockId(from as u32));
                }
            }
        }
        Ok(())
    }
}

fn flow(instruction: &Instruction) -> Flow {
    let falls_through = instruction.guard.is_some();
    match instruction.opcode.mnemonic() {
        "bra" | "brx" => Flow::Branch { falls_through },
        "ret" | "exit" | "trap" => Flow::Leave { falls_through },
        _ => Flow::Next,
    }
}

fn branch_targets<'a>(body: &'a Body, instruction: &'a Instruction) -> impl Iterator<Item = LabelId> + 'a {
    instruction
        .operands
        .iter()
        .flat_map(|operand| match operand {
            Operand::Label(label) => std::slice::from_ref(label),
            Operand::BranchTable(table) => &body.branch_tables[table.index()].targets,
            _ => &[],
        })
        .copied()
}
