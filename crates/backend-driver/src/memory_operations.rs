//! Stream memory operations, in the driver's own form.

use crate::api::{Api, check};
use crate::driver::stream;
use backend::{MemoryOperation, Result, StreamArg, Word};
use cudarc::driver::sys::{self, CUstreamBatchMemOpType as Kind};

type Params = sys::CUstreamBatchMemOpParams;

/// `CU_STREAM_MEMORY_BARRIER_TYPE_SYS` and `_GPU`.
const SYSTEM: u32 = sys::CUstreamMemoryBarrier_flags::CU_STREAM_MEMORY_BARRIER_TYPE_SYS as u32;
const GPU: u32 = sys::CUstreamMemoryBarrier_flags::CU_STREAM_MEMORY_BARRIER_TYPE_GPU as u32;

pub fn submit(api: &Api, arg: StreamArg, operations: &[MemoryOperation]) -> Result<()> {
    let mut params = params(operations);
    let count = params.len() as u32;
    // SAFETY: `count` elements, and the server has checked the words against its tables.
    check(unsafe { (api.cuStreamBatchMemOp_v2)(stream(arg), count, params.as_mut_ptr(), 0) })
}

/// The operations in the driver's own form.
pub fn params(operations: &[MemoryOperation]) -> Vec<Params> {
    operations.iter().map(param).collect()
}

fn param(operation: &MemoryOperation) -> Params {
    // What an operation does not use is zero, as the driver asks for.
    let mut params = Params { pad: [0; 6] };
    match operation {
        MemoryOperation::Write { word } => params.writeValue = write(word),
        MemoryOperation::Wait { word, until } => params.waitValue = wait(word, until.number()),
        MemoryOperation::Barrier { gpu } => {
            params.memoryBarrier = sys::CUstreamBatchMemOpParams_union_CUstreamMemOpMemoryBarrierParams_st {
                operation: Kind::CU_STREAM_MEM_OP_BARRIER,
                flags: if *gpu { GPU } else { SYSTEM },
            };
        }
    }
    params
}

fn write(word: &Word) -> sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st {
    sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st {
        operation: if word.wide {
            Kind::CU_STREAM_MEM_OP_WRITE_VALUE_64
        } else {
            Kind::CU_STREAM_MEM_OP_WRITE_VALUE_32
        },
        address: word.address,
        __bindgen_anon_1:
            sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWriteValueParams_st__bindgen_ty_1 {
                value64: word.value,
            },
        flags: 0,
        alias: 0,
    }
}

fn wait(word: &Word, flags: u32) -> sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st {
    sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st {
        operation: if word.wide {
            Kind::CU_STREAM_MEM_OP_WAIT_VALUE_64
        } else {
            Kind::CU_STREAM_MEM_OP_WAIT_VALUE_32
        },
        address: word.address,
        __bindgen_anon_1: sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st__bindgen_ty_1 {
            value64: word.value,
        },
        flags,
        alias: 0,
    }
}
