//! What decides whether a block of code is executed (Ferrante, Ottenstein and Warren, *The program dependence graph*, 1987).

use std::collections::BTreeSet;

use ptx::{BitSet, Cfg, TooComplex};

/// A way out of a block: its number, and which of its successors.
pub(crate) type Edge = (usize, usize);

/// For each block of a graph the ways that lead to it, out of blocks that decide at their end whether, or how often, it is executed.
pub(crate) struct Control {
    direct: Vec<Vec<Edge>>,
}

/// Most ways of all blocks together: nested branches have more than blocks.
const MAX_WAYS: usize = 1 << 24;

impl Control {
    pub(crate) fn of(cfg: &Cfg) -> Result<Self, TooComplex> {
        let after = post_dominators(cfg);
        let mut direct = vec![Vec::new(); cfg.blocks.len()];
        let mut ways = 0;
        for (from, block) in cfg.blocks.iter().enumerate() {
            for (way, successor) in block.successors.iter().enumerate() {
                let mut at = successor.index();
                while at != after[from] && at != cfg.blocks.len() {
                    direct[at].push((from, way));
                    at = after[at];
                    ways += 1;
                }
                if ways > MAX_WAYS {
                    return Err(TooComplex { what: "branches that decide about blocks", limit: MAX_WAYS });
                }
            }
        }
        Ok(Self { direct })
    }

    /// All ways on which one of the blocks depends, and on which those do.
    pub(crate) fn deciders(&self, blocks: BitSet) -> BTreeSet<Edge> {
        let mut ahead: Vec<usize> = blocks.iter().collect();
        let (mut found, mut seen) = (BTreeSet::new(), blocks);
        while let Some(next) = ahead.pop() {
            for &(from, way) in &self.direct[next] {
                found.insert((from, way));
                if !seen.contains(from) {
                    seen.insert(from);
                    ahead.push(from);
                }
            }
        }
        found
    }

    /// Those on which it depends at once.
    pub(crate) fn direct(&self, block: usize) -> &[Edge] {
        &self.direct[block]
    }
}

/// For each block the next one through which every way out leads; the number of blocks stands for out. (Cooper, Harvey and Kennedy, *A simple, fast dominance
/// algorithm*, 2001, on the reversed graph.)
fn post_dominators(cfg: &Cfg) -> Vec<usize> {
    let out = cfg.blocks.len();
    let (leaves, order) = from_out(cfg);
    let mut rank = vec![0; out + 1];
    order.iter().rev().enumerate().for_each(|(number, block)| rank[*block] = number);
    rank[out] = out;
    let mut next: Vec<Option<usize>> = vec![None; out + 1];
    next[out] = Some(out);
    let mut changed = true;
    while changed {
        changed = false;
        for &block in &order {
            let ways = cfg.blocks[block].successors.iter().map(|successor| successor.index());
            let ways = ways.chain(leaves[block].then_some(out)).filter(|way| next[*way].is_some());
            let found = ways.reduce(|mut a, mut b| {
                while a != b {
                    while rank[a] < rank[b] {
                        a = next[a].unwrap_or(out);
                    }
                    while rank[b] < rank[a] {
                        b = next[b].unwrap_or(out);
                    }
                }
                a
            });
            if found.is_some() && next[block] != found {
                next[block] = found;
                changed = true;
            }
        }
    }
    next.into_iter().take(out).map(|next| next.unwrap_or(out)).collect()
}

