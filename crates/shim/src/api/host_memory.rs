//! Pinned host memory: at the same address in the application and in the server.

use std::ffi::{c_uint, c_void};

use cuda_abi::{CuError, CuResult, FunctionId, sys::CUdeviceptr};

use crate::client::{Kind, out, with};
use crate::report::{Unsupported, report};

/// `CU_MEMHOSTALLOC_PORTABLE`, `DEVICEMAP`, `WRITECOMBINED`.
const FLAGS: c_uint = 1 | 2 | 4;

/// Allocates pinned memory.
pub unsafe fn cuMemHostAlloc(pp: *mut *mut c_void, bytesize: usize, Flags: c_uint) -> CuResult {
    let pp = out(pp)?;
    if bytesize == 0 || Flags & !FLAGS != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let address = with(|call| {
        call.unsafe_in_capture()?;
        call.allocate_pinned(bytesize as u64, Flags)
    })?;
    // SAFETY: the caller's to write to.
    unsafe { pp.set(std::ptr::with_exposed_provenance_mut(address as usize)) };
    Ok(())
}

/// Allocates pinned memory.
pub unsafe fn cuMemAllocHost_v2(pp: *mut *mut c_void, bytesize: usize) -> CuResult {
    // SAFETY: the caller's contract is the same.
    unsafe { cuMemHostAlloc(pp, bytesize, 0) }
}

/// Frees pinned memory, when nothing uses it any more.
pub unsafe fn cuMemFreeHost(p: *mut c_void) -> CuResult {
    with(|call| {
        call.check()?;
        call.unsafe_in_capture()?;
        call.free_pinned(p.addr() as u64)
    })
}

/// `CU_MEMHOSTREGISTER_PORTABLE`, `DEVICEMAP`, `READ_ONLY`.
const REGISTER_FLAGS: c_uint = 1 | 2 | 8;

/// Registers memory of the application's own.
pub unsafe fn cuMemHostRegister_v2(p: *mut c_void, bytesize: usize, Flags: c_uint) -> CuResult {
    if p.is_null() || bytesize == 0 || Flags & !(REGISTER_FLAGS | IO_MEMORY) != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    if Flags & IO_MEMORY != 0 {
        report(Unsupported::Flag(FunctionId::cuMemHostRegister_v2, "CU_MEMHOSTREGISTER_IOMEMORY"));
        return Err(CuError::NOT_SUPPORTED);
    }
    with(|call| call.register_host(p.expose_provenance() as u64, bytesize as u64, Flags))
}

/// `CU_MEMHOSTREGISTER_IOMEMORY`.
const IO_MEMORY: c_uint = 4;

/// Ends that, when no work uses it any more.
pub unsafe fn cuMemHostUnregister(p: *mut c_void) -> CuResult {
    with(|call| {
        call.check()?;
        call.unregister_host(p.addr() as u64)
    })
}

/// Gives the device's address of pinned memory: the same one.
pub unsafe fn cuMemHostGetDevicePointer_v2(
    pdptr: *mut CUdeviceptr,
    p: *mut c_void,
    Flags: c_uint,
) -> CuResult {
    let pdptr = out(pdptr)?;
    if Flags != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let address = p.addr() as u64;
    let found = with(|call| {
        call.context()?;
        Ok(call.session.memory.find(address))
    })?;
    match found.map(|found| found.kind) {
        Some(Kind::Pinned { .. } | Kind::Registered { file: Some(_), .. }) => {}
        Some(Kind::Registered { .. }) => {
            report(Unsupported::Function(FunctionId::cuMemHostGetDevicePointer_v2));
            return Err(CuError::NOT_SUPPORTED);
        }
        _ => return Err(CuError::INVALID_VALUE),
    }
    // SAFETY: the caller's to write to.
    unsafe { pdptr.set(address) };
    Ok(())
}

/// Gives the flags of pinned memory.
pub unsafe fn cuMemHostGetFlags(pFlags: *mut c_uint, p: *mut c_void) -> CuResult {
    let pFlags = out(pFlags)?;
    let flags = flags_of(p.addr() as u64)?;
    // SAFETY: the caller's to write to.
    unsafe { pFlags.set(flags) };
    Ok(())
}

fn flags_of(address: u64) -> CuResult<c_uint> {
    with(|call| {
        call.context()?;
        match call.session.memory.find(address).map(|found| found.kind) {
            Some(Kind::Pinned { flags, .. } | Kind::Registered { flags, .. }) => Ok(flags),
            _ => Err(CuError::INVALID_VALUE),
        }
    })
}
