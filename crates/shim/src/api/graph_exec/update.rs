//! Changing executable graphs.

use std::ffi::c_uint;

use ::graph::NodeId;
use cuda_abi::{CuError, CuResult, sys};

use crate::client::{handle, out, with};
use crate::graph::{Outcome, graph};

use sys::CUgraphExecUpdateResult as Said;

fn update(hGraphExec: sys::CUgraphExec, hGraph: sys::CUgraph) -> CuResult<Outcome> {
    let graph = graph(hGraph)?;
    with(|call| {
        let exec = call.exec(hGraphExec)?;
        call.update_exec(&exec, graph)
    })
}

fn blamed(node: Option<NodeId>) -> sys::CUgraphNode {
    node.map_or(std::ptr::null_mut(), |node| handle(node.handle()))
}

fn verdict(outcome: &Outcome) -> CuResult {
    match outcome.result {
        Said::CU_GRAPH_EXEC_UPDATE_SUCCESS => Ok(()),
        _ => Err(CuError::GRAPH_EXEC_UPDATE_FAILURE),
    }
}

/// Makes an executable graph do what another graph of the same form does.
pub unsafe fn cuGraphExecUpdate(
    hGraphExec: sys::CUgraphExec,
    hGraph: sys::CUgraph,
    hErrorNode_out: *mut sys::CUgraphNode,
    updateResult_out: *mut c_uint,
) -> CuResult {
    let outcome = update(hGraphExec, hGraph)?;
    if let Ok(hErrorNode_out) = out(hErrorNode_out) {
        // SAFETY: the caller's to write to.
        unsafe { hErrorNode_out.set(blamed(outcome.node)) };
    }
    if let Ok(updateResult_out) = out(updateResult_out) {
        // SAFETY: the caller's to write to.
        unsafe { updateResult_out.set(outcome.result as c_uint) };
    }
    verdict(&outcome)
}

/// The same, with the outcome in a record.
pub unsafe fn cuGraphExecUpdate_v2(
    hGraphExec: sys::CUgraphExec,
    hGraph: sys::CUgraph,
    resultInfo: *mut sys::CUgraphExecUpdateResultInfo,
) -> CuResult {
    let outcome = update(hGraphExec, hGraph)?;
    if let Ok(resultInfo) = out(resultInfo) {
        let info = sys::CUgraphExecUpdateResultInfo {
            result: outcome.result,
            errorNode: blamed(outcome.node),
            errorFromNode: blamed(outcome.from),
        };
        // SAFETY: the caller's to write to.
        unsafe { resultInfo.set(info) };
    }
    verdict(&outcome)
}
