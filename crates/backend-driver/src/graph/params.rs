//! What nodes do, in the driver's own form.

use super::functions::{Place, run};
use crate::driver::event;
use crate::{copy, memory_operations, work};
use backend::{GraphKernel, GraphWork, Result};
use cudarc::driver::sys;
use std::ffi::{c_uint, c_void};
use sys::CUgraphNodeType as Kind;
use wire::CuError;

/// Calls `body` with a node's parameters in the driver's own form; they are whole until it returns. `place` is that of a host function.
pub fn with_params(
    work: &GraphWork,
    place: Option<&Place>,
    body: impl FnOnce(*mut sys::CUgraphNodeParams) -> Result<()>,
) -> Result<()> {
    // SAFETY: a record of numbers, pointers and enumerations whose first value is 0.
    let mut params: sys::CUgraphNodeParams = unsafe { std::mem::zeroed() };
    let body = |kind, params: &mut sys::CUgraphNodeParams| {
        params.type_ = kind;
        body(&raw mut *params)
    };
    match work {
        GraphWork::Empty => body(Kind::CU_GRAPH_NODE_TYPE_EMPTY, &mut params),
        GraphWork::Kernel(ctx, kernel) => {
            let mut bytes = kernel.params.len();
            let mut extra = work::param_buffer(&kernel.params, &mut bytes);
            params.__bindgen_anon_1.kernel =
                kernel_params(kernel, ctx.0 as sys::CUcontext, extra.as_mut_ptr());
            body(Kind::CU_GRAPH_NODE_TYPE_KERNEL, &mut params)
        }
        GraphWork::Copy(ctx, copy) => {
            params.__bindgen_anon_1.memcpy = sys::CUDA_MEMCPY_NODE_PARAMS {
                flags: 0,
                reserved: 0,
                copyCtx: ctx.0 as sys::CUcontext,
                copyParams: copy::record(copy),
            };
            body(Kind::CU_GRAPH_NODE_TYPE_MEMCPY, &mut params)
        }
        GraphWork::Fill(ctx, fill) => {
            params.__bindgen_anon_1.memset = sys::CUDA_MEMSET_NODE_PARAMS_v2 {
                dst: fill.dst,
                pitch: fill.pitch as usize,
                value: fill.value,
                elementSize: fill.element.into(),
                width: fill.width as usize,
                height: fill.height as usize,
                ctx: ctx.0 as sys::CUcontext,
            };
            body(Kind::CU_GRAPH_NODE_TYPE_MEMSET, &mut params)
        }
        GraphWork::Host(_) => {
            let place = place.ok_or(CuError::INVALID_VALUE)?;
            // SAFETY: the fields of the record that `type_` will say is there, zero so far.
            let host = unsafe { &mut params.__bindgen_anon_1.host };
            host.fn_ = Some(run);
            host.userData = std::ptr::from_ref(place).cast_mut().cast();
            body(Kind::CU_GRAPH_NODE_TYPE_HOST, &mut params)
        }
        GraphWork::EventRecord(raw) => {
            params.__bindgen_anon_1.eventRecord = sys::CUDA_EVENT_RECORD_NODE_PARAMS { event: event(*raw) };
            body(Kind::CU_GRAPH_NODE_TYPE_EVENT_RECORD, &mut params)
        }
        GraphWork::EventWait(raw) => {
            params.__bindgen_anon_1.eventWait = sys::CUDA_EVENT_WAIT_NODE_PARAMS { event: event(*raw) };
            body(Kind::CU_GRAPH_NODE_TYPE_WAIT_EVENT, &mut params)
        }
        GraphWork::Operations(ctx, operations) => {
            let mut list = memory_operations::params(operations);
            params.__bindgen_anon_1.memOp = sys::CUDA_BATCH_MEM_OP_NODE_PARAMS_v2 {
                ctx: ctx.0 as sys::CUcontext,
                count: list.len() as c_uint,
                paramArray: list.as_mut_ptr(),
                flags: 0,
            };
            body(Kind::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, &mut params)
        }
        // It belongs to a template, which places it, and cannot be changed.
        GraphWork::Conditional(..) => Err(CuError::GRAPH_EXEC_UPDATE_FAILURE),
    }
}

fn kernel_params(
    kernel: &GraphKernel,
    ctx: sys::CUcontext,
    extra: *mut *mut c_void,
) -> sys::CUDA_KERNEL_NODE_PARAMS_v3 {
    sys::CUDA_KERNEL_NODE_PARAMS_v3 {
        func: kernel.function.0 as sys::CUfunction,
        gridDimX: kernel.grid[0],
        gridDimY: kernel.grid[1],
        gridDimZ: kernel.grid[2],
        blockDimX: kernel.block[0],
        blockDimY: kernel.block[1],
        blockDimZ: kernel.block[2],
        sharedMemBytes: kernel.shared,
        kernelParams: std::ptr::null_mut(),
        extra,
        kern: std::ptr::null_mut(),
        ctx,
    }
}
