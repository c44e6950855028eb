//! What graphs have of a device's memory.

use std::ffi::{c_int, c_uint, c_void};

use cuda_abi::{CuError, CuResult, sys};

use crate::client::{out, session, with};

use sys::CUgraphMem_attribute as Attribute;

const USED: c_uint = Attribute::CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT as c_uint;
const USED_HIGH: c_uint = Attribute::CU_GRAPH_MEM_ATTR_USED_MEM_HIGH as c_uint;
const RESERVED: c_uint = Attribute::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT as c_uint;
const RESERVED_HIGH: c_uint = Attribute::CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH as c_uint;

/// Gives back what no graph needs any more.
pub unsafe fn cuDeviceGraphMemTrim(device: c_int) -> CuResult {
    let session = session()?;
    session.device(device)?;
    with(|_| Ok(()))?;
    session.callbacks.await_burials();
    with(|call| call.collect_graph_memory())
}

/// Gives an attribute, a 64-bit number.
pub unsafe fn cuDeviceGetGraphMemAttribute(device: c_int, attr: c_uint, value: *mut c_void) -> CuResult {
    let value = out(value.cast::<u64>())?;
    let usage = &session()?.device(device)?.graph_memory;
    let found = match attr {
        USED => usage.used.current(),
        USED_HIGH => usage.used.high(),
        RESERVED => usage.reserved.current(),
        RESERVED_HIGH => usage.reserved.high(),
        _ => return Err(CuError::INVALID_VALUE),
    };
    // SAFETY: the caller's to write to.
    unsafe { value.set(found) };
    Ok(())
}

/// Counts the most there was anew: the only change that can be made, with the value 0.
pub unsafe fn cuDeviceSetGraphMemAttribute(device: c_int, attr: c_uint, value: *mut c_void) -> CuResult {
    if value.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: not NULL, so the caller's to read: a 64-bit number.
    let value = unsafe { value.cast::<u64>().read() };
    let usage = &session()?.device(device)?.graph_memory;
    match (attr, value) {
        (USED_HIGH, 0) => usage.used.reset_high(),
        (RESERVED_HIGH, 0) => usage.reserved.reset_high(),
        _ => return Err(CuError::INVALID_VALUE),
    }
    Ok(())
}
