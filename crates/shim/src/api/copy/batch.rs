//! Batches of copies: checked as a whole, then submitted one by one in their order, which is as good as any.

use std::ffi::{c_uint, c_ulonglong};

use cuda_abi::{CuError, CuResult, sys};
use wire::StreamSynchronize;

use crate::client::{Call, End, Extent, Lane, Place, Rows, Side, Wait, with};

/// `CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE`: a hint.
const OVERLAP: c_uint = sys::CUmemcpyFlags::CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE as c_uint;
/// What `failIdx` is when no single copy is at fault.
const NO_COPY: usize = usize::MAX;

/// When a copy may read its source: a `CUmemcpySrcAccessOrder`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// When the stream gets there.
    Stream,
    /// Before the call returns.
    DuringCall,
    /// At any time.
    Any,
}

impl Order {
    fn new(number: c_uint, flags: c_uint) -> CuResult<Self> {
        let order = match number {
            1 => Self::Stream,
            2 => Self::DuringCall,
            3 => Self::Any,
            _ => return Err(CuError::INVALID_VALUE),
        };
        if flags & !OVERLAP == 0 { Ok(order) } else { Err(CuError::INVALID_VALUE) }
    }

    /// Whether the device reads a source of that kind later, when it may be gone.
    fn is_late(self, source: Place) -> bool {
        self == Self::DuringCall && matches!(source, Place::Pinned | Place::Device)
    }

    /// How a copy from a source of that kind is made.
    fn wait(self, call: &mut Call<'_>, lane: Lane, source: Place) -> CuResult<Wait> {
        let Lane { ctx, stream, .. } = lane;
        match (self, source) {
            // Pageable memory is read at the call: what comes before in the stream may still write it.
            (Self::Stream, Place::Host) => {
                call.await_work(&StreamSynchronize { ctx, stream })?;
                Ok(Wait::No)
            }
            _ => Ok(Wait::No),
        }
    }
}

/// The stream of a batch: never the legacy default stream.
fn lane(call: &mut Call<'_>, stream: sys::CUstream) -> CuResult<Lane> {
    let (stream, ctx) = call.stream(stream)?;
    if stream == wire::Stream::Legacy {
        return Err(CuError::INVALID_VALUE);
    }
    Ok(Lane { ctx, stream, wait: Wait::No })
}

/// Waits for the copies of a batch, if a source of theirs may be gone when the call has returned.
fn finish(call: &mut Call<'_>, Lane { ctx, stream, .. }: Lane, late: bool) -> CuResult {
    if late { call.await_work(&StreamSynchronize { ctx, stream }) } else { Ok(()) }
}

/// A copy of a run of bytes, checked.
struct Linear {
    dst: u64,
    src: u64,
    bytes: u64,
    order: Order,
}

/// Copies runs of bytes.
pub unsafe fn cuMemcpyBatchAsync_v2(
    dsts: *mut sys::CUdeviceptr,
    srcs: *mut sys::CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attrs: *mut sys::CUmemcpyAttributes,
    attrsIdxs: *mut usize,
    numAttrs: usize,
    hStream: sys::CUstream,
) -> CuResult {
    let nobody = std::ptr::null_mut();
    // SAFETY: the caller's contract is the same, and the index may be left out.
    unsafe { cuMemcpyBatchAsync(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, nobody, hStream) }
}

