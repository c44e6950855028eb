//! The [`Backend`] trait, over the engine.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use backend::{
    Access, BLOCK_GRANULARITY, Backend, Compiled, Copy3D, Fill, GraphPlan, GraphWork, HostFunction, Launch,
    LinkInput, LoadError, MemoryOperation, Pitched, Range, RawBlock, RawContext, RawEvent, RawFunction,
    RawGraph, RawModule, RawPhysical, RawStream, Result, StreamArg,
};
use cudarc::driver::sys::{CUevent_flags as EventFlags, CUstream_flags as StreamFlags};
use wire::{CuError, DeviceFacts, FunctionFacts};

use super::attributes::Attributes;
use super::code::{is_verbose, link_ptx, load_error, told_of};
use super::facts::{MULTIPROCESSORS, facts, uuid};
use super::function::Function;
use super::graph::Graph;
use super::handles::Table;
use super::limits::Limits;
use super::machine::DRIVER;
use super::occupancy;
use super::place::Placement;
use super::template::Template;
use crate::conditions::Conditions;
use crate::exec;
use crate::memory::{Memory, MemoryError, Workspaces};
use crate::module::{COMPUTE_CAPABILITY, Module, Selected};
use crate::printf::Output;
use crate::sched::Pool;
use crate::stream::{Context, Copy3, Event, Interprocess, Side, Stream, Work};
use crate::texture::{Array, Mipmap, Objects};

/// Driver version that the device answers.
pub const DRIVER_VERSION: i32 = 13000;

/// What the software device looks like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Devices of the machine.
    pub devices: usize,
    /// Which of them there are for the program, in this order; all, if nothing is said.
    pub visible: Option<Vec<usize>>,
    /// Memory of each, bytes.
    pub memory: u64,
    /// Their compute capability, major times ten plus minor: another than the default is another model.
    pub capability: u32,
}

impl Options {
    /// The default, with as many devices as `DORMOUSE_SOFT_DEVICES` says, as many MiB of memory as `DORMOUSE_SOFT_MEMORY` and the compute capability
    /// of `DORMOUSE_SOFT_CAPABILITY`, for tests; of the devices those that `CUDA_VISIBLE_DEVICES` has.
    #[must_use]
    pub fn from_environment() -> Self {
        let default = Self::default();
        let told = |name| std::env::var(name).ok()?.parse::<u32>().ok();
        let devices =
            told("DORMOUSE_SOFT_DEVICES").map_or(default.devices, |count| count.clamp(1, 16) as usize);
        let memory =
            told("DORMOUSE_SOFT_MEMORY").map_or(default.memory, |mebibytes| u64::from(mebibytes) << 20);
        let capability = told("DORMOUSE_SOFT_CAPABILITY")
            .map_or(default.capability, |capability| capability.clamp(75, 120));
        let visible = std::env::var("CUDA_VISIBLE_DEVICES").ok();
        let all: Vec<_> = (0..devices).map(|index| (index, wire::uuid(&uuid(index)))).collect();
        Self { devices, visible: visible.map(|list| backend::visible(&list, &all)), memory, capability }
    }

    fn indices(&self) -> Vec<usize> {
        self.visible.clone().unwrap_or_else(|| (0..self.devices).collect())
    }
}

impl Default for Options {
    fn default() -> Self {
        Self { devices: 1, visible: None, memory: 16 << 30, capability: COMPUTE_CAPABILITY }
    }
}

pub(super) struct ContextEntry {
    pub(super) context: Context,
    pub(super) limits: Limits,
    peers: Mutex<Vec<u64>>,
}

/// An object of a context.
pub(super) struct Of<T> {
    pub(super) context: u64,
    pub(super) object: T,
}

/// A module and the handles of those of its functions that were looked up.
struct Loaded {
    module: Arc<Module>,
    functions: Mutex<HashMap<String, u64>>,
}

