//! Clones.

use std::collections::HashMap;

use crate::ids::{GraphId, NodeId};
use crate::model::{Body, Edge, Error, Graph, Graphs, Node};

type Result<T> = std::result::Result<T, Error>;

impl<W: Clone> Graphs<W> {
    /// A copy of a graph, its child graphs included, with references to the same user objects.
    ///
    /// # Errors
    /// [`Error::NoGraph`].
    pub fn clone_graph(&mut self, graph: GraphId) -> Result<GraphId> {
        let nodes: Vec<NodeId> = self.nodes(graph)?.collect();
        let objects = self.graph(graph)?.objects.clone();
        for (object, count) in &objects {
            if let Some(references) = self.objects.get_mut(object) {
                *references += count;
            }
        }
        let clone = GraphId(self.number());
        let ids: HashMap<NodeId, NodeId> = nodes.iter().map(|node| (*node, NodeId(self.number()))).collect();
        let again = |edges: &[Edge]| -> Vec<Edge> {
            let known = edges.iter().filter_map(|edge| Some(Edge { node: *ids.get(&edge.node)?, ..*edge }));
            known.collect()
        };
        for node in &nodes {
            let Some(id) = ids.get(node).copied() else { continue };
            let Node { body, dependencies, dependents, last_since, .. } = self.node(*node)?.clone();
            let body = match body {
                Body::Work(work) => Body::Work(work),
                Body::Child(child) => Body::Child(self.clone_for(child, id)?),
                Body::Choice(work, own) => {
                    let copies = own.into_iter().map(|own| self.clone_for(own, id)).collect::<Result<_>>()?;
                    Body::Choice(work, copies)
                }
            };
            let (dependencies, dependents) = (again(&dependencies), again(&dependents));
            let copy =
                Node { graph: clone, body, dependencies, dependents, original: Some(*node), last_since };
            self.nodes.insert(id, copy);
        }
        let nodes = ids.into_values().collect();
        self.graphs.insert(clone, Graph { nodes, owner: None, bound: false, original: Some(graph), objects });
        Ok(clone)
    }

    /// A copy of a graph that belongs to a node.
    fn clone_for(&mut self, graph: GraphId, node: NodeId) -> Result<GraphId> {
        let bound = self.graph(graph)?.bound;
        let own = self.clone_graph(graph)?;
        if let Some(own) = self.graphs.get_mut(&own) {
            (own.owner, own.bound) = (Some(node), bound);
        }
        Ok(own)
    }

    /// The node of a clone that stands for `node`.
    ///
    /// # Errors
    /// [`Error::NoGraph`]; [`Error::NoNode`] when the clone is of another graph, or the node is gone from it.
    pub fn find_in_clone(&self, node: NodeId, clone: GraphId) -> Result<NodeId> {
        let graph = self.graph(clone)?;
        if graph.original != Some(self.node(node)?.graph) {
            return Err(Error::NoNode);
        }
        let is_copy = |id: &&NodeId| self.nodes.get(id).is_some_and(|copy| copy.original == Some(node));
        graph.nodes.iter().find(is_copy).copied().ok_or(Error::NoNode)
    }
}
