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
            let removed = self.nodes.remove(&node);
            for own in removed.iter().flat_map(|node| node.body.graphs()) {
                self.remove_graph(*own, released);
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

    /// Adds a node that runs this very graph, which is the node's from then on.
    ///
    /// # Errors
    /// What is wrong with the graphs or the dependencies; [`Error::Owned`] for a graph that is a node's already, [`Error::Itself`]
    /// for one that the node would be inside of.
    pub fn move_child(&mut self, graph: GraphId, after: &[Edge], child: GraphId) -> Result<NodeId> {
        self.check_dependencies(graph, after)?;
        if self.graph(child)?.owner.is_some() {
            return Err(Error::Owned);
        }
        if self.with_parents(graph).any(|parent| parent == child) {
            return Err(Error::Itself);
        }
        let node = self.insert(graph, after, Body::Child(child));
        self.bind(child, node);
        Ok(node)
    }

    /// Adds a node whose work decides which of `count` graphs runs, all of them empty yet; `work` is told them.
    ///
    /// # Errors
    /// What is wrong with the graph or the dependencies.
    pub fn add_choice(
        &mut self,
        graph: GraphId,
        after: &[Edge],
        count: usize,
        work: impl FnOnce(&[GraphId]) -> W,
    ) -> Result<NodeId> {
        self.check_dependencies(graph, after)?;
        let own: Vec<GraphId> = (0..count).map(|_| self.create()).collect();
        let node = self.insert(graph, after, Body::Choice(work(&own), own.clone()));
        own.into_iter().for_each(|own| self.bind(own, node));
        Ok(node)
    }

    fn bind(&mut self, graph: GraphId, node: NodeId) {
        self.own(graph, node);
        if let Some(graph) = self.graphs.get_mut(&graph) {
            graph.bound = true;
        }
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
        let (dependencies, dependents) = (after.to_vec(), Vec::new());
        let node = Node { graph, body, dependencies, dependents, original: None, last_since: id.0 };
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
            self.no_longer_waited_for(edge.node, node);
        }
        for edge in &gone.dependents {
            if let Some(other) = self.nodes.get_mut(&edge.node) {
                other.dependencies.retain(|edge| edge.node != node);
            }
        }
        let mut released = Released::default();
        for own in gone.body.graphs() {
            self.remove_graph(*own, &mut released);
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
            self.no_longer_waited_for(*from, *to);
            if let Some(node) = self.nodes.get_mut(to) {
                node.dependencies.retain(|edge| edge.node != *from);
            }
        }
        Ok(())
    }

    fn no_longer_waited_for(&mut self, node: NodeId, by: NodeId) {
        let now = self.number();
        if let Some(node) = self.nodes.get_mut(&node) {
            node.dependents.retain(|edge| edge.node != by);
            if node.dependents.is_empty() {
                node.last_since = now;
            }
        }
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
