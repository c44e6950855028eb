//! Calls, carried out.

use super::completions::{Effect, Entry, Probe};
use super::objects::Counted;
use super::quota::Kind;
use super::{Placed, Session};
use crate::lock;
use crate::messages as ask;
use crate::messages::{Call, Word};
use backend::{CopyBox, LinkInput, LoadError, RawContext, RawModule, RawTexture, Result};
use std::sync::Arc;
use std::sync::mpsc::channel;
use wire::{Bytes, CuError, Encoder, Wire};

fn encoded(value: &impl Wire) -> Vec<u8> {
    let mut bytes = Vec::new();
    value.encode(&mut Encoder::new(&mut bytes));
    bytes
}

impl Session {
    /// Answers a call.
    fn answer<T: Wire>(&self, call: u64, result: Result<T>) {
        self.answer_in_words(call, result.map_err(LoadError::from));
    }

    fn answer_in_words<T: Wire>(&self, call: u64, result: std::result::Result<T, LoadError>) {
        let (error, detail, body) = match result {
            Ok(value) => (0, String::new(), encoded(&value)),
            Err(error) => (error.code.code(), error.detail, Vec::new()),
        };
        self.say(call, &Word::Reply { after: Vec::new(), error, detail, body: Bytes(body) });
    }

    /// Answers a call that has waited for work, once what the work has written is on its way.
    fn answer_behind(&self, call: u64, result: Result<()>) {
        let error = result.err().map_or(0, CuError::code);
        let reply = Effect::Reply { call, error, detail: String::new(), body: Vec::new() };
        self.now(RawContext(0), Ok(()), vec![reply]);
    }

    /// What comes of a pipelined call: its failure is told later.
    fn told(&self, ctx: RawContext, result: Result<()>) {
        if let Err(error) = result {
            self.failed(ctx, error);
        }
    }

