//! What decides whether a block of code is executed (Ferrante, Ottenstein and Warren, *The program dependence graph*, 1987).

use ptx::{BitSet, Cfg, TooComplex};

use crate::graph::{Dominators, Graph, Loops};

/// A way out of a block: its number, and where it leads.
pub(crate) type Edge = (usize, usize);

/// Where threads go that will come together again.
pub(crate) struct Control {
    /// The blocks, without the ways of those that leave: they come to none of the blocks that were asked for any more.
    pub(crate) graph: Graph,
    pub(crate) loops: Loops,
    /// For each block the next one through which every way out leads; the number of blocks stands for out.
    pub(crate) meets: Vec<usize>,
    /// For each block the ways that lead to it, out of blocks that decide at their end whether, or how often, it is executed.
    direct: Vec<Vec<Edge>>,
}

/// Most ways of all blocks together: nested branches have more than blocks.
const MAX_WAYS: usize = 1 << 24;

impl Control {
    /// `wanted` are blocks that threads have to come to together.
    pub(crate) fn of(cfg: &Cfg, wanted: &BitSet) -> Result<Self, TooComplex> {
        let graph = staying(cfg, wanted);
        let meets = post_dominators(&graph);
        let mut direct = vec![Vec::new(); cfg.blocks.len()];
        let mut ways = 0;
        for (from, successors) in graph.after.iter().enumerate() {
            for &to in successors {
                let mut at = to;
                while at != meets[from] && at != cfg.blocks.len() {
                    direct[at].push((from, to));
                    at = meets[at];
                    ways += 1;
                }
                if ways > MAX_WAYS {
                    return Err(TooComplex { what: "branches that decide about blocks", limit: MAX_WAYS });
                }
            }
        }
        let loops = Loops::of(&graph, 0);
        Ok(Self { graph, loops, meets, direct })
    }

    /// The ways on which a block depends at once.
    pub(crate) fn direct(&self, block: usize) -> &[Edge] {
        &self.direct[block]
    }
}

/// The graph without ways from where a wanted block may still be reached to where none is.
fn staying(cfg: &Cfg, wanted: &BitSet) -> Graph {
    let all = Graph::of_blocks(cfg);
    let against = Graph { after: all.before, before: all.after };
    let mut stays = BitSet::new(cfg.blocks.len());
    against.post_order(wanted.iter()).into_iter().for_each(|block| stays.insert(block));
    let mut after = against.before;
    for (_, ways) in after.iter_mut().enumerate().filter(|(block, _)| stays.contains(*block)) {
        ways.retain(|to| stays.contains(*to));
    }
    Graph::of(after)
}

