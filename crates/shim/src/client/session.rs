//! The session of this process.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};

use cuda_abi::{CuError, CuResult, sys::CUcontext};
use transport::ClientSession;
use wire::{ContextCreate, ContextDestroy, ContextId, ContextSynchronize, Device, DeviceFacts, PoolId};

use super::arrays::{Array, Mipmap, Texels};
use super::callbacks::Callbacks;
use super::context::{Context, Owner};
use super::copiers::Copiers;
use super::greens::SmSets;
use super::links::Link;
use super::memory::{Allocation, Kind, Memory};
use super::objects::{Callable, Event, Library, Module, Promised, Stream};
use super::pools::{DevicePools, Pool};
use super::registry::{Object, Registry};
use super::slabs::Slabs;
use super::tensor_maps::TensorMaps;
use super::thread::{Call, SharedLine};
use super::{fork, forking, managed, pinned};
use crate::facts::{DeviceIdentity, Facts};
use crate::graph;
use crate::private::context_storage;

/// The session, once `cuInit` has succeeded.
pub(super) static SESSION: OnceLock<Session> = OnceLock::new();

/// The session of this process.
///
/// # Errors
/// `NOT_INITIALIZED` before a successful `cuInit`, and in a child forked after it.
#[inline]
pub fn session() -> CuResult<&'static Session> {
    if fork::is_child() {
        return Err(CuError::NOT_INITIALIZED);
    }
    SESSION.get().ok_or(CuError::NOT_INITIALIZED)
}

/// A device, and its primary context.
pub struct GpuDevice {
    /// What the server said of it.
    pub facts: DeviceFacts,
    /// What a launch may ask of it.
    pub limits: Limits,
    /// Its primary context, active or not.
    pub primary: Arc<Context>,
    /// Its memory pools.
    pub pools: DevicePools,
    /// What graphs have of its memory.
    pub graph_memory: Arc<graph::Usage>,
    /// How often it is retained; held while it is made or destroyed.
    retained: Mutex<u32>,
}

/// The attributes that launches are checked against.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Blocks, in each dimension.
    pub grid: [u32; 3],
    /// Threads of a block, in each dimension.
    pub block: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Threads of a warp.
    pub warp: u32,
    /// Multiprocessors.
    pub multiprocessors: u32,
    /// Threads of a multiprocessor.
    pub threads_per_multiprocessor: u32,
}

impl Limits {
    fn of(facts: &DeviceFacts) -> Self {
        let of = |attribute| u32::try_from(attribute_of(facts, attribute)).unwrap_or(0);
        Self {
            grid: [of(5), of(6), of(7)],
            block: [of(2), of(3), of(4)],
            threads: of(1),
            warp: of(10),
            multiprocessors: of(16),
            threads_per_multiprocessor: of(39),
        }
    }
}

impl GpuDevice {
    /// A `CUdevice_attribute`; 0 where the server's driver has none.
    pub fn attribute(&self, attribute: i32) -> i32 {
        attribute_of(&self.facts, attribute)
    }
}

fn attribute_of(facts: &DeviceFacts, wanted: i32) -> i32 {
    facts.attribute(wanted).unwrap_or(0)
}

