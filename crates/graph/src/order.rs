//! The order in which a graph's nodes can run.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};

use crate::ids::{GraphId, NodeId};
use crate::model::{Body, EdgeData, Error, Graphs};

/// Something that happens when a graph runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// The node.
    pub node: NodeId,
    /// What of it.
    pub what: What,
    /// What it waits for: numbers of earlier steps.
    pub after: Vec<(usize, EdgeData)>,
}

/// What of a node a step is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum What {
    /// Its work.
    Work,
    /// A child graph's beginning.
    Begin,
    /// A child graph's end.
    End,
    /// The decision which of the node's graphs runs. The steps of each follow it, all of the first before those of the second; here
    /// is how many each has. A graph's first steps wait for nothing, and nothing outside waits for its last ones.
    Choice(Vec<usize>),
}

/// All that happens, in an order in which it can.
pub type Steps = Vec<Step>;

impl<W> Graphs<W> {
    /// A graph's nodes such that each comes behind what it waits for, and else in the order of their making; or, where they wait in
    /// a circle, a node of it.
    ///
    /// # Errors
    /// [`Error::NoGraph`].
    pub fn in_order(&self, graph: GraphId) -> Result<Result<Vec<NodeId>, NodeId>, Error> {
        let mut missing: HashMap<NodeId, usize> = HashMap::new();
        let mut ready = BinaryHeap::new();
        for node in self.nodes(graph)? {
            let count = self.node(node)?.dependencies.len();
            missing.insert(node, count);
            if count == 0 {
                ready.push(Reverse(node));
            }
        }
        let mut order = Vec::with_capacity(missing.len());
        while let Some(Reverse(node)) = ready.pop() {
            missing.remove(&node);
            order.push(node);
            for edge in &self.node(node)?.dependents {
                if let Some(count) = missing.get_mut(&edge.node) {
                    *count -= 1;
                    if *count == 0 {
                        ready.push(Reverse(edge.node));
                    }
                }
            }
        }
        Ok(match missing.into_keys().min() {
            None => Ok(order),
            Some(stuck) => Err(stuck),
        })
    }

    /// All that happens when a graph runs, child graphs laid out between their beginnings and ends; or a node of a circle.
    ///
    /// # Errors
    /// [`Error::NoGraph`].
    pub fn steps(&self, graph: GraphId) -> Result<Result<Steps, NodeId>, Error> {
        let mut steps = Steps::new();
        Ok(self.lay_out(graph, None, &mut steps)?.map(|_| steps))
    }

    /// Appends a graph's steps; gives the numbers of those that others can wait for: all but what a choice decides about.
    fn lay_out(
        &self,
        graph: GraphId,
        begin: Option<usize>,
        steps: &mut Steps,
    ) -> Result<Result<Vec<usize>, NodeId>, Error> {
        let order = match self.in_order(graph)? {
            Ok(order) => order,
            Err(stuck) => return Ok(Err(stuck)),
        };
        // The step that stands for a node in what waits for it.
        let mut last: HashMap<NodeId, usize> = HashMap::new();
        let mut own = Vec::with_capacity(order.len());
        for id in order {
            let node = self.node(id)?;
            let mut after: Vec<_> = node
                .dependencies
                .iter()
                .filter_map(|edge| last.get(&edge.node).map(|step| (*step, edge.data)))
                .collect();
            if after.is_empty() {
                after.extend(begin.map(|step| (step, EdgeData::default())));
            }
            let first = steps.len();
            last.insert(id, first);
            own.push(first);
            match &node.body {
                Body::Work(_) => steps.push(Step { node: id, what: What::Work, after }),
                Body::Choice(_, graphs) => {
                    steps.push(Step { node: id, what: What::Choice(Vec::new()), after });
                    let mut counts = Vec::with_capacity(graphs.len());
                    for graph in graphs {
                        let before = steps.len();
                        if let Err(stuck) = self.lay_out(*graph, None, steps)? {
                            return Ok(Err(stuck));
                        }
                        counts.push(steps.len() - before);
                    }
                    steps[first].what = What::Choice(counts);
                }
                Body::Child(child) => {
                    steps.push(Step { node: id, what: What::Begin, after });
                    let inside = match self.lay_out(*child, Some(first), steps)? {
                        Ok(inside) => inside,
                        Err(stuck) => return Ok(Err(stuck)),
                    };
                    let waited: HashSet<usize> = inside
                        .iter()
                        .flat_map(|step| steps[*step].after.iter().map(|(step, _)| *step))
                        .collect();
                    let leaves = std::iter::once(&first).chain(&inside).filter(|step| !waited.contains(step));
                    let after = leaves.map(|step| (*step, EdgeData::default())).collect();
                    own.extend(inside);
                    last.insert(id, steps.len());
                    own.push(steps.len());
                    steps.push(Step { node: id, what: What::End, after });
                }
            }
        }
        Ok(Ok(own))
    }
}
