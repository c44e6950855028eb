//! The trait: what is known here is answered here, what can go out without an answer does, the rest is asked.

use super::copies::Place;
use super::mirrors::Registered;
use super::progress::key;
use super::{Callback, Function, LOST, Link, PLACING, RemoteBackend};
use crate::area::Area;
use crate::lock;
use crate::messages as ask;
use backend::{
    Access, Backend, Compiled, Copy3D, Fill, GraphKernel, GraphPlan, GraphWork, HostFunction, Launch,
    LinkInput, LoadError, MemoryOperation, Range, RawBlock, RawContext, RawEvent, RawFunction, RawGraph,
    RawModule, RawPhysical, RawStream, Result, StreamArg,
};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use wire::{Bytes, CuError, DeviceFacts, FunctionFacts};

/// `CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK`, `_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const MAX_THREADS: i32 = 0;
const MAX_DYNAMIC_SHARED: i32 = 8;
/// `CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X`, `_MAX_GRID_DIM_X`; those of the other axes follow.
const MAX_BLOCK: i32 = 2;
const MAX_GRID: i32 = 5;
/// What a fatbin begins with, alone or behind its wrapper: whether its code prints is not looked for.
const FATBIN: [[u8; 4]; 2] = [0xba55_ed50_u32.to_le_bytes(), 0x4662_43b1_u32.to_le_bytes()];

impl Link {
    /// What the far end calls a device.
    pub(super) fn number(&self, device: usize) -> Result<u32> {
        let number = self.chosen.get(device).and_then(|number| u32::try_from(*number).ok());
        number.ok_or(CuError::INVALID_DEVICE)
    }

    pub(super) fn fill_reachable(self: &Arc<Self>, fill: &Fill) -> Result<()> {
        if fill.width == 0 || fill.height == 0 {
            return Ok(());
        }
        let row = fill.width.checked_mul(fill.element.into());
        let rows = fill.pitch.checked_mul(fill.height - 1);
        let bytes =
            row.zip(rows).and_then(|(row, rows)| row.checked_add(rows)).ok_or(CuError::INVALID_VALUE)?;
        self.reachable(fill.dst, bytes)
    }

    /// What CUDA decides about a launch before it submits anything, as far as it takes no question.
    fn check_launch(&self, ctx: RawContext, launch: &Launch<'_>) -> Result<()> {
        let function = self.function_known(launch.function)?;
        let device = {
            let contexts = self.contexts.read().unwrap_or_else(PoisonError::into_inner);
            contexts.get(&ctx.0).copied().ok_or(CuError::INVALID_CONTEXT)?
        };
        let facts = self.hello.devices.get(device).ok_or(CuError::INVALID_DEVICE)?;
        let most = |id: i32| facts.attribute(id).map_or(u32::MAX, |value| u32::try_from(value).unwrap_or(0));
        let within = |sizes: [u32; 3], first: i32| {
            sizes.iter().zip(first..).all(|(size, axis)| (1..=most(axis)).contains(size))
        };
        let threads: u64 = launch.block.iter().map(|size| u64::from(*size)).product();
        let right = within(launch.grid, MAX_GRID)
            && within(launch.block, MAX_BLOCK)
            && i64::try_from(threads)
                .is_ok_and(|all| all <= function.max_threads.load(Ordering::Relaxed).into())
            && i64::from(launch.shared) <= function.max_dynamic.load(Ordering::Relaxed).into()
            && launch.params.len() >= function.params;
        if right { Ok(()) } else { Err(CuError::INVALID_VALUE) }
    }
}

/// A launch without its stream, as it travels.
fn kernel(launch: &Launch<'_>) -> GraphKernel {
    GraphKernel {
        function: launch.function,
        grid: launch.grid,
        block: launch.block,
        shared: launch.shared,
        attributes: launch.attributes.to_vec(),
        params: launch.params.to_vec(),
    }
}

