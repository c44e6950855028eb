//! What decides whether a block of code is executed (Ferrante, Ottenstein and Warren, *The program dependence graph*, 1987).

use ptx::{BitSet, BlockId, Cfg};

/// A way out of a block: its number, and which of its successors.
pub(crate) type Edge = (usize, usize);

/// For each block of a graph the ways that lead to it, out of blocks that decide at their end whether, or how often, it is executed.
pub(crate) struct Control {
    direct: Vec<Vec<Edge>>,
}

impl Control {
    pub(crate) fn of(cfg: &Cfg) -> Self {
        let after = post_dominators(cfg);
        let mut direct = vec![Vec::new(); cfg.blocks.len()];
        for (from, block) in cfg.blocks.iter().enumerate() {
            for (way, successor) in block.successors.iter().enumerate() {
                let mut at = successor.index();
                while at != after[from] && at != cfg.blocks.len() {
                    direct[at].push((from, way));
                    at = after[at];
                }
            }
        }
        Self { direct }
    }

    /// All ways on which it depends, and on which those do.
    pub(crate) fn deciders(&self, block: BlockId) -> Vec<Edge> {
        let (mut found, mut seen) = (Vec::new(), BitSet::new(self.direct.len()));
        let mut ahead = vec![block.index()];
        seen.insert(block.index());
        while let Some(next) = ahead.pop() {
            for &(from, way) in &self.direct[next] {
                found.push((from, way));
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
    let mut leaves: Vec<bool> =
        cfg.blocks.iter().map(|block| block.exits || block.successors.is_empty()).collect();
    let mut order;
    // What never leaves has no way out: one is made, at the last block that has none.
    loop {
        order = reversed_post_order(cfg, &leaves);
        let Some(stuck) = (0..out).rev().find(|block| !order.contains(block)) else { break };
        leaves[stuck] = true;
    }
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

/// Blocks from which there is a way out, those that are nearer to it first.
fn reversed_post_order(cfg: &Cfg, leaves: &[bool]) -> Vec<usize> {
    let mut seen = vec![false; cfg.blocks.len()];
    let mut finished = Vec::new();
    for start in (0..leaves.len()).filter(|block| leaves[*block]) {
        let mut stack = vec![(start, 0)];
        if std::mem::replace(&mut seen[start], true) {
            continue;
        }
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
    }
    finished.reverse();
    finished
}