/// All that the process keeps of its session.
pub struct Session {
    /// The shared files.
    pub transport: Arc<ClientSession>,
    /// The folder they are in.
    pub folder: PathBuf,
    /// The devices, in order.
    pub devices: Vec<GpuDevice>,
    /// Contexts.
    pub contexts: Registry<Context>,
    /// Streams that the application created.
    pub streams: Registry<Stream>,
    /// Events.
    pub events: Registry<Event>,
    /// Modules.
    pub modules: Registry<Module>,
    /// Libraries.
    pub libraries: Registry<Library>,
    /// Functions.
    pub functions: Registry<Callable>,
    /// Kernels.
    pub kernels: Registry<Callable>,
    /// Memory pools.
    pub pools: Registry<Pool>,
    /// Links of device code.
    pub links: Registry<Link>,
    /// Arrays, and levels of mipmapped ones.
    pub arrays: Registry<Array>,
    /// Mipmapped arrays.
    pub mipmaps: Registry<Mipmap>,
    /// Texture and surface objects.
    pub texels: Texels,
    /// Tensor maps made before.
    pub tensor_maps: TensorMaps,
    /// Kernels that the server does not know yet.
    pub promised: Registry<Promised>,
    /// Sets of multiprocessors.
    pub sm_sets: SmSets,
    /// Held while one is looked up.
    pub redeeming: Mutex<()>,
    /// Held while memory of another process is opened or closed: what the client knows of it changes with what the server does.
    pub opening: Mutex<()>,
    /// Held by who is given addresses, until something is mapped there; by one alone who has many freed at once, until nothing is.
    pub placing: RwLock<()>,
    /// Held while memory of the application's own is moved.
    pub moving: Mutex<()>,
    /// Allocations.
    pub memory: Memory,
    /// Files that small allocations share.
    pub slabs: Slabs,
    /// Which managed memory has shadow pages, as far as that is known.
    pub shadowed: Mutex<managed::Shadowed>,
    /// Graphs, captures, executable graphs.
    pub graphs: graph::Registry,
    /// Host callbacks under way.
    pub callbacks: Callbacks,
    /// Threads for large copies.
    pub copiers: Copiers,
    /// For threads that get no ring of their own.
    pub shared_line: SharedLine,
    identities: Vec<DeviceIdentity>,
    /// The highest id given out so far.
    highest_id: AtomicU32,
    /// Whether the numbers have begun again.
    wrapped: AtomicBool,
}

impl Session {
    pub(super) fn new(transport: Arc<ClientSession>, folder: PathBuf, devices: Vec<DeviceFacts>) -> Self {
        let (contexts, pools) = (Registry::default(), Registry::default());
        let identities = devices.iter().map(identity).collect();
        let devices = devices
            .into_iter()
            .zip(0..)
            .map(|(facts, ordinal)| {
                let id = ContextId(transport.control().next_id());
                let primary = Arc::new(Context::new(id, Device(ordinal), true, 0, API_VERSION));
                contexts.insert(id.0, Arc::clone(&primary));
                let pool = PoolId(transport.control().next_id());
                let default =
                    Pool { id: pool, device: Device(ordinal), default: true, gone: AtomicBool::new(false) };
                pools.insert(pool.0, Arc::new(default));
                GpuDevice {
                    limits: Limits::of(&facts),
                    facts,
                    primary,
                    pools: DevicePools::new(pool),
                    graph_memory: Arc::default(),
                    retained: Mutex::new(0),
                }
            })
            .collect();
        Self {
            callbacks: Callbacks::new(Arc::clone(&transport)),
            copiers: Copiers::default(),
            shared_line: SharedLine::default(),
            transport,
            folder,
            devices,
            contexts,
            streams: Registry::default(),
            events: Registry::default(),
            modules: Registry::default(),
            libraries: Registry::default(),
            functions: Registry::default(),
            kernels: Registry::default(),
            pools,
            links: Registry::default(),
            arrays: Registry::default(),
            mipmaps: Registry::default(),
            texels: Texels::default(),
            tensor_maps: TensorMaps::default(),
            promised: Registry::default(),
            sm_sets: SmSets::default(),
            redeeming: Mutex::default(),
            opening: Mutex::default(),
            placing: RwLock::default(),
            moving: Mutex::default(),
            memory: Memory::default(),
            slabs: Slabs::default(),
            shadowed: Mutex::default(),
            graphs: graph::Registry::default(),
            identities,
            highest_id: AtomicU32::new(0),
            wrapped: AtomicBool::new(false),
        }
    }

