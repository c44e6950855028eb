//! User objects.

use std::ffi::{c_uint, c_void};

use cuda_abi::{CuError, CuResult, sys};

use crate::client::{handle, out, session};
use crate::graph::{self, Destructor, destroy, told};

/// `CU_USER_OBJECT_NO_DESTRUCTOR_SYNC`: the only way there is, and to be asked for.
const NO_SYNC: c_uint = sys::CUuserObject_flags::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC as c_uint;
/// `CU_GRAPH_USER_OBJECT_MOVE`.
const MOVE: c_uint = sys::CUuserObjectRetain_flags::CU_GRAPH_USER_OBJECT_MOVE as c_uint;

/// Counts of references are positive and fit an `int`.
fn references(count: c_uint) -> CuResult<u64> {
    if (1..=i32::MAX as c_uint).contains(&count) { Ok(count.into()) } else { Err(CuError::INVALID_VALUE) }
}

/// Makes a user object.
pub unsafe fn cuUserObjectCreate(
    object_out: *mut sys::CUuserObject,
    ptr: *mut c_void,
    r#destroy: sys::CUhostFn,
    initialRefcount: c_uint,
    flags: c_uint,
) -> CuResult {
    let object_out = out(object_out)?;
    let function = r#destroy.ok_or(CuError::INVALID_VALUE)?;
    let count = references(initialRefcount)?;
    if flags != NO_SYNC {
        return Err(CuError::INVALID_VALUE);
    }
    let id = {
        let mut model = session()?.graphs.lock();
        let id = model.graphs.create_object(count);
        model.destructors.insert(id, Destructor(function, ptr));
        id
    };
    // SAFETY: the caller's to write to.
    unsafe { object_out.set(handle(id.handle())) };
    Ok(())
}

/// Adds references.
pub unsafe fn cuUserObjectRetain(r#object: sys::CUuserObject, count: c_uint) -> CuResult {
    let count = references(count)?;
    session()?.graphs.lock().graphs.retain_object(graph::object(r#object)?, count).map_err(told)
}

/// Takes references away.
pub unsafe fn cuUserObjectRelease(r#object: sys::CUuserObject, count: c_uint) -> CuResult {
    let count = references(count)?;
    let due = {
        let mut model = session()?.graphs.lock();
        let released = model.graphs.release_object(graph::object(r#object)?, count).map_err(told)?;
        model.due(released)
    };
    destroy(due);
    Ok(())
}

/// Gives a graph references.
pub unsafe fn cuGraphRetainUserObject(
    r#graph: sys::CUgraph,
    r#object: sys::CUuserObject,
    count: c_uint,
    flags: c_uint,
) -> CuResult {
    let count = references(count)?;
    if flags & !MOVE != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let (id, of) = (crate::graph::graph(r#graph)?, graph::object(r#object)?);
    session()?.graphs.lock().graphs.retain_in_graph(id, of, count, flags & MOVE != 0).map_err(told)
}

/// Takes references of a graph's away.
pub unsafe fn cuGraphReleaseUserObject(
    r#graph: sys::CUgraph,
    r#object: sys::CUuserObject,
    count: c_uint,
) -> CuResult {
    let count = references(count)?;
    let due = {
        let mut model = session()?.graphs.lock();
        let released = model
            .graphs
            .release_in_graph(crate::graph::graph(r#graph)?, graph::object(r#object)?, count)
            .map_err(told)?;
        model.due(released)
    };
    destroy(due);
    Ok(())
}
