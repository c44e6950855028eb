//! What a node is, and what it has to do with others.

use std::ffi::c_uint;

use ::graph::{Edge, EdgeData, NodeId};
use cuda_abi::{CuResult, sys};

use crate::api::graph::give_list;
use crate::client::{handle, out, session, with};
use crate::graph::{Work, graph, node, told};

/// Gives the kind.
pub unsafe fn cuGraphNodeGetType(hNode: sys::CUgraphNode, r#type: *mut c_uint) -> CuResult {
    let to = out(r#type)?;
    let child = sys::CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH;
    let kind = session()?
        .graphs
        .lock()
        .graphs
        .node(node(hNode)?)
        .map_err(told)?
        .body
        .work()
        .map_or(child, Work::kind);
    // SAFETY: the caller's to write to.
    unsafe { to.set(kind as c_uint) };
    Ok(())
}

fn listed(edges: &[Edge]) -> Vec<([NodeId; 1], EdgeData)> {
    edges.iter().map(|edge| ([edge.node], edge.data)).collect()
}

/// Gives the nodes that it waits for. An edge with data cannot be told.
pub unsafe fn cuGraphNodeGetDependencies(
    hNode: sys::CUgraphNode,
    dependencies: *mut sys::CUgraphNode,
    numDependencies: *mut usize,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    unsafe { cuGraphNodeGetDependencies_v2(hNode, dependencies, std::ptr::null_mut(), numDependencies) }
}

/// Gives the nodes that it waits for, and the edges' data.
pub unsafe fn cuGraphNodeGetDependencies_v2(
    hNode: sys::CUgraphNode,
    dependencies: *mut sys::CUgraphNode,
    edgeData: *mut sys::CUgraphEdgeData,
    numDependencies: *mut usize,
) -> CuResult {
    let all = listed(&session()?.graphs.lock().graphs.node(node(hNode)?).map_err(told)?.dependencies);
    // SAFETY: the caller's contract is the same.
    unsafe { give_list([dependencies], edgeData, numDependencies, &all) }
}

/// Gives the nodes that wait for it. An edge with data cannot be told.
pub unsafe fn cuGraphNodeGetDependentNodes(
    hNode: sys::CUgraphNode,
    dependentNodes: *mut sys::CUgraphNode,
    numDependentNodes: *mut usize,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    unsafe { cuGraphNodeGetDependentNodes_v2(hNode, dependentNodes, std::ptr::null_mut(), numDependentNodes) }
}

/// Gives the nodes that wait for it, and the edges' data.
pub unsafe fn cuGraphNodeGetDependentNodes_v2(
    hNode: sys::CUgraphNode,
    dependentNodes: *mut sys::CUgraphNode,
    edgeData: *mut sys::CUgraphEdgeData,
    numDependentNodes: *mut usize,
) -> CuResult {
    let all = listed(&session()?.graphs.lock().graphs.node(node(hNode)?).map_err(told)?.dependents);
    // SAFETY: the caller's contract is the same.
    unsafe { give_list([dependentNodes], edgeData, numDependentNodes, &all) }
}

/// Gives the node of a copy of a graph that stands for a node of the graph.
pub unsafe fn cuGraphNodeFindInClone(
    phNode: *mut sys::CUgraphNode,
    hOriginalNode: sys::CUgraphNode,
    hClonedGraph: sys::CUgraph,
) -> CuResult {
    let phNode = out(phNode)?;
    let (original, clone) = (node(hOriginalNode)?, graph(hClonedGraph)?);
    let found = session()?.graphs.lock().graphs.find_in_clone(original, clone);
    let found = found.map_err(|_| cuda_abi::CuError::INVALID_VALUE)?;
    // SAFETY: the caller's to write to.
    unsafe { phNode.set(handle(found.handle())) };
    Ok(())
}

/// Lets a node of an executable graph do its work, or nothing.
pub unsafe fn cuGraphNodeSetEnabled(
    hGraphExec: sys::CUgraphExec,
    hNode: sys::CUgraphNode,
    isEnabled: c_uint,
) -> CuResult {
    let node = node(hNode)?;
    with(|call| {
        let exec = call.exec(hGraphExec)?;
        call.enable_node(&exec, node, isEnabled != 0)
    })
}

/// Tells whether a node of an executable graph does its work.
pub unsafe fn cuGraphNodeGetEnabled(
    hGraphExec: sys::CUgraphExec,
    hNode: sys::CUgraphNode,
    isEnabled: *mut c_uint,
) -> CuResult {
    let isEnabled = out(isEnabled)?;
    let node = node(hNode)?;
    let enabled = with(|call| {
        let exec = call.exec(hGraphExec)?;
        call.node_enabled(&exec, node)
    })?;
    // SAFETY: the caller's to write to.
    unsafe { isEnabled.set(enabled.into()) };
    Ok(())
}
