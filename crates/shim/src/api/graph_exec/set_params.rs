//! Changing single nodes of executable graphs.

use cuda_abi::{CuError, CuResult, sys};

use crate::api::graph_node::{
    Asked, asked, copy, fill, host, kernel_v1, kernel_v2, operations, record, wait,
};
use crate::client::{Call, with};
use crate::graph::{self, Work};

fn set(
    hGraphExec: sys::CUgraphExec,
    hNode: sys::CUgraphNode,
    make: impl FnOnce(&mut Call<'_>) -> CuResult<Work>,
) -> CuResult {
    let node = graph::node(hNode)?;
    with(|call| {
        let exec = call.exec(hGraphExec)?;
        let work = make(call)?;
        call.set_exec_node(&exec, node, work)
    })
}

fn set_child(hGraphExec: sys::CUgraphExec, hNode: sys::CUgraphNode, child: sys::CUgraph) -> CuResult {
    let (node, child) = (graph::node(hNode)?, graph::graph(child)?);
    with(|call| {
        let exec = call.exec(hGraphExec)?;
        call.set_exec_child(&exec, node, child)
    })
}

/// Sets a kernel node's parameters.
pub unsafe fn cuGraphExecKernelNodeSetParams(
    hGraphExec: sys::CUgraphExec,
    hNode: sys::CUgraphNode,
    nodeParams: *const sys::CUDA_KERNEL_NODE_PARAMS_v1,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    set(hGraphExec, hNode, |call| unsafe { kernel_v1(call, nodeParams) })
}

/// Sets a kernel node's parameters.
pub unsafe fn cuGraphExecKernelNodeSetParams_v2(
    hGraphExec: sys::CUgraphExec,
    hNode: sys::CUgraphNode,
    nodeParams: *const sys::CUDA_KERNEL_NODE_PARAMS,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    set(hGraphExec, hNode, |call| unsafe { kernel_v2(call, nodeParams) })
}

/// Sets what a node copies.
pub unsafe fn cuGraphExecMemcpyNodeSetParams(
    hGraphExec: sys::CUgraphExec,
    hNode: sys::CUgraphNode,
    copyParams: *const sys::CUDA_MEMCPY3D,
    ctx: sys::CUcontext,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    set(hGraphExec, hNode, |call| unsafe { copy(call, copyParams, ctx) })
}

/// Sets what a node sets.
pub unsafe fn cuGraphExecMemsetNodeSetParams(
    hGraphExec: sys::CUgraphExec,
    hNode: sys::CUgraphNode,
    memsetParams: *const sys::CUDA_MEMSET_NODE_PARAMS,
    ctx: sys::CUcontext,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    set(hGraphExec, hNode, |call| unsafe { fill(call, memsetParams, ctx) })
}

/// Sets what a node reads and writes.
pub unsafe fn cuGraphExecBatchMemOpNodeSetParams(
    hGraphExec: sys::CUgraphExec,
    hNode: sys::CUgraphNode,
    nodeParams: *const sys::CUDA_BATCH_MEM_OP_NODE_PARAMS,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    set(hGraphExec, hNode, |call| unsafe { operations(call, nodeParams) })
}

/// Sets a host node's function.
pub unsafe fn cuGraphExecHostNodeSetParams(
    hGraphExec: sys::CUgraphExec,
    hNode: sys::CUgraphNode,
    nodeParams: *const sys::CUDA_HOST_NODE_PARAMS,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    set(hGraphExec, hNode, |_| unsafe { host(nodeParams) })
}

/// Makes a child node do what another graph of the same form does.
pub unsafe fn cuGraphExecChildGraphNodeSetParams(
    hGraphExec: sys::CUgraphExec,
    hNode: sys::CUgraphNode,
    childGraph: sys::CUgraph,
) -> CuResult {
    set_child(hGraphExec, hNode, childGraph)
}

/// Sets the event that a node records.
pub unsafe fn cuGraphExecEventRecordNodeSetEvent(
    hGraphExec: sys::CUgraphExec,
    hNode: sys::CUgraphNode,
    event: sys::CUevent,
) -> CuResult {
    set(hGraphExec, hNode, |call| record(call, event))
}

/// Sets the event that a node waits for.
pub unsafe fn cuGraphExecEventWaitNodeSetEvent(
    hGraphExec: sys::CUgraphExec,
    hNode: sys::CUgraphNode,
    event: sys::CUevent,
) -> CuResult {
    set(hGraphExec, hNode, |call| wait(call, event))
}

/// Sets the parameters of a node of any kind but those of memory.
pub unsafe fn cuGraphExecNodeSetParams(
    hGraphExec: sys::CUgraphExec,
    hNode: sys::CUgraphNode,
    nodeParams: *mut sys::CUgraphNodeParams,
) -> CuResult {
    let node = graph::node(hNode)?;
    with(|call| {
        let exec = call.exec(hGraphExec)?;
        // SAFETY: the caller's contract is the same.
        match unsafe { asked(call, nodeParams) }? {
            Asked::Work(Work::MemAlloc(_) | Work::MemFree(_)) => Err(CuError::NOT_SUPPORTED),
            Asked::Work(work) => call.set_exec_node(&exec, node, work),
            Asked::Child { graph: child, .. } => call.set_exec_child(&exec, node, graph::graph(child)?),
            Asked::Conditional(_) => Err(CuError::NOT_SUPPORTED),
        }
    })
}
