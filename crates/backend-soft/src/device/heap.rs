//! Heaps of kernels.

use std::sync::Arc;

use backend::{DeviceHeap, Heaps, Range, RawContext, Result};
use cudarc::driver::sys::CUlimit;
use wire::CuError;

use super::backend::{ContextEntry, SoftBackend, memory_error};
use crate::memory::Heap;

impl SoftBackend {
    /// What a context's kernels allocate from; made with the first launch that may need it.
    pub(super) fn heap_of(&self, entry: &ContextEntry) -> Result<Arc<Heap>> {
        if let Some(heap) = entry.heap.get() {
            return Ok(Arc::clone(heap));
        }
        let bytes = entry.limits.get(CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE as u32)?;
        let heap = Heap::new(&self.memory, entry.context.device, None, bytes, [].into_iter());
        let heap = Arc::new(heap.map_err(memory_error)?);
        // Of two that are made at once, one goes again.
        Ok(Arc::clone(entry.heap.get_or_init(|| heap)))
    }
}

impl Heaps for SoftBackend {
    fn heap(&self, ctx: RawContext) -> Result<Option<DeviceHeap>> {
        let entry = self.context(ctx)?;
        let range = |(base, bytes)| Range { base, bytes };
        Ok(entry.heap.get().map(|heap| DeviceHeap {
            range: range(heap.range()),
            allocations: heap.taken().into_iter().map(range).collect(),
        }))
    }

    fn heap_restore(&self, ctx: RawContext, heap: &DeviceHeap) -> Result<()> {
        let entry = self.context(ctx)?;
        let taken = heap.allocations.iter().map(|each| (each.base, each.bytes));
        let made =
            Heap::new(&self.memory, entry.context.device, Some(heap.range.base), heap.range.bytes, taken);
        let made = made.map_err(memory_error)?;
        entry.heap.set(Arc::new(made)).map_err(|_| CuError::INVALID_VALUE)
    }
}
