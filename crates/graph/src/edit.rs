//! Making and changing graphs.

use crate::ids::{GraphId, NodeId};
use crate::model::{Body, Edge, EdgeData, Error, Graph, Graphs, Node};
use crate::objects::Released;

type Result<T> = std::result::Result<T, Error>;

impl<W: Clone> Graphs<W> {
    /// An empty graph.
    pub fn create(&mut self) -> GraphId {
        let id = GraphId(self.number());
        self.graphs.insert(id, Graph::default());
        id
    }

    /// Destroys a graph with its nodes; gives the user objects that nobody refers to any more.
    ///
    /// # Errors
    /// [`Error::NoGraph`]; [`Error::Owned`] for the graph of a node.
    pub fn destroy(&mut self, graph: GraphId) -> Result<Released> {
        if self.graph(graph)?.owner.is_some() {
            return Err(Error::Owned);
        }
        let mut released = Released::default();
        self.remove_graph(graph, &mut released);
        Ok(released)
    }

    pub(crate) fn remove_graph(&mut self, graph: GraphId, released: &mut Released) {
        let Some(gone) = self.graphs.remove(&graph) else { return };
        for node in gone.nodes {
            if let Some(Node { body: Body::Child(child), .. }) = self.nodes.remove(&node) {
                self.remove_graph(child, released);
            }
        }
        for (object, count) in gone.objects {
            self.drop_references(object, count, released);
        }
    }

    /// Adds a node with work.
    ///
    /// # Errors
    /// What is wrong with the graph or the dependencies.
    pub fn add(&mut self, graph: GraphId, after: &[Edge], work: W) -> Result<NodeId> {
        self.check_dependencies(graph, after)?;
        Ok(self.insert(graph, after, Body::Work(work)))
    }

    /// Adds a node that runs a copy of another graph.
    ///
    /// # Errors
    /// What is wrong with the graphs or the dependencies.
    pub fn add_child(&mut self, graph: GraphId, after: &[Edge], child: GraphId) -> Result<NodeId> {
        self.check_dependencies(graph, after)?;
        let own = self.clone_graph(child)?;
        let node = self.insert(graph, after, Body::Child(own));
        self.own(own, node);
        Ok(node)
    }

    pub(crate) fn own(&mut self, graph: GraphId, node: NodeId) {
        if let Some(graph) = self.graphs.get_mut(&graph) {
            graph.owner = Some(node);
        }
    }

    fn check_dependencies(&self, graph: GraphId, after: &[Edge]) -> Result<()> {
        self.graph(graph)?;
        let mut seen = std::collections::BTreeSet::new();
        for edge in after {
            if self.node(edge.node)?.graph != graph {
                return Err(Error::Elsewhere);
            }
            if !seen.insert(edge.node) {
                return Err(Error::Duplicate);
            }
        }
        Ok(())
    }

    pub(crate) fn insert(&mut self, graph: GraphId, after: &[Edge], body: Body<W>) -> NodeId {
        let id = NodeId(self.number());
        for edge in after {
            if let Some(node) = self.nodes.get_mut(&edge.node) {
                node.dependents.push(Edge { node: id, data: edge.data });
            }
        }
        let node = Node { graph, body, dependencies: after.to_vec(), dependents: Vec::new(), original: None };
        self.nodes.insert(id, node);
        if let Some(graph) = self.graphs.get_mut(&graph) {
            graph.nodes.insert(id);
        }
        id
    }

    /// Takes a node out, with its edges.
    ///
    /// # Errors
    /// [`Error::NoNode`].
    pub fn remove(&mut self, node: NodeId) -> Result<Released> {
        let gone = self.nodes.remove(&node).ok_or(Error::NoNode)?;
        if let Some(graph) = self.graphs.get_mut(&gone.graph) {
            graph.nodes.remove(&node);
        }
        for edge in &gone.dependencies {
            if let Some(other) = self.nodes.get_mut(&edge.node) {
                other.dependents.retain(|edge| edge.node != node);
            }
        }
        for edge in &gone.dependents {
            if let Some(other) = self.nodes.get_mut(&edge.node) {
                other.dependencies.retain(|edge| edge.node != node);
            }
        }
        let mut released = Released::default();
        if let Body::Child(child) = gone.body {
            self.remove_graph(child, &mut released);
        }
        Ok(released)
    }

    /// Adds edges, all or none.
    ///
    /// # Errors
    /// What is wrong with one of them.
    pub fn connect(&mut self, graph: GraphId, edges: &[(NodeId, NodeId, EdgeData)]) -> Result<()> {
        self.check_ends(graph, edges)?;
        let mut seen = std::collections::BTreeSet::new();
        for (from, to, _) in edges {
            let there = self.node(*to)?.dependencies.iter().any(|edge| edge.node == *from);
            if there || !seen.insert((*from, *to)) {
                return Err(Error::Duplicate);
            }
        }
        for (from, to, data) in edges {
            if let Some(node) = self.nodes.get_mut(from) {
                node.dependents.push(Edge { node: *to, data: *data });
            }
            if let Some(node) = self.nodes.get_mut(to) {
                node.dependencies.push(Edge { node: *from, data: *data });
            }
        }
        Ok(())
    }

    /// Takes edges away, all or none; without data, whatever theirs is.
    ///
    /// # Errors
    /// What is wrong with one of them.
    pub fn disconnect(&mut self, graph: GraphId, edges: &[(NodeId, NodeId, Option<EdgeData>)]) -> Result<()> {
        let ends: Vec<_> = edges.iter().map(|(from, to, _)| (*from, *to, EdgeData::default())).collect();
        self.check_ends(graph, &ends)?;
        for (from, to, data) in edges {
            let is = |edge: &Edge| edge.node == *from && data.is_none_or(|data| data == edge.data);
            if !self.node(*to)?.dependencies.iter().any(is) {
                return Err(Error::NoEdge);
            }
        }
        for (from, to, _) in edges {
            if let Some(node) = self.nodes.get_mut(from) {
                node.dependents.retain(|edge| edge.node != *to);
            }
            if let Some(node) = self.nodes.get_mut(to) {
                node.dependencies.retain(|edge| edge.node != *from);
            }
        }
        Ok(())
    }

    fn check_ends(&self, graph: GraphId, edges: &[(NodeId, NodeId, EdgeData)]) -> Result<()> {
        self.graph(graph)?;
        for (from, to, _) in edges {
            if self.node(*from)?.graph != graph || self.node(*to)?.graph != graph {
                return Err(Error::Elsewhere);
            }
            if from == to {
                return Err(Error::Itself);
            }
        }
        Ok(())
    }
}
