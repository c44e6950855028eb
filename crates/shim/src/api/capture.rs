//! Stream capture.

use std::ffi::c_uint;

use ::graph::{Edge, EdgeData};
use cuda_abi::{CuError, CuResult, sys};

use crate::client::{Call, handle, out, session, with};
use crate::graph::{Mode, Status, edge_data, exchange_mode, graph, read_edges};

use sys::CUstreamCaptureStatus as Said;

/// Exchanges the thread's capture mode.
pub unsafe fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) -> CuResult {
    session()?;
    if mode.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: not NULL, so the caller's to read and write.
    unsafe { mode.write(exchange_mode(mode.read())?) };
    Ok(())
}

/// Begins a capture in global mode.
pub unsafe fn cuStreamBeginCapture(hStream: sys::CUstream) -> CuResult {
    with(|call| call.begin_capture(hStream, Mode::Global, None))
}

/// Begins a capture.
pub unsafe fn cuStreamBeginCapture_v2(hStream: sys::CUstream, mode: c_uint) -> CuResult {
    let mode = Mode::new(mode)?;
    with(|call| call.begin_capture(hStream, mode, None))
}

/// Begins a capture into a graph that is there, behind some of its nodes.
pub unsafe fn cuStreamBeginCaptureToGraph(
    hStream: sys::CUstream,
    hGraph: sys::CUgraph,
    dependencies: *const sys::CUgraphNode,
    dependencyData: *const sys::CUgraphEdgeData,
    numDependencies: usize,
    mode: c_uint,
) -> CuResult {
    let mode = Mode::new(mode)?;
    let graph = graph(hGraph)?;
    // SAFETY: the caller gives as many elements.
    let after = unsafe { read_edges(dependencies, dependencyData, numDependencies) }?;
    with(|call| call.begin_capture(hStream, mode, Some((graph, after))))
}

/// Ends a capture and gives its graph; NULL when it has come to nothing. A graph that is not asked for is destroyed, unless it was there before.
pub unsafe fn cuStreamEndCapture(hStream: sys::CUstream, phGraph: *mut sys::CUgraph) -> CuResult {
    let ended = with(|call| call.end_capture(hStream, !phGraph.is_null()));
    if !phGraph.is_null() {
        let graph = ended.map_or(std::ptr::null_mut(), |graph| handle(graph.handle()));
        // SAFETY: not NULL, so the caller's to write to.
        unsafe { phGraph.write(graph) };
    }
    ended.map(drop)
}

/// Tells whether a stream is being captured.
pub unsafe fn cuStreamIsCapturing(hStream: sys::CUstream, captureStatus: *mut c_uint) -> CuResult {
    let captureStatus = out(captureStatus)?;
    let status = with(|call| call.capture_status(hStream))?;
    // SAFETY: the caller's to write to.
    unsafe { captureStatus.set(said(status)) };
    Ok(())
}

fn said(status: Status) -> c_uint {
    let said = match status {
        Status::None => Said::CU_STREAM_CAPTURE_STATUS_NONE,
        Status::Active(_) => Said::CU_STREAM_CAPTURE_STATUS_ACTIVE,
        Status::Invalidated => Said::CU_STREAM_CAPTURE_STATUS_INVALIDATED,
    };
    said as c_uint
}

/// Tells whether a stream is being captured, and the capture's number.
pub unsafe fn cuStreamGetCaptureInfo(
    hStream: sys::CUstream,
    captureStatus_out: *mut c_uint,
    id_out: *mut u64,
) -> CuResult {
    let nothing = Wanted::default();
    // SAFETY: the caller's contract is the same.
    unsafe { info(hStream, captureStatus_out, Wanted { id: id_out, ..nothing }) }
}

/// The same, and what the stream's next node will wait for. An edge with data cannot be told.
pub unsafe fn cuStreamGetCaptureInfo_v2(
    hStream: sys::CUstream,
    captureStatus_out: *mut c_uint,
    id_out: *mut u64,
    graph_out: *mut sys::CUgraph,
    dependencies_out: *mut *const sys::CUgraphNode,
    numDependencies_out: *mut usize,
) -> CuResult {
    let wanted = Wanted {
        id: id_out,
        graph: graph_out,
        nodes: dependencies_out,
        data: std::ptr::null_mut(),
        count: numDependencies_out,
    };
    // SAFETY: the caller's contract is the same.
    unsafe { info(hStream, captureStatus_out, wanted) }
}