/// Copies runs of bytes; tells which of them cannot be.
pub unsafe fn cuMemcpyBatchAsync(
    dsts: *mut sys::CUdeviceptr,
    srcs: *mut sys::CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attrs: *mut sys::CUmemcpyAttributes,
    attrsIdxs: *mut usize,
    numAttrs: usize,
    failIdx: *mut usize,
    hStream: sys::CUstream,
) -> CuResult {
    let fail = |index: usize| {
        if !failIdx.is_null() {
            // SAFETY: not NULL, so the caller's to write to.
            unsafe { failIdx.write(index) };
        }
    };
    fail(NO_COPY);
    let missing =
        dsts.is_null() || srcs.is_null() || sizes.is_null() || attrs.is_null() || attrsIdxs.is_null();
    if missing || count == 0 || numAttrs == 0 || numAttrs > count {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: the caller gives arrays of these lengths; the access order may be any number.
    let (attributes, copies) = unsafe {
        let attributes = (0..numAttrs).map(|index| {
            let attribute = attrs.add(index);
            let order = (&raw const (*attribute).srcAccessOrder).cast::<c_uint>().read();
            Ok((attrsIdxs.add(index).read(), Order::new(order, (*attribute).flags)?))
        });
        let copies =
            (0..count).map(|index| (dsts.add(index).read(), srcs.add(index).read(), sizes.add(index).read()));
        (attributes.collect::<CuResult<Vec<_>>>()?, copies)
    };
    let firsts = || attributes.iter().map(|(first, _)| *first);
    let ascending = firsts().zip(firsts().skip(1)).all(|(first, next)| first < next);
    if firsts().next() != Some(0) || !ascending || firsts().next_back().is_none_or(|last| last >= count) {
        return Err(CuError::INVALID_VALUE);
    }
    with(|call| {
        let lane = lane(call, hStream)?;
        let mut checked = Vec::with_capacity(count);
        for (index, (dst, src, bytes)) in copies.enumerate() {
            let order = attributes.partition_point(|(first, _)| *first <= index);
            // The first attribute is the first copy's.
            let order = attributes[order - 1].1;
            let bytes = bytes as u64;
            let placed = call.place_of(Side::Any(dst), bytes).and(call.place_of(Side::Any(src), bytes));
            placed.inspect_err(|_| fail(index))?;
            checked.push(Linear { dst, src, bytes, order });
        }
        let mut late = false;
        for Linear { dst, src, bytes, order } in checked {
            let source = call.place_of(Side::Any(src), bytes)?;
            late |= order.is_late(source);
            let wait = order.wait(call, lane, source)?;
            // SAFETY: a side in memory of the host is the caller's, as the batch says.
            unsafe { call.copy(Lane { wait, ..lane }, Side::Any(dst), Side::Any(src), bytes) }?;
        }
        finish(call, lane, late)
    })
}

/// Copies boxes.
pub unsafe fn cuMemcpy3DBatchAsync_v2(
    numOps: usize,
    opList: *mut sys::CUDA_MEMCPY3D_BATCH_OP,
    flags: c_ulonglong,
    hStream: sys::CUstream,
) -> CuResult {
    // SAFETY: the caller's contract is the same, and the index may be left out.
    unsafe { cuMemcpy3DBatchAsync(numOps, opList, std::ptr::null_mut(), flags, hStream) }
}

/// Copies boxes; tells which of them cannot be.
pub unsafe fn cuMemcpy3DBatchAsync(
    numOps: usize,
    opList: *mut sys::CUDA_MEMCPY3D_BATCH_OP,
    failIdx: *mut usize,
    flags: c_ulonglong,
    hStream: sys::CUstream,
) -> CuResult {
    let fail = |index: usize| {
        if !failIdx.is_null() {
            // SAFETY: not NULL, so the caller's to write to.
            unsafe { failIdx.write(index) };
        }
    };
    fail(NO_COPY);
    if opList.is_null() || numOps == 0 || flags != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    with(|call| {
        let lane = lane(call, hStream)?;
        let mut checked = Vec::with_capacity(numOps);
        for index in 0..numOps {
            // SAFETY: the caller gives `numOps` elements.
            let described = unsafe { described(call, opList.add(index)) };
            checked.push(described.inspect_err(|_| fail(index))?);
        }
        let mut late = false;
        for Boxed { dst, src, extent, order } in checked {
            let source = src.place(call, extent)?;
            late |= order.is_late(source);
            let wait = order.wait(call, lane, source)?;
            let lane = Lane { wait, ..lane };
            // SAFETY: a side in memory of the host is the caller's, as the batch says.
            unsafe {
                match (dst, src) {
                    (End::Rows(dst), End::Rows(src)) => call.copy_rows(lane, dst, src, extent)?,
                    (dst, src) => call.copy_box(lane, &dst, &src, extent)?,
                }
            }
        }
        finish(call, lane, late)
    })
}

/// A copy of a box, checked.
struct Boxed {
    dst: End,
    src: End,
    extent: Extent,
    order: Order,
}

/// One side as the batch describes it, in elements.
enum Operand {
    Memory { address: u64, row: u64, height: u64 },
    Array(sys::CUarray, [u64; 3]),
}

/// Reads an operand; its kind may be any number.
unsafe fn operand(from: *const sys::CUmemcpy3DOperand) -> CuResult<Operand> {
    const POINTER: c_uint = sys::CUmemcpy3DOperandType::CU_MEMCPY_OPERAND_TYPE_POINTER as c_uint;
    const ARRAY: c_uint = sys::CUmemcpy3DOperandType::CU_MEMCPY_OPERAND_TYPE_ARRAY as c_uint;
    // SAFETY: the caller gives a whole operand, of the kind that it says.
    unsafe {
        match (&raw const (*from).type_).cast::<c_uint>().read() {
            POINTER => {
                let memory = &raw const (*from).op.ptr;
                let (row, height) = ((*memory).rowLength as u64, (*memory).layerHeight as u64);
                Ok(Operand::Memory { address: (*memory).ptr, row, height })
            }
            ARRAY => {
                let array = (*from).op.array;
                let sys::CUoffset3D_st { x, y, z } = array.offset;
                Ok(Operand::Array(array.array, [x as u64, y as u64, z as u64]))
            }
            _ => Err(CuError::INVALID_VALUE),
        }
    }
}

impl Operand {
    /// Bytes of an element, where the operand is what says so.
    fn element(&self, call: &Call<'_>) -> CuResult<Option<u64>> {
        match self {
            Self::Memory { .. } => Ok(None),
            Self::Array(array, _) => Ok(Some(call.array(*array)?.shape.element)),
        }
    }

    fn end(&self, call: &Call<'_>, element: u64, extent: Extent) -> CuResult<End> {
        let bytes = |elements: u64| elements.checked_mul(element).ok_or(CuError::INVALID_VALUE);
        match *self {
            Self::Memory { address, row, height } => {
                let pitch = if row == 0 { extent.width } else { bytes(row)? };
                let rows = if height == 0 { extent.height } else { height };
                if pitch < extent.width || rows < extent.height {
                    return Err(CuError::INVALID_VALUE);
                }
                Ok(End::Rows(Rows { side: Side::Any(address), pitch, rows }))
            }
            Self::Array(array, [x, y, z]) => Ok(End::Array(call.array(array)?, [bytes(x)?, y, z])),
        }
    }
}

/// Reads and checks a copy.
unsafe fn described(call: &Call<'_>, from: *const sys::CUDA_MEMCPY3D_BATCH_OP) -> CuResult<Boxed> {
    // SAFETY: the caller gives a whole description; the access order may be any number.
    let (dst, src, extent, order) = unsafe {
        let order = (&raw const (*from).srcAccessOrder).cast::<c_uint>().read();
        let (dst, src) = (operand(&raw const (*from).dst)?, operand(&raw const (*from).src)?);
        (dst, src, (*from).extent, Order::new(order, (*from).flags)?)
    };
    let element = match (dst.element(call)?, src.element(call)?) {
        (None, None) => 1,
        (Some(element), None) | (None, Some(element)) => element,
        (Some(dst), Some(src)) if dst == src => dst,
        (Some(_), Some(_)) => return Err(CuError::INVALID_VALUE),
    };
    let width = (extent.width as u64).checked_mul(element).ok_or(CuError::INVALID_VALUE)?;
    let extent = Extent { width, height: extent.height as u64, depth: extent.depth as u64 };
    if extent.width == 0 || extent.height == 0 || extent.depth == 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let (dst, src) = (dst.end(call, element, extent)?, src.end(call, element, extent)?);
    dst.place(call, extent)?;
    src.place(call, extent)?;
    Ok(Boxed { dst, src, extent, order })
}
