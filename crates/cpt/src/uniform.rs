//! Whether all threads of a group come to a place together.

use ptx::ast::{Address, AddressBase, Body, Instruction, Operand, SpecialRegister, Statement, Symbol};
use ptx::{BitSet, BlockId, Cfg};

use crate::Group;
use crate::control::Control;
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
        let (mut together, all) = (BitSet::new(cfg.blocks.len()), all_lanes(body));
        for (number, block) in cfg.blocks.iter().enumerate() {
            let brings = |statement: &Statement| match statement {
                Statement::Instruction(instruction) if instruction.guard.is_none() => {
                    brings_together(instruction, &all).is_some_and(|threads| threads >= group)
                }
                _ => false,
            };
            if body.statements[block.statements.clone()].iter().any(brings) {
                together.insert(number);
            }
        }
        let kept = control.deciders(together);
        let mut search = Search {
            group,
            registers: BitSet::new(body.registers.len()),
            branches: BitSet::new(cfg.blocks.len()),
            blocks: BitSet::new(cfg.blocks.len()),
            ahead: Vec::new(),
        };
        let uses = Uses::of(body, cfg, control);
        let at = |statement: usize| match &body.statements[statement] {
            Statement::Instruction(instruction) => Some(instruction),
            _ => None,
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
                        let Some(instruction) = at(statement) else { continue };
                        if !search.reads_divergent(instruction) {
                            continue;
                        }
                        search.differs_behind(instruction);
                        let block = &cfg.blocks[number];
                        let ways = block.successors.len() + usize::from(block.exits);
                        if statement + 1 == block.statements.end && ways > 1 {
                            search.branch(number);
                        }
                    }
                }
                Differs::Branch(from) => {
                    let all = uses.decides[from].iter().filter(|(_, way)| !kept.contains(&(from, *way)));
                    all.for_each(|(block, _)| search.block(*block));
                }
                Differs::Block(number) => {
                    uses.decides[number].iter().for_each(|(block, _)| search.block(*block));
                    let statements = cfg.blocks[number].statements.clone();
                    statements.filter_map(at).for_each(|one| search.differs_behind(one));
                }
            }
        }
        Self { blocks: search.blocks }
    }

    /// Whether all threads that have not left execute a block together, and as often.
    pub(crate) fn is_uniform(&self, block: BlockId) -> bool {
        !self.blocks.contains(block.index())
    }
}

/// What an analysis comes to from what differs.
struct Uses {
    /// For each register the instructions that read it: block, statement.
    readers: Vec<Vec<(usize, usize)>>,
    /// For each block the blocks that it decides about, and by which way.
    decides: Vec<Vec<(usize, usize)>>,
}

impl Uses {
    fn of(body: &Body, cfg: &Cfg, control: &Control) -> Self {
        let mut readers = vec![Vec::new(); body.registers.len()];
        let mut decides = vec![Vec::new(); cfg.blocks.len()];
        for (number, block) in cfg.blocks.iter().enumerate() {
            for &(from, way) in control.direct(number) {
                decides[from].push((number, way));
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
        instruction.for_each_register(|register, access| {
            if access.writes() && !registers.contains(register.index()) {
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
