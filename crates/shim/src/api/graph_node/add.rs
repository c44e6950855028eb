//! Adding nodes, and what all kinds have in common.

use ::graph::{Body, Edge, NodeId};
use cuda_abi::{CuError, CuResult, sys};

use crate::client::{Call, handle, out, session, with};
use crate::graph::{self, Work, told};

/// A node to be added: where its handle goes, to which graph, behind what.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub node: *mut sys::CUgraphNode,
    pub graph: sys::CUgraph,
    pub after: *const sys::CUgraphNode,
    pub edges: *const sys::CUgraphEdgeData,
    pub count: usize,
}

impl Place {
    /// Edges without data.
    pub fn new(
        node: *mut sys::CUgraphNode,
        graph: sys::CUgraph,
        after: *const sys::CUgraphNode,
        count: usize,
    ) -> Self {
        Self { node, graph, after, edges: std::ptr::null(), count }
    }

    /// Adds what `add` makes of graph and dependencies.
    ///
    /// # Safety
    /// The pointers are as `cuGraphAddNode` takes them.
    pub unsafe fn fill(
        self,
        add: impl FnOnce(&mut Call<'_>, ::graph::GraphId, &[Edge]) -> CuResult<NodeId>,
    ) -> CuResult {
        let to = out(self.node)?;
        let graph = graph::graph(self.graph)?;
        // SAFETY: as the caller says.
        let after = unsafe { graph::read_edges(self.after, self.edges, self.count) }?;
        let node = with(|call| add(call, graph, &after))?;
        // SAFETY: the caller's to write to.
        unsafe { to.set(handle(node.handle())) };
        Ok(())
    }

    /// Adds a node with the work that `make` makes.
    ///
    /// # Safety
    /// As [`Place::fill`].
    pub unsafe fn add(self, make: impl FnOnce(&mut Call<'_>) -> CuResult<Work>) -> CuResult {
        // SAFETY: as the caller says.
        unsafe {
            self.fill(|call, graph, after| {
                let work = make(call)?;
                call.session.graphs.lock().add(graph, after, work)
            })
        }
    }

    /// Adds a node that runs a copy of a graph.
    ///
    /// # Safety
    /// As [`Place::fill`].
    pub unsafe fn add_child(self, child: sys::CUgraph) -> CuResult {
        // SAFETY: as the caller says.
        unsafe { self.fill(|call, graph, after| add_child(call, graph, after, child, false)) }
    }
}

/// Adds a node that runs a copy of a graph, or, `moved`, the graph itself.
pub(super) fn add_child(
    call: &Call<'_>,
    graph: ::graph::GraphId,
    after: &[Edge],
    child: sys::CUgraph,
    moved: bool,
) -> CuResult<NodeId> {
    let child = graph::graph(child)?;
    call.session.graphs.lock().add_child(graph, after, child, moved)
}

/// What a node of the application's does.
pub(super) fn work_of(handle: sys::CUgraphNode) -> CuResult<Work> {
    let node = graph::node(handle)?;
    let model = session()?.graphs.lock();
    model.graphs.node(node).map_err(told)?.body.work().cloned().ok_or(CuError::INVALID_VALUE)
}

/// Gives a node other work of the same kind. What a kernel's attributes are, stays.
pub(super) fn set(handle: sys::CUgraphNode, make: impl FnOnce(&mut Call<'_>) -> CuResult<Work>) -> CuResult {
    let node = graph::node(handle)?;
    with(|call| {
        let work = make(call)?;
        let mut model = call.session.graphs.lock();
        let body = model.graphs.body_mut(node).map_err(told)?;
        match body {
            Body::Work(old) if old.is_like(&work) => *body = Body::Work(work.in_place_of(old)),
            _ => return Err(CuError::INVALID_VALUE),
        }
        Ok(())
    })
}