    /// Carries out a call; those that are pipelined have the number 0.
    pub(super) fn carry_out(self: &Arc<Self>, call: u64, what: Call) {
        match what {
            Call::Launch(ask::Launch { ctx, stream, kernel }) => {
                self.told(ctx, self.at(ctx, stream).and_then(|at| self.launch(at, &kernel)));
            }
            Call::Copy(ask::Copy { ctx, stream, dst, src, bytes }) => {
                let copy = || {
                    let at = self.at(ctx, stream)?;
                    self.objects.owns(dst, bytes)?;
                    self.objects.owns(src, bytes)?;
                    self.backend.copy(at.ctx, at.stream, dst, src, bytes)
                };
                self.told(ctx, copy());
            }
            Call::CopyBoxes(ask::CopyBoxes { ctx, stream, copy }) => {
                let boxes = || {
                    let at = self.at(ctx, stream)?;
                    let copy: CopyBox = self.boxes(&copy)?;
                    self.backend.copy_box(at.ctx, at.stream, &copy)
                };
                self.told(ctx, boxes());
            }
            Call::CopyPeer(ask::CopyPeer { stream, dst, src, bytes }) => {
                let copy = || {
                    let at = self.at(src.0, stream)?;
                    self.objects.owns(dst.1, bytes)?;
                    self.objects.owns(src.1, bytes)?;
                    let to = self.objects.ctx(dst.0)?;
                    self.backend.copy_peer(at.stream, (to, dst.1), (at.ctx, src.1), bytes)
                };
                self.told(src.0, copy());
            }
            Call::FillMemory(ask::FillMemory { ctx, stream, fill }) => {
                let done = self.at(ctx, stream).and_then(|at| {
                    self.owns_fill(&fill)?;
                    self.backend.fill(at.ctx, at.stream, &fill)
                });
                self.told(ctx, done);
            }
            Call::Operations(ask::Operations { ctx, stream, operations }) => {
                let done = self.at(ctx, stream).and_then(|at| {
                    self.owns_words(&operations)?;
                    self.backend.memory_operations(at.ctx, at.stream, &operations)
                });
                self.told(ctx, done);
            }
            Call::HostFunction(ask::HostFunction { ctx, stream, function }) => {
                let done = self.at(ctx, stream).and_then(|at| {
                    let host = self.host(function);
                    self.backend.host_function(at.ctx, at.stream, Box::new(host))
                });
                if let Err(error) = done {
                    // Nobody waits for a function in vain.
                    let call = Effect::Host { call: 0, function, error: error.code() };
                    self.now(RawContext(0), Ok(()), vec![call]);
                    self.failed(ctx, error);
                }
            }
            Call::CopyIn(ask::CopyIn { ctx, stream, dst, data }) => {
                let fits = Self::fits_inline(&data.0);
                let done =
                    fits.and_then(|()| self.at(ctx, stream)).and_then(|at| self.copy_in(at, dst, &data.0));
                self.told(ctx, done);
            }
            Call::CopyInBulk(ask::CopyInBulk { ctx, stream, dst, bytes, transfer }) => {
                self.told(ctx, self.copy_in_bulk(self.at(ctx, stream), dst, bytes, transfer));
            }
            Call::BoxIn(ask::BoxIn { ctx, stream, dst, size, data }) => {
                let fits = Self::fits_inline(&data.0);
                let done = fits
                    .and_then(|()| self.at(ctx, stream))
                    .and_then(|at| self.box_in(at, dst, size, &data.0));
                self.told(ctx, done);
            }
            Call::BoxInBulk(ask::BoxInBulk { ctx, stream, dst, size, transfer }) => {
                self.told(ctx, self.box_in_bulk(self.at(ctx, stream), dst, size, transfer));
            }
            Call::CopyOut(ask::CopyOut { ctx, stream, src, bytes, transfer }) => {
                self.copy_out(ctx, self.at(ctx, stream), src, bytes, transfer);
            }
            Call::BoxOut(ask::BoxOut { ctx, stream, src, size, transfer }) => {
                self.box_out(ctx, self.at(ctx, stream), src, size, transfer);
            }
            Call::Mark(ask::Mark { ctx, stream, ticket }) => match self.at(ctx, stream) {
                // What goes wrong is told with the ticket.
                Ok(at) => drop(self.when(at, vec![Effect::Ticket(ticket)])),
                Err(error) => self.now(ctx, Err(error), vec![Effect::Ticket(ticket)]),
            },
            Call::Watch(ask::Watch { ctx, event, ticket }) => {
                let found =
                    self.objects.ctx(ctx).and_then(|raw| Ok((raw, self.objects.events.get(event.0)?)));
                let effects = vec![Effect::Ticket(ticket)];
                let (probe, effects) = match found {
                    Ok((raw, event)) => match self.soon(|| self.backend.event_query(raw, event), effects) {
                        Ok(()) => return,
                        Err(effects) => (Probe::Theirs(raw, event), effects),
                    },
                    Err(error) => (Probe::Now(Err(error)), effects),
                };
                self.completions.push(Entry { ctx: ctx.0, stream: None, probe, effects });
            }
            Call::EventCreate(ask::EventCreate { ctx, event, flags }) => {
                let raw = self.objects.ctx(ctx);
                let create = |raw| {
                    self.make(&self.objects.events, event.0, ctx, || self.backend.event_create(raw, flags))
                };
                self.told(ctx, raw.and_then(create));
            }
            Call::EventDestroy(ask::EventDestroy { ctx, event }) => {
                let raw = self.objects.ctx(ctx);
                let destroy = |raw| {
                    // Whoever watches it is told what it comes to.
                    let event = self.unmake(&self.objects.events, event.0)?;
                    self.completions.event_gone(event);
                    self.backend.event_destroy(raw, event)
                };
                self.told(ctx, raw.and_then(destroy));
            }
            Call::EventRecord(ask::EventRecord { ctx, event, stream, flags }) => {
                let record = || {
                    let at = self.at(ctx, stream)?;
                    self.backend.event_record(at.ctx, self.objects.events.get(event.0)?, at.stream, flags)
                };
                self.told(ctx, record());
            }
            Call::StreamWaitEvent(ask::StreamWaitEvent { ctx, stream, event, flags }) => {
                let wait = || {
                    let at = self.at(ctx, stream)?;
                    self.backend.stream_wait_event(
                        at.ctx,
                        at.stream,
                        self.objects.events.get(event.0)?,
                        flags,
                    )
                };
                self.told(ctx, wait());
            }
            Call::StreamDestroy(ask::StreamDestroy { ctx, stream }) => {
                let raw = self.objects.ctx(ctx);
                let destroy =
                    |raw| self.backend.stream_destroy(raw, self.unmake(&self.objects.streams, stream.0)?);
                self.told(ctx, raw.and_then(destroy));
            }
            Call::GraphLaunch(ask::GraphLaunch { ctx, stream, graph }) => {
                let launch = || {
                    let at = self.at(ctx, stream)?;
                    let raw = self.objects.graphs.get(graph.0)?;
                    self.graph_owns(graph.0)?;
                    self.backend.graph_launch(at.ctx, at.stream, raw)
                };
                self.told(ctx, launch());
            }
            Call::GraphUpload(ask::GraphUpload { ctx, stream, graph }) => {
                let upload = || {
                    let at = self.at(ctx, stream)?;
                    self.backend.graph_upload(at.ctx, at.stream, self.objects.graphs.get(graph.0)?)
                };
                self.told(ctx, upload());
            }
            Call::GraphDestroy(ask::GraphDestroy { ctx, graph }) => {
                let destroy = || {
                    let raw = self.objects.ctx(ctx)?;
                    let graph_raw = self.unmake(&self.objects.graphs, graph.0)?;
                    self.graph_gone(graph.0);
                    self.backend.graph_destroy(raw, graph_raw)
                };
                self.told(ctx, destroy());
            }
            // The first two are done where they are read.
            Call::HostDone(_) | Call::Changes(_) | Call::Ping(_) => {}
            other => self.carry_out_and_answer(call, other),
        }
    }

