//! Copies of rows and of slices of rows.

use std::ffi::c_void;

use cuda_abi::{CuError, CuResult, sys};

use crate::client::{Call, End, Extent, Lane, Rows, Side, Wait, with};

/// `CUmemorytype`.
const HOST: u32 = sys::CUmemorytype::CU_MEMORYTYPE_HOST as u32;
const DEVICE: u32 = sys::CUmemorytype::CU_MEMORYTYPE_DEVICE as u32;
const ARRAY: u32 = sys::CUmemorytype::CU_MEMORYTYPE_ARRAY as u32;
const UNIFIED: u32 = sys::CUmemorytype::CU_MEMORYTYPE_UNIFIED as u32;

/// One side as the application describes it.
struct Place {
    kind: u32,
    host: *const c_void,
    device: u64,
    array: sys::CUarray,
    pitch: usize,
    height: usize,
    x: usize,
    y: usize,
    z: usize,
}

impl Place {
    fn end(&self, call: &Call<'_>, extent: Extent) -> CuResult<End> {
        if self.kind == ARRAY {
            let at = [self.x as u64, self.y as u64, self.z as u64];
            return Ok(End::Array(call.array(self.array)?, at));
        }
        // A pitch of 0 means rows without gaps, a height of 0 slices without gaps.
        let pitch = if self.pitch == 0 { extent.width } else { self.pitch as u64 };
        let rows = if self.height == 0 { extent.height } else { self.height as u64 };
        let row = (self.z as u64).checked_mul(rows).and_then(|rows| rows.checked_add(self.y as u64));
        let offset = row
            .and_then(|row| row.checked_mul(pitch))
            .and_then(|bytes| bytes.checked_add(self.x as u64))
            .ok_or(CuError::INVALID_VALUE)?;
        let side = match self.kind {
            HOST => Side::Host(self.host.expose_provenance() as u64),
            DEVICE => Side::Device(self.device),
            UNIFIED => Side::Any(self.device),
            _ => return Err(CuError::INVALID_VALUE),
        };
        Ok(End::Rows(Rows { side: side.offset(offset), pitch, rows }))
    }
}

/// Reads one side of a description. The kind is read as the integer that it is: an application may write any.
macro_rules! side {
    ($copy:expr, $kind:ident $host:ident $device:ident $array:ident $pitch:ident $x:ident $y:ident $(, $height:ident $z:ident)?) => {
        Place {
            kind: (&raw const (*$copy).$kind).cast::<u32>().read(),
            host: (&raw const (*$copy).$host).cast::<*const c_void>().read(),
            device: (*$copy).$device,
            array: (*$copy).$array,
            pitch: (*$copy).$pitch,
            x: (*$copy).$x,
            y: (*$copy).$y,
            height: 0 $(+ (*$copy).$height)?,
            z: 0 $(+ (*$copy).$z)?,
        }
    };
}

unsafe fn run(stream: sys::CUstream, wait: Wait, dst: Place, src: Place, extent: Extent) -> CuResult {
    with(|call| {
        if wait == Wait::UntilDone {
            call.unsafe_in_capture()?;
        } else if let Some(target) = call.capture_of(stream)? {
            let (dst, src) = (dst.end(call, extent)?, src.end(call, extent)?);
            return call.capture_box(target, dst, src, extent);
        }
        let (stream, ctx) = call.stream(stream)?;
        let lane = Lane { ctx, stream, wait };
        match (dst.end(call, extent)?, src.end(call, extent)?) {
            // SAFETY: the caller's contract is the same.
            (End::Rows(dst), End::Rows(src)) => unsafe { call.copy_rows(lane, dst, src, extent) },
            // SAFETY: as above.
            (dst, src) => unsafe { call.copy_box(lane, &dst, &src, extent) },
        }
    })
}

/// The sides, to and from, and the extent of a description.
///
/// # Errors
/// `INVALID_VALUE` for what is none; `INVALID_HANDLE` for an array that is not there.
pub(in crate::api) unsafe fn described(
    call: &Call<'_>,
    copy: *const sys::CUDA_MEMCPY3D,
) -> CuResult<(End, End, Extent)> {
    if copy.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: not NULL, so the caller's description.
    unsafe {
        let dst =
            side!(copy, dstMemoryType dstHost dstDevice dstArray dstPitch dstXInBytes dstY, dstHeight dstZ);
        let src =
            side!(copy, srcMemoryType srcHost srcDevice srcArray srcPitch srcXInBytes srcY, srcHeight srcZ);
        let (width, height) = ((*copy).WidthInBytes as u64, (*copy).Height as u64);
        let extent = Extent { width, height, depth: (*copy).Depth as u64 };
        Ok((dst.end(call, extent)?, src.end(call, extent)?, extent))
    }
}

