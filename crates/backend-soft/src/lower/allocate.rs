//! Which registers can share a place: those that are never live together (linear scan over live ranges).
//!
//! Each lane has its own part of a row, and writes are masked, so it does not matter that lanes are at different instructions.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use ptx::ast::{Body, Formal, ScalarType, Statement};
use ptx::{Cfg, Liveness};

/// Where registers lie.
pub struct Allocation {
    /// For each register its place among those of its size; predicates have none.
    pub places: Vec<usize>,
    /// Places for 64 bits.
    pub wide: usize,
    /// Places for 32 bits.
    pub narrow: usize,
}

/// First and last statement at which a register matters, both included: within one statement results may be written before all
/// sources are read.
#[derive(Clone, Copy)]
struct Range {
    start: usize,
    end: usize,
}

impl Range {
    const NEVER: Range = Range { start: usize::MAX, end: 0 };

    fn include(&mut self, at: usize) {
        self.start = self.start.min(at);
        self.end = self.end.max(at);
    }
}

/// Whether a register takes two rows.
pub fn is_wide(ty: ScalarType) -> bool {
    ty.size() == 8
}

/// Places for the registers of a body.
pub fn allocate(body: &Body) -> Allocation {
    let ranges = ranges(body).unwrap_or_else(|| {
        // Too large to analyse: every register for itself.
        vec![Range { start: 0, end: usize::MAX }; body.registers.len()]
    });
    let mut allocation = Allocation { places: vec![0; body.registers.len()], wide: 0, narrow: 0 };
    for wide in [true, false] {
        let class = |index: &usize| {
            let ty = body.registers[*index].ty;
            ty != ScalarType::Pred && is_wide(ty) == wide
        };
        let mut order: Vec<usize> = (0..body.registers.len()).filter(class).collect();
        order.sort_by_key(|index| ranges[*index].start);
        let mut live: BinaryHeap<Reverse<(usize, usize)>> = BinaryHeap::new();
        let (mut free, mut count) = (Vec::new(), 0);
        for index in order {
            while let Some(Reverse((_, place))) =
                live.peek().filter(|Reverse((end, _))| *end < ranges[index].start).copied()
            {
                live.pop();
                free.push(place);
            }
            let place = free.pop().unwrap_or_else(|| {
                count += 1;
                count - 1
            });
            live.push(Reverse((ranges[index].end, place)));
            allocation.places[index] = place;
        }
        *(if wide { &mut allocation.wide } else { &mut allocation.narrow }) = count;
    }
    allocation
}

fn ranges(body: &Body) -> Option<Vec<Range>> {
    let cfg = Cfg::new(body).ok()?;
    let liveness = Liveness::new(body, &cfg).ok()?;
    let mut ranges = vec![Range::NEVER; body.registers.len()];
    for (at, statement) in body.statements.iter().enumerate() {
        if let Statement::Instruction(instruction) = statement {
            instruction.for_each_register(|reg, _| ranges[reg.index()].include(at));
        }
    }
    for (index, block) in cfg.blocks.iter().enumerate() {
        let id = ptx::BlockId(index as u32);
        liveness.live_in(id).registers().for_each(|reg| ranges[reg.index()].include(block.statements.start));
        let last = block.statements.end.max(block.statements.start + 1) - 1;
        liveness.live_out(id).registers().for_each(|reg| ranges[reg.index()].include(last));
    }
    for (register, range) in body.registers.iter().zip(&mut ranges) {
        match register.formal {
            // Filled before the first statement; read by every `ret` and at the end.
            Some(Formal::Param(_)) => range.include(0),
            Some(Formal::Return(_)) => range.include(body.statements.len()),
            None => {}
        }
    }
    Some(ranges)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn allocated(code: &str) -> (Allocation, Body) {
        let text = format!(
            ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k(.param .u32 p)\n{{\n\
             .reg .b32 %r<20>;\n.reg .pred %p<4>;\n.reg .b64 %q<4>;\n{code}\n}}\n"
        );
        let module = ptx::parse(&text).unwrap();
        let body = module.kernels().next().unwrap().body.clone().unwrap();
        (allocate(&body), body)
    }

    #[test]
    fn a_chain_needs_few_places() {
        let chain: String = (1..19).map(|i| format!("add.u32 %r{}, %r{i}, 1;\n", i + 1)).collect();
        let (allocation, _) = allocated(&format!("mov.u32 %r1, 5;\n{chain}cvt.u64.u32 %q1, %r19;\nret;"));
        assert!(allocation.narrow <= 2, "{}", allocation.narrow);
        assert_eq!(allocation.wide, 1);
    }

    #[test]
    fn what_a_loop_carries_keeps_its_place() {
        let (allocation, body) = allocated(
            "mov.u32 %r1, 0;\nmov.u32 %r2, 7;\n$top:\nadd.u32 %r3, %r1, %r2;\nmov.u32 %r1, %r3;\n\
             setp.lt.u32 %p1, %r1, 100;\n@%p1 bra $top;\nmov.u32 %r4, 1;\nret;",
        );
        let place = |name: &str| {
            let index = body.registers.iter().position(|register| &*register.name == name).unwrap();
            allocation.places[index]
        };
        // %r2 is read again in the next round, after %r3 was written.
        assert_ne!(place("%r2"), place("%r3"));
        assert_ne!(place("%r1"), place("%r3"));
    }
}