    fn carry_out_and_answer(self: &Arc<Self>, call: u64, what: Call) {
        let (backend, objects) = (&self.backend, &self.objects);
        let ctx_of = |ctx: RawContext| objects.ctx(ctx);
        match what {
            Call::CanAccessPeer(ask::CanAccessPeer { device, peer }) => {
                let can = || backend.can_access_peer(self.device(device)?, self.device(peer)?);
                self.answer(call, can());
            }
            Call::Reserve(ask::Reserve { range }) => self.answer(call, backend.reserve(range)),
            Call::PhysicalCreate(ask::PhysicalCreate { physical, device, bytes, compressible }) => {
                let mut compressed = false;
                let create = || {
                    let device = self.device(device)?;
                    let (raw, is) = backend.physical_create(device, bytes, compressible)?;
                    compressed = is;
                    Ok(raw)
                };
                let made = self.physical(physical, bytes, Kind::Memory, create);
                self.answer(call, made.map(|()| compressed));
            }
            Call::PhysicalCreateOnHost(ask::PhysicalCreateOnHost { physical, device, bytes }) => {
                let create = || backend.physical_create_on_host(self.device(device)?, bytes);
                self.answer(call, self.physical(physical, bytes, Kind::Host, create));
            }
            Call::PhysicalRelease(ask::PhysicalRelease { physical }) => {
                self.answer(call, self.physical_release(physical));
            }
            Call::MapPhysical(ask::MapPhysical { physical, range }) => {
                self.answer(call, self.map_physical(physical, range));
            }
            Call::UnmapPhysical(ask::UnmapPhysical { range }) => {
                self.answer(call, self.unmap_physical(range))
            }
            Call::SetAccess(ask::SetAccess { device, range, access }) => {
                let set = || {
                    objects.owns(range.base, range.bytes)?;
                    backend.set_access(self.device(device)?, range, access)
                };
                self.answer(call, set());
            }
            Call::MapBlock(ask::MapBlock { block, device, range }) => {
                self.answer(call, self.map_block(block, device, range));
            }
            Call::UnmapBlock(ask::UnmapBlock { block }) => self.answer(call, self.unmap_block(block)),
            Call::MemoryInfo(ask::MemoryInfo { ctx }) => self.answer(call, self.memory_info(ctx)),
            Call::MirrorMake(ask::MirrorMake { range }) => self.answer(call, self.mirror(range)),
            Call::MirrorDrop(ask::MirrorDrop { range }) => self.answer_behind(call, self.unmirror(range)),
            Call::ContextCreate(ask::ContextCreate { ctx, device, flags, primary }) => {
                let create = || backend.context_create(self.device(device)?, flags, primary);
                self.answer(call, self.make(&objects.contexts, ctx.0, ctx, create));
            }
            Call::ContextDestroy(ask::ContextDestroy { ctx }) => {
                self.answer_behind(call, self.context_destroy(ctx))
            }
            Call::ContextSynchronize(ask::ContextSynchronize { ctx }) => {
                self.answer_behind(call, ctx_of(ctx).and_then(|raw| backend.context_synchronize(raw)));
            }
            Call::StreamSynchronize(ask::StreamSynchronize { ctx, stream }) => {
                let waited =
                    self.at(ctx, stream).and_then(|at| backend.stream_synchronize(at.ctx, at.stream));
                self.answer_behind(call, waited);
            }
            Call::ContextLimit(ask::ContextLimit { ctx, limit }) => {
                self.answer(call, ctx_of(ctx).and_then(|raw| backend.context_limit(raw, limit)));
            }
            Call::ContextSetLimit(ask::ContextSetLimit { ctx, limit, value }) => {
                self.answer(call, ctx_of(ctx).and_then(|raw| backend.context_set_limit(raw, limit, value)));
            }
            Call::ContextSetCacheConfig(ask::ContextSetCacheConfig { ctx, config }) => {
                self.answer(call, ctx_of(ctx).and_then(|raw| backend.context_set_cache_config(raw, config)));
            }
            Call::PeerAccess(ask::PeerAccess { ctx, peer, enable }) => {
                let set = || backend.peer_access(ctx_of(ctx)?, ctx_of(peer)?, enable);
                self.answer(call, set());
            }
            Call::Query(ask::Query { ctx, stream, ticket }) => {
                self.query(call, ctx, self.at(ctx, stream), ticket);
            }
            Call::PlaceBegin(ask::PlaceBegin { replay }) => self.place(call, replay.as_deref()),
            Call::PlaceEnd(_) => self.answer::<()>(call, Err(CuError::INVALID_VALUE)),
            Call::Holds(ask::Holds { range }) => self.answer(call, Ok(backend.holds(range))),
            Call::ModuleLoad(load) => self.module_load(call, &load),
            Call::Link(ask::Link { ctx, inputs, options }) => {
                let input =
                    |(kind, (name, data)): &'_ (u32, (String, Bytes))| (*kind, name.clone(), data.0.clone());
                let inputs: Vec<_> = inputs.iter().map(input).collect();
                let inputs: Vec<_> =
                    inputs.iter().map(|(kind, name, data)| LinkInput { kind: *kind, name, data }).collect();
                let linked =
                    ctx_of(ctx).map_err(LoadError::from).and_then(|raw| backend.link(raw, &inputs, &options));
                self.answer_in_words(call, linked.map(|made| (Bytes(made.code), made.info)));
            }
            Call::ModuleUnload(ask::ModuleUnload { ctx, module }) => {
                let unload = || {
                    let raw = ctx_of(ctx)?;
                    let module_raw = self.unmake(&objects.modules, module.0)?;
                    lock(&objects.managed).remove(&module_raw);
                    self.account.give_back(Kind::Objects, objects.module_gone(module));
                    backend.module_unload(raw, module_raw)
                };
                self.answer(call, unload());
            }
            Call::ModuleFunctions(ask::ModuleFunctions { ctx, module }) => {
                let functions = || backend.module_functions(ctx_of(ctx)?, objects.modules.get(module.0)?);
                self.answer(call, functions());
            }
            Call::Function(ask::Function { ctx, module, name, function }) => {
                let find = || {
                    objects.functions.is_free(function.0)?;
                    let ctx_raw = ctx_of(ctx)?;
                    let raw = backend.function(ctx_raw, objects.modules.get(module.0)?, &name)?;
                    let facts = backend.function_facts(ctx_raw, raw)?;
                    self.account.take(Kind::Objects, 1)?;
                    objects.add_function(function, raw, module, ctx);
                    Ok(facts)
                };
                self.answer(call, find());
            }
            Call::FunctionAsk(ask::FunctionAsk { ctx, function }) => {
                let facts = || backend.function_facts(ctx_of(ctx)?, objects.function(function)?);
                self.answer(call, facts());
            }
            Call::FunctionAttribute(ask::FunctionAttribute { ctx, function, attribute }) => {
                let get = || backend.function_attribute(ctx_of(ctx)?, objects.function(function)?, attribute);
                self.answer(call, get());
            }
            Call::FunctionSetAttribute(ask::FunctionSetAttribute { ctx, function, attribute, value }) => {
                let set = || {
                    backend.function_set_attribute(
                        ctx_of(ctx)?,
                        objects.function(function)?,
                        attribute,
                        value,
                    )
                };
                self.answer(call, set());
            }
            Call::FunctionSetCacheConfig(ask::FunctionSetCacheConfig { ctx, function, config }) => {
                let set =
                    || backend.function_set_cache_config(ctx_of(ctx)?, objects.function(function)?, config);
                self.answer(call, set());
            }
            Call::Global(ask::Global { ctx, module, name }) => {
                let find = || {
                    let owned = objects.modules.owned(module.0)?;
                    let range = backend.global(ctx_of(ctx)?, owned.0, &name)?;
                    objects.variable(module, owned, &name, range);
                    Ok(range)
                };
                self.answer(call, find());
            }
            Call::OccupancyBlocks(ask::OccupancyBlocks { ctx, function, block, shared, flags }) => {
                let blocks = || {
                    backend.occupancy_blocks(ctx_of(ctx)?, objects.function(function)?, block, shared, flags)
                };
                self.answer(call, blocks());
            }
            Call::OccupancyShared(ask::OccupancyShared { ctx, function, blocks, block }) => {
                let shared =
                    || backend.occupancy_shared(ctx_of(ctx)?, objects.function(function)?, blocks, block);
                self.answer(call, shared());
            }
            Call::OccupancyClusters(ask::OccupancyClusters { ctx, active, stream, kernel }) => {
                let clusters = || {
                    let at = self.at(ctx, stream)?;
                    backend.occupancy_clusters(at.ctx, active, &self.launch_of(at.stream, &kernel)?)
                };
                self.answer(call, clusters());
            }
            Call::StreamCreate(ask::StreamCreate { ctx, stream, flags, priority }) => {
                let create = |raw| {
                    let create = || backend.stream_create(raw, flags, priority);
                    self.make(&objects.streams, stream.0, ctx, create)
                };
                self.answer(call, ctx_of(ctx).and_then(create));
            }
            Call::EventElapsed(ask::EventElapsed { start, end }) => {
                let elapsed =
                    || backend.event_elapsed(objects.events.get(start.0)?, objects.events.get(end.0)?);
                self.answer(call, elapsed());
            }
            Call::StreamAttribute(ask::StreamAttribute { ctx, stream, attribute }) => {
                let get = |at: super::work::At| backend.stream_attribute(at.ctx, at.stream, attribute);
                self.answer(call, self.at(ctx, stream).and_then(get));
            }
            Call::StreamSetAttribute(ask::StreamSetAttribute { ctx, stream, attribute, value }) => {
                let set =
                    |at: super::work::At| backend.stream_set_attribute(at.ctx, at.stream, attribute, value);
                self.answer(call, self.at(ctx, stream).and_then(set));
            }
            other => self.carry_out_chapters(call, other),
        }
    }

