//! The driver and its contexts.

mod calls;

use crate::api::{Api, DriverUnavailable, check};
use crate::budget::Budget;
use crate::device;
use crate::graph::{Graph, Template};
use crate::output::Output;
use crate::steer::Steering;
use backend::{Range, RawBlock, RawContext, RawEvent, RawGraph, RawPhysical, RawTemplate, Result, StreamArg};
use cudarc::driver::sys;
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use wire::{CuError, DeviceFacts};

/// The real driver. One for the process: the driver itself keeps one state for it.
pub struct Driver {
    pub(crate) api: Api,
    version: i32,
    facts: Vec<DeviceFacts>,
    devices: Vec<sys::CUdevice>,
    contexts: Mutex<HashMap<RawContext, Owner>>,
    budget: Budget,
    /// Where each lies, and of which device.
    blocks: Mutex<HashMap<RawBlock, (usize, Range)>>,
    /// Of which device each is that was made here, and how large.
    pieces: Mutex<HashMap<RawPhysical, (usize, u64)>>,
    reserved: Mutex<Vec<Range>>,
    host: Mutex<HostMemory>,
    /// A graph is not safe to use from two threads.
    graphs: Mutex<HashMap<RawGraph, Arc<Mutex<Graph>>>>,
    pub(crate) templates: Mutex<HashMap<RawTemplate, Arc<Mutex<Template>>>>,
    pub(crate) next_graph: AtomicU64,
    /// Held while an object is made whose addresses the driver chooses.
    placing: Mutex<()>,
    output: Output,
}

/// How a context ends.
#[derive(Clone, Copy)]
enum Owner {
    /// The device's primary context.
    Primary(sys::CUdevice),
    /// One of our own making.
    Created,
}

/// Registered host memory. The driver ties a registration to a context, though every context can use it.
#[derive(Default)]
struct HostMemory {
    home: Option<RawContext>,
    ranges: Vec<Range>,
}

thread_local! {
    /// The context that the driver has current on this thread.
    static CURRENT: Cell<Option<RawContext>> = const { Cell::new(None) };
}

impl Driver {
    /// Loads and initialises the driver.
    ///
    /// # Errors
    /// [`DriverUnavailable`] when there is no usable driver or no device.
    pub fn open() -> std::result::Result<Self, DriverUnavailable> {
        Self::on(Api::load)
    }

    /// The same on Dormouse's own driver, in a job of its: for tests, which so need no GPU.
    ///
    /// # Errors
    /// As [`Driver::open`].
    pub fn open_nested() -> std::result::Result<Self, DriverUnavailable> {
        Self::on(Api::load_any)
    }

    fn on(
        load: impl FnOnce() -> std::result::Result<Api, DriverUnavailable>,
    ) -> std::result::Result<Self, DriverUnavailable> {
        // Lazily loaded kernels would place their code and data at times of the driver's choosing.
        // SAFETY: the server calls this before it starts threads.
        unsafe { std::env::set_var("CUDA_MODULE_LOADING", "EAGER") };
        let api = load()?;
        Steering::start(api.cuInit as *const c_void);
        let output = Output::capture();
        let step = |call, code| check(code).map_err(|error| DriverUnavailable::Init { call, error });
        // SAFETY: plain initialisation.
        step("cuInit", unsafe { (api.cuInit)(0) })?;
        let mut version = 0;
        // SAFETY: writes the version.
        step("cuDriverGetVersion", unsafe { (api.cuDriverGetVersion)(&raw mut version) })?;
        let (devices, facts) =
            device::all(&api).map_err(|error| DriverUnavailable::Init { call: "cuDeviceGet", error })?;
        if devices.is_empty() {
            return Err(DriverUnavailable::Init { call: "cuDeviceGetCount", error: CuError::NO_DEVICE });
        }
        Ok(Self {
            api,
            version,
            budget: Budget::new(None, devices.len()),
            facts,
            devices,
            contexts: Mutex::default(),
            blocks: Mutex::default(),
            pieces: Mutex::default(),
            reserved: Mutex::default(),
            host: Mutex::default(),
            graphs: Mutex::default(),
            templates: Mutex::default(),
            next_graph: AtomicU64::new(1),
            placing: Mutex::default(),
            output,
        })
    }

