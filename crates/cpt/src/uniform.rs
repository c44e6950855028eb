//! Whether all threads of a group come to a place together.

use ptx::ast::{Address, AddressBase, Body, Instruction, Operand, RegId, SpecialRegister, Statement, Symbol};
use ptx::{BitSet, BlockId, Cfg, TooComplex};

use crate::Group;
use crate::control::{Control, Edge};
use crate::group::{all_lanes, brings_together, may_bring_together};

/// What differs from thread to thread of a group.
///
/// The program is taken at its word that a branch around a barrier is the same for all threads that have not left: it would be wrong otherwise.
pub(crate) struct Divergence {
    /// Blocks that are not executed by all threads, or not as often by all.
    blocks: BitSet,
    /// Registers that do not have the same in all threads.
    registers: BitSet,
}

impl Divergence {
    /// # Errors
    /// When there are more branches than any sensible body has.
    pub(crate) fn of(body: &Body, cfg: &Cfg, marks: &[usize], group: Group) -> Result<Self, TooComplex> {
        let all = all_lanes(body);
        let brings = |instruction: &Instruction| {
            instruction.guard.is_none()
                && brings_together(instruction, &all).is_some_and(|threads| threads >= group)
        };
        let may_bring = |instruction: &Instruction| {
            instruction.opcode.mnemonic() == "call" || may_bring_together(instruction) > Group::Thread
        };
        let mut wanted = blocks_with(body, cfg, may_bring);
        for mark in marks {
            wanted.insert(cfg.block_at(*mark).index());
        }
        let control = Control::of(cfg, &wanted)?;
        let barriers = blocks_with(body, cfg, brings);
        let uses = Uses::of(body, cfg, &control);
        let mut search = Search {
            group,
            registers: BitSet::new(body.registers.len()),
            branches: BitSet::new(cfg.blocks.len()),
            blocks: BitSet::new(cfg.blocks.len()),
            ahead: Vec::new(),
        };
        for instruction in body.instructions() {
            if search.makes_divergent(instruction) {
                search.differs_behind(instruction);
            }
        }
        while let Some(next) = search.ahead.pop() {
            match next {
                Differs::Register(register) => {
                    for &(number, statement) in &uses.readers[register] {
                        let Statement::Instruction(instruction) = &body.statements[statement] else {
                            continue;
                        };
                        if !search.reads_divergent(instruction) {
                            continue;
                        }
                        search.differs_behind(instruction);
                        if statement + 1 == cfg.blocks[number].statements.end {
                            search.branch(number);
                        }
                    }
                }
                Differs::Branch(from) => {
                    for &to in &control.graph.after[from] {
                        if !uses.is_around(&control, &barriers, (from, to)) {
                            uses.decided(from, to).for_each(|block| search.block(block));
                        }
                    }
                }
                Differs::Block(number) => {
                    uses.decides[number].iter().for_each(|(block, _)| search.block(*block));
                    for statement in &body.statements[cfg.blocks[number].statements.clone()] {
                        if let Statement::Instruction(instruction) = statement {
                            search.differs_behind(instruction);
                        }
                    }
                }
            }
        }
        Ok(Self { blocks: search.blocks, registers: search.registers })
    }

    /// Whether all threads that have not left execute a block together, and as often.
    pub(crate) fn is_uniform(&self, block: BlockId) -> bool {
        !self.blocks.contains(block.index())
    }

    /// Whether all threads that are at a mark together have the same in a register.
    pub(crate) fn is_alike(&self, register: RegId) -> bool {
        !self.registers.contains(register.index())
    }
}

/// The blocks that have such an instruction.
fn blocks_with(body: &Body, cfg: &Cfg, wanted: impl Fn(&Instruction) -> bool) -> BitSet {
    let mut found = BitSet::new(cfg.blocks.len());
    for (number, block) in cfg.blocks.iter().enumerate() {
        let is = |statement: &Statement| matches!(statement, Statement::Instruction(one) if wanted(one));
        if body.statements[block.statements.clone()].iter().any(is) {
            found.insert(number);
        }
    }
    found
}

/// What an analysis comes to from what differs.
struct Uses {
    /// For each register the instructions that read it: block, statement.
    readers: Vec<Vec<(usize, usize)>>,
    /// For each block the blocks that it decides about, and by which way: where that leads.
    decides: Vec<Vec<(usize, usize)>>,
}

