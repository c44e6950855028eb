//! Host functions, events, child graphs, and nodes that do nothing.

use std::sync::Arc;

use ::graph::Body;
use cuda_abi::{CuError, CuResult, sys};

use super::add::{Place, set, work_of};
use crate::client::{Call, handle, out, session};
use crate::graph::{self, HostCall, Work, told};

/// The work that a record describes.
pub(in crate::api) unsafe fn host(params: *const sys::CUDA_HOST_NODE_PARAMS) -> CuResult<Work> {
    // SAFETY: NULL or the caller's record, of two pointers.
    let params = unsafe { params.as_ref() }.ok_or(CuError::INVALID_VALUE)?;
    let function = params.fn_.ok_or(CuError::INVALID_VALUE)?;
    Ok(Work::Host(HostCall(function, params.userData)))
}

/// Adds a node that runs a function of the host.
pub unsafe fn cuGraphAddHostNode(
    phGraphNode: *mut sys::CUgraphNode,
    hGraph: sys::CUgraph,
    dependencies: *const sys::CUgraphNode,
    numDependencies: usize,
    nodeParams: *const sys::CUDA_HOST_NODE_PARAMS,
) -> CuResult {
    let place = Place::new(phGraphNode, hGraph, dependencies, numDependencies);
    // SAFETY: the caller's contract is the same.
    unsafe { place.add(|_| host(nodeParams)) }
}

/// Gives the parameters.
pub unsafe fn cuGraphHostNodeGetParams(
    hNode: sys::CUgraphNode,
    nodeParams: *mut sys::CUDA_HOST_NODE_PARAMS,
) -> CuResult {
    let nodeParams = out(nodeParams)?;
    let Work::Host(HostCall(function, data)) = work_of(hNode)? else { return Err(CuError::INVALID_VALUE) };
    // SAFETY: the caller's to write to.
    unsafe { nodeParams.set(sys::CUDA_HOST_NODE_PARAMS { fn_: Some(function), userData: data }) };
    Ok(())
}

/// Sets the parameters.
pub unsafe fn cuGraphHostNodeSetParams(
    hNode: sys::CUgraphNode,
    nodeParams: *const sys::CUDA_HOST_NODE_PARAMS,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    set(hNode, |_| unsafe { host(nodeParams) })
}

/// Adds a node that runs a copy of a graph.
pub unsafe fn cuGraphAddChildGraphNode(
    phGraphNode: *mut sys::CUgraphNode,
    hGraph: sys::CUgraph,
    dependencies: *const sys::CUgraphNode,
    numDependencies: usize,
    childGraph: sys::CUgraph,
) -> CuResult {
    let place = Place::new(phGraphNode, hGraph, dependencies, numDependencies);
    // SAFETY: the caller's contract is the same.
    unsafe { place.add_child(childGraph) }
}

/// Gives the graph of a child node: the node's own copy.
pub unsafe fn cuGraphChildGraphNodeGetGraph(hNode: sys::CUgraphNode, phGraph: *mut sys::CUgraph) -> CuResult {
    let phGraph = out(phGraph)?;
    let node = graph::node(hNode)?;
    let child = match session()?.graphs.lock().graphs.node(node).map_err(told)?.body {
        Body::Child(child) => child,
        Body::Work(_) | Body::Choice(..) => return Err(CuError::INVALID_VALUE),
    };
    // SAFETY: the caller's to write to.
    unsafe { phGraph.set(handle(child.handle())) };
    Ok(())
}

/// Adds a node that does nothing.
pub unsafe fn cuGraphAddEmptyNode(
    phGraphNode: *mut sys::CUgraphNode,
    hGraph: sys::CUgraph,
    dependencies: *const sys::CUgraphNode,
    numDependencies: usize,
) -> CuResult {
    let place = Place::new(phGraphNode, hGraph, dependencies, numDependencies);
    // SAFETY: the caller's contract is the same.
    unsafe { place.add(|_| Ok(Work::Empty)) }
}

/// The recording of an event.
pub(in crate::api) fn record(call: &mut Call<'_>, event: sys::CUevent) -> CuResult<Work> {
    call.event(event).map(|(id, event)| Work::EventRecord(id, Arc::clone(event)))
}

/// The wait for an event.
pub(in crate::api) fn wait(call: &mut Call<'_>, event: sys::CUevent) -> CuResult<Work> {
    call.event(event).map(|(id, event)| Work::EventWait(id, Arc::clone(event)))
}

macro_rules! event_nodes {
    ($($doc:literal $add:ident $get:ident $set:ident $make:ident $Work:ident;)*) => {$(
        #[doc = concat!("Adds a node that ", $doc, " an event.")]
        pub unsafe fn $add(
            phGraphNode: *mut sys::CUgraphNode,
            hGraph: sys::CUgraph,
            dependencies: *const sys::CUgraphNode,
            numDependencies: usize,
            event: sys::CUevent,
        ) -> CuResult {
            let place = Place::new(phGraphNode, hGraph, dependencies, numDependencies);
            // SAFETY: the caller's contract is the same.
            unsafe { place.add(|call| $make(call, event)) }
        }

        #[doc = concat!("Gives the event that a node ", $doc, ".")]
        pub unsafe fn $get(hNode: sys::CUgraphNode, event_out: *mut sys::CUevent) -> CuResult {
            let event_out = out(event_out)?;
            let Work::$Work(id, _) = work_of(hNode)? else { return Err(CuError::INVALID_VALUE) };
            // SAFETY: the caller's to write to.
            unsafe { event_out.set(handle(id.handle())) };
            Ok(())
        }

        #[doc = concat!("Sets the event that a node ", $doc, ".")]
        pub unsafe fn $set(hNode: sys::CUgraphNode, event: sys::CUevent) -> CuResult {
            set(hNode, |call| $make(call, event))
        }
    )*};
}

event_nodes! {
    "records" cuGraphAddEventRecordNode cuGraphEventRecordNodeGetEvent cuGraphEventRecordNodeSetEvent record EventRecord;
    "waits for" cuGraphAddEventWaitNode cuGraphEventWaitNodeGetEvent cuGraphEventWaitNodeSetEvent wait EventWait;
}
