//! Graphs: who dominates whom, and loops.

use ptx::{BitSet, Cfg};

/// A graph whose nodes are numbers.
pub(crate) struct Graph {
    /// Where ways from each node lead.
    pub(crate) after: Vec<Vec<usize>>,
    /// From where ways lead to each.
    pub(crate) before: Vec<Vec<usize>>,
}

impl Graph {
    pub(crate) fn of(after: Vec<Vec<usize>>) -> Self {
        let mut before = vec![Vec::new(); after.len()];
        for (from, ways) in after.iter().enumerate() {
            ways.iter().for_each(|to| before[*to].push(from));
        }
        Self { after, before }
    }

    /// A body's blocks, by their numbers.
    pub(crate) fn of_blocks(cfg: &Cfg) -> Self {
        let ways = |block: &ptx::Block| block.successors.iter().map(|to| to.index()).collect();
        Self::of(cfg.blocks.iter().map(ways).collect())
    }

    /// The nodes that are reached, those first from which none is reached that was not before.
    pub(crate) fn post_order(&self, from: impl IntoIterator<Item = usize>) -> Vec<usize> {
        let mut seen = BitSet::new(self.after.len());
        let mut order = Vec::new();
        for start in from {
            let mut stack = Vec::new();
            if !seen.contains(start) {
                seen.insert(start);
                stack.push((start, 0));
            }
            while let Some((node, way)) = stack.pop() {
                let Some(&next) = self.after[node].get(way) else {
                    order.push(node);
                    continue;
                };
                stack.push((node, way + 1));
                if !seen.contains(next) {
                    seen.insert(next);
                    stack.push((next, 0));
                }
            }
        }
        order
    }
}

/// For each node the last one through which all ways to it lead from a root (Cooper, Harvey and Kennedy, *A simple, fast dominance algorithm*, 2001).
pub(crate) struct Dominators {
    /// The root's is itself; none where no way leads.
    pub(crate) next: Vec<Option<usize>>,
    rank: Vec<usize>,
    /// In post-order.
    order: Vec<usize>,
    /// Of a walk through the tree, which nodes a node dominates: from its own number to that of the last.
    spans: Vec<(usize, usize)>,
}

impl Dominators {
    pub(crate) fn of(graph: &Graph, root: usize) -> Self {
        let order = graph.post_order([root]);
        let mut rank = vec![0; graph.after.len()];
        order.iter().enumerate().for_each(|(number, node)| rank[*node] = number);
        let mut found = Self { next: vec![None; graph.after.len()], rank, order, spans: Vec::new() };
        found.next[root] = Some(root);
        let mut changed = true;
        while changed {
            changed = false;
            for at in (0..found.order.len() - 1).rev() {
                let node = found.order[at];
                let known = graph.before[node].iter().copied().filter(|before| found.next[*before].is_some());
                let next = known.reduce(|a, b| found.meet(a, b));
                if found.next[node] != next {
                    found.next[node] = next;
                    changed = true;
                }
            }
        }
        found.spans = found.spans(root);
        found
    }

    fn spans(&self, root: usize) -> Vec<(usize, usize)> {
        let mut below = vec![Vec::new(); self.next.len()];
        for (node, next) in self.next.iter().enumerate().filter(|(node, _)| *node != root) {
            next.iter().for_each(|next| below[*next].push(node));
        }
        let mut spans = vec![(0, 0); self.next.len()];
        let (mut number, mut stack) = (0, vec![(root, false)]);
        while let Some((node, is_over)) = stack.pop() {
            if is_over {
                spans[node].1 = number;
                continue;
            }
            number += 1;
            spans[node].0 = number;
            stack.push((node, true));
            stack.extend(below[node].iter().map(|node| (*node, false)));
        }
        spans
    }

    /// The last one that dominates both.
    fn meet(&self, mut a: usize, mut b: usize) -> usize {
        while a != b {
            if self.rank[a] < self.rank[b] {
                a = self.next[a].unwrap_or(b);
            } else {
                b = self.next[b].unwrap_or(a);
            }
        }
        a
    }

    pub(crate) fn dominates(&self, above: usize, node: usize) -> bool {
        let (first, last) = self.spans[above];
        (first..=last).contains(&self.spans[node].0) && self.next[node].is_some()
    }
}

/// Loops with one way in, each inside another or beside it.
pub(crate) struct Loops {
    /// For each node the innermost loop that it is in.
    pub(crate) innermost: Vec<Option<usize>>,
    /// For each loop the one around it.
    around: Vec<Option<usize>>,
    heads: Vec<usize>,
}

impl Loops {
    pub(crate) fn of(graph: &Graph, root: usize) -> Self {
        let dominators = Dominators::of(graph, root);
        let mut loops =
            Self { innermost: vec![None; graph.after.len()], around: Vec::new(), heads: Vec::new() };
        // For each loop one that is around it, or itself.
        let mut outer: Vec<usize> = Vec::new();
        // Inner loops first: their heads come earlier in post-order.
        for &head in &dominators.order {
            let is_again =
                |from: &usize| dominators.next[*from].is_some() && dominators.dominates(head, *from);
            let mut ahead: Vec<usize> = graph.before[head].iter().copied().filter(is_again).collect();
            if ahead.is_empty() {
                continue;
            }
            let new = loops.around.len();
            loops.around.push(None);
            outer.push(new);
            loops.heads.push(head);
            while let Some(node) = ahead.pop() {
                let begin = match loops.innermost[node].map(|inner| outermost(&mut outer, inner)) {
                    Some(known) if known == new => continue,
                    Some(inner) => {
                        loops.around[inner] = Some(new);
                        outer[inner] = new;
                        loops.heads[inner]
                    }
                    None => {
                        loops.innermost[node] = Some(new);
                        node
                    }
                };
                if begin != head {
                    let before = graph.before[begin].iter().copied();
                    ahead.extend(before.filter(|from| dominators.next[*from].is_some()));
                }
            }
            if loops.innermost[head].is_none() {
                loops.innermost[head] = Some(new);
            }
        }
        loops
    }

    /// Those that are in no other: their numbers, and where they begin.
    pub(crate) fn outermost(&self) -> impl Iterator<Item = (usize, usize)> {
        let all = self.heads.iter().zip(&self.around).enumerate();
        all.filter(|(_, (_, around))| around.is_none()).map(|(number, (head, _))| (number, *head))
    }

    /// The loop with that head.
    #[cfg(test)]
    pub(crate) fn headed(&self, head: usize) -> Option<usize> {
        self.heads.iter().position(|known| *known == head)
    }

    /// Whether a node is in a loop, or in one inside it.
    pub(crate) fn is_in(&self, node: usize, wanted: usize) -> bool {
        let mut next = self.innermost[node];
        while let Some(found) = next {
            if found == wanted {
                return true;
            }
            next = self.around[found];
        }
        false
    }
}

/// The outermost known loop around one; later that is found at once.
fn outermost(outer: &mut [usize], of: usize) -> usize {
    let mut found = of;
    while outer[found] != found {
        found = outer[found];
    }
    let mut at = of;
    while outer[at] != found {
        at = std::mem::replace(&mut outer[at], found);
    }
    found
}
