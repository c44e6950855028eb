//! Conditions and conditional nodes.

use std::ffi::c_uint;

use cuda_abi::{CuError, CuResult, sys};
use wire::ConditionKind;

use super::memory::context;
use crate::client::{Call, out, with};
use crate::graph::{self, Wanted};

/// `CU_GRAPH_COND_ASSIGN_DEFAULT`.
const ASSIGN_DEFAULT: c_uint = sys::CU_GRAPH_COND_ASSIGN_DEFAULT;

/// Makes a condition of a graph, which kernels set by the value that is given.
pub unsafe fn cuGraphConditionalHandleCreate(
    pHandle_out: *mut sys::CUgraphConditionalHandle,
    hGraph: sys::CUgraph,
    ctx: sys::CUcontext,
    defaultLaunchValue: c_uint,
    flags: c_uint,
) -> CuResult {
    let pHandle_out = out(pHandle_out)?;
    let graph = graph::graph(hGraph)?;
    if flags & !ASSIGN_DEFAULT != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let initial = (flags & ASSIGN_DEFAULT != 0).then_some(defaultLaunchValue);
    let value = with(|call| call.create_condition(graph, ctx, initial))?;
    // SAFETY: the caller's to write to.
    unsafe { pHandle_out.set(value) };
    Ok(())
}

/// What a record asks for.
///
/// # Safety
/// It must be the caller's to read.
pub(super) unsafe fn wanted(
    call: &Call<'_>,
    params: *const sys::CUDA_CONDITIONAL_NODE_PARAMS,
) -> CuResult<Wanted> {
    // SAFETY: as the caller says; the kind is read as a number, because an application may write any.
    let (value, kind, graphs, ctx) = unsafe {
        let kind = (&raw const (*params).type_).cast::<c_uint>().read();
        ((*params).handle, kind, (*params).size as usize, (*params).ctx)
    };
    let kind = ConditionKind::from_number(kind).ok_or(CuError::INVALID_VALUE)?;
    if !kind.takes(graphs) || graphs > BODIES_MAX {
        return Err(CuError::INVALID_VALUE);
    }
    Ok(Wanted { value, kind, graphs, ctx: context(call, ctx)? })
}

/// More bodies than this are a number gone wrong.
const BODIES_MAX: usize = 1 << 20;
