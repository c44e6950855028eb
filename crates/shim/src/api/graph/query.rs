//! What a graph consists of.

use ::graph::{EdgeData, NodeId};
use cuda_abi::{CuError, CuResult, sys};

use crate::client::{handle, session};
use crate::graph::{edge_data, graph, told};

/// Gives a list: its length where no list is wanted, else as much of it as there is room for, the rest NULL.
///
/// # Safety
/// `count` and each of the lists must be NULL or the caller's, the lists with room for `*count` elements.
pub(in crate::api) unsafe fn give_list<const N: usize>(
    lists: [*mut sys::CUgraphNode; N],
    data: *mut sys::CUgraphEdgeData,
    count: *mut usize,
    all: &[([NodeId; N], EdgeData)],
) -> CuResult {
    if count.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    if lists.iter().all(|list| list.is_null()) {
        // SAFETY: not NULL, so the caller's to write to.
        unsafe { count.write(all.len()) };
        return Ok(());
    }
    if lists.iter().any(|list| list.is_null()) {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: as above.
    let room = unsafe { count.read() };
    let given = all.get(..room).unwrap_or(all);
    if data.is_null() && given.iter().any(|(_, data)| *data != EdgeData::default()) {
        return Err(CuError::LOSSY_QUERY);
    }
    for at in 0..room {
        for (number, list) in lists.iter().enumerate() {
            let value =
                given.get(at).map_or(std::ptr::null_mut(), |(nodes, _)| handle(nodes[number].handle()));
            // SAFETY: the list has room for as many.
            unsafe { list.add(at).write(value) };
        }
        if let (false, Some((_, value))) = (data.is_null(), given.get(at)) {
            // SAFETY: as above.
            unsafe { data.add(at).write(edge_data(*value)) };
        }
    }
    // SAFETY: as above.
    unsafe { count.write(given.len()) };
    Ok(())
}

fn plain(nodes: impl IntoIterator<Item = NodeId>) -> Vec<([NodeId; 1], EdgeData)> {
    nodes.into_iter().map(|node| ([node], EdgeData::default())).collect()
}

/// Gives the nodes.
pub unsafe fn cuGraphGetNodes(
    hGraph: sys::CUgraph,
    nodes: *mut sys::CUgraphNode,
    numNodes: *mut usize,
) -> CuResult {
    let all = plain(session()?.graphs.lock().graphs.nodes(graph(hGraph)?).map_err(told)?);
    // SAFETY: the caller's contract is the same.
    unsafe { give_list([nodes], std::ptr::null_mut(), numNodes, &all) }
}

/// Gives the nodes that wait for none.
pub unsafe fn cuGraphGetRootNodes(
    hGraph: sys::CUgraph,
    rootNodes: *mut sys::CUgraphNode,
    numRootNodes: *mut usize,
) -> CuResult {
    let all = plain(session()?.graphs.lock().graphs.roots(graph(hGraph)?).map_err(told)?);
    // SAFETY: the caller's contract is the same.
    unsafe { give_list([rootNodes], std::ptr::null_mut(), numRootNodes, &all) }
}

/// Gives the edges. One with data cannot be told.
pub unsafe fn cuGraphGetEdges(
    hGraph: sys::CUgraph,
    from: *mut sys::CUgraphNode,
    to: *mut sys::CUgraphNode,
    numEdges: *mut usize,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    unsafe { cuGraphGetEdges_v2(hGraph, from, to, std::ptr::null_mut(), numEdges) }
}

/// Gives the edges with their data.
pub unsafe fn cuGraphGetEdges_v2(
    hGraph: sys::CUgraph,
    from: *mut sys::CUgraphNode,
    to: *mut sys::CUgraphNode,
    edgeData: *mut sys::CUgraphEdgeData,
    numEdges: *mut usize,
) -> CuResult {
    let edges = session()?.graphs.lock().graphs.edges(graph(hGraph)?).map_err(told)?;
    let all: Vec<_> = edges.into_iter().map(|(from, to, data)| ([from, to], data)).collect();
    // SAFETY: the caller's contract is the same.
    unsafe { give_list([from, to], edgeData, numEdges, &all) }
}
