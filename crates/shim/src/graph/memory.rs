//! Memory of graphs' own: the address is known when the node is added, and the memory is there until graph, executable graph and
//! allocation are gone.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use cuda_abi::{CuError, CuResult};
use wire::{ContextId, Device, MemAlloc, MemFree};

use crate::client::{Call, Kind, Owner};

/// Bytes of one kind on one device: now, and the most so far.
#[derive(Default)]
pub struct Gauge {
    current: AtomicU64,
    high: AtomicU64,
}

impl Gauge {
    fn add(&self, bytes: u64) {
        let now = self.current.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.high.fetch_max(now, Ordering::Relaxed);
    }

    fn sub(&self, bytes: u64) {
        self.current.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Bytes now.
    pub fn current(&self) -> u64 {
        self.current.load(Ordering::Relaxed)
    }

    /// The most so far.
    pub fn high(&self) -> u64 {
        self.high.load(Ordering::Relaxed)
    }

    /// Counts the most anew.
    pub fn reset_high(&self) {
        self.high.store(self.current(), Ordering::Relaxed);
    }
}

/// What graphs have of one device's memory.
#[derive(Default)]
pub struct Usage {
    /// Allocations that a launch has made and nobody has freed.
    pub used: Gauge,
    /// Memory that is there for nodes.
    pub reserved: Gauge,
    /// Memory that no node stands for any more, to be given back, by address: another may lie there by then.
    garbage: Mutex<Vec<(u64, Weak<GraphMemory>)>>,
}

/// The memory behind a node.
pub struct GraphMemory {
    /// Its address.
    pub address: u64,
    /// Bytes.
    pub bytes: u64,
    /// Its device.
    pub device: Device,
    /// Whether a launch has allocated it and nobody has freed it since.
    live: AtomicBool,
    /// Whether an executable graph has the node.
    taken: AtomicBool,
    usage: Arc<Usage>,
    /// Itself, as the table of allocations knows it.
    itself: Weak<Self>,
}

impl GraphMemory {
    /// Whether it is allocated.
    pub fn is_live(&self) -> bool {
        self.live.load(Ordering::Acquire)
    }

    /// It is allocated, or freed; tells what it was.
    pub fn set_live(&self, live: bool) -> bool {
        let was = self.live.swap(live, Ordering::AcqRel);
        match (was, live) {
            (false, true) => self.usage.used.add(self.bytes),
            (true, false) => self.usage.used.sub(self.bytes),
            _ => {}
        }
        was
    }

    /// An executable graph gets the node; false when another has it.
    pub fn take(&self) -> bool {
        !self.taken.swap(true, Ordering::AcqRel)
    }

    /// It no longer has.
    pub fn release(&self) {
        self.taken.store(false, Ordering::Release);
    }
}

impl Drop for GraphMemory {
    fn drop(&mut self) {
        self.usage.reserved.sub(self.bytes);
        // An allocation that outlives its graph is freed like any other.
        if !self.set_live(false) {
            self.usage
                .garbage
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push((self.address, self.itself.clone()));
        }
    }
}

impl Call<'_> {
    /// Memory for a node.
    ///
    /// # Errors
    /// `INVALID_VALUE` for none; `OUT_OF_MEMORY`.
    pub fn graph_memory(&mut self, ctx: ContextId, bytes: u64) -> CuResult<Arc<GraphMemory>> {
        if bytes == 0 {
            return Err(CuError::INVALID_VALUE);
        }
        self.collect_graph_memory()?;
        let context = self.session.contexts.get(ctx.0).ok_or(CuError::INVALID_CONTEXT)?;
        let device = context.device;
        let usage = Arc::clone(&self.session.device(device.0 as i32)?.graph_memory);
        let address = self.ask(&MemAlloc { ctx, bytes })?;
        usage.reserved.add(bytes);
        let (live, taken) = (AtomicBool::new(false), AtomicBool::new(false));
        let memory = Arc::new_cyclic(|itself| {
            let itself = Weak::clone(itself);
            GraphMemory { address, bytes, device, live, taken, usage, itself }
        });
        let kind = Kind::Graph(Arc::downgrade(&memory));
        self.session.add_allocation((address, bytes), Owner::new(&context), kind);
        Ok(memory)
    }

    /// Gives back memory that no node stands for any more, what is kept for graphs that are gone, and staging memory that no launch uses.
    ///
    /// # Errors
    /// What earlier work has failed with.
    pub fn collect_graph_memory(&mut self) -> CuResult {
        for device in &self.session.devices {
            let garbage = std::mem::take(
                &mut *device.graph_memory.garbage.lock().unwrap_or_else(PoisonError::into_inner),
            );
            for (address, dead) in garbage {
                let is = |kind: &Kind| matches!(kind, Kind::Graph(memory) if memory.ptr_eq(&dead));
                if self.session.memory.remove(address, is).is_some() {
                    self.submit(&MemFree { address })?;
                }
            }
        }
        self.end_templates()?;
        let staging = std::mem::take(&mut *self.session.graphs.garbage());
        for address in staging {
            self.free_pinned(address)?;
        }
        Ok(())
    }

    /// Frees what a graph has allocated; false for any other address.
    ///
    /// # Errors
    /// `INVALID_VALUE` for what is freed already.
    pub fn free_graph_memory(&self, address: u64) -> CuResult<bool> {
        match self.graph_memory_at(address) {
            None => Ok(false),
            Some(memory) if memory.set_live(false) => Ok(true),
            Some(_) => Err(CuError::INVALID_VALUE),
        }
    }

    /// The memory of a node that begins there.
    pub fn graph_memory_at(&self, address: u64) -> Option<Arc<GraphMemory>> {
        let found = self.session.memory.find(address).filter(|found| found.base == address)?;
        match found.kind {
            Kind::Graph(memory) => memory.upgrade(),
            _ => None,
        }
    }
}