/// Defines the copy that a description asks for; one of slices also has heights, a third coordinate and a depth.
macro_rules! copy {
    ($name:ident($Copy:ident) $(, $dstHeight:ident $dstZ:ident $srcHeight:ident $srcZ:ident $Depth:ident)?) => {
        unsafe fn $name(copy: *const sys::$Copy, stream: sys::CUstream, wait: Wait) -> CuResult {
            if copy.is_null() {
                return Err(CuError::INVALID_VALUE);
            }
            // SAFETY: not NULL, so the caller's description; the sides are as it says.
            unsafe {
                let dst = side!(copy, dstMemoryType dstHost dstDevice dstArray dstPitch dstXInBytes dstY $(, $dstHeight $dstZ)?);
                let src = side!(copy, srcMemoryType srcHost srcDevice srcArray srcPitch srcXInBytes srcY $(, $srcHeight $srcZ)?);
                let (width, height) = ((*copy).WidthInBytes as u64, (*copy).Height as u64);
                let depth = 1 $(* (*copy).$Depth as u64)?;
                run(stream, wait, dst, src, Extent { width, height, depth })
            }
        }
    };
}

copy!(copy_2d(CUDA_MEMCPY2D));
copy!(copy_3d(CUDA_MEMCPY3D), dstHeight dstZ srcHeight srcZ Depth);
// Between devices too: both have the same addresses in the server, which copies whatever lies there.
copy!(copy_3d_peer(CUDA_MEMCPY3D_PEER), dstHeight dstZ srcHeight srcZ Depth);

/// Copies rows.
pub unsafe fn cuMemcpy2D_v2(pCopy: *const sys::CUDA_MEMCPY2D, default_stream: sys::CUstream) -> CuResult {
    // SAFETY: the caller's contract is the same.
    unsafe { copy_2d(pCopy, default_stream, Wait::UntilDone) }
}

/// Copies rows, however they lie.
pub unsafe fn cuMemcpy2DUnaligned_v2(
    pCopy: *const sys::CUDA_MEMCPY2D,
    default_stream: sys::CUstream,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    unsafe { copy_2d(pCopy, default_stream, Wait::UntilDone) }
}

/// Copies rows when the stream gets there.
pub unsafe fn cuMemcpy2DAsync_v2(pCopy: *const sys::CUDA_MEMCPY2D, hStream: sys::CUstream) -> CuResult {
    // SAFETY: the caller's contract is the same.
    unsafe { copy_2d(pCopy, hStream, Wait::No) }
}

/// Copies slices of rows.
pub unsafe fn cuMemcpy3D_v2(pCopy: *const sys::CUDA_MEMCPY3D, default_stream: sys::CUstream) -> CuResult {
    // SAFETY: the caller's contract is the same.
    unsafe { copy_3d(pCopy, default_stream, Wait::UntilDone) }
}

/// Copies slices of rows when the stream gets there.
pub unsafe fn cuMemcpy3DAsync_v2(pCopy: *const sys::CUDA_MEMCPY3D, hStream: sys::CUstream) -> CuResult {
    // SAFETY: the caller's contract is the same.
    unsafe { copy_3d(pCopy, hStream, Wait::No) }
}

/// Copies slices of rows between two contexts.
pub unsafe fn cuMemcpy3DPeer(
    pCopy: *const sys::CUDA_MEMCPY3D_PEER,
    default_stream: sys::CUstream,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    unsafe { copy_3d_peer(pCopy, default_stream, Wait::UntilDone) }
}

/// Copies slices of rows between two contexts when the stream gets there.
pub unsafe fn cuMemcpy3DPeerAsync(pCopy: *const sys::CUDA_MEMCPY3D_PEER, hStream: sys::CUstream) -> CuResult {
    // SAFETY: the caller's contract is the same.
    unsafe { copy_3d_peer(pCopy, hStream, Wait::No) }
}