/// The same, with the edges' data.
pub unsafe fn cuStreamGetCaptureInfo_v3(
    hStream: sys::CUstream,
    captureStatus_out: *mut c_uint,
    id_out: *mut u64,
    graph_out: *mut sys::CUgraph,
    dependencies_out: *mut *const sys::CUgraphNode,
    edgeData_out: *mut *const sys::CUgraphEdgeData,
    numDependencies_out: *mut usize,
) -> CuResult {
    let wanted = Wanted {
        id: id_out,
        graph: graph_out,
        nodes: dependencies_out,
        data: edgeData_out,
        count: numDependencies_out,
    };
    // SAFETY: the caller's contract is the same.
    unsafe { info(hStream, captureStatus_out, wanted) }
}

/// Where an answer is to be written, each NULL or the caller's.
struct Wanted {
    id: *mut u64,
    graph: *mut sys::CUgraph,
    nodes: *mut *const sys::CUgraphNode,
    data: *mut *const sys::CUgraphEdgeData,
    count: *mut usize,
}

impl Default for Wanted {
    fn default() -> Self {
        let null = std::ptr::null_mut();
        Self { id: null, graph: null.cast(), nodes: null.cast(), data: null.cast(), count: null.cast() }
    }
}

/// Writes where it is wanted.
unsafe fn give<T>(to: *mut T, value: T) {
    if let Ok(to) = out(to) {
        // SAFETY: the caller's to write to.
        unsafe { to.set(value) };
    }
}

unsafe fn info(stream: sys::CUstream, status: *mut c_uint, wanted: Wanted) -> CuResult {
    let status = out(status)?;
    with(|call| {
        let found = call.capture_status(stream)?;
        if let Status::Active(target) = found {
            let lossy = |edges: &[Edge]| edges.iter().any(|edge| edge.data != EdgeData::default());
            call.capture_info(target, |graph, told, edges| {
                if wanted.data.is_null() && !wanted.nodes.is_null() && lossy(edges) {
                    return Err(CuError::LOSSY_QUERY);
                }
                told.nodes = edges.iter().map(|edge| handle(edge.node.handle())).collect();
                told.data = edges.iter().map(|edge| edge_data(edge.data)).collect();
                // SAFETY: each is NULL or the caller's; the lists stay until the next question about the stream.
                unsafe {
                    give(wanted.id, target.capture);
                    give(wanted.graph, handle(graph.handle()));
                    give(wanted.nodes, told.nodes.as_ptr());
                    give(wanted.data, told.data.as_ptr());
                    give(wanted.count, edges.len());
                }
                Ok(())
            })??;
        }
        // SAFETY: the caller's to write to.
        unsafe { status.set(said(found)) };
        Ok(())
    })
}

/// `CU_STREAM_SET_CAPTURE_DEPENDENCIES`; 0 adds.
const SET: c_uint = 1;

/// Changes what the stream's next node will wait for.
pub unsafe fn cuStreamUpdateCaptureDependencies(
    hStream: sys::CUstream,
    dependencies: *mut sys::CUgraphNode,
    numDependencies: usize,
    flags: c_uint,
) -> CuResult {
    // SAFETY: the caller's contract is the same; NULL stands for edges without data.
    unsafe {
        cuStreamUpdateCaptureDependencies_v2(hStream, dependencies, std::ptr::null(), numDependencies, flags)
    }
}

/// The same, with the edges' data.
pub unsafe fn cuStreamUpdateCaptureDependencies_v2(
    hStream: sys::CUstream,
    dependencies: *mut sys::CUgraphNode,
    dependencyData: *const sys::CUgraphEdgeData,
    numDependencies: usize,
    flags: c_uint,
) -> CuResult {
    if flags > SET {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: the caller gives as many elements.
    let edges = unsafe { read_edges(dependencies, dependencyData, numDependencies) }?;
    with(|call: &mut Call<'_>| match call.capture_of(hStream)? {
        Some(target) => call.set_capture_dependencies(target, &edges, flags != SET),
        None => Err(CuError::ILLEGAL_STATE),
    })
}
