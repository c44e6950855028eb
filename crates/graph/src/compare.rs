//! Whether an executable graph can become another: the same nodes, waiting for one another in the same way.
//!
//! CUDA does not ask which nodes are alike: it pairs the nodes that nothing waits for, in the order in which they came to be such,
//! and from there on what paired nodes wait for, in the order of their edges.

use std::collections::HashMap;

use crate::ids::{GraphId, NodeId};
use crate::model::{Body, Error, Graphs};

/// Where two graphs differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Difference {
    /// In their nodes' number or edges; at this node of the new graph, if at one.
    Topology(Option<NodeId>),
    /// In an edge: the node of the new graph that waits, and the one that it waits for.
    Edge(NodeId, NodeId),
    /// In what kind of node this one of the new graph is.
    Kind(NodeId),
}

type Pairs = Vec<(NodeId, NodeId)>;

impl<W> Graphs<W> {
    /// Pairs the nodes of `new` with those of `old`, graphs of nodes included: old, new. `same` tells whether two kinds of work are
    /// the same.
    ///
    /// # Errors
    /// [`Error::NoGraph`]; inside, where they differ.
    pub fn pair(
        &self,
        old: GraphId,
        new: GraphId,
        same: &impl Fn(&W, &W) -> bool,
    ) -> Result<Result<Pairs, Difference>, Error> {
        let mut pairs = Pairs::new();
        Ok(self.pair_into(old, new, same, &mut pairs)?.map(|()| pairs))
    }

    /// A graph's nodes that nothing waits for, in the order in which they came to be such.
    fn last_nodes(&self, graph: GraphId) -> Result<Vec<NodeId>, Error> {
        let mut last = Vec::new();
        for id in self.nodes(graph)? {
            let node = self.node(id)?;
            if node.dependents.is_empty() {
                last.push((node.last_since, id));
            }
        }
        last.sort_unstable();
        Ok(last.into_iter().map(|(_, id)| id).collect())
    }

    fn pair_into(
        &self,
        old: GraphId,
        new: GraphId,
        same: &impl Fn(&W, &W) -> bool,
        pairs: &mut Pairs,
    ) -> Result<Result<(), Difference>, Error> {
        let (olds, news) = (self.last_nodes(old)?, self.last_nodes(new)?);
        if self.nodes(old)?.len() != self.nodes(new)?.len() || olds.len() > news.len() {
            return Ok(Err(Difference::Topology(None)));
        }
        if let Some(more) = news.get(olds.len()) {
            return Ok(Err(Difference::Topology(Some(*more))));
        }
        let mut open: Pairs = olds.into_iter().zip(news).rev().collect();
        let mut of_new: HashMap<NodeId, NodeId> = open.iter().map(|(old, new)| (*new, *old)).collect();
        let mut of_old: HashMap<NodeId, NodeId> = open.iter().copied().collect();
        while let Some((old, new)) = open.pop() {
            let (a, b) = (self.node(old)?, self.node(new)?);
            pairs.push((old, new));
            let alike = match (&a.body, &b.body) {
                (Body::Work(a), Body::Work(b)) | (Body::Choice(a, _), Body::Choice(b, _)) => same(a, b),
                (Body::Child(_), Body::Child(_)) => true,
                _ => false,
            };
            if !alike || a.body.graphs().len() != b.body.graphs().len() {
                return Ok(Err(Difference::Kind(new)));
            }
            for (a, b) in a.body.graphs().iter().zip(b.body.graphs()) {
                if let Err(difference) = self.pair_into(*a, *b, same, pairs)? {
                    return Ok(Err(difference));
                }
            }
            if a.dependencies.len() != b.dependencies.len() {
                return Ok(Err(Difference::Topology(Some(new))));
            }
            for (a, b) in a.dependencies.iter().zip(&b.dependencies) {
                let known = (of_new.insert(b.node, a.node), of_old.insert(a.node, b.node));
                match known {
                    _ if a.data != b.data => return Ok(Err(Difference::Edge(new, b.node))),
                    (None, None) => open.push((a.node, b.node)),
                    known if known == (Some(a.node), Some(b.node)) => {}
                    _ => return Ok(Err(Difference::Edge(new, b.node))),
                }
            }
        }
        Ok(Ok(()))
    }
}
