//! Device memory.

use std::ffi::c_uint;
use std::sync::Arc;

use cuda_abi::{CuError, CuResult, sys::CUdeviceptr};
use wire::{MemAlloc, MemFree, MemInfo};

use crate::client::{Kind, Owner, out, with};

/// Rows of pitched memory begin at multiples of this, as the driver's do.
const PITCH: usize = 512;

/// Allocates device memory.
pub unsafe fn cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytesize: usize) -> CuResult {
    let dptr = out(dptr)?;
    let address = allocate(bytesize as u64)?;
    // SAFETY: the caller's to write to.
    unsafe { dptr.set(address) };
    Ok(())
}

fn allocate(bytes: u64) -> CuResult<u64> {
    if bytes == 0 {
        return Err(CuError::INVALID_VALUE);
    }
    with(|call| {
        call.unsafe_in_capture()?;
        let context = Arc::clone(call.context()?);
        let address = call.ask(&MemAlloc { ctx: context.id, bytes })?;
        call.session.add_allocation((address, bytes), Owner::new(&context), Kind::Device);
        Ok(address)
    })
}

/// Allocates rows that each begin at a multiple of 512 bytes.
pub unsafe fn cuMemAllocPitch_v2(
    dptr: *mut CUdeviceptr,
    pPitch: *mut usize,
    WidthInBytes: usize,
    Height: usize,
    ElementSizeBytes: c_uint,
) -> CuResult {
    let (dptr, pPitch) = (out(dptr)?, out(pPitch)?);
    if !matches!(ElementSizeBytes, 4 | 8 | 16) || WidthInBytes == 0 || Height == 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let pitch = WidthInBytes.checked_next_multiple_of(PITCH).ok_or(CuError::OUT_OF_MEMORY)?;
    let bytes = pitch.checked_mul(Height).ok_or(CuError::OUT_OF_MEMORY)?;
    let address = allocate(bytes as u64)?;
    // SAFETY: the caller's to write to.
    unsafe {
        dptr.set(address);
        pPitch.set(pitch);
    }
    Ok(())
}

/// Frees device or managed memory; 0 is nothing to free.
pub unsafe fn cuMemFree_v2(dptr: CUdeviceptr) -> CuResult {
    with(|call| {
        if dptr == 0 {
            return Ok(());
        }
        call.check()?;
        call.unsafe_in_capture()?;
        if call.free_graph_memory(dptr)? {
            return Ok(());
        }
        if call.is_managed(dptr) {
            return call.free_managed(dptr);
        }
        // Out of the table first, so that of two threads that free the same memory one is told.
        let allocation = call.session.memory.remove(dptr, Kind::is_freed).ok_or(CuError::INVALID_VALUE)?;
        let sent = call.submit(&MemFree { address: dptr });
        if sent.is_err() {
            call.session.memory.insert(allocation);
        }
        sent
    })
}

/// Gives free and total device memory.
pub unsafe fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> CuResult {
    let (free, total) = (out(free)?, out(total)?);
    let (left, whole) = with(|call| {
        let ctx = call.context()?.id;
        call.ask(&MemInfo { ctx })
    })?;
    // SAFETY: the caller's to write to.
    unsafe {
        free.set(left as usize);
        total.set(whole as usize);
    }
    Ok(())
}

/// Gives the allocation that an address lies in; either output may be left out.
pub unsafe fn cuMemGetAddressRange_v2(
    pbase: *mut CUdeviceptr,
    psize: *mut usize,
    dptr: CUdeviceptr,
) -> CuResult {
    let found = with(|call| {
        call.context()?;
        call.session.memory.find(dptr).ok_or(CuError::NOT_FOUND)
    })?;
    // SAFETY: the caller's to write to, where not NULL.
    unsafe { super::give_range((pbase, psize), (found.base, found.bytes)) };
    Ok(())
}
