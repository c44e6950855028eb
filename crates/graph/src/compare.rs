//! Whether an executable graph can become another: the same nodes, waiting for one another in the same way.

use std::collections::BTreeMap;

use crate::ids::{GraphId, NodeId};
use crate::model::{Body, Edge, Error, Graphs};

/// Where two graphs differ.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Difference {
    /// In their nodes' number or edges; at this node of the new graph, if at one.
    Topology(Option<NodeId>),
    /// In what kind of node this one of the new graph is.
    Kind(NodeId),
}

impl<W> Graphs<W> {
    /// Pairs the nodes of `new` with those of `old`, child graphs included: old, new. Nodes are paired in the order of their
    /// making; `same` tells whether two kinds of work are the same.
    ///
    /// # Errors
    /// [`Error::NoGraph`]; inside, where they differ.
    pub fn pair(
        &self,
        old: GraphId,
        new: GraphId,
        same: &impl Fn(&W, &W) -> bool,
    ) -> Result<Result<Vec<(NodeId, NodeId)>, Difference>, Error> {
        let mut pairs = Vec::new();
        Ok(self.pair_into(old, new, same, &mut pairs)?.map(|()| pairs))
    }

    fn pair_into(
        &self,
        old: GraphId,
        new: GraphId,
        same: &impl Fn(&W, &W) -> bool,
        pairs: &mut Vec<(NodeId, NodeId)>,
    ) -> Result<Result<(), Difference>, Error> {
        let (olds, news) = (self.nodes(old)?, self.nodes(new)?);
        if olds.len() != news.len() {
            return Ok(Err(Difference::Topology(None)));
        }
        let mut partner: BTreeMap<NodeId, NodeId> = BTreeMap::new();
        for (old, new) in olds.zip(news) {
            let (a, b) = (self.node(old)?, self.node(new)?);
            partner.insert(new, old);
            pairs.push((old, new));
            let alike = match (&a.body, &b.body) {
                (Body::Work(a), Body::Work(b)) => same(a, b),
                (Body::Child(a), Body::Child(b)) => match self.pair_into(*a, *b, same, pairs)? {
                    Ok(()) => true,
                    Err(difference) => return Ok(Err(difference)),
                },
                _ => false,
            };
            if !alike {
                return Ok(Err(Difference::Kind(new)));
            }
        }
        for (new, old) in &partner {
            let translated = |edge: &Edge| partner.get(&edge.node).map(|node| (*node, edge.data));
            let mut before: Vec<_> = self.node(*new)?.dependencies.iter().filter_map(translated).collect();
            let mut was: Vec<_> = self.node(*old)?.dependencies.iter().map(|e| (e.node, e.data)).collect();
            before.sort_unstable();
            was.sort_unstable();
            if before != was {
                return Ok(Err(Difference::Topology(Some(*new))));
            }
        }
        Ok(Ok(()))
    }
}
