//! Heaps of kernels: what `malloc` in device code allocates from. Code that calls it is loaded as what the `heap` crate makes of it, so a heap is an allocation of its context
//! like any other, and its contents are saved with those. Code that cannot be loaded so allocates from the device library's own, which nobody can save.

use crate::failure::{Failure, Result};
use crate::memory::arena::Allocation;
use crate::objects::{Context, Function, StreamKey};
use crate::session::Session;
use crate::state::SessionState;
use crate::{lock, read, write};
use ::heap::{Layout, VARIABLE};
use backend::Range;
use cudarc::driver::sys::CUlimit;
use serde::{Deserialize, Serialize};
use std::sync::{Arc, MutexGuard};
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
    /// Has a kernel find its context's heap before it is launched, if it may allocate.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` when there is no room for a heap, or the backend's.
    pub(crate) fn give_heap(&self, function: &Function) -> Result<()> {
        let module = &function.module;
        let Some(code) = module.rewritten.as_ref().filter(|code| code.has_heap()) else {
            if module.facts.allocates {
                module.ctx.note_allocating(|| module.describe());
            }
            return Ok(());
        };
        if module.knows_heap() || !code.allocates(&function.name) {
            return Ok(());
        }
        let ctx = &module.ctx;
        let mut heap = self.heap_of(ctx);
        if module.knows_heap() {
            return Ok(());
        }
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
        self.put(ctx, variable.base, &value)?;
        module.note_heap();
        Ok(())
    }

    /// A context's heap. Whoever has it may want to be alone, to make way for one.
    fn heap_of<'a>(&self, ctx: &'a Context) -> MutexGuard<'a, Option<Range>> {
        let _waiting = self.gate.wait();
        lock(&ctx.heap)
    }

    /// Whether a context has a heap, whose size stays as it is.
    pub(crate) fn has_heap(&self, ctx: &Context) -> bool {
        self.heap_of(ctx).is_some()
    }

    /// An empty heap, as large as the context's limit says.
    fn make_heap(&self, ctx: &Arc<Context>) -> Result<Range> {
        let limit = self.backend().context_limit(ctx.raw, LIMIT)?;
        let (id, bytes) = (ctx.id(), Layout::bytes(limit));
        let base = self
            .allocate(id, |memory| self.or_make_way(memory, bytes, || Ok(memory.allocate(id, bytes)?)))
            .map_err(|failure| {
                Failure::new(failure.code, format!("the heap of its kernels, of {limit} bytes"))
            })?;
        let range = Range { base, bytes };
        let zeros = vec![0; Layout::new(base, bytes).zeros() as usize];
        self.put(ctx, base, &zeros).inspect_err(|_| {
            if let Some(memory) = self.devices.get(ctx.device()) {
                memory.free(base, Vec::new());
            }
        })?;
        write(&self.table).changes += 1;
        tracing::debug!("kernels of context {:#x} allocate in {range}", id.handle());
        Ok(range)
    }

    /// Copies bytes to a device, beside whatever kernels run there: what sets them there itself is one, and waits for room.
    fn put(&self, ctx: &Arc<Context>, to: u64, bytes: &[u8]) -> Result<()> {
        let stream = self.own_stream(ctx, StreamKey::Stops(ctx.id()))?;
        self.backend().copy(ctx.raw, stream.arg(), to, bytes.as_ptr() as u64, bytes.len() as u64)?;
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
    pub(crate) fn restore_heap(&self, record: &HeapRecord, state: &SessionState) -> Result<()> {
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
        if !state.layout.arena(ctx.device()).contains(record.range.base, record.range.bytes) {
            return Ok(());
        }
        let arena = state.arenas.get(ctx.device()).and_then(Option::as_ref);
        let is_it = |of: &Allocation| of.range == record.range && of.ctx == record.ctx;
        if !arena.is_some_and(|arena| arena.allocations.iter().any(is_it)) {
            return Err(Failure::new(CuError::INVALID_VALUE, format!("{} is no allocation", record.range)));
        }
        *lock(&ctx.heap) = Some(record.range);
        Ok(())
    }
}