impl Uses {
    fn of(body: &Body, cfg: &Cfg, control: &Control) -> Self {
        let mut readers = vec![Vec::new(); body.registers.len()];
        let mut decides = vec![Vec::new(); cfg.blocks.len()];
        for (number, block) in cfg.blocks.iter().enumerate() {
            for &(from, to) in control.direct(number) {
                decides[from].push((number, to));
            }
            for statement in block.statements.clone() {
                let Statement::Instruction(instruction) = &body.statements[statement] else { continue };
                instruction.for_each_register(|register, access| {
                    if access.reads() {
                        readers[register.index()].push((number, statement));
                    }
                });
            }
        }
        Self { readers, decides }
    }

    /// The blocks about which a block decides at once by taking a way.
    fn decided(&self, from: usize, to: usize) -> impl Iterator<Item = usize> {
        self.decides[from].iter().filter(move |(_, way)| *way == to).map(|(block, _)| *block)
    }

    /// Whether a way leads to a barrier that the other ways of the same branch do not lead to, but by way of the branch, or out of the loop that it is in.
    fn is_around(&self, control: &Control, barriers: &BitSet, (from, to): Edge) -> bool {
        let within = control.loops.innermost[from];
        let is_in = |block: &usize| within.is_none_or(|one| control.loops.is_in(*block, one));
        let mut decided = BitSet::new(self.decides.len());
        let mut ahead: Vec<usize> = self.decided(from, to).filter(is_in).collect();
        ahead.iter().for_each(|block| decided.insert(*block));
        while let Some(block) = ahead.pop() {
            let behind = self.decides[block].iter().filter(|_| block != from).map(|(block, _)| *block);
            for block in behind.filter(is_in) {
                if !decided.contains(block) {
                    decided.insert(block);
                    ahead.push(block);
                }
            }
        }
        if !decided.iter().any(|block| barriers.contains(block)) {
            return false;
        }
        let mut other = BitSet::new(self.decides.len());
        ahead.extend(control.graph.after[from].iter().filter(|way| **way != to && is_in(way)));
        while let Some(block) = ahead.pop() {
            if block != from && !other.contains(block) {
                other.insert(block);
                ahead.extend(control.graph.after[block].iter().filter(|way| is_in(way)));
            }
        }
        decided.iter().any(|block| barriers.contains(block) && !other.contains(block))
    }
}

/// What was found to differ from thread to thread.
enum Differs {
    /// The value of a register.
    Register(usize),
    /// Which way threads leave a block.
    Branch(usize),
    /// Whether, or how often, they come to a block.
    Block(usize),
}

struct Search {
    group: Group,
    registers: BitSet,
    branches: BitSet,
    blocks: BitSet,
    /// What differs, and whose consequences are not seen yet.
    ahead: Vec<Differs>,
}

impl Search {
    /// All that an instruction writes differs.
    fn differs_behind(&mut self, instruction: &Instruction) {
        let (registers, ahead) = (&mut self.registers, &mut self.ahead);
        instruction.for_each_written(|register| {
            if !registers.contains(register.index()) {
                registers.insert(register.index());
                ahead.push(Differs::Register(register.index()));
            }
        });
    }

    fn branch(&mut self, block: usize) {
        if !self.branches.contains(block) {
            self.branches.insert(block);
            self.ahead.push(Differs::Branch(block));
        }
    }

    fn block(&mut self, block: usize) {
        if !self.blocks.contains(block) {
            self.blocks.insert(block);
            self.ahead.push(Differs::Block(block));
        }
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
                special if is_place_in_block(special) => true,
                Special::Clock
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

/// Whether it says which of its block's threads, or of its warp's, a thread is.
pub(crate) fn is_place_in_block(special: &SpecialRegister) -> bool {
    use SpecialRegister as Special;
    matches!(
        special,
        Special::Tid(_)
            | Special::LaneId
            | Special::LaneMaskEq
            | Special::LaneMaskLe
            | Special::LaneMaskLt
            | Special::LaneMaskGe
            | Special::LaneMaskGt
    )
}

/// Whether it is what the kernel was launched with.
pub(crate) fn is_parameter(operand: &Operand) -> bool {
    matches!(operand, Operand::Address(Address { base: AddressBase::Symbol(Symbol::Param(_)), .. }))
}

/// Whether it has one result for all threads of a block.
fn is_of_block(instruction: &Instruction) -> bool {
    matches!(instruction.opcode.mnemonic(), "bar" | "barrier")
        && instruction.opcode.has("red")
        && brings_together(instruction, &BitSet::new(0)) == Some(Group::Block)
}
