//! Copies of runs of bytes to, from and between arrays of one dimension.

use std::ffi::c_void;

use cuda_abi::{CuResult, sys};

use crate::client::{Call, End, Extent, Lane, Rows, Side, Wait, with};

/// One side of a copy: an array and a byte of its row, or memory.
enum Run {
    Array(sys::CUarray, usize),
    Memory(Side),
}

impl Run {
    fn end(self, call: &Call<'_>, bytes: u64) -> CuResult<End> {
        match self {
            Self::Array(array, offset) => Ok(End::Array(call.array(array)?, [offset as u64, 0, 0])),
            Self::Memory(side) => Ok(End::Rows(Rows { side, pitch: bytes, rows: 1 })),
        }
    }
}

/// # Safety
/// A side in memory of the host must be the caller's to read or write.
unsafe fn copy(stream: sys::CUstream, wait: Wait, dst: Run, src: Run, bytes: usize) -> CuResult {
    with(|call| {
        let bytes = bytes as u64;
        let extent = Extent { width: bytes, height: 1, depth: 1 };
        if wait == Wait::UntilDone {
            call.unsafe_in_capture()?;
        } else if let Some(target) = call.capture_of(stream)? {
            let (dst, src) = (dst.end(call, bytes)?, src.end(call, bytes)?);
            return call.capture_box(target, dst, src, extent);
        }
        let (stream, ctx) = call.stream(stream)?;
        let (dst, src) = (dst.end(call, bytes)?, src.end(call, bytes)?);
        // SAFETY: as the caller says.
        unsafe { call.copy_box(Lane { ctx, stream, wait }, &dst, &src, extent) }
    })
}

fn host(pointer: *const c_void) -> Run {
    Run::Memory(Side::Host(pointer.expose_provenance() as u64))
}

fn device(address: sys::CUdeviceptr) -> Run {
    Run::Memory(Side::Device(address))
}

/// Copies from the device to an array.
pub unsafe fn cuMemcpyDtoA_v2(
    dstArray: sys::CUarray,
    dstOffset: usize,
    srcDevice: sys::CUdeviceptr,
    ByteCount: usize,
    default_stream: sys::CUstream,
) -> CuResult {
    let (dst, src) = (Run::Array(dstArray, dstOffset), device(srcDevice));
    // SAFETY: the caller's contract is the same.
    unsafe { copy(default_stream, Wait::UntilDone, dst, src, ByteCount) }
}

/// Copies from an array to the device.
pub unsafe fn cuMemcpyAtoD_v2(
    dstDevice: sys::CUdeviceptr,
    srcArray: sys::CUarray,
    srcOffset: usize,
    ByteCount: usize,
    default_stream: sys::CUstream,
) -> CuResult {
    let (dst, src) = (device(dstDevice), Run::Array(srcArray, srcOffset));
    // SAFETY: the caller's contract is the same.
    unsafe { copy(default_stream, Wait::UntilDone, dst, src, ByteCount) }
}

/// Copies from the host to an array.
pub unsafe fn cuMemcpyHtoA_v2(
    dstArray: sys::CUarray,
    dstOffset: usize,
    srcHost: *const c_void,
    ByteCount: usize,
    default_stream: sys::CUstream,
) -> CuResult {
    let (dst, src) = (Run::Array(dstArray, dstOffset), host(srcHost));
    // SAFETY: the caller's contract is the same.
    unsafe { copy(default_stream, Wait::UntilDone, dst, src, ByteCount) }
}

/// Copies from an array to the host.
pub unsafe fn cuMemcpyAtoH_v2(
    dstHost: *mut c_void,
    srcArray: sys::CUarray,
    srcOffset: usize,
    ByteCount: usize,
    default_stream: sys::CUstream,
) -> CuResult {
    let (dst, src) = (host(dstHost), Run::Array(srcArray, srcOffset));
    // SAFETY: the caller's contract is the same.
    unsafe { copy(default_stream, Wait::UntilDone, dst, src, ByteCount) }
}

/// Copies from an array to another.
pub unsafe fn cuMemcpyAtoA_v2(
    dstArray: sys::CUarray,
    dstOffset: usize,
    srcArray: sys::CUarray,
    srcOffset: usize,
    ByteCount: usize,
    default_stream: sys::CUstream,
) -> CuResult {
    let (dst, src) = (Run::Array(dstArray, dstOffset), Run::Array(srcArray, srcOffset));
    // SAFETY: the caller's contract is the same.
    unsafe { copy(default_stream, Wait::UntilDone, dst, src, ByteCount) }
}

/// Copies from the host to an array when the stream gets there.
pub unsafe fn cuMemcpyHtoAAsync_v2(
    dstArray: sys::CUarray,
    dstOffset: usize,
    srcHost: *const c_void,
    ByteCount: usize,
    hStream: sys::CUstream,
) -> CuResult {
    let (dst, src) = (Run::Array(dstArray, dstOffset), host(srcHost));
    // SAFETY: the caller's contract is the same.
    unsafe { copy(hStream, Wait::No, dst, src, ByteCount) }
}

/// Copies from an array to the host when the stream gets there.
pub unsafe fn cuMemcpyAtoHAsync_v2(
    dstHost: *mut c_void,
    srcArray: sys::CUarray,
    srcOffset: usize,
    ByteCount: usize,
    hStream: sys::CUstream,
) -> CuResult {
    let (dst, src) = (host(dstHost), Run::Array(srcArray, srcOffset));
    // SAFETY: the caller's contract is the same.
    unsafe { copy(hStream, Wait::No, dst, src, ByteCount) }
}
