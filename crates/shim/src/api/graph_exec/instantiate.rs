//! Making graphs executable.

use std::ffi::{c_char, c_ulonglong};
use std::sync::Arc;

use cuda_abi::{CuError, CuResult, sys};

use crate::client::{handle, out, with};
use crate::graph::{Exec, Refusal, graph};

/// `CUgraphInstantiate_flags`.
const AUTO_FREE: u64 = 1;
const UPLOAD: u64 = 2;
const DEVICE_LAUNCH: u64 = 4;
const NODE_PRIORITY: u64 = 8;

fn check_flags(flags: u64) -> CuResult {
    match flags {
        _ if flags & !(AUTO_FREE | UPLOAD | DEVICE_LAUNCH | NODE_PRIORITY) != 0 => {
            Err(CuError::INVALID_VALUE)
        }
        _ if flags & DEVICE_LAUNCH != 0 => Err(CuError::NOT_SUPPORTED),
        _ => Ok(()),
    }
}

fn instantiate(hGraph: sys::CUgraph, flags: u64) -> Result<Arc<Exec>, Refusal> {
    check_flags(flags)?;
    let graph = graph(hGraph)?;
    let mut refusal = None;
    let made = with(|call| {
        call.instantiate(graph, flags).map_err(|told| {
            refusal = Some(told);
            told.error
        })
    });
    made.map_err(|error| refusal.unwrap_or(error.into()))
}

/// Makes a graph executable; on failure, tells the node that is to blame, and nothing in words.
pub unsafe fn cuGraphInstantiate_v2(
    phGraphExec: *mut sys::CUgraphExec,
    hGraph: sys::CUgraph,
    phErrorNode: *mut sys::CUgraphNode,
    logBuffer: *mut c_char,
    bufferSize: usize,
) -> CuResult {
    let phGraphExec = out(phGraphExec)?;
    let made = instantiate(hGraph, 0);
    if let (Ok(log), true) = (out(logBuffer), bufferSize > 0) {
        // SAFETY: the caller's to write to, with at least one byte.
        unsafe { log.set(0) };
    }
    if let Ok(phErrorNode) = out(phErrorNode) {
        let node = made.as_ref().err().and_then(|refusal| refusal.node);
        // SAFETY: the caller's to write to.
        unsafe { phErrorNode.set(node.map_or(std::ptr::null_mut(), |node| handle(node.handle()))) };
    }
    let exec = made.map_err(|refusal| refusal.error)?;
    // SAFETY: the caller's to write to.
    unsafe { phGraphExec.set(exec.handle()) };
    Ok(())
}

/// Makes a graph executable.
pub unsafe fn cuGraphInstantiateWithFlags(
    phGraphExec: *mut sys::CUgraphExec,
    hGraph: sys::CUgraph,
    flags: c_ulonglong,
) -> CuResult {
    let phGraphExec = out(phGraphExec)?;
    // An upload needs a stream, which is not given here.
    if flags & UPLOAD != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let exec = instantiate(hGraph, flags).map_err(|refusal| refusal.error)?;
    // SAFETY: the caller's to write to.
    unsafe { phGraphExec.set(exec.handle()) };
    Ok(())
}

/// Makes a graph executable, as a record says, which also takes the outcome.
pub unsafe fn cuGraphInstantiateWithParams(
    phGraphExec: *mut sys::CUgraphExec,
    hGraph: sys::CUgraph,
    instantiateParams: *mut sys::CUDA_GRAPH_INSTANTIATE_PARAMS,
    default_stream: sys::CUstream,
) -> CuResult {
    use sys::CUgraphInstantiateResult as Said;
    let phGraphExec = out(phGraphExec)?;
    if instantiateParams.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: not NULL, so the caller's record; these fields are plain numbers and a handle.
    let (flags, stream) = unsafe { ((*instantiateParams).flags, (*instantiateParams).hUploadStream) };
    let made = instantiate(hGraph, flags);
    let (said, node) = match &made {
        Ok(_) => (Said::CUDA_GRAPH_INSTANTIATE_SUCCESS, None),
        Err(refusal) => (refusal.said, refusal.node),
    };
    // SAFETY: the caller's record, to be written to.
    unsafe {
        (&raw mut (*instantiateParams).hErrNode_out)
            .write(node.map_or(std::ptr::null_mut(), |node| handle(node.handle())));
        (&raw mut (*instantiateParams).result_out).write(said);
    }
    let exec = made.map_err(|refusal| refusal.error)?;
    if flags & UPLOAD != 0 {
        let stream = if stream.is_null() { default_stream } else { stream };
        with(|call| call.upload_graph(&exec, stream))?;
    }
    // SAFETY: the caller's to write to.
    unsafe { phGraphExec.set(exec.handle()) };
    Ok(())
}

/// Gives the flags that an executable graph was made with.
pub unsafe fn cuGraphExecGetFlags(hGraphExec: sys::CUgraphExec, flags: *mut u64) -> CuResult {
    let flags = out(flags)?;
    // Uploading leaves no trace.
    let of = with(|call| call.exec(hGraphExec))?.flags & !UPLOAD;
    // SAFETY: the caller's to write to.
    unsafe { flags.set(of) };
    Ok(())
}