impl Backend for RemoteBackend {
    fn kind(&self) -> &'static str {
        if self.link.hello.kind == "soft" { "soft" } else { "driver" }
    }

    fn runs_on_cores(&self) -> bool {
        self.link.hello.on_cores
    }

    fn round_trip(&self) -> Duration {
        self.round_trip
    }

    fn describe(&self) -> String {
        format!("{} on another machine", self.link.hello.describe)
    }

    fn driver_version(&self) -> i32 {
        self.link.hello.driver_version
    }

    fn driver_release(&self) -> String {
        self.link.hello.driver_release.clone()
    }

    fn devices(&self) -> &[DeviceFacts] {
        &self.link.hello.devices
    }

    fn can_access_peer(&self, device: usize, peer: usize) -> Result<bool> {
        self.link
            .ask(&ask::CanAccessPeer { device: self.link.number(device)?, peer: self.link.number(peer)? })
    }

    fn reserve(&self, range: Range) -> Result<()> {
        // Here too: an address is either the device's or the host's, and memory that this process makes must not come to lie among the device's.
        let claimed = Area::claim(range).map_err(|_| CuError::OUT_OF_MEMORY)?;
        self.link.ask(&ask::Reserve { range })?;
        self.link.space().reserved.insert(range, claimed);
        Ok(())
    }

    fn physical_create(&self, device: usize, bytes: u64, compressible: bool) -> Result<(RawPhysical, bool)> {
        let physical = RawPhysical(self.link.name());
        let device = self.link.number(device)?;
        let made = self.link.ask(&ask::PhysicalCreate { physical, device, bytes, compressible })?;
        Ok((physical, made))
    }

    fn physical_create_on_host(&self, device: usize, bytes: u64) -> Result<RawPhysical> {
        let physical = RawPhysical(self.link.name());
        self.link.ask(&ask::PhysicalCreateOnHost { physical, device: self.link.number(device)?, bytes })?;
        Ok(physical)
    }

    fn physical_release(&self, physical: RawPhysical) -> Result<()> {
        self.link.ask(&ask::PhysicalRelease { physical })
    }

    fn map_physical(&self, physical: RawPhysical, range: Range) -> Result<()> {
        self.link.ask(&ask::MapPhysical { physical, range })?;
        self.link.space().mapped.insert(range, ());
        Ok(())
    }

    fn unmap_physical(&self, range: Range) -> Result<()> {
        self.link.ask(&ask::UnmapPhysical { range })?;
        self.link.space().mapped.remove(range.base);
        Ok(())
    }

    fn set_access(&self, device: usize, range: Range, access: Access) -> Result<()> {
        self.link.ask(&ask::SetAccess { device: self.link.number(device)?, range, access })
    }

    fn map_block(&self, device: usize, range: Range) -> Result<RawBlock> {
        let block = RawBlock(self.link.name());
        self.link.ask(&ask::MapBlock { block, device: self.link.number(device)?, range })?;
        self.link.space().mapped.insert(range, ());
        lock(&self.link.blocks).insert(block.0, range.base);
        Ok(block)
    }

    fn unmap_block(&self, block: RawBlock) -> Result<()> {
        self.link.ask(&ask::UnmapBlock { block })?;
        if let Some(base) = lock(&self.link.blocks).remove(&block.0) {
            self.link.space().mapped.remove(base);
        }
        Ok(())
    }

    fn memory_info(&self, ctx: RawContext) -> Result<(u64, u64)> {
        self.link.ask(&ask::MemoryInfo { ctx })
    }

    fn register_host(&self, range: Range) -> Result<()> {
        if self.link.is_lost() {
            return Err(LOST);
        }
        self.link.mirrors.register(range)?;
        // Of code that was loaded before.
        let named = lock(&self.link.managed).iter().find(|(_, at)| range.contains(*at, 1)).copied();
        match named {
            Some((_, address)) => self.link.reach(address),
            None => Ok(()),
        }
    }

    fn unregister_host(&self, range: Range) -> Result<()> {
        self.link.leave(range)
    }

    fn reaches_host(&self) -> bool {
        false
    }

    fn tells_of_copies(&self, range: Range) -> bool {
        self.link.mirrors.is(range.base, range.bytes) == Registered::Here
    }

    fn has_copied(&self, ctx: RawContext, range: Range) -> Result<bool> {
        self.link.progress.check_alive(ctx)?;
        let copied = self.link.uploads.have_left(range) && self.link.transfers.have_left(range);
        if !copied {
            self.link.flush_rest();
        }
        Ok(copied)
    }

    fn context_create(&self, device: usize, flags: u32, primary: bool) -> Result<RawContext> {
        let ctx = RawContext(self.link.name());
        self.link.ask(&ask::ContextCreate { ctx, device: self.link.number(device)?, flags, primary })?;
        self.link.contexts.write().unwrap_or_else(PoisonError::into_inner).insert(ctx.0, device);
        self.link.progress.context_made(ctx);
        Ok(ctx)
    }

    fn context_destroy(&self, ctx: RawContext) -> Result<()> {
        self.link
            .without_variables(|(_, of)| *of == ctx.0, || self.link.ask(&ask::ContextDestroy { ctx }))?;
        self.link.contexts.write().unwrap_or_else(PoisonError::into_inner).remove(&ctx.0);
        self.link.progress.context_gone(ctx);
        Ok(())
    }

    fn context_synchronize(&self, ctx: RawContext) -> Result<()> {
        self.link.progress.check(ctx)?;
        self.link.push_changes();
        let given = self.link.progress.given(ctx);
        let waited = self.link.ask(&ask::ContextSynchronize { ctx });
        match waited {
            Ok(()) => self.link.progress.all_done(&given),
            Err(error) => self.link.progress.failed(ctx, error),
        }
        // A pipelined call may have failed before.
        waited.and(self.link.progress.check(ctx))
    }

    fn context_limit(&self, ctx: RawContext, limit: u32) -> Result<u64> {
        self.link.ask(&ask::ContextLimit { ctx, limit })
    }

    fn context_set_limit(&self, ctx: RawContext, limit: u32, value: u64) -> Result<()> {
        self.link.ask(&ask::ContextSetLimit { ctx, limit, value })
    }

    fn context_set_cache_config(&self, ctx: RawContext, config: u32) -> Result<()> {
        self.link.ask(&ask::ContextSetCacheConfig { ctx, config })
    }

    fn peer_access(&self, ctx: RawContext, peer: RawContext, enable: bool) -> Result<()> {
        self.link.ask(&ask::PeerAccess { ctx, peer, enable })
    }

    fn place(&self, replay: Option<&[Range]>, make: &mut dyn FnMut() -> Result<()>) -> Result<Vec<Range>> {
        /// Whatever happens, the thread is outside again.
        struct Inside;
        impl Drop for Inside {
            fn drop(&mut self) {
                PLACING.set(false);
            }
        }
        self.link.ask(&ask::PlaceBegin { replay: replay.map(<[Range]>::to_vec) })?;
        PLACING.set(true);
        let inside = Inside;
        let made = make();
        let ended = self.link.ask(&ask::PlaceEnd { error: made.err().map_or(0, CuError::code) });
        drop(inside);
        made.and(ended)
    }

    fn holds(&self, range: Range) -> bool {
        self.link.ask(&ask::Holds { range }).unwrap_or(false)
    }

    fn module_load(
        &self,
        ctx: RawContext,
        image: &[u8],
        options: &[(u32, u64)],
        managed: &[(&str, u64)],
    ) -> std::result::Result<Compiled<RawModule>, LoadError> {
        if FATBIN.iter().any(|magic| image.starts_with(magic))
            || image.windows(7).any(|part| part == b"vprintf")
        {
            self.link.prints.store(true, Ordering::Release);
        }
        let module = RawModule(self.link.name());
        let info = self.link.ask_in_words(&ask::ModuleLoad {
            ctx,
            module,
            image: Bytes(image.to_vec()),
            options: options.to_vec(),
            managed: managed.iter().map(|(name, address)| ((*name).to_owned(), *address)).collect(),
        })?;
        for (_, address) in managed {
            // No parameter tells that kernels reach them.
            self.link.reach(*address)?;
            lock(&self.link.managed).push((module.0, *address));
        }
        Ok(Compiled { code: module, info })
    }

    fn link(
        &self,
        ctx: RawContext,
        inputs: &[LinkInput<'_>],
        options: &[(u32, u64)],
    ) -> std::result::Result<Compiled<Vec<u8>>, LoadError> {
        let input = |input: &LinkInput<'_>| (input.kind, (input.name.to_owned(), Bytes(input.data.to_vec())));
        let inputs = inputs.iter().map(input).collect();
        let (code, info) = self.link.ask_in_words(&ask::Link { ctx, inputs, options: options.to_vec() })?;
        Ok(Compiled { code: code.0, info })
    }

    fn module_unload(&self, ctx: RawContext, module: RawModule) -> Result<()> {
        let unload = || self.link.ask(&ask::ModuleUnload { ctx, module });
        self.link.without_variables(|(of, _)| *of == module.0, unload)?;
        lock(&self.link.managed).retain(|(of, _)| *of != module.0);
        self.link.module_gone(module);
        Ok(())
    }

    fn module_functions(&self, ctx: RawContext, module: RawModule) -> Result<Vec<String>> {
        self.link.ask(&ask::ModuleFunctions { ctx, module })
    }

    fn function(&self, ctx: RawContext, module: RawModule, name: &str) -> Result<RawFunction> {
        let mut named = lock(&self.link.named);
        if let Some(function) = named.get(&(module.0, name.to_owned())) {
            return Ok(*function);
        }
        let function = RawFunction(self.link.name());
        let facts = self.link.ask(&ask::Function { ctx, module, name: name.to_owned(), function })?;
        let end = facts.params.iter().map(|param| u64::from(param.offset) + u64::from(param.size)).max();
        let known = Function {
            params: usize::try_from(end.unwrap_or(0)).unwrap_or(usize::MAX),
            max_threads: AtomicI32::new(facts.attribute(MAX_THREADS).unwrap_or(i32::MAX)),
            max_dynamic: AtomicI32::new(facts.attribute(MAX_DYNAMIC_SHARED).unwrap_or(i32::MAX)),
        };
        let mut functions = self.link.functions.write().unwrap_or_else(PoisonError::into_inner);
        functions.insert(function.0, Arc::new(known));
        named.insert((module.0, name.to_owned()), function);
        Ok(function)
    }

    fn function_facts(&self, ctx: RawContext, function: RawFunction) -> Result<FunctionFacts> {
        self.link.ask(&ask::FunctionAsk { ctx, function })
    }

    fn function_attribute(&self, ctx: RawContext, function: RawFunction, attribute: i32) -> Result<i32> {
        self.link.ask(&ask::FunctionAttribute { ctx, function, attribute })
    }

    fn function_set_attribute(
        &self,
        ctx: RawContext,
        function: RawFunction,
        attribute: i32,
        value: i32,
    ) -> Result<()> {
        self.link.ask(&ask::FunctionSetAttribute { ctx, function, attribute, value })?;
        if attribute == MAX_DYNAMIC_SHARED {
            self.link.function_known(function)?.max_dynamic.store(value, Ordering::Relaxed);
        }
        Ok(())
    }

    fn function_set_cache_config(&self, ctx: RawContext, function: RawFunction, config: u32) -> Result<()> {
        self.link.ask(&ask::FunctionSetCacheConfig { ctx, function, config })
    }

    fn global(&self, ctx: RawContext, module: RawModule, name: &str) -> Result<Range> {
        let range = self.link.ask(&ask::Global { ctx, module, name: name.to_owned() })?;
        self.link.variable_known(range, (module.0, ctx.0), name)?;
        Ok(range)
    }

    fn occupancy_blocks(
        &self,
        ctx: RawContext,
        function: RawFunction,
        block: u32,
        shared: u64,
        flags: u32,
    ) -> Result<i32> {
        self.link.ask(&ask::OccupancyBlocks { ctx, function, block, shared, flags })
    }

    fn occupancy_shared(
        &self,
        ctx: RawContext,
        function: RawFunction,
        blocks: i32,
        block: i32,
    ) -> Result<u64> {
        self.link.ask(&ask::OccupancyShared { ctx, function, blocks, block })
    }

    fn occupancy_clusters(&self, ctx: RawContext, active: bool, launch: &Launch<'_>) -> Result<i32> {
        let (stream, kernel) = (launch.stream, kernel(launch));
        self.link.ask(&ask::OccupancyClusters { ctx, active, stream, kernel })
    }

    fn stream_create(&self, ctx: RawContext, flags: u32, priority: i32) -> Result<RawStream> {
        let stream = RawStream(self.link.name());
        self.link.ask(&ask::StreamCreate { ctx, stream, flags, priority })?;
        Ok(stream)
    }

    fn stream_destroy(&self, ctx: RawContext, stream: RawStream) -> Result<()> {
        // The last word of the host that its work may wait for.
        self.link.push_changes();
        self.link.tell(&ask::StreamDestroy { ctx, stream });
        self.link.progress.stream_gone(key(ctx, StreamArg::Created(stream)));
        if self.link.is_lost() { Err(LOST) } else { Ok(()) }
    }

    fn stream_query(&self, ctx: RawContext, stream: StreamArg) -> Result<bool> {
        self.link.query(ctx, stream)
    }

    fn stream_synchronize(&self, ctx: RawContext, stream: StreamArg) -> Result<()> {
        self.link.push_changes();
        if self.link.prints.load(Ordering::Acquire) {
            self.link.progress.check(ctx)?;
            let waited = self.link.ask(&ask::StreamSynchronize { ctx, stream });
            if let Err(error) = waited {
                self.link.progress.failed(ctx, error);
            }
            return waited.and_then(|()| self.link.progress.check(ctx));
        }
        let upto = self.link.progress.given_to(key(ctx, stream));
        while !self.link.ask_stream(ctx, stream)? {
            match self.link.progress.wait_stream(key(ctx, stream), upto) {
                Err(CuError::NOT_READY) => {}
                waited => return waited,
            }
        }
        Ok(())
    }

    fn stream_wait_event(
        &self,
        ctx: RawContext,
        stream: StreamArg,
        event: RawEvent,
        flags: u32,
    ) -> Result<()> {
        self.link.submit(ctx, stream, &ask::StreamWaitEvent { ctx, stream, event, flags })
    }

    fn event_create(&self, ctx: RawContext, flags: u32) -> Result<RawEvent> {
        self.link.progress.check_alive(ctx)?;
        let event = RawEvent(self.link.name());
        self.link.tell(&ask::EventCreate { ctx, event, flags });
        self.link.progress.event_made(ctx, event);
        Ok(event)
    }

    fn event_destroy(&self, ctx: RawContext, event: RawEvent) -> Result<()> {
        self.link.tell(&ask::EventDestroy { ctx, event });
        self.link.progress.event_gone(event);
        if self.link.is_lost() { Err(LOST) } else { Ok(()) }
    }

    fn event_record(&self, ctx: RawContext, event: RawEvent, stream: StreamArg, flags: u32) -> Result<()> {
        self.link.progress.check_alive(ctx)?;
        let key = key(ctx, stream);
        let place = (key, self.link.give(key, &ask::EventRecord { ctx, event, stream, flags }));
        self.link.progress.recorded(event, Some(place));
        Ok(())
    }

    fn event_query(&self, ctx: RawContext, event: RawEvent) -> Result<bool> {
        self.link.ask_event(ctx, event)
    }

    fn event_synchronize(&self, ctx: RawContext, event: RawEvent) -> Result<()> {
        self.link.push_changes();
        while !self.link.ask_event(ctx, event)? {
            match self.link.progress.wait_event(event) {
                Err(CuError::NOT_READY) => {}
                waited => return waited,
            }
        }
        Ok(())
    }

    fn event_elapsed(&self, start: RawEvent, end: RawEvent) -> Result<f32> {
        self.link.ask(&ask::EventElapsed { start, end })
    }

    fn launch(&self, ctx: RawContext, launch: &Launch<'_>) -> Result<()> {
        self.link.progress.check(ctx)?;
        self.link.check_launch(ctx, launch)?;
        self.link.reach_all(launch.params, 1)?;
        self.link.push_for_kernels()?;
        let (stream, kernel) = (launch.stream, kernel(launch));
        self.link.submit_checked(ctx, stream, &ask::Launch { ctx, stream, kernel });
        Ok(())
    }

    fn copy(&self, ctx: RawContext, stream: StreamArg, dst: u64, src: u64, bytes: u64) -> Result<()> {
        self.link.copy_bytes(ctx, stream, dst, src, bytes)
    }

    fn copy_3d(&self, ctx: RawContext, stream: StreamArg, copy: &Copy3D) -> Result<()> {
        self.link.copy_boxes(ctx, stream, &(*copy).into())
    }

    fn copy_peer(
        &self,
        stream: StreamArg,
        dst: (RawContext, u64),
        src: (RawContext, u64),
        bytes: u64,
    ) -> Result<()> {
        let far = |address| matches!(self.link.place_of(address, bytes), Ok(Place::Far { .. }));
        if far(dst.1) && far(src.1) {
            self.link.push_changes();
            return self.link.submit(src.0, stream, &ask::CopyPeer { stream, dst, src, bytes });
        }
        self.link.copy_bytes(src.0, stream, dst.1, src.1, bytes)
    }

    fn fill(&self, ctx: RawContext, stream: StreamArg, fill: &Fill) -> Result<()> {
        self.link.fill_reachable(fill)?;
        self.link.push_changes();
        self.link.submit(ctx, stream, &ask::FillMemory { ctx, stream, fill: *fill })
    }

    fn memory_operations(
        &self,
        ctx: RawContext,
        stream: StreamArg,
        operations: &[MemoryOperation],
    ) -> Result<()> {
        self.link.progress.check(ctx)?;
        // Those that wait first: what they wait for in has a mirror then, and words beside it are written there.
        let (writes, others): (Vec<_>, Vec<_>) =
            operations.iter().partition(|operation| matches!(operation, MemoryOperation::Write { .. }));
        self.link.words_reachable(&others)?;
        let is_here = |operation: &MemoryOperation| match operation {
            MemoryOperation::Write { word } if word.address.is_multiple_of(word.bytes()) => {
                Ok(self.link.place_of(word.address, word.bytes())? == Place::Registered)
            }
            _ => Ok(false),
        };
        for write in &writes {
            if !is_here(write)? {
                self.link.words_reachable(&[*write])?;
            }
        }
        if others.iter().any(|operation| matches!(operation, MemoryOperation::Wait { .. })) {
            self.link.note_hold((key(ctx, stream), self.link.progress.given_to(key(ctx, stream)) + 1));
        }
        // In their order: a word of the host's may be what lets somebody write the next one that is waited for.
        let here = operations.iter().map(is_here).collect::<Result<Vec<bool>>>()?;
        let mut rest = operations.iter().zip(here).peekable();
        while let Some((first, here)) = rest.next() {
            let mut some = vec![*first];
            while let Some((next, _)) = rest.next_if(|(_, next)| *next == here) {
                some.push(*next);
            }
            if here {
                self.link.notify(ctx, stream, some);
            } else {
                self.link.push_changes();
                self.link.submit(ctx, stream, &ask::Operations { ctx, stream, operations: some })?;
            }
        }
        if operations.is_empty() {
            self.link.submit(ctx, stream, &ask::Operations { ctx, stream, operations: Vec::new() })?;
        }
        Ok(())
    }

    fn host_function(&self, ctx: RawContext, stream: StreamArg, function: HostFunction) -> Result<()> {
        self.link.progress.check(ctx)?;
        let name = self.link.name();
        let callback = Callback::Once(Arc::new(Mutex::new(Some(function))));
        lock(&self.link.callbacks).insert(name, callback);
        self.link.hosting.fetch_add(1, Ordering::AcqRel);
        let submitted = self.link.submit(ctx, stream, &ask::HostFunction { ctx, stream, function: name });
        if submitted.is_err() {
            lock(&self.link.callbacks).remove(&name);
            self.link.hosting.fetch_sub(1, Ordering::AcqRel);
        }
        submitted
    }

    fn graph_instantiate(&self, ctx: RawContext, plan: &GraphPlan, flags: u64) -> Result<RawGraph> {
        self.link.instantiate(ctx, plan, flags)
    }

    fn graph_update(&self, ctx: RawContext, graph: RawGraph, changes: &[(usize, GraphWork)]) -> Result<()> {
        self.link.update(ctx, graph, changes)
    }

    fn graph_enable(&self, ctx: RawContext, graph: RawGraph, node: usize, enabled: bool) -> Result<()> {
        self.link.ask(&ask::GraphEnable { ctx, graph, node: node as u64, enabled })
    }

    fn graph_upload(&self, ctx: RawContext, stream: StreamArg, graph: RawGraph) -> Result<()> {
        self.link.submit(ctx, stream, &ask::GraphUpload { ctx, stream, graph })
    }

    fn graph_launch(&self, ctx: RawContext, stream: StreamArg, graph: RawGraph) -> Result<()> {
        self.link.launch_graph(ctx, stream, graph)
    }

    fn graph_destroy(&self, ctx: RawContext, graph: RawGraph) -> Result<()> {
        self.link.tell(&ask::GraphDestroy { ctx, graph });
        self.link.graph_gone(graph);
        if self.link.is_lost() { Err(LOST) } else { Ok(()) }
    }

    fn take_output(&self) -> Vec<u8> {
        std::mem::take(&mut lock(&self.link.output))
    }
}
