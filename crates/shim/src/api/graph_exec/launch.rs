//! Launching executable graphs.

use cuda_abi::{CuResult, sys};

use crate::client::with;

/// Launches a graph; in a stream that is being captured, adds it as a child.
pub unsafe fn cuGraphLaunch(hGraph: sys::CUgraphExec, hStream: sys::CUstream) -> CuResult {
    with(|call| {
        let exec = call.exec(hGraph)?;
        call.launch_graph(&exec, hStream)
    })
}

/// Brings a graph to the device ahead of its launch.
pub unsafe fn cuGraphUpload(hGraph: sys::CUgraphExec, hStream: sys::CUstream) -> CuResult {
    with(|call| {
        let exec = call.exec(hGraph)?;
        call.upload_graph(&exec, hStream)
    })
}

/// Destroys an executable graph; a launch that is under way completes.
pub unsafe fn cuGraphExecDestroy(hGraphExec: sys::CUgraphExec) -> CuResult {
    with(|call| call.destroy_exec(hGraphExec))
}