    fn carry_out_chapters(self: &Arc<Self>, call: u64, what: Call) {
        let (backend, objects) = (&self.backend, &self.objects);
        let ctx_of = |ctx: RawContext| objects.ctx(ctx);
        match what {
            Call::GraphInstantiate(ask::GraphInstantiate { ctx, graph, template, nodes, flags }) => {
                let make = || {
                    let raw = ctx_of(ctx)?;
                    let (plan, reach) = self.plan(template, &nodes)?;
                    let create = || backend.graph_instantiate(raw, &plan, flags);
                    self.make(&objects.graphs, graph.0, ctx, create)?;
                    self.graph_made(graph.0, reach);
                    Ok(())
                };
                self.answer(call, make());
            }
            Call::GraphUpdate(ask::GraphUpdate { ctx, graph, changes }) => {
                let update = || {
                    let (raw, graph_raw) = (ctx_of(ctx)?, objects.graphs.get(graph.0)?);
                    backend.graph_update(raw, graph_raw, &self.changes(&changes)?)?;
                    self.graph_changed(graph.0, &changes);
                    Ok(())
                };
                self.answer(call, update());
            }
            Call::GraphEnable(ask::GraphEnable { ctx, graph, node, enabled }) => {
                let set = || {
                    let node = usize::try_from(node).map_err(|_| CuError::INVALID_VALUE)?;
                    backend.graph_enable(ctx_of(ctx)?, objects.graphs.get(graph.0)?, node, enabled)
                };
                self.answer(call, set());
            }
            Call::TemplateCreate(ask::TemplateCreate { ctx, template }) => {
                let create =
                    |raw| self.make(&objects.templates, template.0, ctx, || backend.template_create(raw));
                self.answer(call, ctx_of(ctx).and_then(create));
            }
            Call::TemplateCondition(ask::TemplateCondition { ctx, template, initial }) => {
                let make =
                    || backend.template_condition(ctx_of(ctx)?, objects.templates.get(template.0)?, initial);
                self.answer(call, make());
            }
            Call::TemplateDestroy(ask::TemplateDestroy { ctx, template }) => {
                let destroy =
                    || backend.template_destroy(ctx_of(ctx)?, self.unmake(&objects.templates, template.0)?);
                self.answer(call, destroy());
            }
            Call::ArrayCreate(ask::ArrayCreate { ctx, array, desc }) => {
                self.answer(call, self.array_create(ctx, array, &desc));
            }
            Call::ArrayDestroy(ask::ArrayDestroy { ctx, array }) => {
                let destroy =
                    || backend.array_destroy(ctx_of(ctx)?, self.counted_gone(&objects.arrays, array.0)?);
                self.answer(call, destroy());
            }
            Call::MipmapCreate(ask::MipmapCreate { ctx, mipmap, desc, levels }) => {
                self.answer(call, self.mipmap_create(ctx, mipmap, &desc, levels));
            }
            Call::MipmapLevel(ask::MipmapLevel { ctx, mipmap, level, array }) => {
                let make = || {
                    let (raw, mipmap) = (ctx_of(ctx)?, objects.mipmaps.get(mipmap.0)?.raw);
                    // Its memory is the mipmapped array's.
                    let create = || Ok(Counted { raw: backend.mipmap_level(raw, mipmap, level)?, bytes: 0 });
                    self.make(&objects.arrays, array.0, ctx, create)
                };
                self.answer(call, make());
            }
            Call::MipmapDestroy(ask::MipmapDestroy { ctx, mipmap }) => {
                let destroy =
                    || backend.mipmap_destroy(ctx_of(ctx)?, self.counted_gone(&objects.mipmaps, mipmap.0)?);
                self.answer(call, destroy());
            }
            Call::TextureCreate(ask::TextureCreate { ctx, texture }) => {
                self.answer(call, self.texture_create(ctx, &texture.0));
            }
            Call::TextureDestroy(ask::TextureDestroy { ctx, texture }) => {
                let destroy = || {
                    let raw = ctx_of(ctx)?;
                    self.unmake(&objects.textures, texture)?;
                    backend.texture_destroy(raw, texture)
                };
                self.answer(call, destroy());
            }
            Call::SurfaceCreate(ask::SurfaceCreate { ctx, array }) => {
                let make = || {
                    let (raw, array) = (ctx_of(ctx)?, objects.arrays.get(array.0)?.raw);
                    self.account.take(Kind::Objects, 1)?;
                    let made = backend.surface_create(raw, array);
                    match made {
                        Ok(surface) => objects.surfaces.insert(surface, (), ctx.0),
                        Err(_) => self.account.give_back(Kind::Objects, 1),
                    }
                    made
                };
                self.answer(call, make());
            }
            Call::SurfaceDestroy(ask::SurfaceDestroy { ctx, surface }) => {
                let destroy = || {
                    let raw = ctx_of(ctx)?;
                    self.unmake(&objects.surfaces, surface)?;
                    backend.surface_destroy(raw, surface)
                };
                self.answer(call, destroy());
            }
            Call::LinearTextureWidth(ask::LinearTextureWidth { device, format, channels }) => {
                let width = |device| backend.linear_texture_width(device, format, channels);
                self.answer(call, self.device(device).and_then(width));
            }
            Call::TensorMapMake(ask::TensorMapMake { ctx, request }) => {
                self.answer(call, ctx_of(ctx).and_then(|raw| backend.tensor_map(raw, &request)));
            }
            Call::SmCountAsk(ask::SmCountAsk { device, of }) => {
                self.answer(call, self.device(device).and_then(|device| backend.sm_count(device, &of)));
            }
            Call::SmSplitAsk(ask::SmSplitAsk { device, of, split }) => {
                let split = |device| backend.sm_split(device, &of, split);
                self.answer(call, self.device(device).and_then(split));
            }
            Call::GreenCreate(ask::GreenCreate { device, of, green }) => {
                let create = || backend.green_create(self.device(device)?, &of);
                self.answer(call, self.make(&objects.greens, green.0, RawContext(0), create));
            }
            Call::GreenDestroy(ask::GreenDestroy { green }) => {
                let green = self.unmake(&objects.greens, green.0);
                self.answer(call, green.and_then(|raw| backend.green_destroy(raw)));
            }
            Call::GreenStreamCreate(ask::GreenStreamCreate { ctx, green, stream, priority }) => {
                let make = || {
                    let (raw, green) = (ctx_of(ctx)?, objects.greens.get(green.0)?);
                    let create = || backend.green_stream_create(raw, green, priority);
                    self.make(&objects.streams, stream.0, ctx, create)
                };
                self.answer(call, make());
            }
            // Everything else has been carried out.
            _ => self.answer::<()>(call, Err(CuError::NOT_SUPPORTED)),
        }
    }

