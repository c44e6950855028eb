//! All graphs of a process, their nodes and edges.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use thiserror::Error;

use crate::ids::{GraphId, NodeId, ObjectId};

/// Why a graph cannot be asked or changed in that way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Error {
    /// There is no such graph.
    #[error("there is no such graph")]
    NoGraph,
    /// There is no such node.
    #[error("there is no such node")]
    NoNode,
    /// There is no such user object.
    #[error("there is no such user object")]
    NoObject,
    /// A node of another graph.
    #[error("the node is of another graph")]
    Elsewhere,
    /// The dependency is there already, or is given twice.
    #[error("the dependency is there already")]
    Duplicate,
    /// There is no such dependency.
    #[error("there is no such dependency")]
    NoEdge,
    /// A node that waits for itself.
    #[error("a node cannot wait for itself")]
    Itself,
    /// The graph belongs to a node.
    #[error("the graph belongs to a node")]
    Owned,
    /// More references than there are.
    #[error("there are not so many references")]
    References,
}

type Result<T> = std::result::Result<T, Error>;

/// What `CUgraphEdgeData` says of an edge.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct EdgeData {
    /// Which end of the node that is waited for.
    pub from_port: u8,
    /// Which end of the node that waits.
    pub to_port: u8,
    /// `CUgraphDependencyType`.
    pub kind: u8,
}

/// One end of an edge: the node at the other, and the edge's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Edge {
    /// The node at the other end.
    pub node: NodeId,
    /// The data.
    pub data: EdgeData,
}

/// What a node does.
#[derive(Clone, Debug)]
pub enum Body<W> {
    /// Work of the caller's.
    Work(W),
    /// Runs a graph, which belongs to the node.
    Child(GraphId),
    /// Work of the caller's that decides which of these graphs runs, and how often; they belong to the node.
    Choice(W, Vec<GraphId>),
}

impl<W> Body<W> {
    /// The graphs that belong to the node.
    #[must_use]
    pub fn graphs(&self) -> &[GraphId] {
        match self {
            Self::Work(_) => &[],
            Self::Child(child) => std::slice::from_ref(child),
            Self::Choice(_, graphs) => graphs,
        }
    }

    /// The caller's work, if it has some.
    #[must_use]
    pub fn work(&self) -> Option<&W> {
        match self {
            Self::Work(work) | Self::Choice(work, _) => Some(work),
            Self::Child(_) => None,
        }
    }
}

/// A node.
#[derive(Clone, Debug)]
pub struct Node<W> {
    /// Its graph.
    pub graph: GraphId,
    /// What it does.
    pub body: Body<W>,
    /// What it waits for.
    pub dependencies: Vec<Edge>,
    /// What waits for it.
    pub dependents: Vec<Edge>,
    /// In a clone: the node that it was cloned from.
    pub original: Option<NodeId>,
    /// When it last came to have no dependents, among such numbers.
    pub(crate) last_since: u64,
}

#[derive(Default)]
pub(crate) struct Graph {
    /// In the order of their making.
    pub nodes: BTreeSet<NodeId>,
    /// The node that the graph belongs to.
    pub owner: Option<NodeId>,
    /// Whether it is the node's for good, and not a copy that the node made for itself.
    pub bound: bool,
    /// In a clone: the graph that it was cloned from.
    pub original: Option<GraphId>,
    /// References to user objects.
    pub objects: BTreeMap<ObjectId, u64>,
}

/// All graphs of a process.
pub struct Graphs<W> {
    pub(crate) graphs: HashMap<GraphId, Graph>,
    pub(crate) nodes: HashMap<NodeId, Node<W>>,
    /// User objects: how many references there are.
    pub(crate) objects: HashMap<ObjectId, u64>,
    next: u64,
}

impl<W> Default for Graphs<W> {
    fn default() -> Self {
        Self { graphs: HashMap::new(), nodes: HashMap::new(), objects: HashMap::new(), next: 0 }
    }
}

impl<W> Graphs<W> {
    /// A number that no other object has.
    pub(crate) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub(crate) fn graph(&self, graph: GraphId) -> Result<&Graph> {
        self.graphs.get(&graph).ok_or(Error::NoGraph)
    }