/// The software device.
pub struct SoftBackend {
    facts: Vec<DeviceFacts>,
    capability: u32,
    pub(super) memory: Arc<Memory>,
    output: Arc<Output>,
    pool: Arc<Pool>,
    workspaces: Arc<Workspaces>,
    pub(super) placement: Placement,
    contexts: Table<ContextEntry>,
    pub(super) blocks: Table<u64>,
    modules: Table<Of<Loaded>>,
    functions: Table<Of<Function>>,
    streams: Table<Of<Arc<Stream>>>,
    pub(super) events: Table<Of<Event>>,
    pub(super) graphs: Table<Of<Graph>>,
    pub(super) arrays: Table<Of<Array>>,
    pub(super) mipmaps: Table<Of<Mipmap>>,
    pub(super) objects: Objects,
    pub(super) templates: Table<Of<Template>>,
    pub(super) conditions: Arc<Conditions>,
    pub(super) attributes: Attributes,
}

impl SoftBackend {
    /// Devices with nothing in them.
    pub fn new(options: Options) -> Self {
        let indices = options.indices();
        let memory = Arc::new(Memory::new(indices.len(), options.memory));
        Self {
            facts: indices.into_iter().map(|index| facts(index, &options)).collect(),
            capability: options.capability,
            workspaces: Workspaces::new(memory.clone()),
            memory,
            output: Arc::default(),
            pool: Arc::new(Pool::new()),
            placement: Placement::default(),
            contexts: Table::default(),
            blocks: Table::default(),
            modules: Table::default(),
            functions: Table::default(),
            streams: Table::default(),
            events: Table::default(),
            graphs: Table::default(),
            arrays: Table::default(),
            mipmaps: Table::default(),
            objects: Objects::default(),
            templates: Table::default(),
            conditions: Arc::default(),
            attributes: Attributes::default(),
        }
    }

    pub(super) fn context(&self, ctx: RawContext) -> Result<Arc<ContextEntry>> {
        self.contexts.get(ctx.0).map_err(|_| CuError::INVALID_CONTEXT)
    }

    pub(super) fn stream(&self, context: &ContextEntry, stream: StreamArg) -> Result<Arc<Stream>> {
        match stream {
            StreamArg::Legacy => Ok(context.context.legacy()),
            StreamArg::Created(raw) => Ok(self.streams.get(raw.0)?.object.clone()),
        }
    }

    /// A launch as a piece of work.
    pub(super) fn grid(&self, launch: &Launch<'_>) -> Result<Work> {
        let function = self.functions.get(launch.function.0)?;
        let function = &function.object;
        let asked = function.check(launch)?;
        let kernel = &function.kernel;
        let mut params = vec![0u64; (kernel.param_bytes.div_ceil(8)) as usize];
        for (word, bytes) in params.iter_mut().zip(launch.params.chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(padded);
        }
        let threads = launch.block.iter().product();
        let resident = function.resident(threads, launch.shared.into());
        let workspace = match asked.cooperative {
            true => Some(self.workspaces.take().map_err(memory_error)?),
            false => None,
        };
        let work = exec::Launch {
            image: function.module.image.clone(),
            kernel: kernel.index,
            grid: launch.grid,
            block: launch.block,
            shared_bytes: kernel.dynamic_shared_base + u64::from(launch.shared),
            dynamic_shared: launch.shared,
            params,
            memory: self.memory.clone(),
            objects: self.objects.view(),
            output: self.output.clone(),
            workspace,
            conditions: self.conditions.clone(),
            id: exec::grid_id(),
            multiprocessors: MULTIPROCESSORS,
        };
        Ok(Work::Launch(Box::new(work), resident as usize))
    }

    fn unload(&self, module: &Module) -> Result<()> {
        match module.placed {
            Some((base, _)) => self.memory.unmap_module(base).map_err(memory_error),
            None => Ok(()),
        }
    }
}

impl Default for SoftBackend {
    fn default() -> Self {
        Self::new(Options::default())
    }
}

pub(super) fn memory_error(error: MemoryError) -> CuError {
    tracing::debug!("{error}");
    match error {
        MemoryError::Exhausted { .. } | MemoryError::Taken { .. } => CuError::OUT_OF_MEMORY,
        _ => CuError::INVALID_VALUE,
    }
}

fn blocks_only(range: Range) -> Result<()> {
    let whole = (range.base | range.bytes).is_multiple_of(BLOCK_GRANULARITY);
    if whole { Ok(()) } else { Err(CuError::INVALID_VALUE) }
}