    /// A number for a new handle, which no other object has. A program that runs long enough uses numbers again.
    pub fn next_id(&self) -> u32 {
        loop {
            let id = self.transport.control().next_id();
            let highest = self.highest_id.fetch_max(id, Ordering::Relaxed);
            if highest > id && highest - id > u32::MAX / 2 {
                self.wrapped.store(true, Ordering::Relaxed);
            }
            if !self.wrapped.load(Ordering::Relaxed) || !self.is_used(id) {
                return id;
            }
        }
    }

    fn is_used(&self, id: u32) -> bool {
        self.contexts.contains(id)
            || self.streams.contains(id)
            || self.events.contains(id)
            || self.modules.contains(id)
            || self.libraries.contains(id)
            || self.functions.contains(id)
            || self.kernels.contains(id)
            || self.pools.contains(id)
            || self.links.contains(id)
            || self.arrays.contains(id)
            || self.mipmaps.contains(id)
            || self.promised.contains(id)
            || self.graphs.execs.contains(id)
            || self.graphs.has_template(id)
            || self.callbacks.contains(id)
            || self.memory.has_pinned(id)
    }

    /// Notes where an allocation of the server's is: address and bytes.
    pub fn add_allocation(&self, (base, bytes): (u64, u64), owner: Owner, kind: Kind) {
        let number = self.next_id();
        self.memory.insert(Allocation { base, bytes, owner, number, kind });
    }