/// The blocks from which a way leads out at once, and all blocks in reversed post-order of a walk against the ways, from out. Blocks that have no way out get
/// one, the last of them first.
fn from_out(cfg: &Cfg) -> (Vec<bool>, Vec<usize>) {
    let mut leaves: Vec<bool> =
        cfg.blocks.iter().map(|block| block.exits || block.successors.is_empty()).collect();
    let mut seen = vec![false; leaves.len()];
    let mut finished = Vec::new();
    let mut walk = |start: usize| {
        if std::mem::replace(&mut seen[start], true) {
            return false;
        }
        let mut stack = vec![(start, 0)];
        while let Some((block, edge)) = stack.pop() {
            match cfg.blocks[block].predecessors.get(edge).map(|before| before.index()) {
                Some(before) => {
                    stack.push((block, edge + 1));
                    if !std::mem::replace(&mut seen[before], true) {
                        stack.push((before, 0));
                    }
                }
                None => finished.push(block),
            }
        }
        true
    };
    for start in (0..leaves.len()).filter(|block| leaves[*block]) {
        walk(start);
    }
    for stuck in (0..leaves.len()).rev() {
        leaves[stuck] |= walk(stuck);
    }
    finished.reverse();
    (leaves, finished)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fmt::Write;

    use super::*;

    /// A graph of so many blocks, each with a guarded branch, one without, a way out, or the next block behind it, as random bits say.
    fn graph(blocks: usize, mut random: impl FnMut(usize) -> usize) -> Cfg {
        let mut text = String::from(
            ".version 7.0 .target sm_80 .address_size 64 .visible .entry k() { .reg .pred %p; .reg .b32 %r; ",
        );
        for block in 0..blocks {
            let _ = write!(text, "L{block}: ");
            let to = random(blocks);
            let _ = match random(8) {
                0 => write!(text, "bra L{to}; "),
                1 => write!(text, "@%p ret; "),
                2 => write!(text, "ret; "),
                3 => {
                    let other = random(blocks);
                    write!(text, "brx.idx %r, T{block}; T{block}: .branchtargets L{to}, L{other}; ")
                }
                4 => write!(text, "mov.b32 %r, 0; "),
                _ => write!(text, "@%p bra L{to}; "),
            };
        }
        text.push('}');
        Cfg::new(ptx::parse(&text).unwrap().kernels().next().unwrap().body.as_ref().unwrap()).unwrap()
    }

    /// Whether there is a way from a block out that does not lead through another.
    fn gets_out_without(cfg: &Cfg, leaves: &[bool], from: usize, without: Option<usize>) -> bool {
        let (mut seen, mut ahead) = (vec![false; leaves.len()], vec![from]);
        while let Some(block) = ahead.pop() {
            if Some(block) == without || std::mem::replace(&mut seen[block], true) {
                continue;
            }
            if leaves[block] {
                return true;
            }
            ahead.extend(cfg.blocks[block].successors.iter().map(|successor| successor.index()));
        }
        false
    }

    #[test]
    fn post_dominators_are_what_no_way_out_avoids() {
        let mut state = 0x9e37_79b9_7f4a_7c15u64;
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        for _ in 0..400 {
            let blocks = 1 + random(24);
            let cfg = graph(blocks, &mut random);
            let found = post_dominators(&cfg);
            // Where ways out were made is as the algorithm has it.
            let mut leaves: Vec<bool> =
                cfg.blocks.iter().map(|block| block.exits || block.successors.is_empty()).collect();
            for stuck in (0..leaves.len()).rev() {
                leaves[stuck] = leaves[stuck] || !gets_out_without(&cfg, &leaves, stuck, None);
            }
            for (block, next_found) in found.iter().enumerate() {
                let avoided = |other: &usize| gets_out_without(&cfg, &leaves, block, Some(*other));
                let all: Vec<usize> =
                    (0..cfg.blocks.len()).filter(|other| *other != block && !avoided(other)).collect();
                // The next one is that which all others come behind.
                let is_next = |one: &usize| {
                    all.iter()
                        .all(|other| other == one || !gets_out_without(&cfg, &leaves, *one, Some(*other)))
                };
                let next = all.iter().copied().find(is_next).unwrap_or(cfg.blocks.len());
                assert_eq!(*next_found, next, "of block {block} of {cfg:?}");
            }
        }
    }

    #[test]
    fn a_large_graph_is_no_matter() {
        let mut state = 1u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            ((state >> 33) % below as u64) as usize
        };
        let cfg = graph(50_000, &mut random);
        assert_eq!(post_dominators(&cfg).len(), cfg.blocks.len());
        // Loops without an end, one behind the other.
        let endless = graph(50_000, |below| if below == 8 { 0 } else { below - 1 });
        assert_eq!(post_dominators(&endless).len(), endless.blocks.len());
    }
}
