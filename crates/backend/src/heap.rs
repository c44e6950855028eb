//! The chapter of [`Backend`](crate::Backend) on what kernels allocate themselves.

use crate::{Range, RawContext, Result};
use serde::{Deserialize, Serialize};

/// The heap that kernels of a context allocate from with `malloc`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeviceHeap {
    /// Where it lies.
    pub range: Range,
    /// What is handed out, in order of address.
    pub allocations: Vec<Range>,
}

/// Heaps of kernels (`CU_LIMIT_MALLOC_HEAP_SIZE`).
pub trait Heaps {
    /// The heap of a context; `None` as long as no kernel can have allocated anything. `NOT_SUPPORTED` where the device library
    /// does not tell.
    fn heap(&self, ctx: RawContext) -> Result<Option<DeviceHeap>>;
    /// Makes again, in a context that has none, the heap that [`Heaps::heap`] told of. Its contents are undefined.
    fn heap_restore(&self, ctx: RawContext, heap: &DeviceHeap) -> Result<()>;
}
