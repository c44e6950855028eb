//! Whether all threads of a group come to a place together.

use std::collections::BTreeMap;

use ptx::ast::{Address, AddressBase, Body, Instruction, Operand, RegId, SpecialRegister, Statement, Symbol};
use ptx::{BitSet, BlockId, Cfg, TooComplex};

use crate::Group;
use crate::control::{Control, Edge};
use crate::group::{Constants, is_barrier, may_bring_together, tells_warp};

/// What differs from thread to thread of a group.
pub(crate) struct Divergence {
    /// Blocks that are not executed by all threads, or not as often by all. The program is taken at its word that what leads to a barrier of the block for
    /// certain is the same for all threads that have not left: it would be wrong otherwise.
    blocks: BitSet,
    /// Registers of which it is not proved that they have the same in all threads, whatever the program is to be taken at its word for: nobody would notice.
    registers: BitSet,
}

impl Divergence {
    /// `called` are the functions that it may come to.
    ///
    /// # Errors
    /// When there are more branches than any sensible body has.
    pub(crate) fn of(
        (body, called): (&Body, &[&Body]),
        cfg: &Cfg,
        marks: &[usize],
        group: Group,
    ) -> Result<Self, TooComplex> {
        let may_bring = |instruction: &Instruction| {
            instruction.opcode.mnemonic() == "call" || may_bring_together(instruction) > Group::Thread
        };
        let mut marked = BitSet::new(cfg.blocks.len());
        marks.iter().for_each(|mark| marked.insert(cfg.block_at(*mark).index()));
        let mut wanted = blocks_with(body, cfg, may_bring);
        marked.iter().for_each(|block| wanted.insert(block));
        let control = Control::of(cfg, &wanted)?;
        let barriers = blocks_with(body, cfg, |one| one.guard.is_none() && is_barrier(one));
        let kernel = Kernel { body, cfg, control, marked, barriers };
        let (uses, constants) = (Uses::of(&kernel), Constants::of(body));
        let told = if group == Group::Warp { told(body, called, &constants) } else { Told::new() };
        let search = |is_believed| {
            let blocks = BitSet::new(cfg.blocks.len());
            let search = Search {
                group,
                constants: &constants,
                told: told.clone(),
                registers: BitSet::new(body.registers.len()),
                branches: blocks.clone(),
                blocks,
                ahead: Vec::new(),
            };
            search.run(&kernel, &uses, is_believed)
        };
        Ok(Self { blocks: search(true).blocks, registers: search(false).registers })
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

/// What an analysis looks at.
struct Kernel<'a> {
    body: &'a Body,
    cfg: &'a Cfg,
    control: Control,
    /// The blocks with marks.
    marked: BitSet,
    /// The blocks in which all come to a barrier.
    barriers: BitSet,
}

impl Kernel<'_> {
    /// Whether it is certain that a way leads to a barrier: whoever takes it comes to one before the ways of the branch meet, or lead to the branch again or out
    /// of the loop that it is in; and other ways do not lead there. Who leaves instead has to do so before it comes to a mark, at which it would be waited for.
    fn is_around(&self, (from, to): Edge) -> bool {
        let Control { graph, loops, meets, .. } = &self.control;
        let within = loops.innermost[from];
        let is_in = |block: usize| within.is_none_or(|one| loops.is_in(block, one));
        let (mut seen, mut found) = ([(); 2].map(|()| BitSet::new(graph.after.len())), false);
        let mut ahead = vec![(to, false)];
        while let Some((block, is_behind_mark)) = ahead.pop() {
            let seen = &mut seen[usize::from(is_behind_mark)];
            if seen.contains(block) {
                continue;
            }
            seen.insert(block);
            if block == meets[from] || !is_in(block) {
                return false;
            }
            if self.barriers.contains(block) {
                found = true;
                continue;
            }
            let is_behind_mark = is_behind_mark || self.marked.contains(block);
            let (ways, all) = (&graph.after[block], &self.cfg.blocks[block]);
            let is_left = all.exits || ways.len() < all.successors.len();
            if block == from || is_left && is_behind_mark {
                return false;
            }
            ahead.extend(ways.iter().map(|way| (*way, is_behind_mark)));
        }
        let mut other = BitSet::new(graph.after.len());
        let mut ahead: Vec<usize> = graph.after[from].iter().copied().filter(|way| *way != to).collect();
        while let Some(block) = ahead.pop().filter(|_| found) {
            if block != from && is_in(block) && !other.contains(block) {
                found = !seen.iter().any(|seen| seen.contains(block));
                other.insert(block);
                ahead.extend(&graph.after[block]);
            }
        }
        found
    }
}

