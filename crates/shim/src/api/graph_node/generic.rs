//! Nodes of any kind, by one record.

use std::ffi::{c_int, c_longlong, c_uint};

use ::graph::NodeId;
use cuda_abi::{CuError, CuResult, FunctionId, sys};

use super::add::{Place, add_child, set};
use super::memory::Setting;
use super::{allocation, copy, host, kernel_v2, operations, record, release, wait, wanted};
use crate::client::Call;
use crate::graph::{Wanted, Work};
use crate::report::{Unsupported, report};

/// What a record asks for.
pub(in crate::api) enum Asked {
    /// Work.
    Work(Work),
    /// A graph: a copy of it, or (`moved`) itself.
    Child {
        /// The graph.
        graph: sys::CUgraph,
        /// Whether it becomes the node's.
        moved: bool,
    },
    /// A choice between graphs.
    Conditional(Wanted),
}

/// Reads a record.
///
/// # Errors
/// `INVALID_VALUE` for what is none; `NOT_SUPPORTED` for a kind of node that is not there.
///
/// # Safety
/// `from` must be NULL or the caller's to read and write.
pub(in crate::api) unsafe fn asked(
    call: &mut Call<'_>,
    from: *mut sys::CUgraphNodeParams,
) -> CuResult<Asked> {
    use sys::CUgraphNodeType as Kind;
    const KERNEL: c_uint = Kind::CU_GRAPH_NODE_TYPE_KERNEL as c_uint;
    const MEMCPY: c_uint = Kind::CU_GRAPH_NODE_TYPE_MEMCPY as c_uint;
    const MEMSET: c_uint = Kind::CU_GRAPH_NODE_TYPE_MEMSET as c_uint;
    const HOST: c_uint = Kind::CU_GRAPH_NODE_TYPE_HOST as c_uint;
    const GRAPH: c_uint = Kind::CU_GRAPH_NODE_TYPE_GRAPH as c_uint;
    const EMPTY: c_uint = Kind::CU_GRAPH_NODE_TYPE_EMPTY as c_uint;
    const WAIT_EVENT: c_uint = Kind::CU_GRAPH_NODE_TYPE_WAIT_EVENT as c_uint;
    const EVENT_RECORD: c_uint = Kind::CU_GRAPH_NODE_TYPE_EVENT_RECORD as c_uint;
    const MEM_ALLOC: c_uint = Kind::CU_GRAPH_NODE_TYPE_MEM_ALLOC as c_uint;
    const MEM_FREE: c_uint = Kind::CU_GRAPH_NODE_TYPE_MEM_FREE as c_uint;
    const BATCH_MEM_OP: c_uint = Kind::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP as c_uint;
    const CONDITIONAL: c_uint = Kind::CU_GRAPH_NODE_TYPE_CONDITIONAL as c_uint;
    const LAST: c_uint = CONDITIONAL;
    use sys::CUgraphChildGraphNodeOwnership as Ownership;
    const CLONE: c_uint = Ownership::CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE as c_uint;
    const MOVE: c_uint = Ownership::CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE as c_uint;
    if from.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: not NULL, so the caller's record; the kind is read as a number, because an application may write any, and the other
    // fields only as what the kind says.
    unsafe {
        let reserved: [c_int; 3] = (*from).reserved0;
        let end: c_longlong = (*from).reserved2;
        if reserved != [0; 3] || end != 0 {
            return Err(CuError::INVALID_VALUE);
        }
        let of = &raw mut (*from).__bindgen_anon_1;
        let work = match (&raw const (*from).type_).cast::<c_uint>().read() {
            // The third version of this record has the fields of the second.
            KERNEL => kernel_v2(call, of.cast())?,
            MEMCPY => {
                let params = of.cast::<sys::CUDA_MEMCPY_NODE_PARAMS>();
                if ((*params).flags, (*params).reserved) != (0, 0) {
                    return Err(CuError::INVALID_VALUE);
                }
                copy(call, &raw const (*params).copyParams, (*params).copyCtx)?
            }
            MEMSET => {
                let sys::CUDA_MEMSET_NODE_PARAMS_v2 { dst, pitch, value, elementSize, width, height, ctx } =
                    (*of).memset;
                Setting { dst, pitch, value, element: elementSize, width, height }.work(call, ctx)?
            }
            // The second version of this record begins as the first.
            HOST => host(of.cast())?,
            GRAPH => {
                let ownership = (&raw const (*of).graph.ownership).cast::<c_uint>().read();
                let moved = match ownership {
                    CLONE => false,
                    MOVE => true,
                    _ => return Err(CuError::INVALID_VALUE),
                };
                return Ok(Asked::Child { graph: (*of).graph.graph, moved });
            }
            EMPTY => Work::Empty,
            WAIT_EVENT => wait(call, (*of).eventWait.event)?,
            EVENT_RECORD => record(call, (*of).eventRecord.event)?,
            // So does the second version of this.
            MEM_ALLOC => allocation(call, of.cast())?,
            MEM_FREE => release(call, (*of).free.dptr)?,
            // Both versions of this are the same.
            BATCH_MEM_OP => operations(call, of.cast())?,
            CONDITIONAL => return wanted(call, &raw const (*of).conditional).map(Asked::Conditional),
            other if other <= LAST => {
                report(Unsupported::Function(FunctionId::cuGraphAddNode_v2));
                return Err(CuError::NOT_SUPPORTED);
            }
            _ => return Err(CuError::INVALID_VALUE),
        };
        Ok(Asked::Work(work))
    }
}