    /// A node.
    ///
    /// # Errors
    /// [`Error::NoNode`].
    pub fn node(&self, node: NodeId) -> Result<&Node<W>> {
        self.nodes.get(&node).ok_or(Error::NoNode)
    }

    /// What a node does, to be changed.
    ///
    /// # Errors
    /// [`Error::NoNode`].
    pub fn body_mut(&mut self, node: NodeId) -> Result<&mut Body<W>> {
        self.nodes.get_mut(&node).map(|node| &mut node.body).ok_or(Error::NoNode)
    }

    /// Whether there is such a graph.
    #[must_use]
    pub fn contains(&self, graph: GraphId) -> bool {
        self.graphs.contains_key(&graph)
    }

    /// Whether a graph belongs to a node.
    ///
    /// # Errors
    /// [`Error::NoGraph`].
    pub fn is_owned(&self, graph: GraphId) -> Result<bool> {
        self.graph(graph).map(|graph| graph.owner.is_some())
    }

    /// Whether a graph is a node's for good: one that was moved into a node, or that a node decides about.
    ///
    /// # Errors
    /// [`Error::NoGraph`].
    pub fn is_bound(&self, graph: GraphId) -> Result<bool> {
        self.graph(graph).map(|graph| graph.bound)
    }

    /// The graph, the one that its node belongs to, and so on to one that belongs to no node.
    pub fn with_parents(&self, graph: GraphId) -> impl Iterator<Item = GraphId> + '_ {
        std::iter::successors(Some(graph), |graph| {
            self.nodes.get(&self.graphs.get(graph)?.owner?).map(|node| node.graph)
        })
    }

    /// The node that a graph belongs to.
    #[must_use]
    pub fn owner(&self, graph: GraphId) -> Option<&Node<W>> {
        self.graphs.get(&graph)?.owner.and_then(|owner| self.nodes.get(&owner))
    }

    /// All work of a graph and of those that belong to its nodes.
    #[must_use]
    pub fn all_work(&self, graph: GraphId) -> Vec<&W> {
        let mut all = Vec::new();
        let mut open = vec![graph];
        while let Some(graph) = open.pop() {
            let nodes = self.graphs.get(&graph).into_iter().flat_map(|graph| &graph.nodes);
            for node in nodes.filter_map(|node| self.nodes.get(node)) {
                all.extend(node.body.work());
                open.extend(node.body.graphs());
            }
        }
        all
    }

    /// A graph's nodes, in the order of their making.
    ///
    /// # Errors
    /// [`Error::NoGraph`].
    pub fn nodes(&self, graph: GraphId) -> Result<impl ExactSizeIterator<Item = NodeId>> {
        self.graph(graph).map(|graph| graph.nodes.iter().copied())
    }

    /// Its nodes that wait for none.
    ///
    /// # Errors
    /// [`Error::NoGraph`].
    pub fn roots(&self, graph: GraphId) -> Result<Vec<NodeId>> {
        let is_root = |node: &NodeId| self.nodes.get(node).is_some_and(|node| node.dependencies.is_empty());
        Ok(self.nodes(graph)?.filter(is_root).collect())
    }

    /// Its edges: from, to, data.
    ///
    /// # Errors
    /// [`Error::NoGraph`].
    pub fn edges(&self, graph: GraphId) -> Result<Vec<(NodeId, NodeId, EdgeData)>> {
        let mut edges = Vec::new();
        for to in self.nodes(graph)? {
            edges.extend(self.node(to)?.dependencies.iter().map(|edge| (edge.node, to, edge.data)));
        }
        Ok(edges)
    }

    /// Whether `node`, or what runs before it, is `before`.
    #[must_use]
    pub fn reaches(&self, from: impl IntoIterator<Item = NodeId>, before: NodeId) -> bool {
        let mut seen = BTreeSet::new();
        let mut open: Vec<NodeId> = from.into_iter().collect();
        while let Some(node) = open.pop() {
            if node == before {
                return true;
            }
            // A node that is made later waits for one made earlier only by an edge of its own.
            if seen.insert(node)
                && let Some(node) = self.nodes.get(&node)
            {
                open.extend(node.dependencies.iter().map(|edge| edge.node));
            }
        }
        false
    }
}
