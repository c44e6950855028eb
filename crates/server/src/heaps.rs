//! Heaps of kernels: what `malloc` in device code allocates from. Code that calls it is loaded as what the `heap` crate makes of it, so a heap is an allocation of its context
//! like any other, and its contents are saved with those. Code that cannot be loaded so allocates from the device library's own, which nobody can save.

use crate::failure::{Failure, Result};
use crate::memory::Layout as Addresses;
use crate::objects::{Context, Module, StreamKey};
use crate::session::Session;
use crate::{lock, read, write};
use ::heap::{Layout, VARIABLE};
use backend::{Fill, Range};
use cudarc::driver::sys::CUlimit;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use wire::{ContextId, CuError};

/// What says how large a heap is: it holds for those that are not made yet.
pub(crate) const LIMIT: u32 = CUlimit::CU_LIMIT_MALLOC_HEAP_SIZE as u32;

/// A heap, as it goes into an image.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct HeapRecord {
    /// Its context.
    pub ctx: ContextId,
    /// Index of its device.
    pub device: u32,
    /// Where it lies.
    pub range: Range,
    /// What was allocated from a heap of the software device's own, as there were up to version 9 of the state.
    pub taken: Vec<Range>,
}

impl Session {
    /// Has the kernels of a module find their context's heap, before one of them is launched.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` when there is no room for a heap, or the backend's.
    pub(crate) fn give_heap(&self, module: &Module) -> Result<()> {
        if !module.has_heap() {
            if module.facts.allocates {
                module.ctx.note_allocating(|| module.describe());
            }
            return Ok(());
        }
        if module.knows_heap() {
            return Ok(());
        }
        let ctx = &module.ctx;
        let mut heap = {
            // Whoever has it may want to be alone to make way for a heap.
            let _waiting = self.gate.wait();
            lock(&ctx.heap)
        };
        let Range { base, bytes } = match *heap {
            Some(range) => range,
            None => *heap.insert(self.make_heap(ctx)?),
        };
        let variable = module.place_of(VARIABLE)?;
        let value = Layout::new(base, bytes).variable();
        if variable.bytes != value.len() as u64 {
            return Err(Failure::new(
                CuError::INVALID_IMAGE,
                format!("{VARIABLE} has {} bytes", variable.bytes),
            ));
        }
        let stream = self.own_stream(ctx, StreamKey::Stops(ctx.id()))?;
        self.backend().copy(ctx.raw, stream.arg(), variable.base, value.as_ptr() as u64, variable.bytes)?;
        self.backend().stream_synchronize(ctx.raw, stream.arg())?;
        module.note_heap();
        Ok(())
    }

    /// A heap of zeros, as large as the context's limit says.
    fn make_heap(&self, ctx: &Arc<Context>) -> Result<Range> {
        let limit = self.backend().context_limit(ctx.raw, LIMIT)?;
        let (id, bytes) = (ctx.id(), Layout::bytes(limit));
        let base = self
            .allocate(id, |memory| self.or_make_way(memory, bytes, || Ok(memory.allocate(id, bytes)?)))
            .map_err(|failure| {
                Failure::new(failure.code, format!("the heap of its kernels, of {limit} bytes"))
            })?;
        let range = Range { base, bytes };
        self.clear_heap(ctx, range).inspect_err(|_| {
            if let Some(memory) = self.devices.get(ctx.device()) {
                memory.free(base, Vec::new());
            }
        })?;
        write(&self.table).changes += 1;
        tracing::debug!("kernels of context {:#x} allocate in {range}", id.handle());
        Ok(range)
    }

    fn clear_heap(&self, ctx: &Arc<Context>, range: Range) -> Result<()> {
        let stream = self.own_stream(ctx, StreamKey::Stops(ctx.id()))?;
        let fill =
            Fill { dst: range.base, pitch: 0, element: 4, value: 0, width: range.bytes / 4, height: 1 };
        self.backend().fill(ctx.raw, stream.arg(), &fill)?;
        Ok(self.backend().stream_synchronize(ctx.raw, stream.arg())?)
    }

    /// Every heap there is; the gate is closed.
    pub(crate) fn heaps(&self) -> Vec<HeapRecord> {
        let record = |ctx: &Arc<Context>| {
            let range = (*lock(&ctx.heap))?;
            Some(HeapRecord { ctx: ctx.id(), device: ctx.record.device, range, taken: Vec::new() })
        };
        read(&self.table).contexts.values().filter_map(record).collect()
    }

    /// Contexts whose heap nobody can save.
    pub(crate) fn heap_refusals(&self) -> Vec<String> {
        let refused = |ctx: &Arc<Context>| {
            let kernels = ctx.allocating_kernels()?;
            Some(format!(
                "{kernels}: its kernels call malloc, and there is no PTX of them that could be loaded in their place: the driver keeps their heap to itself; build the \
                 program with PTX, too (nvcc -gencode arch=compute_XX,code=[sm_XX,compute_XX])"
            ))
        };
        read(&self.table).contexts.values().filter_map(refused).collect()
    }

    /// Notes where a context's heap is, which has been made again with the memory around it.
    ///
    /// # Errors
    /// `INVALID_VALUE` for one that cannot be, `NOT_SUPPORTED` for one of the software device's own that is in use.
    pub(crate) fn restore_heap(&self, record: &HeapRecord, addresses: &Addresses) -> Result<()> {
        let ctx = self.context(record.ctx)?;
        if !record.taken.is_empty() {
            let detail =
                "an earlier Dormouse had left it to the software device; restart the image with that one";
            return Err(Failure::new(CuError::NOT_SUPPORTED, detail));
        }
        if ctx.record.device != record.device {
            return Err(Failure::new(
                CuError::INVALID_VALUE,
                format!("{} cannot have been a heap", record.range),
            ));
        }
        // An empty one of the software device's own is forgotten.
        if addresses.arena(ctx.device()).contains(record.range.base, record.range.bytes) {
            *lock(&ctx.heap) = Some(record.range);
        }
        Ok(())
    }
}