unsafe fn add(place: Place, params: *mut sys::CUgraphNodeParams) -> CuResult {
    // SAFETY: the caller's contract is the same.
    unsafe {
        place.fill(|call, graph, after| -> CuResult<NodeId> {
            match asked(call, params)? {
                Asked::Work(work) => call.session.graphs.lock().add(graph, after, work),
                Asked::Child { graph: child, moved } => add_child(call, graph, after, child, moved),
                Asked::Conditional(wanted) => {
                    let (node, made) = call.session.graphs.lock().add_conditional(graph, after, wanted)?;
                    // The record is the caller's, and a conditional node's.
                    (&raw mut (*params).__bindgen_anon_1.conditional.phGraph_out).write(made.graphs());
                    Ok(node)
                }
            }
        })
    }
}

/// Adds a node.
pub unsafe fn cuGraphAddNode(
    phGraphNode: *mut sys::CUgraphNode,
    hGraph: sys::CUgraph,
    dependencies: *const sys::CUgraphNode,
    numDependencies: usize,
    nodeParams: *mut sys::CUgraphNodeParams,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    unsafe { add(Place::new(phGraphNode, hGraph, dependencies, numDependencies), nodeParams) }
}

/// Adds a node behind edges with data.
pub unsafe fn cuGraphAddNode_v2(
    phGraphNode: *mut sys::CUgraphNode,
    hGraph: sys::CUgraph,
    dependencies: *const sys::CUgraphNode,
    dependencyData: *const sys::CUgraphEdgeData,
    numDependencies: usize,
    nodeParams: *mut sys::CUgraphNodeParams,
) -> CuResult {
    let place = Place::new(phGraphNode, hGraph, dependencies, numDependencies);
    // SAFETY: the caller's contract is the same.
    unsafe { add(Place { edges: dependencyData, ..place }, nodeParams) }
}

/// Sets a node's parameters; memory nodes and child graphs keep theirs.
pub unsafe fn cuGraphNodeSetParams(
    hNode: sys::CUgraphNode,
    nodeParams: *mut sys::CUgraphNodeParams,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    set(hNode, |call| match unsafe { asked(call, nodeParams) }? {
        Asked::Work(Work::MemAlloc(_) | Work::MemFree(_)) | Asked::Child { .. } | Asked::Conditional(_) => {
            Err(CuError::NOT_SUPPORTED)
        }
        Asked::Work(work) => Ok(work),
    })
}
