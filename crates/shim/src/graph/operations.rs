//! Operations on words of memory, as nodes have them.

use cuda_abi::sys;
use sys::CUstreamBatchMemOpType as Kind;
use wire::{ContextId, MemoryOperation, Word};

/// Operations of a node. The application is told where they are in its own form, so they never move.
pub struct Operations {
    /// The context they happen in.
    pub ctx: ContextId,
    /// What they are.
    pub list: Vec<MemoryOperation>,
    told: Box<[sys::CUstreamBatchMemOpParams]>,
}

// SAFETY: records of numbers that nobody follows.
unsafe impl Send for Operations {}
// SAFETY: as above.
unsafe impl Sync for Operations {}

impl Operations {
    /// Operations that happen in a context.
    pub fn new(ctx: ContextId, list: Vec<MemoryOperation>) -> Self {
        let told = list.iter().map(told).collect();
        Self { ctx, list, told }
    }

    /// The operations in the application's form; they stay as long as the node.
    pub fn told(&self) -> *mut sys::CUstreamBatchMemOpParams {
        self.told.as_ptr().cast_mut()
    }

    /// Whether an executable graph's operations can become `other`: how many there are and of which kinds stays, and barriers do.
    pub fn may_become(&self, other: &Self) -> bool {
        let like = |a: &MemoryOperation, b: &MemoryOperation| match (a, b) {
            (MemoryOperation::Write { word: a }, MemoryOperation::Write { word: b })
            | (MemoryOperation::Wait { word: a, .. }, MemoryOperation::Wait { word: b, .. }) => {
                a.wide == b.wide
            }
            _ => a == b,
        };
        self.ctx == other.ctx
            && self.list.len() == other.list.len()
            && self.list.iter().zip(&other.list).all(|(a, b)| like(a, b))
    }
}

fn told(operation: &MemoryOperation) -> sys::CUstreamBatchMemOpParams {
    let mut params = sys::CUstreamBatchMemOpParams { pad: [0; 6] };
    match operation {
        MemoryOperation::Write { word } => {
            params.waitValue = record(
                word,
                0,
                [Kind::CU_STREAM_MEM_OP_WRITE_VALUE_32, Kind::CU_STREAM_MEM_OP_WRITE_VALUE_64],
            );
        }
        MemoryOperation::Wait { word, until } => {
            let kinds = [Kind::CU_STREAM_MEM_OP_WAIT_VALUE_32, Kind::CU_STREAM_MEM_OP_WAIT_VALUE_64];
            params.waitValue = record(word, until.number(), kinds);
        }
        MemoryOperation::Barrier { gpu } => {
            params.memoryBarrier = sys::CUstreamBatchMemOpParams_union_CUstreamMemOpMemoryBarrierParams_st {
                operation: Kind::CU_STREAM_MEM_OP_BARRIER,
                flags: (*gpu).into(),
            };
        }
    }
    params
}

/// Writes and waits have the same fields in the same places.
fn record(
    word: &Word,
    flags: u32,
    [narrow, wide]: [Kind; 2],
) -> sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st {
    sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st {
        operation: if word.wide { wide } else { narrow },
        address: word.address,
        __bindgen_anon_1: sys::CUstreamBatchMemOpParams_union_CUstreamMemOpWaitValueParams_st__bindgen_ty_1 {
            value64: word.value,
        },
        flags,
        alias: 0,
    }
}
