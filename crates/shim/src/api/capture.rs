//! Stream capture: no stream is ever being captured, and programs that ask are told so.

use std::cell::Cell;
use std::ffi::c_uint;

use cuda_abi::{CuError, CuResult, sys};

use crate::client::{out, session, with};

const NONE: c_uint = sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as c_uint;

thread_local! {
    /// `CUstreamCaptureMode` of this thread: global at first.
    static MODE: Cell<c_uint> = const { Cell::new(0) };
}

/// Exchanges the thread's capture mode.
pub unsafe fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) -> CuResult {
    session()?;
    if mode.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: not NULL, so the caller's to read and write.
    unsafe {
        let new = mode.read();
        if new > sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED as c_uint {
            return Err(CuError::INVALID_VALUE);
        }
        mode.write(MODE.replace(new));
    }
    Ok(())
}

/// Tells that a stream is not being captured.
pub unsafe fn cuStreamIsCapturing(hStream: sys::CUstream, captureStatus: *mut c_uint) -> CuResult {
    let captureStatus = out(captureStatus)?;
    with(|call| call.stream(hStream))?;
    // SAFETY: the caller's to write to.
    unsafe { captureStatus.set(NONE) };
    Ok(())
}

/// The same.
pub unsafe fn cuStreamGetCaptureInfo(
    hStream: sys::CUstream,
    captureStatus_out: *mut c_uint,
    _id_out: *mut u64,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    unsafe { cuStreamIsCapturing(hStream, captureStatus_out) }
}

/// The same.
pub unsafe fn cuStreamGetCaptureInfo_v2(
    hStream: sys::CUstream,
    captureStatus_out: *mut c_uint,
    _id_out: *mut u64,
    _graph_out: *mut sys::CUgraph,
    _dependencies_out: *mut *const sys::CUgraphNode,
    _numDependencies_out: *mut usize,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    unsafe { cuStreamIsCapturing(hStream, captureStatus_out) }
}

/// The same.
pub unsafe fn cuStreamGetCaptureInfo_v3(
    hStream: sys::CUstream,
    captureStatus_out: *mut c_uint,
    _id_out: *mut u64,
    _graph_out: *mut sys::CUgraph,
    _dependencies_out: *mut *const sys::CUgraphNode,
    _edgeData_out: *mut *const sys::CUgraphEdgeData,
    _numDependencies_out: *mut usize,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    unsafe { cuStreamIsCapturing(hStream, captureStatus_out) }
}