    fn context_destroy(&self, ctx: RawContext) -> Result<()> {
        let raw = self.unmake(&self.objects.contexts, ctx.0)?;
        let entries = self.completions.forget(ctx.0);
        let destroyed = self.backend.context_destroy(raw);
        // Only now nothing uses their buffers any more.
        for entry in entries {
            self.now(RawContext(0), Err(CuError::CONTEXT_IS_DESTROYED), entry.effects);
        }
        let gone = self.objects.context_gone(ctx);
        let (bytes, arrays) = self.objects.arrays_gone(ctx);
        self.account.give_back(Kind::Objects, gone + arrays);
        self.account.give_back(Kind::Memory, bytes);
        destroyed
    }

    fn module_load(&self, call: u64, load: &ask::ModuleLoad) {
        let ask::ModuleLoad { ctx, module, image, options, managed } = load;
        let managed: Vec<(&str, u64)> =
            managed.iter().map(|(name, address)| (name.as_str(), *address)).collect();
        let mut info = Ok(String::new());
        let made = self.objects.ctx(*ctx).and_then(|raw| {
            // Where variables lie there need be memory only when a kernel runs, and kernels reach what they like.
            self.make(&self.objects.modules, module.0, *ctx, || {
                let loaded = self.backend.module_load(raw, &image.0, options, &managed);
                let loaded: std::result::Result<(RawModule, String), LoadError> =
                    loaded.map(|made| (made.code, made.info));
                match loaded {
                    Ok((loaded, text)) => {
                        info = Ok(text);
                        // Before anybody can ask for one. What it has not got is not kept: the client may name anything.
                        let has =
                            |name: &str| self.backend.global(raw, loaded, name) != Err(CuError::NOT_FOUND);
                        let names = managed.iter().filter(|(name, _)| has(name));
                        let names = names.map(|(name, _)| (*name).to_owned()).collect();
                        lock(&self.objects.managed).insert(loaded, (ctx.0, names));
                        Ok(loaded)
                    }
                    Err(error) => {
                        let code = error.code;
                        info = Err(error);
                        Err(code)
                    }
                }
            })
        });
        self.answer_in_words(call, info.and_then(|info| made.map(|()| info).map_err(LoadError::from)));
    }

