//! How a kernel asks, at a mark, whether it is to stop.

use std::str::FromStr;

use ptx::Cfg;
use ptx::ast::{Body, Immediate, Instruction, Operand, Statement};

use crate::graph::{Dominators, Graph, Loops};

/// What is done at each mark. Whatever it is, threads that decide together do so alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Poll {
    /// The flag is read, and the group votes.
    Every,
    /// The same, at one of so many marks that threads come to: a counter in a register says at which.
    Counted(u32),
    /// The same, where so many are as make a poll each 131,072 ticks of `%clock` or so: 128 at most.
    #[default]
    Adaptive,
    /// A barrier in the same loop reads the flag and votes as it waits; a mark looks at what it said. In kernels where that is not so at each mark, as
    /// [`Poll::Adaptive`].
    Barrier,
}

/// Ticks of `%clock` between two polls that are soon enough: some 70 µs on a GPU, 131 µs on the software device.
pub(crate) const TICKS: u32 = 1 << 17;
/// From so many ticks on each mark polls again.
pub(crate) const LATE: u32 = 4 * TICKS;
/// The two, as they stand in what a twin is [known by](crate::identity).
pub(crate) const KNOWN: (u32, u32) = (1 << 15, 1 << 18);
/// The most marks from one poll to the next: with a mark each 50 µs they take 6.4 ms.
pub(crate) const MOST: u32 = 128;

/// Not one of `every`, `count:N`, `adaptive`, `barrier`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a kind of poll: every, count:N (1 to 65536), adaptive, barrier")]
pub struct UnknownPoll;

impl FromStr for Poll {
    type Err = UnknownPoll;

    fn from_str(text: &str) -> Result<Self, UnknownPoll> {
        match text {
            "every" => Ok(Self::Every),
            "adaptive" => Ok(Self::Adaptive),
            "barrier" => Ok(Self::Barrier),
            _ => {
                let count = text.strip_prefix("count:").and_then(|count| count.parse().ok());
                count.filter(|count| (1..=1 << 16).contains(count)).map(Self::Counted).ok_or(UnknownPoll)
            }
        }
    }
}

/// The barriers that read the flag for marks: for each mark one in the same loop, which is come to as often. None if a mark has none.
pub(crate) fn barriers(body: &Body, cfg: &Cfg, marks: &[usize]) -> Option<Vec<usize>> {
    let graph = Graph::of_blocks(cfg);
    let (loops, dominators) = (Loops::of(&graph, 0), Dominators::of(&graph, 0));
    let mut of_loop: Vec<(Option<usize>, usize, usize)> = Vec::new();
    for (at, statement) in body.statements.iter().enumerate() {
        if matches!(statement, Statement::Instruction(instruction) if is_plain(instruction)) {
            let block = cfg.block_at(at).index();
            of_loop.push((loops.innermost[block], block, at));
        }
    }
    of_loop.sort_unstable();
    let mut found = Vec::new();
    for mark in marks {
        let block = cfg.block_at(*mark).index();
        let within = loops.innermost[block];
        let first = of_loop.partition_point(|(one, ..)| *one < within);
        let same = of_loop[first..].iter().take_while(|(one, ..)| *one == within);
        let is_as_often = |(_, other, _): &&(Option<usize>, usize, usize)| {
            dominators.dominates(*other, block) || dominators.dominates(block, *other)
        };
        found.push(same.filter(is_as_often).map(|(.., at)| *at).next()?);
    }
    found.sort_unstable();
    found.dedup();
    Some(found)
}

/// Whether it is a barrier of the block that does nothing else.
pub(crate) fn is_plain(instruction: &Instruction) -> bool {
    let opcode = instruction.opcode.as_str();
    let is_first = matches!(instruction.operands[..], [Operand::Imm(Immediate::Int(0))]);
    matches!(opcode, "bar.sync" | "barrier.sync" | "barrier.sync.aligned")
        && is_first
        && instruction.guard.is_none()
}