pub(super) fn side(side: &Pitched) -> Result<Side> {
    let slice = side.pitch.checked_mul(side.rows).ok_or(CuError::INVALID_VALUE)?;
    Ok(Side { address: side.address, pitch: side.pitch, slice })
}

impl Backend for SoftBackend {
    fn kind(&self) -> &'static str {
        "soft"
    }

    fn runs_on_cores(&self) -> bool {
        true
    }

    fn describe(&self) -> String {
        "software device (PTX on the CPU)".into()
    }

    fn driver_version(&self) -> i32 {
        DRIVER_VERSION
    }

    fn driver_release(&self) -> String {
        DRIVER.to_owned()
    }

    fn devices(&self) -> &[DeviceFacts] {
        &self.facts
    }

    fn can_access_peer(&self, device: usize, peer: usize) -> Result<bool> {
        let known = device < self.facts.len() && peer < self.facts.len();
        if known { Ok(device != peer) } else { Err(CuError::INVALID_DEVICE) }
    }

    fn reserve(&self, range: Range) -> Result<()> {
        blocks_only(range)?;
        self.memory.reserve(range.base, range.bytes).map_err(memory_error)
    }

    fn physical_create(&self, device: usize, bytes: u64, _compressible: bool) -> Result<(RawPhysical, bool)> {
        if device >= self.facts.len() {
            return Err(CuError::INVALID_DEVICE);
        }
        blocks_only(Range { base: 0, bytes })?;
        let physical = self.memory.create_physical(Some(device), bytes).map_err(memory_error)?;
        Ok((RawPhysical(physical), false))
    }

    fn physical_create_on_host(&self, _device: usize, bytes: u64) -> Result<RawPhysical> {
        blocks_only(Range { base: 0, bytes })?;
        self.memory.create_physical(None, bytes).map(RawPhysical).map_err(memory_error)
    }

    fn physical_release(&self, physical: RawPhysical) -> Result<()> {
        self.memory.release_physical(physical.0).map_err(memory_error)
    }

    fn map_physical(&self, physical: RawPhysical, range: Range) -> Result<()> {
        blocks_only(range)?;
        self.memory.map_physical(physical.0, range.base, range.bytes).map_err(memory_error)
    }

    fn unmap_physical(&self, range: Range) -> Result<()> {
        self.memory.unmap_physical(range.base, range.bytes).map_err(memory_error)
    }

    fn set_access(&self, device: usize, range: Range, access: Access) -> Result<()> {
        if device >= self.facts.len() {
            return Err(CuError::INVALID_DEVICE);
        }
        // Kernels reach all devices' memory anyway.
        self.memory.set_access(range.base, range.bytes, access != Access::None).map_err(memory_error)
    }

    fn map_block(&self, device: usize, range: Range) -> Result<RawBlock> {
        if device >= self.facts.len() {
            return Err(CuError::INVALID_DEVICE);
        }
        blocks_only(range)?;
        self.memory.map_block(device, range.base, range.bytes).map_err(memory_error)?;
        Ok(RawBlock(self.blocks.insert(Arc::new(range.base))))
    }

    fn unmap_block(&self, block: RawBlock) -> Result<()> {
        let base = self.blocks.remove(block.0)?;
        self.memory.unmap_block(*base).map_err(memory_error)
    }

    fn memory_info(&self, ctx: RawContext) -> Result<(u64, u64)> {
        Ok(self.memory.info(self.context(ctx)?.context.device))
    }

    fn register_host(&self, range: Range) -> Result<()> {
        self.memory.register(range.base, range.bytes).map_err(|error| match error {
            MemoryError::NotReserved { .. } => CuError::HOST_MEMORY_ALREADY_REGISTERED,
            other => memory_error(other),
        })
    }

    fn unregister_host(&self, range: Range) -> Result<()> {
        // As the driver: when all work is complete; whether it failed is told elsewhere.
        for entry in self.contexts.all() {
            let _ = entry.context.synchronize_all();
        }
        self.memory.unregister(range.base).map_err(|_| CuError::HOST_MEMORY_NOT_REGISTERED)
    }

    fn context_create(&self, device: usize, _flags: u32, _primary: bool) -> Result<RawContext> {
        if device >= self.facts.len() {
            return Err(CuError::INVALID_DEVICE);
        }
        let context = Context::new(device, self.memory.clone(), self.pool.clone());
        let entry = ContextEntry { context, limits: Limits::default(), peers: Mutex::default() };
        Ok(RawContext(self.contexts.insert(Arc::new(entry))))
    }

    fn context_destroy(&self, ctx: RawContext) -> Result<()> {
        let entry = self.contexts.remove(ctx.0).map_err(|_| CuError::INVALID_CONTEXT)?;
        // Work that is under way ends first; whether it failed no longer matters to anybody.
        let _ = entry.context.synchronize_all();
        entry.context.end();
        self.functions.drain(|function| function.context == ctx.0);
        self.streams.drain(|stream| stream.context == ctx.0);
        self.events.drain(|event| event.context == ctx.0);
        self.graphs.drain(|graph| graph.context == ctx.0);
        self.templates.drain(|template| template.context == ctx.0);
        for module in self.modules.drain(|module| module.context == ctx.0) {
            self.unload(&module.object.module)?;
        }
        self.attributes.remove_context(ctx);
        self.end_textures(ctx)
    }

    fn context_synchronize(&self, ctx: RawContext) -> Result<()> {
        self.context(ctx)?.context.synchronize_all()
    }

    fn context_limit(&self, ctx: RawContext, limit: u32) -> Result<u64> {
        self.context(ctx)?.limits.get(limit)
    }

    fn context_set_limit(&self, ctx: RawContext, limit: u32, value: u64) -> Result<()> {
        self.context(ctx)?.limits.set(limit, value)
    }

    fn context_set_cache_config(&self, ctx: RawContext, config: u32) -> Result<()> {
        self.context(ctx)?;
        if config <= 3 { Ok(()) } else { Err(CuError::INVALID_VALUE) }
    }

    fn peer_access(&self, ctx: RawContext, peer: RawContext, enable: bool) -> Result<()> {
        let (entry, other) = (self.context(ctx)?, self.context(peer)?);
        if entry.context.device == other.context.device {
            return Err(CuError::INVALID_DEVICE);
        }
        // Kernels reach all devices' memory anyway: only what the calls answer depends on this.
        let mut peers = entry.peers.lock().unwrap_or_else(PoisonError::into_inner);
        let known = peers.contains(&peer.0);
        match (known, enable) {
            (true, true) => Err(CuError::PEER_ACCESS_ALREADY_ENABLED),
            (false, false) => Err(CuError::PEER_ACCESS_NOT_ENABLED),
            (false, true) => {
                peers.push(peer.0);
                Ok(())
            }
            (true, false) => {
                peers.retain(|each| *each != peer.0);
                Ok(())
            }
        }
    }

    fn place(&self, replay: Option<&[Range]>, make: &mut dyn FnMut() -> Result<()>) -> Result<Vec<Range>> {
        self.placement.run(replay, make)
    }

    fn holds(&self, range: Range) -> bool {
        self.memory.extents().overlaps(range.base, range.bytes)
    }

    fn continues(&self, kinds: &[&str]) {
        self.placement.note_foreign(kinds.iter().any(|kind| *kind != self.kind()));
    }

    fn places_variables(&self) -> bool {
        true
    }

    fn module_load(
        &self,
        ctx: RawContext,
        image: &[u8],
        options: &[(u32, u64)],
        managed: &[(&str, u64)],
    ) -> std::result::Result<Compiled<RawModule>, LoadError> {
        let device = self.context(ctx)?.context.device;
        let load = || {
            let selected = Selected::of(image, self.capability)?;
            let foreign = self.placement.makes_foreign();
            let spot = |bytes| self.placement.spot(bytes);
            Module::load(&selected, &self.memory, device, managed, foreign, spot)
        };
        let module = load().map_err(|error| load_error(&error))?;
        if let Some((base, bytes)) = module.placed {
            self.placement.tell(Range { base, bytes });
        }
        let info = if is_verbose(options) { told_of(&module) } else { String::new() };
        let object = Loaded { module: Arc::new(module), functions: Mutex::default() };
        let code = RawModule(self.modules.insert(Arc::new(Of { context: ctx.0, object })));
        Ok(Compiled { code, info })
    }

    fn link(
        &self,
        ctx: RawContext,
        inputs: &[LinkInput<'_>],
        options: &[(u32, u64)],
    ) -> std::result::Result<Compiled<Vec<u8>>, LoadError> {
        self.context(ctx)?;
        let code = link_ptx(inputs, self.capability)?;
        let info = match is_verbose(options) {
            true => inputs.iter().map(|input| format!("linked {}\n", input.name)).collect(),
            false => String::new(),
        };
        Ok(Compiled { code, info })
    }

    fn module_unload(&self, ctx: RawContext, module: RawModule) -> Result<()> {
        let context = self.context(ctx)?;
        let entry = self.modules.remove(module.0)?;
        // As the driver does: kernels of the module end first. An execution error is told by the calls that wait.
        let _ = context.context.synchronize_all();
        self.functions.drain(|function| function.object.module_handle == module.0);
        self.unload(&entry.object.module)
    }

    fn module_functions(&self, _ctx: RawContext, module: RawModule) -> Result<Vec<String>> {
        let module = self.modules.get(module.0)?;
        let mut names: Vec<(usize, String)> =
            module.object.module.kernels.iter().map(|(name, kernel)| (kernel.index, name.clone())).collect();
        names.sort();
        Ok(names.into_iter().map(|(_, name)| name).collect())
    }

    fn function(&self, ctx: RawContext, module: RawModule, name: &str) -> Result<RawFunction> {
        let entry = self.modules.get(module.0)?;
        let kernel = entry.object.module.kernels.get(name).ok_or(CuError::NOT_FOUND)?;
        // A function has one handle, and so one set of attributes, however often it is looked up.
        let mut handed_out = entry.object.functions.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = *handed_out.entry(name.to_owned()).or_insert_with(|| {
            let function = Function::new(entry.object.module.clone(), module.0, kernel.clone());
            self.functions.insert(Arc::new(Of { context: ctx.0, object: function }))
        });
        Ok(RawFunction(handle))
    }

    fn function_facts(&self, _ctx: RawContext, function: RawFunction) -> Result<FunctionFacts> {
        Ok(self.functions.get(function.0)?.object.facts())
    }

    fn function_attribute(&self, _ctx: RawContext, function: RawFunction, attribute: i32) -> Result<i32> {
        self.functions.get(function.0)?.object.attribute(attribute)
    }

    fn function_set_attribute(
        &self,
        _ctx: RawContext,
        function: RawFunction,
        attribute: i32,
        value: i32,
    ) -> Result<()> {
        self.functions.get(function.0)?.object.set_attribute(attribute, value)
    }

    fn function_set_cache_config(&self, _ctx: RawContext, function: RawFunction, config: u32) -> Result<()> {
        self.functions.get(function.0)?;
        if config <= 3 { Ok(()) } else { Err(CuError::INVALID_VALUE) }
    }

    fn global(&self, _ctx: RawContext, module: RawModule, name: &str) -> Result<Range> {
        let module = self.modules.get(module.0)?;
        let (base, bytes) = *module.object.module.variables.get(name).ok_or(CuError::NOT_FOUND)?;
        Ok(Range { base, bytes })
    }

    fn occupancy_blocks(
        &self,
        _ctx: RawContext,
        function: RawFunction,
        block: u32,
        shared: u64,
        _flags: u32,
    ) -> Result<i32> {
        if block == 0 {
            return Err(CuError::INVALID_VALUE);
        }
        Ok(occupancy::blocks(&self.functions.get(function.0)?.object.kernel, block, shared) as i32)
    }

    fn occupancy_shared(
        &self,
        _ctx: RawContext,
        function: RawFunction,
        blocks: i32,
        block: i32,
    ) -> Result<u64> {
        let function = self.functions.get(function.0)?;
        match (u32::try_from(blocks), u32::try_from(block)) {
            (Ok(1..=32), Ok(1..=1024)) => {}
            _ => return Err(CuError::INVALID_VALUE),
        }
        let object = &function.object;
        Ok(occupancy::dynamic_shared(&object.kernel, blocks as u32, object.max_dynamic()))
    }

    fn occupancy_clusters(&self, _ctx: RawContext, active: bool, launch: &Launch<'_>) -> Result<i32> {
        let function = self.functions.get(launch.function.0)?;
        // A cluster is one block here.
        let threads =
            launch.block.iter().try_fold(1u32, |all, n| all.checked_mul(*n)).ok_or(CuError::INVALID_VALUE)?;
        let resident = function.object.resident(threads, launch.shared.into());
        Ok(if active { i32::try_from(resident).unwrap_or(i32::MAX) } else { 1 })
    }

    fn stream_create(&self, ctx: RawContext, flags: u32, _priority: i32) -> Result<RawStream> {
        let context = self.context(ctx)?;
        context.context.check()?;
        let blocking = flags & StreamFlags::CU_STREAM_NON_BLOCKING as u32 == 0;
        let object = context.context.create_stream(blocking);
        Ok(RawStream(self.streams.insert(Arc::new(Of { context: ctx.0, object }))))
    }

    fn stream_destroy(&self, ctx: RawContext, stream: RawStream) -> Result<()> {
        let context = self.context(ctx)?;
        context.context.destroy_stream(&self.streams.remove(stream.0)?.object);
        self.attributes.remove_stream(ctx, StreamArg::Created(stream));
        Ok(())
    }

    fn stream_query(&self, ctx: RawContext, stream: StreamArg) -> Result<bool> {
        let context = self.context(ctx)?;
        context.context.query(&self.stream(&context, stream)?)
    }

    fn stream_synchronize(&self, ctx: RawContext, stream: StreamArg) -> Result<()> {
        let context = self.context(ctx)?;
        context.context.synchronize(&self.stream(&context, stream)?)
    }

    fn stream_wait_event(
        &self,
        ctx: RawContext,
        stream: StreamArg,
        event: RawEvent,
        _flags: u32,
    ) -> Result<()> {
        let context = self.context(ctx)?;
        context.context.wait_event(&self.stream(&context, stream)?, &self.events.get(event.0)?.object)
    }

    fn event_create(&self, ctx: RawContext, flags: u32) -> Result<RawEvent> {
        self.context(ctx)?.context.check()?;
        let has = |flag: EventFlags| flags & flag as u32 != 0;
        let timing = !has(EventFlags::CU_EVENT_DISABLE_TIMING);
        let object = match has(EventFlags::CU_EVENT_INTERPROCESS) {
            true if timing => return Err(CuError::INVALID_VALUE),
            true => Event::interprocess(Interprocess::new().map_err(|_| CuError::OUT_OF_MEMORY)?),
            false => Event::new(timing),
        };
        Ok(RawEvent(self.events.insert(Arc::new(Of { context: ctx.0, object }))))
    }

    fn event_destroy(&self, _ctx: RawContext, event: RawEvent) -> Result<()> {
        self.events.remove(event.0).map(drop)
    }

    fn event_record(&self, ctx: RawContext, event: RawEvent, stream: StreamArg, _flags: u32) -> Result<()> {
        let context = self.context(ctx)?;
        context.context.record(&self.events.get(event.0)?.object, &self.stream(&context, stream)?)
    }

    fn event_query(&self, ctx: RawContext, event: RawEvent) -> Result<bool> {
        let context = self.context(ctx)?;
        let done = self.events.get(event.0)?.object.is_complete();
        context.context.check().map(|()| done)
    }

    fn event_synchronize(&self, ctx: RawContext, event: RawEvent) -> Result<()> {
        let context = self.context(ctx)?;
        self.events.get(event.0)?.object.wait();
        context.context.check()
    }

    fn event_elapsed(&self, start: RawEvent, end: RawEvent) -> Result<f32> {
        let time = |event: RawEvent| {
            let event = self.events.get(event.0)?;
            let record = event.object.get().filter(|_| event.object.timing).ok_or(CuError::INVALID_HANDLE)?;
            Ok((record.ticket.is_done(), record.time))
        };
        let ((start_done, start), (end_done, end)) = (time(start)?, time(end)?);
        let (Some(start), Some(end), true) = (start.get(), end.get(), start_done && end_done) else {
            return Err(CuError::NOT_READY);
        };
        let forward = end.saturating_duration_since(*start);
        let elapsed = if forward == Duration::ZERO {
            -start.saturating_duration_since(*end).as_secs_f64()
        } else {
            forward.as_secs_f64()
        };
        Ok((elapsed * 1e3) as f32)
    }

    fn launch(&self, ctx: RawContext, launch: &Launch<'_>) -> Result<()> {
        let context = self.context(ctx)?;
        context.context.check()?;
        let work = self.grid(launch)?;
        let stream = self.stream(&context, launch.stream)?;
        context.context.submit(&stream, work).map(drop)
    }

    fn copy(&self, ctx: RawContext, stream: StreamArg, dst: u64, src: u64, bytes: u64) -> Result<()> {
        let context = self.context(ctx)?;
        context.context.copy(&self.stream(&context, stream)?, Copy3::linear(dst, src, bytes))
    }

    fn copy_3d(&self, ctx: RawContext, stream: StreamArg, copy: &Copy3D) -> Result<()> {
        let context = self.context(ctx)?;
        let (dst, src) = (side(&copy.dst)?, side(&copy.src)?);
        let copy = Copy3 { dst, src, width: copy.width, height: copy.height, depth: copy.depth };
        context.context.copy(&self.stream(&context, stream)?, copy)
    }

    fn copy_peer(
        &self,
        stream: StreamArg,
        dst: (RawContext, u64),
        src: (RawContext, u64),
        bytes: u64,
    ) -> Result<()> {
        self.context(src.0)?;
        self.copy(dst.0, stream, dst.1, src.1, bytes)
    }

    fn fill(&self, ctx: RawContext, stream: StreamArg, fill: &Fill) -> Result<()> {
        let context = self.context(ctx)?;
        if !matches!(fill.element, 1 | 2 | 4) {
            return Err(CuError::INVALID_VALUE);
        }
        let value = fill.value.to_le_bytes()[..usize::from(fill.element)].to_vec();
        let stream = self.stream(&context, stream)?;
        context.context.fill(&stream, fill.dst, fill.pitch, value, [fill.width, fill.height])
    }

    fn memory_operations(
        &self,
        ctx: RawContext,
        stream: StreamArg,
        operations: &[MemoryOperation],
    ) -> Result<()> {
        let context = self.context(ctx)?;
        context.context.operate(&self.stream(&context, stream)?, operations)
    }

    fn host_function(&self, ctx: RawContext, stream: StreamArg, function: HostFunction) -> Result<()> {
        let context = self.context(ctx)?;
        context.context.submit(&self.stream(&context, stream)?, Work::Host(function)).map(drop)
    }

    fn graph_instantiate(&self, ctx: RawContext, plan: &GraphPlan, _flags: u64) -> Result<RawGraph> {
        self.make_graph(ctx, plan)
    }

    fn graph_update(&self, _ctx: RawContext, graph: RawGraph, changes: &[(usize, GraphWork)]) -> Result<()> {
        self.change_graph(graph, changes)
    }

    fn graph_enable(&self, _ctx: RawContext, graph: RawGraph, node: usize, enabled: bool) -> Result<()> {
        self.graphs.get(graph.0)?.object.enable(node, enabled)
    }

    fn graph_upload(&self, ctx: RawContext, stream: StreamArg, graph: RawGraph) -> Result<()> {
        let context = self.context(ctx)?;
        self.stream(&context, stream)?;
        self.graphs.get(graph.0).map(drop)
    }

    fn graph_launch(&self, ctx: RawContext, stream: StreamArg, graph: RawGraph) -> Result<()> {
        self.launch_graph(ctx, stream, graph)
    }

    fn graph_destroy(&self, _ctx: RawContext, graph: RawGraph) -> Result<()> {
        self.graphs.remove(graph.0).map(drop)
    }

    fn take_output(&self) -> Vec<u8> {
        self.output.take()
    }
}

impl Drop for SoftBackend {
    fn drop(&mut self) {
        for entry in self.contexts.drain(|_| true) {
            entry.context.end();
        }
    }
}
