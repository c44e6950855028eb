//! Heaps of kernels: what `malloc` in device code has handed out.

use crate::failure::{Failure, Result};
use crate::objects::Context;
use crate::session::Session;
use crate::{read, write};
use backend::DeviceHeap;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use wire::{ContextId, CuError};

/// A heap, as it goes into an image: its contents are an object of their own.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HeapRecord {
    /// Its context.
    pub ctx: ContextId,
    /// Index of its device.
    pub device: u32,
    /// Where it lies, and what in it is handed out.
    pub heap: DeviceHeap,
}

impl Session {
    /// Contexts in which a kernel was launched that may have allocated.
    fn allocating_contexts(&self) -> Vec<Arc<Context>> {
        let table = read(&self.table);
        table.contexts.values().filter(|ctx| ctx.allocating_kernels().is_some()).cloned().collect()
    }

    /// Every heap there is; the gate is closed.
    ///
    /// # Errors
    /// The backend's.
    pub(crate) fn heaps(&self) -> backend::Result<Vec<HeapRecord>> {
        let mut heaps = Vec::new();
        for ctx in self.allocating_contexts() {
            match self.backend().heap(ctx.raw) {
                Ok(Some(heap)) => heaps.push(HeapRecord { ctx: ctx.id(), device: ctx.record.device, heap }),
                // Such a session is refused.
                Ok(None) | Err(CuError::NOT_SUPPORTED) => {}
                Err(error) => return Err(error),
            }
        }
        write(&self.table).note_heaps(heaps.len());
        Ok(heaps)
    }

    /// Heaps that cannot be restored, since nobody tells what is in them.
    pub(crate) fn heap_refusals(&self) -> Vec<String> {
        let refused = |ctx: &Arc<Context>| {
            let error = self.backend().heap(ctx.raw).err()?;
            let kernels = ctx.allocating_kernels().unwrap_or_default();
            Some(format!("{kernels}: its kernels call malloc: the device heap cannot be saved ({error})"))
        };
        self.allocating_contexts().iter().filter_map(refused).collect()
    }

    /// Makes a heap again, in a context that has none.
    ///
    /// # Errors
    /// The backend's; `INVALID_VALUE` for one that cannot be.
    pub(crate) fn restore_heap(&self, record: &HeapRecord) -> Result<()> {
        let ctx = self.context(record.ctx)?;
        let range = record.heap.range;
        let inside = |each: &backend::Range| range.contains(each.base, each.bytes);
        if ctx.record.device != record.device || !record.heap.allocations.iter().all(inside) {
            return Err(Failure::new(CuError::INVALID_VALUE, format!("{range} cannot have been a heap")));
        }
        self.backend().heap_restore(ctx.raw, &record.heap)?;
        // Whose kernels it was no longer matters: the device library tells of its heaps.
        ctx.note_allocating(String::new);
        Ok(())
    }
}