    fn texture_create(&self, ctx: RawContext, texture: &RawTexture) -> Result<u64> {
        let raw = self.objects.ctx(ctx)?;
        if let Some((address, bytes)) = texture.resource.memory() {
            self.objects.owns(address, bytes)?;
        }
        let resource = texture.resource.try_map(
            |array| self.objects.arrays.get(array.0).map(|array| array.raw),
            |mipmap| self.objects.mipmaps.get(mipmap.0).map(|mipmap| mipmap.raw),
        )?;
        self.account.take(Kind::Objects, 1)?;
        let made = self.backend.texture_create(raw, &RawTexture { resource, ..*texture });
        match made {
            Ok(value) => self.objects.textures.insert(value, (), ctx.0),
            Err(_) => self.account.give_back(Kind::Objects, 1),
        }
        made
    }

    /// Makes what the calls inside make, in this thread, until the client has come to the end.
    fn place(self: &Arc<Self>, begin: u64, replay: Option<&[backend::Range]>) {
        let mut end = None;
        let mut entered = false;
        let made = self.backend.place(replay, &mut || {
            if std::mem::replace(&mut entered, true) {
                return Err(CuError::NOT_SUPPORTED);
            }
            let (sender, receiver) = channel();
            *lock(&self.place) = Some(sender);
            if self.is_lost() {
                lock(&self.place).take();
            }
            self.answer(begin, Ok(()));
            while let Ok(Placed { bytes, number: call, call: what }) = receiver.recv() {
                self.has_read(bytes);
                match what {
                    Call::PlaceEnd(ask::PlaceEnd { error }) => {
                        end = Some(call);
                        lock(&self.place).take();
                        return CuError::from_code(error).map_or(Ok(()), Err);
                    }
                    Call::PlaceBegin(_) => self.answer::<()>(call, Err(CuError::INVALID_VALUE)),
                    what => self.carry_out(call, what),
                }
            }
            Err(crate::LOST)
        });
        match end {
            Some(call) => self.answer(call, made),
            None if !entered => self.answer(begin, made.map(drop)),
            None => {}
        }
    }
}
