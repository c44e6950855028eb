//! Copies of boxes, in the driver's own form.

use crate::api::{Api, check};
use crate::driver::stream;
use backend::{BoxSide, CopyBox, Result, StreamArg};
use cudarc::driver::sys;

/// The longest pitch that the driver takes; a single row has none.
const PITCH_MAX: u64 = i32::MAX as u64;

/// One side of a `CUDA_MEMCPY3D`: kind, address, array, position, pitch, rows.
struct Side {
    kind: sys::CUmemorytype,
    address: u64,
    array: sys::CUarray,
    at: [usize; 3],
    pitch: usize,
    rows: usize,
}

impl Side {
    fn of(side: &BoxSide, single: bool) -> Self {
        match *side {
            BoxSide::Memory(side) => Self {
                kind: sys::CUmemorytype::CU_MEMORYTYPE_UNIFIED,
                address: side.address,
                array: std::ptr::null_mut(),
                at: [0; 3],
                pitch: if single && side.pitch > PITCH_MAX { 0 } else { side.pitch as usize },
                rows: side.rows as usize,
            },
            BoxSide::Array(array, at) => Self {
                kind: sys::CUmemorytype::CU_MEMORYTYPE_ARRAY,
                address: 0,
                array: array.0 as sys::CUarray,
                at: at.map(|each| each as usize),
                pitch: 0,
                rows: 0,
            },
        }
    }
}

/// A copy in the driver's own form.
pub fn record(copy: &CopyBox) -> sys::CUDA_MEMCPY3D {
    let single = copy.height <= 1 && copy.depth <= 1;
    let (dst, src) = (Side::of(&copy.dst, single), Side::of(&copy.src, single));
    sys::CUDA_MEMCPY3D {
        srcXInBytes: src.at[0],
        srcY: src.at[1],
        srcZ: src.at[2],
        srcLOD: 0,
        srcMemoryType: src.kind,
        srcHost: std::ptr::null(),
        srcDevice: src.address,
        srcArray: src.array,
        reserved0: std::ptr::null_mut(),
        srcPitch: src.pitch,
        srcHeight: src.rows,
        dstXInBytes: dst.at[0],
        dstY: dst.at[1],
        dstZ: dst.at[2],
        dstLOD: 0,
        dstMemoryType: dst.kind,
        dstHost: std::ptr::null_mut(),
        dstDevice: dst.address,
        dstArray: dst.array,
        reserved1: std::ptr::null_mut(),
        dstPitch: dst.pitch,
        dstHeight: dst.rows,
        WidthInBytes: copy.width as usize,
        Height: copy.height as usize,
        Depth: copy.depth as usize,
    }
}

/// Copies when the stream gets there.
pub fn submit(api: &Api, arg: StreamArg, copy: &CopyBox) -> Result<()> {
    let record = record(copy);
    // SAFETY: the server has checked both boxes, against its tables and the arrays' shapes.
    check(unsafe { (api.cuMemcpy3DAsync_v2)(&raw const record, stream(arg)) })
}