    /// The device of that ordinal.
    ///
    /// # Errors
    /// `INVALID_DEVICE`.
    pub fn device(&self, ordinal: i32) -> CuResult<&GpuDevice> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|ordinal| self.devices.get(ordinal))
            .ok_or(CuError::INVALID_DEVICE)
    }

    /// The context that objects of the context with this handle are in: for one of a green context the primary context.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`.
    pub fn context(&self, handle: CUcontext) -> CuResult<Arc<Context>> {
        self.any_context(handle).map(|context| Arc::clone(Context::base(&context)))
    }

    /// The context that a handle names.
    ///
    /// # Errors
    /// `INVALID_CONTEXT`.
    pub fn any_context(&self, handle: CUcontext) -> CuResult<Arc<Context>> {
        ContextId::from_handle(handle.addr() as u64)
            .and_then(|id| self.contexts.get(id.0))
            .ok_or(CuError::INVALID_CONTEXT)
    }

    /// Makes a context of the application's own.
    ///
    /// # Errors
    /// What the server says.
    pub fn create_context(
        &self,
        call: &mut Call<'_>,
        device: Device,
        flags: u32,
        api: u32,
    ) -> CuResult<Arc<Context>> {
        let context = Arc::new(Context::new(ContextId(self.next_id()), device, false, flags, api));
        call.ask(&ContextCreate { ctx: context.id, device, flags, primary: false })?;
        context.begin();
        self.contexts.insert(context.id.0, Arc::clone(&context));
        Ok(context)
    }

    /// Destroys a context, and here what belonged to it.
    ///
    /// # Errors
    /// What earlier work has failed with, or the server says; the context is gone all the same. A sticky error is not told: as with
    /// the driver a broken context is destroyed like any other, and mends nothing, because its error has broken the process.
    pub fn destroy_context(&self, call: &mut Call<'_>, context: &Arc<Context>) -> CuResult {
        // An earlier failure is told once, and must not keep the server from hearing of the end.
        let earlier = call.check();
        // Who allocates meanwhile does not wait for work. What that fails with the end does, too.
        let _ = call.ask(&ContextSynchronize { ctx: context.id });
        let alone = self.placing.write().unwrap_or_else(PoisonError::into_inner);
        for (address, bytes) in self.memory.shadowed(context) {
            managed::guard(address, bytes, true);
        }
        let done = match call.ask(&ContextDestroy { ctx: context.id }).and(earlier) {
            Err(error) if error.is_sticky() => Ok(()),
            done => done,
        };
        context.end();
        for gone in self.memory.sweep(Allocation::is_gone) {
            match gone.kind {
                // Its slab stays for others.
                Kind::Pinned { file, .. } | Kind::Managed { file, .. } if file.is_piece => {}
                // SAFETY: the application destroyed the context that owns it, and with that gave it up.
                Kind::Pinned { .. } => unsafe { pinned::unmap(gone.base, gone.bytes) },
                // SAFETY: the same.
                Kind::Managed { .. } => unsafe { managed::unmap(gone.base, gone.bytes) },
                Kind::Registered { .. } => {
                    let _moving = forking::moving(self);
                    // What cannot be moved back now stays the file's; the log says why.
                    let _ = call.take_back(&gone);
                }
                _ => {}
            }
        }
        drop(alone);
        // One that stays now goes when something else is freed.
        let _ = call.leave_slabs();
        self.streams.sweep();
        self.events.sweep();
        self.modules.sweep();
        self.functions.sweep();
        let due = self.graphs.sweep(self, context.id);
        call.destroy(due);
        self.arrays.sweep();
        self.mipmaps.sweep();
        self.texels.sweep();
        self.tensor_maps.forget();
        self.contexts.sweep();
        done
    }

    /// As `cuDevicePrimaryCtxRetain`.
    ///
    /// # Errors
    /// `INVALID_DEVICE`, or what the server says.
    pub fn retain_primary(&self, call: &mut Call<'_>, ordinal: i32) -> CuResult<Arc<Context>> {
        let device = self.device(ordinal)?;
        let mut retained = device.retained.lock().unwrap_or_else(PoisonError::into_inner);
        let primary = &device.primary;
        if !primary.is_active() {
            let flags = primary.flags.load(Ordering::Relaxed);
            call.ask(&ContextCreate { ctx: primary.id, device: primary.device, flags, primary: true })?;
            primary.begin();
        }
        *retained += 1;
        Ok(Arc::clone(primary))
    }

    /// As `cuDevicePrimaryCtxRelease`; with `all`, as `cuDevicePrimaryCtxReset`.
    ///
    /// # Errors
    /// `INVALID_DEVICE`; `INVALID_CONTEXT` when it is not retained.
    pub fn release_primary(
        &self,
        call: &mut Call<'_>,
        ordinal: i32,
        all: bool,
    ) -> CuResult<Option<CUcontext>> {
        let device = self.device(ordinal)?;
        let mut retained = device.retained.lock().unwrap_or_else(PoisonError::into_inner);
        match (*retained, all) {
            (0, false) => return Err(CuError::INVALID_CONTEXT),
            // A reset takes no retain back; the next retain makes the context anew.
            (_, true) => {}
            (_, false) => *retained -= 1,
        }
        if !device.primary.is_active() || (*retained > 0 && !all) {
            return Ok(None);
        }
        self.destroy_context(call, &device.primary)?;
        Ok(Some(device.primary.handle()))
    }
}

/// `cuCtxGetApiVersion` of a context made by the newest form of `cuCtxCreate`.
pub const API_VERSION: u32 = 3020;

fn identity(facts: &DeviceFacts) -> DeviceIdentity {
    DeviceIdentity {
        uuid: facts.uuid,
        pci_domain: attribute_of(facts, 50),
        pci_bus: attribute_of(facts, 33),
        pci_device: attribute_of(facts, 34),
    }
}

impl Facts for Session {
    fn devices(&self) -> &[DeviceIdentity] {
        &self.identities
    }

    fn current_context(&self) -> CUcontext {
        super::thread::current_context().map_or(std::ptr::null_mut(), |context| context.handle())
    }

    fn primary_context(&self, device: i32) -> CuResult<CUcontext> {
        Ok(self.device(device)?.primary.handle())
    }

    fn context_id(&self, context: CUcontext) -> CuResult<u64> {
        let context = self.any_context(context)?;
        if context.is_alive() { Ok(context.id.0.into()) } else { Err(CuError::INVALID_CONTEXT) }
    }
}

/// Tells cudart's tables that a context is gone; outside of any lock, because they may call back.
pub fn context_gone(context: CUcontext) {
    context_storage::context_gone(context);
}
