//! Nodes that read and write words of memory.

use std::sync::Arc;

use cuda_abi::{CuError, CuResult, sys};

use super::add::{Place, set, work_of};
use super::memory::context;
use crate::api::memop::node_operations;
use crate::client::{Call, handle, out};
use crate::graph::{Operations, Work};

/// The work that a record describes; both versions of it are the same.
pub(in crate::api) unsafe fn operations(
    call: &Call<'_>,
    params: *const sys::CUDA_BATCH_MEM_OP_NODE_PARAMS,
) -> CuResult<Work> {
    // SAFETY: NULL or the caller's record, of numbers and pointers only.
    let params = unsafe { params.as_ref() }.ok_or(CuError::INVALID_VALUE)?;
    let ctx = context(call, params.ctx)?;
    // SAFETY: the caller gives as many elements.
    let list = unsafe { node_operations(call, params.count, params.paramArray, params.flags) }?;
    Ok(Work::Operations(Arc::new(Operations::new(ctx, list))))
}

/// Adds a node that reads and writes words of memory.
pub unsafe fn cuGraphAddBatchMemOpNode(
    phGraphNode: *mut sys::CUgraphNode,
    hGraph: sys::CUgraph,
    dependencies: *const sys::CUgraphNode,
    numDependencies: usize,
    nodeParams: *const sys::CUDA_BATCH_MEM_OP_NODE_PARAMS,
) -> CuResult {
    let place = Place::new(phGraphNode, hGraph, dependencies, numDependencies);
    // SAFETY: the caller's contract is the same.
    unsafe { place.add(|call| operations(call, nodeParams)) }
}

fn operations_of(node: sys::CUgraphNode) -> CuResult<Arc<Operations>> {
    match work_of(node)? {
        Work::Operations(operations) => Ok(operations),
        _ => Err(CuError::INVALID_VALUE),
    }
}

/// Gives the parameters; the array is the node's, and stays as long as it does.
pub unsafe fn cuGraphBatchMemOpNodeGetParams(
    hNode: sys::CUgraphNode,
    nodeParams_out: *mut sys::CUDA_BATCH_MEM_OP_NODE_PARAMS,
) -> CuResult {
    let nodeParams_out = out(nodeParams_out)?;
    let operations = operations_of(hNode)?;
    let params = sys::CUDA_BATCH_MEM_OP_NODE_PARAMS {
        ctx: handle(operations.ctx.handle()),
        count: operations.list.len() as u32,
        paramArray: operations.told(),
        flags: 0,
    };
    // SAFETY: the caller's to write to.
    unsafe { nodeParams_out.set(params) };
    Ok(())
}

/// Sets the parameters.
pub unsafe fn cuGraphBatchMemOpNodeSetParams(
    hNode: sys::CUgraphNode,
    nodeParams: *const sys::CUDA_BATCH_MEM_OP_NODE_PARAMS,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    set(hNode, |call| unsafe { operations(call, nodeParams) })
}
