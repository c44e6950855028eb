//! Stream memory operations: writes to and waits for words of device or pinned memory.

use std::ffi::c_uint;
use std::sync::Arc;

use cuda_abi::{CuError, CuResult, sys};
use sys::CUstreamBatchMemOpType as Kind;
use wire::{MemoryOperation, MemoryOperations, Until, Word};

use crate::client::{Call, Side, with};
use crate::graph::{Captive, Operations, Work};

/// The most operations of a batch.
const MOST: c_uint = 256;
/// `CU_STREAM_WAIT_VALUE_FLUSH`: no device is said to be able to (`CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES`).
const FLUSH: c_uint = 1 << 30;

fn write(word: Word, flags: c_uint) -> CuResult<MemoryOperation> {
    // `CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER` ended with this version of the functions.
    if flags != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    Ok(MemoryOperation::Write { word })
}

fn wait(word: Word, flags: c_uint) -> CuResult<MemoryOperation> {
    let until = Until::from_number(flags & !FLUSH).ok_or(CuError::INVALID_VALUE)?;
    if flags & FLUSH != 0 {
        return Err(CuError::NOT_SUPPORTED);
    }
    Ok(MemoryOperation::Wait { word, until })
}

/// Checks that each word is there and all of it: device or pinned memory.
fn checked(call: &Call<'_>, operations: Vec<MemoryOperation>) -> CuResult<Vec<MemoryOperation>> {
    for word in operations.iter().filter_map(MemoryOperation::word) {
        let place = call.place_of(Side::Device(word.address), word.bytes())?;
        if !word.address.is_multiple_of(word.bytes()) || place.is_local() {
            return Err(CuError::INVALID_VALUE);
        }
    }
    Ok(operations)
}

fn submit(stream: sys::CUstream, operations: Vec<MemoryOperation>) -> CuResult {
    with(|call| {
        if let Some(target) = call.capture_of(stream)? {
            let operations = Operations::new(target.ctx, checked(call, operations)?);
            return call.capture(target, Captive::Work(Work::Operations(Arc::new(operations))));
        }
        let (stream, ctx) = call.stream(stream)?;
        let operations = checked(call, operations)?;
        call.submit(&MemoryOperations { ctx, stream, operations })
    })
}

macro_rules! operations {
    ($($doc:literal $name:ident $make:ident ($ty:ty, $wide:literal);)*) => {$(
        #[doc = $doc]
        pub unsafe fn $name(
            stream: sys::CUstream,
            addr: sys::CUdeviceptr,
            value: $ty,
            flags: c_uint,
        ) -> CuResult {
            submit(stream, vec![$make(Word { address: addr, value: value.into(), wide: $wide }, flags)?])
        }
    )*};
}

operations! {
    "Has a stream wait for 32 bits in memory." cuStreamWaitValue32_v2 wait (u32, false);
    "Has a stream wait for 64 bits in memory." cuStreamWaitValue64_v2 wait (u64, true);
    "Has a stream write 32 bits to memory." cuStreamWriteValue32_v2 write (u32, false);
    "Has a stream write 64 bits to memory." cuStreamWriteValue64_v2 write (u64, true);
}

/// Has a stream carry out several operations, in their order.
pub unsafe fn cuStreamBatchMemOp_v2(
    stream: sys::CUstream,
    count: c_uint,
    paramArray: *mut sys::CUstreamBatchMemOpParams,
    flags: c_uint,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    submit(stream, unsafe { read(count, paramArray, flags) }?)
}

/// The operations that a record for a node describes.
pub(in crate::api) unsafe fn node_operations(
    call: &Call<'_>,
    count: c_uint,
    params: *const sys::CUstreamBatchMemOpParams,
    flags: c_uint,
) -> CuResult<Vec<MemoryOperation>> {
    // SAFETY: the caller's contract is the same.
    checked(call, unsafe { read(count, params, flags) }?)
}

/// Reads a batch.
unsafe fn read(
    count: c_uint,
    params: *const sys::CUstreamBatchMemOpParams,
    flags: c_uint,
) -> CuResult<Vec<MemoryOperation>> {
    if params.is_null() || count == 0 || count > MOST || flags != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: the caller gives `count` elements.
    (0..count as usize).map(|index| unsafe { operation(params.add(index)) }).collect()
}

/// Reads an operation; its kind may be any number.
unsafe fn operation(from: *const sys::CUstreamBatchMemOpParams) -> CuResult<MemoryOperation> {
    const WAIT_32: u32 = Kind::CU_STREAM_MEM_OP_WAIT_VALUE_32 as u32;
    const WAIT_64: u32 = Kind::CU_STREAM_MEM_OP_WAIT_VALUE_64 as u32;
    const WRITE_32: u32 = Kind::CU_STREAM_MEM_OP_WRITE_VALUE_32 as u32;
    const WRITE_64: u32 = Kind::CU_STREAM_MEM_OP_WRITE_VALUE_64 as u32;
    const FLUSH_WRITES: u32 = Kind::CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES as u32;
    const BARRIER: u32 = Kind::CU_STREAM_MEM_OP_BARRIER as u32;
    // SAFETY: the caller gives a whole element, and every kind of operation is made of numbers; the two that have an address
    // have the same fields in the same places.
    let (kind, address, value, flags, barrier) = unsafe {
        (
            from.cast::<u32>().read(),
            (&raw const (*from).waitValue.address).read(),
            (&raw const (*from).waitValue.__bindgen_anon_1.value64).read(),
            (&raw const (*from).waitValue.flags).read(),
            (&raw const (*from).memoryBarrier.flags).read(),
        )
    };
    let narrow = Word { address, value: value & u64::from(u32::MAX), wide: false };
    let wide = Word { address, value, wide: true };
    match kind {
        WAIT_32 => wait(narrow, flags),
        WAIT_64 => wait(wide, flags),
        WRITE_32 => write(narrow, flags),
        WRITE_64 => write(wide, flags),
        FLUSH_WRITES => Err(CuError::NOT_SUPPORTED),
        BARRIER if barrier <= 1 => Ok(MemoryOperation::Barrier { gpu: barrier == 1 }),
        _ => Err(CuError::INVALID_VALUE),
    }
}