    /// The same, with no more than so much memory of each device to give, if anything is said.
    #[must_use]
    pub fn limited(mut self, memory: Option<u64>) -> Self {
        for facts in &mut self.facts {
            facts.total_memory = facts.total_memory.min(memory.unwrap_or(u64::MAX));
        }
        self.budget = Budget::new(memory, self.devices.len());
        self
    }

    /// Makes `ctx` current on this thread.
    pub(crate) fn enter(&self, ctx: RawContext) -> Result<()> {
        if CURRENT.get() != Some(ctx) {
            // SAFETY: the server only passes contexts that `context_create` gave it.
            check(unsafe { (self.api.cuCtxSetCurrent)(ctx.0 as sys::CUcontext) })?;
            CURRENT.set(Some(ctx));
        }
        Ok(())
    }

    /// Makes memory of a device and maps it there.
    fn make_block(&self, ordinal: usize, range: Range) -> Result<RawBlock> {
        let device = self.device(ordinal)?;
        let bytes = range.bytes as usize;
        let properties = device::block_properties(device, &self.facts[ordinal]);
        let mut handle = 0;
        // SAFETY: of these types; it writes the handle.
        check(unsafe { (self.api.cuMemCreate)(&raw mut handle, bytes, &raw const properties, 0) })?;
        // SAFETY: the range lies in a reservation and is free, which the server's allocator sees to.
        let mapped = check(unsafe { (self.api.cuMemMap)(range.base, bytes, 0, handle, 0) });
        // The mapping keeps the memory; the handle is not needed again.
        // SAFETY: the handle just made.
        check(unsafe { (self.api.cuMemRelease)(handle) })?;
        mapped?;
        let access = sys::CUmemAccessDesc {
            location: properties.location,
            flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        };
        // SAFETY: the mapping just made.
        let allowed = check(unsafe { (self.api.cuMemSetAccess)(range.base, bytes, &raw const access, 1) });
        if let Err(error) = allowed {
            // SAFETY: the mapping just made, which nothing uses.
            check(unsafe { (self.api.cuMemUnmap)(range.base, bytes) })?;
            return Err(error);
        }
        Ok(RawBlock(range.base))
    }

    pub(crate) fn template(&self, template: RawTemplate) -> Result<Arc<Mutex<Template>>> {
        lock(&self.templates).get(&template).cloned().ok_or(CuError::INVALID_HANDLE)
    }

    fn graph(&self, graph: RawGraph) -> Result<Arc<Mutex<Graph>>> {
        lock(&self.graphs).get(&graph).cloned().ok_or(CuError::INVALID_HANDLE)
    }

    /// Where a block is mapped.
    pub(crate) fn block_range(&self, block: RawBlock) -> Result<Range> {
        lock(&self.blocks).get(&block).map(|(_, range)| *range).ok_or(CuError::INVALID_VALUE)
    }

    pub(crate) fn device(&self, ordinal: usize) -> Result<sys::CUdevice> {
        self.devices.get(ordinal).copied().ok_or(CuError::INVALID_DEVICE)
    }

    /// Registers `range` in the context that is current.
    fn register_here(&self, range: Range) -> Result<()> {
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the server has mapped the range and keeps it mapped while it is registered.
        check(unsafe {
            (self.api.cuMemHostRegister_v2)(range.base as *mut c_void, range.bytes as usize, flags)
        })
    }

    fn unregister_here(&self, range: Range) -> Result<()> {
        // SAFETY: see above; the caller has made sure that no work uses it.
        check(unsafe { (self.api.cuMemHostUnregister)(range.base as *mut c_void) })
    }

    /// Gives the registrations a context to live in, if there is one.
    fn house(&self, host: &mut HostMemory, home: Option<RawContext>) -> Result<()> {
        host.home = home;
        if let Some(home) = home {
            self.enter(home)?;
            host.ranges.iter().try_for_each(|range| self.register_here(*range))?;
        }
        Ok(())
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        for range in lock(&self.reserved).drain(..) {
            // SAFETY: a reservation of ours. One that still holds blocks is refused, and goes with the process.
            let _ = unsafe { (self.api.cuMemAddressFree)(range.base, range.bytes as usize) };
        }
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream argument in the driver's own form.
pub(crate) fn stream(arg: StreamArg) -> sys::CUstream {
    match arg {
        StreamArg::Legacy => 1 as sys::CUstream,
        StreamArg::Created(raw) => raw.0 as sys::CUstream,
    }
}

pub(crate) fn event(raw: RawEvent) -> sys::CUevent {
    raw.0 as sys::CUevent
}