/// The instructions, by their opcodes, that tell all lanes of a warp the same. Lanes may meet at different ones of an opcode, so those are none that functions
/// have, too: who comes to them there is not known here.
fn told<'a>(body: &'a Body, called: &[&Body], constants: &Constants) -> Told<'a> {
    let mut told = Told::new();
    for instruction in body.instructions().filter(|one| tells_warp(one, constants)) {
        told.entry(instruction.opcode.as_str()).or_default().push(instruction);
    }
    for instruction in called.iter().flat_map(|body| body.instructions()) {
        told.remove(instruction.opcode.as_str());
    }
    told
}

type Told<'a> = BTreeMap<&'a str, Vec<&'a Instruction>>;

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
    fn of(kernel: &Kernel) -> Self {
        let Kernel { body, cfg, control, .. } = kernel;
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

struct Search<'a> {
    group: Group,
    constants: &'a Constants,
    /// Those of which nothing else is known yet.
    told: Told<'a>,
    registers: BitSet,
    branches: BitSet,
    blocks: BitSet,
    /// What differs, and whose consequences are not seen yet.
    ahead: Vec<Differs>,
}

impl<'a> Search<'a> {
    /// `is_believed` says whether a way around a barrier is one that all take.
    fn run(mut self, kernel: &Kernel, uses: &Uses, is_believed: bool) -> Self {
        let Kernel { body, cfg, control, .. } = kernel;
        for instruction in body.instructions() {
            if self.makes_divergent(instruction) {
                self.differs_behind(instruction);
            }
        }
        while let Some(next) = self.ahead.pop() {
            match next {
                Differs::Register(register) => {
                    for &(number, statement) in &uses.readers[register] {
                        let Statement::Instruction(instruction) = &body.statements[statement] else {
                            continue;
                        };
                        if !self.reads_divergent(instruction) {
                            continue;
                        }
                        if instruction.guard.is_some_and(|guard| guard.reg.index() == register) {
                            self.is_of_some(instruction);
                        }
                        self.differs_behind(instruction);
                        if statement + 1 == cfg.blocks[number].statements.end {
                            self.branch(number);
                        }
                    }
                }
                Differs::Branch(from) => {
                    for &to in &control.graph.after[from] {
                        if !(is_believed && kernel.is_around((from, to))) {
                            uses.decided(from, to).for_each(|block| self.block(block));
                        }
                    }
                }
                Differs::Block(number) => {
                    uses.decides[number].iter().for_each(|(block, _)| self.block(*block));
                    for statement in &body.statements[cfg.blocks[number].statements.clone()] {
                        if let Statement::Instruction(instruction) = statement {
                            self.is_of_some(instruction);
                            self.differs_behind(instruction);
                        }
                    }
                }
            }
        }
        self
    }

    /// Only some threads execute an instruction, or at another time: what has the same opcode need not tell all the same any more.
    fn is_of_some(&mut self, instruction: &Instruction) {
        let told = self.told.remove(instruction.opcode.as_str());
        told.into_iter().flatten().for_each(|one| self.differs_behind(one));
    }

    /// Whether it has one result for all threads of the group, whatever each gives.
    fn tells_all(&self, instruction: &Instruction) -> bool {
        let is_told = self.told.contains_key(instruction.opcode.as_str());
        is_of_block(instruction) || is_told && tells_warp(instruction, self.constants)
    }

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
        if self.tells_all(instruction) {
            let lane = match (instruction.opcode.mnemonic(), instruction.operands.get(2)) {
                ("shfl", Some(Operand::Reg(lane))) => Some(*lane),
                _ => None,
            };
            let mut agreed = instruction.guard.map(|guard| guard.reg).into_iter().chain(lane);
            return agreed.any(|register| self.registers.contains(register.index()));
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
            "bar" | "barrier" | "shfl" | "vote" | "match" | "redux" => !self.tells_all(instruction),
            "atom"
            | "call"
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
    instruction.opcode.has("red") && is_barrier(instruction)
}
