//! What a server asks of the driver, as every device has it.

use super::{CURRENT, Driver, Owner, event, lock, stream};
use crate::api::{check, ready};
use crate::graph::Graph;
use crate::steer::{self, Steering};
use crate::{code, link, machine, managed, memory_operations, physical, work};
use backend::{
    Access, BLOCK_GRANULARITY, Backend, Compiled, Copy3D, Fill, GraphPlan, GraphWork, HostFunction, Launch,
    LinkInput, LoadError, MemoryOperation, Range, RawBlock, RawContext, RawEvent, RawFunction, RawGraph,
    RawModule, RawPhysical, RawStream, Result, StreamArg,
};
use cudarc::driver::sys;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use wire::{CuError, DeviceFacts, FunctionFacts};

// SAFETY of the calls below: every handle came from the driver through this trait and is live, which the server's object
// table sees to; every out-pointer is a local of the type that cuda.h names.
impl Backend for Driver {
    fn kind(&self) -> &'static str {
        "driver"
    }

    fn describe(&self) -> String {
        format!("CUDA driver {}.{}", self.version / 1000, self.version % 1000 / 10)
    }

    fn driver_version(&self) -> i32 {
        self.version
    }

    fn driver_release(&self) -> String {
        machine::release()
    }

    fn devices(&self) -> &[DeviceFacts] {
        &self.facts
    }

    fn can_access_peer(&self, device: usize, peer: usize) -> Result<bool> {
        let mut can = 0;
        // SAFETY: see above.
        check(unsafe {
            (self.api.cuDeviceCanAccessPeer)(&raw mut can, self.device(device)?, self.device(peer)?)
        })?;
        Ok(can != 0)
    }

    fn reserve(&self, range: Range) -> Result<()> {
        let mut base = 0;
        // SAFETY: see above.
        check(unsafe {
            (self.api.cuMemAddressReserve)(
                &raw mut base,
                range.bytes as usize,
                BLOCK_GRANULARITY as usize,
                range.base,
                0,
            )
        })?;
        if base == range.base {
            lock(&self.reserved).push(range);
            return Ok(());
        }
        tracing::error!("the driver placed the arena {range} at {base:#x}");
        // SAFETY: the reservation just made, with nothing in it.
        check(unsafe { (self.api.cuMemAddressFree)(base, range.bytes as usize) })?;
        Err(CuError::OUT_OF_MEMORY)
    }

    fn physical_create(&self, ordinal: usize, bytes: u64, compressible: bool) -> Result<(RawPhysical, bool)> {
        let device = self.device(ordinal)?;
        let make = || physical::create(&self.api, device, &self.facts[ordinal], bytes, compressible);
        let made = self.budget.give(ordinal, bytes, make)?;
        lock(&self.pieces).insert(made.0, (ordinal, bytes));
        Ok(made)
    }

    fn physical_create_on_host(&self, ordinal: usize, bytes: u64) -> Result<RawPhysical> {
        physical::create_on_host(&self.api, self.facts.get(ordinal).ok_or(CuError::INVALID_DEVICE)?, bytes)
    }

    fn physical_release(&self, physical: RawPhysical) -> Result<()> {
        // Before another piece can have this handle.
        let piece = lock(&self.pieces).remove(&physical);
        // SAFETY: see above.
        check(unsafe { (self.api.cuMemRelease)(physical.0) })?;
        piece.inspect(|(ordinal, bytes)| self.budget.take_back(*ordinal, *bytes));
        Ok(())
    }

    fn map_physical(&self, physical: RawPhysical, range: Range) -> Result<()> {
        // SAFETY: the range lies in a reservation and is free, which the server sees to.
        check(unsafe { (self.api.cuMemMap)(range.base, range.bytes as usize, 0, physical.0, 0) })
    }

    fn unmap_physical(&self, range: Range) -> Result<()> {
        // SAFETY: a mapping of ours; the caller has made sure that no work uses it.
        check(unsafe { (self.api.cuMemUnmap)(range.base, range.bytes as usize) })
    }

    fn set_access(&self, ordinal: usize, range: Range, access: Access) -> Result<()> {
        physical::set_access(&self.api, self.device(ordinal)?, &self.facts[ordinal], range, access)
    }

    fn map_block(&self, ordinal: usize, range: Range) -> Result<RawBlock> {
        let block = self.budget.give(ordinal, range.bytes, || self.make_block(ordinal, range))?;
        lock(&self.blocks).insert(block, (ordinal, range));
        Ok(block)
    }

    fn unmap_block(&self, block: RawBlock) -> Result<()> {
        let (ordinal, range) = lock(&self.blocks).remove(&block).ok_or(CuError::INVALID_VALUE)?;
        // SAFETY: a mapping of ours; the caller has made sure that no work uses it.
        check(unsafe { (self.api.cuMemUnmap)(range.base, range.bytes as usize) })?;
        self.budget.take_back(ordinal, range.bytes);
        Ok(())
    }

    fn memory_info(&self, ctx: RawContext) -> Result<(u64, u64)> {
        self.enter(ctx)?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: see above.
        check(unsafe { (self.api.cuMemGetInfo_v2)(&raw mut free, &raw mut total) })?;
        let mut device = 0;
        // SAFETY: see above.
        check(unsafe { (self.api.cuCtxGetDevice)(&raw mut device) })?;
        let ordinal =
            self.devices.iter().position(|other| *other == device).ok_or(CuError::INVALID_DEVICE)?;
        Ok(self.budget.bounded(ordinal, (free as u64, total as u64)))
    }

    fn register_host(&self, range: Range) -> Result<()> {
        let mut host = lock(&self.host);
        if let Some(home) = host.home {
            self.enter(home)?;
            self.register_here(range)?;
        }
        host.ranges.push(range);
        Ok(())
    }

    fn unregister_host(&self, range: Range) -> Result<()> {
        let mut host = lock(&self.host);
        let at =
            host.ranges.iter().position(|each| *each == range).ok_or(CuError::HOST_MEMORY_NOT_REGISTERED)?;
        host.ranges.swap_remove(at);
        if let Some(home) = host.home {
            self.enter(home)?;
            self.unregister_here(range)?;
        }
        Ok(())
    }

    fn context_create(&self, ordinal: usize, flags: u32, primary: bool) -> Result<RawContext> {
        let device = self.device(ordinal)?;
        let mut ctx: sys::CUcontext = std::ptr::null_mut();
        let owner = if primary {
            // SAFETY: see above.
            check(unsafe { (self.api.cuDevicePrimaryCtxSetFlags_v2)(device, flags) })?;
            // SAFETY: see above.
            check(unsafe { (self.api.cuDevicePrimaryCtxRetain)(&raw mut ctx, device) })?;
            Owner::Primary(device)
        } else {
            // SAFETY: see above.
            check(unsafe { (self.api.cuCtxCreate_v2)(&raw mut ctx, flags, device) })?;
            Owner::Created
        };
        let ctx = RawContext(ctx as u64);
        // `cuCtxCreate` makes the new context current; whichever it was, this thread no longer knows.
        CURRENT.set(None);
        lock(&self.contexts).insert(ctx, owner);
        let mut host = lock(&self.host);
        if host.home.is_none() {
            self.house(&mut host, Some(ctx))?;
        }
        Ok(ctx)
    }

    fn context_destroy(&self, ctx: RawContext) -> Result<()> {
        let (owner, other) = {
            let mut contexts = lock(&self.contexts);
            (contexts.remove(&ctx).ok_or(CuError::INVALID_CONTEXT)?, contexts.keys().next().copied())
        };
        let mut host = lock(&self.host);
        if host.home == Some(ctx) {
            self.enter(ctx)?;
            for range in &host.ranges {
                // A context in which a kernel failed answers that error to everything; it takes the registration along.
                if let Err(error) = self.unregister_here(*range) {
                    tracing::debug!("{range} goes with its context: {error}");
                }
            }
            self.house(&mut host, other)?;
        }
        CURRENT.set(None);
        // SAFETY: see above; other threads enter a context before each use, and the server has taken this one away.
        check(unsafe {
            match owner {
                Owner::Primary(device) => (self.api.cuDevicePrimaryCtxReset_v2)(device),
                Owner::Created => (self.api.cuCtxDestroy_v2)(ctx.0 as sys::CUcontext),
            }
        })
    }

    fn context_synchronize(&self, ctx: RawContext) -> Result<()> {
        self.enter(ctx)?;
        // SAFETY: see above.
        check(unsafe { (self.api.cuCtxSynchronize)() })
    }

    fn context_limit(&self, ctx: RawContext, limit: u32) -> Result<u64> {
        self.enter(ctx)?;
        let mut value = 0;
        // SAFETY: see above; the driver refuses limits it does not know.
        check(unsafe { (self.api.cuCtxGetLimit)(&raw mut value, limit) })?;
        Ok(value as u64)
    }

    fn context_set_limit(&self, ctx: RawContext, limit: u32, value: u64) -> Result<()> {
        self.enter(ctx)?;
        // SAFETY: see above.
        check(unsafe { (self.api.cuCtxSetLimit)(limit, value as usize) })
    }

    fn context_set_cache_config(&self, ctx: RawContext, config: u32) -> Result<()> {
        self.enter(ctx)?;
        // SAFETY: see above.
        check(unsafe { (self.api.cuCtxSetCacheConfig)(config) })
    }

    fn peer_access(&self, ctx: RawContext, peer: RawContext, enable: bool) -> Result<()> {
        self.enter(ctx)?;
        let peer = peer.0 as sys::CUcontext;
        // SAFETY: see above.
        check(unsafe {
            if enable {
                (self.api.cuCtxEnablePeerAccess)(peer, 0)
            } else {
                (self.api.cuCtxDisablePeerAccess)(peer)
            }
        })
    }

    fn place(&self, replay: Option<&[Range]>, make: &mut dyn FnMut() -> Result<()>) -> Result<Vec<Range>> {
        let _one_at_a_time = lock(&self.placing);
        Steering::begin(replay);
        let made = make();
        let taken = Steering::end();
        made.map(|()| taken)
    }

    fn holds(&self, range: Range) -> bool {
        steer::is_mapped(range)
    }

    fn module_load(
        &self,
        ctx: RawContext,
        image: &[u8],
        options: &[(u32, u64)],
        managed: &[(&str, u64)],
    ) -> std::result::Result<Compiled<RawModule>, LoadError> {
        self.enter(ctx)?;
        if managed.is_empty() {
            return code::load(&self.api, image, options);
        }
        let bound = managed::bind(&self.api, image, options, managed)?;
        let loaded = code::load(&self.api, &bound.code, options)?;
        Ok(Compiled { info: bound.info + &loaded.info, ..loaded })
    }

    fn link(
        &self,
        ctx: RawContext,
        inputs: &[LinkInput<'_>],
        options: &[(u32, u64)],
    ) -> std::result::Result<Compiled<Vec<u8>>, LoadError> {
        self.enter(ctx)?;
        link::link(&self.api, inputs, options)
    }

    fn module_unload(&self, ctx: RawContext, module: RawModule) -> Result<()> {
        self.enter(ctx)?;
        // SAFETY: see above.
        check(unsafe { (self.api.cuModuleUnload)(module.0 as sys::CUmodule) })
    }

    fn module_functions(&self, ctx: RawContext, module: RawModule) -> Result<Vec<String>> {
        self.enter(ctx)?;
        code::functions(&self.api, module)
    }

    fn function(&self, ctx: RawContext, module: RawModule, name: &str) -> Result<RawFunction> {
        self.enter(ctx)?;
        code::function(&self.api, module, name)
    }

    fn function_facts(&self, ctx: RawContext, function: RawFunction) -> Result<FunctionFacts> {
        self.enter(ctx)?;
        code::facts(&self.api, function)
    }

    fn function_attribute(&self, ctx: RawContext, function: RawFunction, attribute: i32) -> Result<i32> {
        self.enter(ctx)?;
        code::attribute(&self.api, function, attribute)
    }

    fn function_set_attribute(
        &self,
        ctx: RawContext,
        function: RawFunction,
        attribute: i32,
        value: i32,
    ) -> Result<()> {
        self.enter(ctx)?;
        // SAFETY: see above; the driver refuses attributes it does not know.
        check(unsafe {
            (self.api.cuFuncSetAttribute)(function.0 as sys::CUfunction, attribute as u32, value)
        })
    }

    fn function_set_cache_config(&self, ctx: RawContext, function: RawFunction, config: u32) -> Result<()> {
        self.enter(ctx)?;
        // SAFETY: see above.
        check(unsafe { (self.api.cuFuncSetCacheConfig)(function.0 as sys::CUfunction, config) })
    }

    fn global(&self, ctx: RawContext, module: RawModule, name: &str) -> Result<Range> {
        self.enter(ctx)?;
        code::global(&self.api, module, name)
    }

    fn occupancy_blocks(
        &self,
        ctx: RawContext,
        function: RawFunction,
        block: u32,
        shared: u64,
        flags: u32,
    ) -> Result<i32> {
        self.enter(ctx)?;
        let mut blocks = 0;
        let function = function.0 as sys::CUfunction;
        // SAFETY: see above.
        check(unsafe {
            (self.api.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags)(
                &raw mut blocks,
                function,
                block as i32,
                shared as usize,
                flags,
            )
        })?;
        Ok(blocks)
    }

    fn occupancy_shared(
        &self,
        ctx: RawContext,
        function: RawFunction,
        blocks: i32,
        block: i32,
    ) -> Result<u64> {
        self.enter(ctx)?;
        let mut bytes = 0;
        let function = function.0 as sys::CUfunction;
        // SAFETY: see above.
        check(unsafe {
            (self.api.cuOccupancyAvailableDynamicSMemPerBlock)(&raw mut bytes, function, blocks, block)
        })?;
        Ok(bytes as u64)
    }

    fn occupancy_clusters(&self, ctx: RawContext, active: bool, launch: &Launch<'_>) -> Result<i32> {
        self.enter(ctx)?;
        work::occupancy_clusters(&self.api, active, launch)
    }

    fn stream_create(&self, ctx: RawContext, flags: u32, priority: i32) -> Result<RawStream> {
        self.enter(ctx)?;
        let mut made: sys::CUstream = std::ptr::null_mut();
        // SAFETY: see above.
        check(unsafe { (self.api.cuStreamCreateWithPriority)(&raw mut made, flags, priority) })?;
        Ok(RawStream(made as u64))
    }

    fn stream_destroy(&self, ctx: RawContext, raw: RawStream) -> Result<()> {
        self.enter(ctx)?;
        // SAFETY: see above.
        check(unsafe { (self.api.cuStreamDestroy_v2)(raw.0 as sys::CUstream) })
    }

    fn stream_query(&self, ctx: RawContext, arg: StreamArg) -> Result<bool> {
        self.enter(ctx)?;
        // SAFETY: see above.
        ready(unsafe { (self.api.cuStreamQuery)(stream(arg)) })
    }

    fn stream_synchronize(&self, ctx: RawContext, arg: StreamArg) -> Result<()> {
        self.enter(ctx)?;
        // SAFETY: see above.
        check(unsafe { (self.api.cuStreamSynchronize)(stream(arg)) })
    }

    fn stream_wait_event(&self, ctx: RawContext, arg: StreamArg, raw: RawEvent, flags: u32) -> Result<()> {
        self.enter(ctx)?;
        // SAFETY: see above.
        check(unsafe { (self.api.cuStreamWaitEvent)(stream(arg), event(raw), flags) })
    }

    fn event_create(&self, ctx: RawContext, flags: u32) -> Result<RawEvent> {
        self.enter(ctx)?;
        let mut made: sys::CUevent = std::ptr::null_mut();
        // SAFETY: see above.
        check(unsafe { (self.api.cuEventCreate)(&raw mut made, flags) })?;
        Ok(RawEvent(made as u64))
    }

    fn event_destroy(&self, ctx: RawContext, raw: RawEvent) -> Result<()> {
        self.enter(ctx)?;
        // SAFETY: see above.
        check(unsafe { (self.api.cuEventDestroy_v2)(event(raw)) })
    }

    fn event_record(&self, ctx: RawContext, raw: RawEvent, arg: StreamArg, flags: u32) -> Result<()> {
        self.enter(ctx)?;
        // SAFETY: see above.
        check(unsafe { (self.api.cuEventRecordWithFlags)(event(raw), stream(arg), flags) })
    }

    fn event_query(&self, ctx: RawContext, raw: RawEvent) -> Result<bool> {
        self.enter(ctx)?;
        // SAFETY: see above.
        ready(unsafe { (self.api.cuEventQuery)(event(raw)) })
    }

    fn event_synchronize(&self, ctx: RawContext, raw: RawEvent) -> Result<()> {
        self.enter(ctx)?;
        // SAFETY: see above.
        check(unsafe { (self.api.cuEventSynchronize)(event(raw)) })
    }

    fn event_elapsed(&self, start: RawEvent, end: RawEvent) -> Result<f32> {
        let mut milliseconds = 0.0;
        // SAFETY: see above.
        check(unsafe { (self.api.cuEventElapsedTime)(&raw mut milliseconds, event(start), event(end)) })?;
        Ok(milliseconds)
    }

    fn launch(&self, ctx: RawContext, launch: &Launch<'_>) -> Result<()> {
        self.enter(ctx)?;
        work::launch(&self.api, launch)
    }

    fn copy(&self, ctx: RawContext, arg: StreamArg, dst: u64, src: u64, bytes: u64) -> Result<()> {
        self.enter(ctx)?;
        // SAFETY: the server has checked both ranges against its tables.
        check(unsafe { (self.api.cuMemcpyAsync)(dst, src, bytes as usize, stream(arg)) })
    }

    fn copy_3d(&self, ctx: RawContext, arg: StreamArg, copy: &Copy3D) -> Result<()> {
        self.enter(ctx)?;
        work::copy_3d(&self.api, arg, copy)
    }

    fn copy_peer(
        &self,
        arg: StreamArg,
        dst: (RawContext, u64),
        src: (RawContext, u64),
        bytes: u64,
    ) -> Result<()> {
        self.enter(dst.0)?;
        let (to, from) = (dst.0.0 as sys::CUcontext, src.0.0 as sys::CUcontext);
        // SAFETY: the server has checked both ranges against its tables.
        check(unsafe { (self.api.cuMemcpyPeerAsync)(dst.1, to, src.1, from, bytes as usize, stream(arg)) })
    }

    fn fill(&self, ctx: RawContext, arg: StreamArg, fill: &Fill) -> Result<()> {
        self.enter(ctx)?;
        work::fill(&self.api, arg, fill)
    }

    fn memory_operations(
        &self,
        ctx: RawContext,
        arg: StreamArg,
        operations: &[MemoryOperation],
    ) -> Result<()> {
        self.enter(ctx)?;
        memory_operations::submit(&self.api, arg, operations)
    }

    fn host_function(&self, ctx: RawContext, arg: StreamArg, function: HostFunction) -> Result<()> {
        self.enter(ctx)?;
        work::host_function(&self.api, arg, function)
    }

    fn graph_instantiate(&self, ctx: RawContext, plan: &GraphPlan, flags: u64) -> Result<RawGraph> {
        self.enter(ctx)?;
        let template = plan.template.map(|template| self.template(template)).transpose()?;
        let graph = Graph::make(&self.api, plan, template, flags)?;
        let raw = RawGraph(self.next_graph.fetch_add(1, Ordering::Relaxed));
        lock(&self.graphs).insert(raw, Arc::new(Mutex::new(graph)));
        Ok(raw)
    }

    fn graph_update(&self, ctx: RawContext, graph: RawGraph, changes: &[(usize, GraphWork)]) -> Result<()> {
        self.enter(ctx)?;
        lock(&*self.graph(graph)?).update(&self.api, changes)
    }

    fn graph_enable(&self, ctx: RawContext, graph: RawGraph, node: usize, enabled: bool) -> Result<()> {
        self.enter(ctx)?;
        lock(&*self.graph(graph)?).enable(&self.api, node, enabled)
    }

    fn graph_upload(&self, ctx: RawContext, arg: StreamArg, graph: RawGraph) -> Result<()> {
        self.enter(ctx)?;
        lock(&*self.graph(graph)?).upload(&self.api, arg)
    }

    fn graph_launch(&self, ctx: RawContext, arg: StreamArg, graph: RawGraph) -> Result<()> {
        self.enter(ctx)?;
        lock(&*self.graph(graph)?).launch(&self.api, arg)
    }

    fn graph_destroy(&self, ctx: RawContext, graph: RawGraph) -> Result<()> {
        self.enter(ctx)?;
        let graph = lock(&self.graphs).remove(&graph).ok_or(CuError::INVALID_HANDLE)?;
        // Nobody else has it: the server destroys what it no longer uses.
        let graph = Arc::into_inner(graph).ok_or(CuError::INVALID_HANDLE)?;
        graph.into_inner().unwrap_or_else(PoisonError::into_inner).destroy(&self.api)
    }

    fn take_output(&self) -> Vec<u8> {
        self.output.take()
    }
}
