//! Copies of runs of bytes.

use std::ffi::c_void;

use cuda_abi::{CuError, CuResult, sys};
use wire::CopyPeer;

use crate::client::{Lane, Place, Side, Wait, with};

/// Copies in a stream.
///
/// # Safety
/// A side in memory of the host must be the caller's to read or write.
unsafe fn copy(stream: sys::CUstream, wait: Wait, dst: Side, src: Side, bytes: usize) -> CuResult {
    with(|call| {
        if wait == Wait::UntilDone {
            call.unsafe_in_capture()?;
        } else if let Some(target) = call.capture_of(stream)? {
            return call.capture_bytes(target, dst, src, bytes as u64);
        }
        let (stream, ctx) = call.stream(stream)?;
        // SAFETY: as the caller says.
        unsafe { call.copy(Lane { ctx, stream, wait }, dst, src, bytes as u64) }
    })
}

fn host(pointer: *const c_void) -> Side {
    Side::Host(pointer.expose_provenance() as u64)
}

macro_rules! copies {
    ($($doc:literal $sync:ident $asynchronous:ident ($dst:ident: $dst_ty:ty => $to:expr, $src:ident: $src_ty:ty => $from:expr);)*) => {$(
        #[doc = concat!("Copies ", $doc, ".")]
        pub unsafe fn $sync($dst: $dst_ty, $src: $src_ty, ByteCount: usize, default_stream: sys::CUstream) -> CuResult {
            // SAFETY: the caller's contract is the same.
            unsafe { copy(default_stream, Wait::UntilDone, $to, $from, ByteCount) }
        }

        #[doc = concat!("Copies ", $doc, " when the stream gets there.")]
        pub unsafe fn $asynchronous($dst: $dst_ty, $src: $src_ty, ByteCount: usize, hStream: sys::CUstream) -> CuResult {
            // SAFETY: the caller's contract is the same.
            unsafe { copy(hStream, Wait::No, $to, $from, ByteCount) }
        }
    )*};
}

copies! {
    "between any two addresses" cuMemcpy cuMemcpyAsync
        (dst: sys::CUdeviceptr => Side::Any(dst), src: sys::CUdeviceptr => Side::Any(src));
    "to the device" cuMemcpyHtoD_v2 cuMemcpyHtoDAsync_v2
        (dstDevice: sys::CUdeviceptr => Side::Device(dstDevice), srcHost: *const c_void => host(srcHost));
    "to the host" cuMemcpyDtoH_v2 cuMemcpyDtoHAsync_v2
        (dstHost: *mut c_void => host(dstHost), srcDevice: sys::CUdeviceptr => Side::Device(srcDevice));
    "within devices" cuMemcpyDtoD_v2 cuMemcpyDtoDAsync_v2
        (dstDevice: sys::CUdeviceptr => Side::Device(dstDevice), srcDevice: sys::CUdeviceptr => Side::Device(srcDevice));
}

/// One side of a copy between contexts.
type Peer = (sys::CUdeviceptr, sys::CUcontext);

unsafe fn copy_peer(stream: sys::CUstream, wait: Wait, dst: Peer, src: Peer, bytes: usize) -> CuResult {
    with(|call| {
        let bytes = bytes as u64;
        if wait == Wait::UntilDone {
            call.unsafe_in_capture()?;
        } else if let Some(target) = call.capture_of(stream)? {
            return call.capture_bytes(target, Side::Any(dst.0), Side::Any(src.0), bytes);
        }
        let (stream, ctx) = call.stream(stream)?;
        let contexts = (call.session.context(dst.1)?, call.session.context(src.1)?);
        if !contexts.0.is_active() || !contexts.1.is_active() {
            return Err(CuError::CONTEXT_IS_DESTROYED);
        }
        let (dst, src) = (Side::Any(dst.0), Side::Any(src.0));
        let device = |place| place == Place::Device;
        if bytes > 0 && device(call.place_of(dst, bytes)?) && device(call.place_of(src, bytes)?) {
            let (dst, src) = (dst.address(), src.address());
            let (dst_ctx, src_ctx) = (contexts.0.id, contexts.1.id);
            return call.submit(&CopyPeer { dst_ctx, src_ctx, stream, dst, src, bytes });
        }
        // SAFETY: a side in memory of the host is the caller's.
        unsafe { call.copy(Lane { ctx, stream, wait }, dst, src, bytes) }
    })
}

/// Copies between two contexts.
pub unsafe fn cuMemcpyPeer(
    dstDevice: sys::CUdeviceptr,
    dstContext: sys::CUcontext,
    srcDevice: sys::CUdeviceptr,
    srcContext: sys::CUcontext,
    ByteCount: usize,
    default_stream: sys::CUstream,
) -> CuResult {
    let sides = ((dstDevice, dstContext), (srcDevice, srcContext));
    // SAFETY: the caller's contract is the same.
    unsafe { copy_peer(default_stream, Wait::UntilDone, sides.0, sides.1, ByteCount) }
}

/// Copies between two contexts when the stream gets there.
pub unsafe fn cuMemcpyPeerAsync(
    dstDevice: sys::CUdeviceptr,
    dstContext: sys::CUcontext,
    srcDevice: sys::CUdeviceptr,
    srcContext: sys::CUcontext,
    ByteCount: usize,
    hStream: sys::CUstream,
) -> CuResult {
    let sides = ((dstDevice, dstContext), (srcDevice, srcContext));
    // SAFETY: the caller's contract is the same.
    unsafe { copy_peer(hStream, Wait::No, sides.0, sides.1, ByteCount) }
}
