//! Making, copying and changing graphs.

use std::ffi::c_uint;

use ::graph::{EdgeData, NodeId};
use cuda_abi::{CuError, CuResult, sys};

use crate::client::{handle, out, session, with};
use crate::graph::{destroy, graph, node, read_edge_data, told};

/// Makes an empty graph.
pub unsafe fn cuGraphCreate(phGraph: *mut sys::CUgraph, flags: c_uint) -> CuResult {
    let phGraph = out(phGraph)?;
    if flags != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let id = session()?.graphs.lock().graphs.create();
    // SAFETY: the caller's to write to.
    unsafe { phGraph.set(handle(id.handle())) };
    Ok(())
}

/// Copies a graph.
pub unsafe fn cuGraphClone(phGraphClone: *mut sys::CUgraph, originalGraph: sys::CUgraph) -> CuResult {
    let phGraphClone = out(phGraphClone)?;
    let original = graph(originalGraph)?;
    let id = {
        let mut model = session()?.graphs.lock();
        model.refuse_copy(original)?;
        model.graphs.clone_graph(original).map_err(told)?
    };
    // SAFETY: the caller's to write to.
    unsafe { phGraphClone.set(handle(id.handle())) };
    Ok(())
}

/// Destroys a graph; executable graphs made from it stay.
pub unsafe fn cuGraphDestroy(hGraph: sys::CUgraph) -> CuResult {
    let (due, ended) = {
        let mut model = session()?.graphs.lock();
        (model.destroy(graph(hGraph)?)?, model.has_ended())
    };
    destroy(due);
    if ended { with(|call| call.end_templates()) } else { Ok(()) }
}

/// Takes a node out of its graph.
pub unsafe fn cuGraphDestroyNode(hNode: sys::CUgraphNode) -> CuResult {
    let due = {
        let mut model = session()?.graphs.lock();
        let node = node(hNode)?;
        let of = model.graphs.node(node).map_err(told)?.graph;
        model.refuse_memory_nodes(of)?;
        let released = model.graphs.remove(node).map_err(told)?;
        model.due(released)
    };
    destroy(due);
    Ok(())
}

/// Reads `count` pairs of nodes.
unsafe fn pairs(
    from: *const sys::CUgraphNode,
    to: *const sys::CUgraphNode,
    count: usize,
) -> CuResult<Vec<(NodeId, NodeId)>> {
    if count > 0 && (from.is_null() || to.is_null()) {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: the caller gives as many elements of each.
    (0..count).map(|at| unsafe { Ok((node(from.add(at).read())?, node(to.add(at).read())?)) }).collect()
}

/// Reads the data of edge number `at`, if any is given.
unsafe fn data(edges: *const sys::CUgraphEdgeData, at: usize) -> CuResult<Option<EdgeData>> {
    // SAFETY: the caller gives an element for each edge, or NULL.
    if edges.is_null() { Ok(None) } else { unsafe { read_edge_data(&*edges.add(at)) }.map(Some) }
}

/// Adds edges.
pub unsafe fn cuGraphAddDependencies(
    hGraph: sys::CUgraph,
    from: *const sys::CUgraphNode,
    to: *const sys::CUgraphNode,
    numDependencies: usize,
) -> CuResult {
    // SAFETY: the caller's contract is the same; NULL stands for edges without data.
    unsafe { cuGraphAddDependencies_v2(hGraph, from, to, std::ptr::null(), numDependencies) }
}

/// Adds edges with data.
pub unsafe fn cuGraphAddDependencies_v2(
    hGraph: sys::CUgraph,
    from: *const sys::CUgraphNode,
    to: *const sys::CUgraphNode,
    edgeData: *const sys::CUgraphEdgeData,
    numDependencies: usize,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    let pairs = unsafe { pairs(from, to, numDependencies) }?;
    let edges = pairs.into_iter().enumerate().map(|(at, (from, to))| {
        // SAFETY: as above.
        Ok((from, to, unsafe { data(edgeData, at) }?.unwrap_or_default()))
    });
    let edges = edges.collect::<CuResult<Vec<_>>>()?;
    session()?.graphs.lock().graphs.connect(graph(hGraph)?, &edges).map_err(told)
}

/// Takes edges away.
pub unsafe fn cuGraphRemoveDependencies(
    hGraph: sys::CUgraph,
    from: *const sys::CUgraphNode,
    to: *const sys::CUgraphNode,
    numDependencies: usize,
) -> CuResult {
    // SAFETY: the caller's contract is the same; NULL stands for any data.
    unsafe { cuGraphRemoveDependencies_v2(hGraph, from, to, std::ptr::null(), numDependencies) }
}

/// Takes edges with this data away.
pub unsafe fn cuGraphRemoveDependencies_v2(
    hGraph: sys::CUgraph,
    from: *const sys::CUgraphNode,
    to: *const sys::CUgraphNode,
    edgeData: *const sys::CUgraphEdgeData,
    numDependencies: usize,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    let pairs = unsafe { pairs(from, to, numDependencies) }?;
    let edges = pairs.into_iter().enumerate().map(|(at, (from, to))| {
        // SAFETY: as above.
        Ok((from, to, unsafe { data(edgeData, at) }?))
    });
    let edges = edges.collect::<CuResult<Vec<_>>>()?;
    let (of, session) = (graph(hGraph)?, session()?);
    let mut model = session.graphs.lock();
    model.refuse_memory_nodes(of)?;
    model.graphs.disconnect(of, &edges).map_err(told)
}