/// For each block the next one through which every way out leads; the number of blocks stands for out. Blocks that have no way out get one, the last of them
/// first.
fn post_dominators(graph: &Graph) -> Vec<usize> {
    let out = graph.after.len();
    let (mut seen, mut ends) = (BitSet::new(out), Vec::new());
    let without = (0..out).filter(|block| graph.after[*block].is_empty());
    for end in without.chain((0..out).rev()) {
        if seen.contains(end) {
            continue;
        }
        ends.push(end);
        let mut ahead = vec![end];
        seen.insert(end);
        while let Some(block) = ahead.pop() {
            for &before in &graph.before[block] {
                if !seen.contains(before) {
                    seen.insert(before);
                    ahead.push(before);
                }
            }
        }
    }
    let mut against = graph.before.clone();
    against.push(ends);
    let dominators = Dominators::of(&Graph::of(against), out);
    dominators.next.into_iter().take(out).map(|next| next.unwrap_or(out)).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fmt::Write;

    use super::*;

    /// A graph of so many blocks, each with a guarded branch, one without, a way out, or the next block behind it, as random bits say.
    fn graph(blocks: usize, mut random: impl FnMut(usize) -> usize) -> Graph {
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
        let module = ptx::parse(&text).unwrap();
        let cfg = Cfg::new(module.kernels().next().unwrap().body.as_ref().unwrap()).unwrap();
        Graph::of_blocks(&cfg)
    }

    /// Whether there is a way from a block out that does not lead through another.
    fn gets_out_without(graph: &Graph, ends: &[bool], from: usize, without: Option<usize>) -> bool {
        let (mut seen, mut ahead) = (vec![false; ends.len()], vec![from]);
        while let Some(block) = ahead.pop() {
            if Some(block) == without || std::mem::replace(&mut seen[block], true) {
                continue;
            }
            if ends[block] {
                return true;
            }
            ahead.extend(&graph.after[block]);
        }
        false
    }

    fn random(mut state: u64) -> impl FnMut(usize) -> usize {
        move |below| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            ((state >> 11) % below as u64) as usize
        }
    }

    #[test]
    fn post_dominators_are_what_no_way_out_avoids() {
        let mut random = random(0x9e37_79b9_7f4a_7c15);
        for _ in 0..400 {
            let blocks = 1 + random(24);
            let graph = graph(blocks, &mut random);
            let found = post_dominators(&graph);
            let mut ends: Vec<bool> = graph.after.iter().map(Vec::is_empty).collect();
            for stuck in (0..ends.len()).rev() {
                ends[stuck] = ends[stuck] || !gets_out_without(&graph, &ends, stuck, None);
            }
            for (block, next_found) in found.iter().enumerate() {
                let avoided = |other: &usize| gets_out_without(&graph, &ends, block, Some(*other));
                let all: Vec<usize> =
                    (0..ends.len()).filter(|other| *other != block && !avoided(other)).collect();
                // The next one is that which all others come behind.
                let is_next = |one: &usize| {
                    all.iter()
                        .all(|other| other == one || !gets_out_without(&graph, &ends, *one, Some(*other)))
                };
                let next = all.iter().copied().find(is_next).unwrap_or(ends.len());
                assert_eq!(*next_found, next, "of block {block} of {:?}", graph.after);
            }
        }
    }

    /// A loop with one way in is what gets back to its head without leaving through it.
    #[test]
    fn loops_are_what_comes_back_to_a_head() {
        let mut random = random(77);
        for _ in 0..400 {
            let blocks = 1 + random(20);
            let graph = graph(blocks, &mut random);
            let loops = Loops::of(&graph, 0);
            let reaches = |from: usize, to: usize, without: Option<usize>| {
                let (mut seen, mut ahead) = (vec![false; graph.after.len()], vec![from]);
                while let Some(block) = ahead.pop() {
                    if Some(block) == without || std::mem::replace(&mut seen[block], true) {
                        continue;
                    }
                    ahead.extend(&graph.after[block]);
                }
                seen[to]
            };
            let dominates = |above: usize, block: usize| block == above || !reaches(0, block, Some(above));
            for head in (0..graph.after.len()).filter(|head| reaches(0, *head, None)) {
                let backs: Vec<usize> = graph.before[head]
                    .iter()
                    .copied()
                    .filter(|from| reaches(0, *from, None) && dominates(head, *from))
                    .collect();
                if backs.is_empty() {
                    continue;
                }
                let inside = |block: usize| {
                    block == head
                        || reaches(0, block, None)
                            && backs.iter().any(|back| reaches(block, *back, Some(head)))
                };
                let expected: Vec<usize> = (0..graph.after.len()).filter(|block| inside(*block)).collect();
                let number = loops.headed(head).unwrap();
                let found: Vec<usize> =
                    (0..graph.after.len()).filter(|block| loops.is_in(*block, number)).collect();
                assert_eq!(found, expected, "of head {head} of {:?}", graph.after);
            }
        }
    }

    #[test]
    fn a_large_graph_is_no_matter() {
        let large = graph(50_000, random(1));
        assert_eq!(post_dominators(&large).len(), large.after.len());
        assert_eq!(Loops::of(&large, 0).innermost.len(), large.after.len());
        // Loops without an end, one behind the other.
        let endless = graph(50_000, |below| if below == 8 { 0 } else { below - 1 });
        assert_eq!(post_dominators(&endless).len(), endless.after.len());
        // Each around the next.
        let around = Graph::of((0..50_000).map(|at| vec![(at + 1) % 50_000, 0]).collect());
        assert_eq!(Loops::of(&around, 0).innermost.len(), around.after.len());
    }
}
