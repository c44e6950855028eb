//! Making a session again from its state: the same objects, at the same addresses, in the same order.

mod contents;
mod filling;
mod hasher;
mod proof;
#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod testing;
mod worker;

pub use contents::Patience;
pub use filling::{FillError, Filling, Progress};

use crate::capture::{STATE_MAX, is_memory_of};
use crate::failure::Failure;
use crate::memory::Managed;
use crate::memory::{Claims, DeviceMemory, PinnedRecord, RestoreError as MemoryError};
use crate::objects::{
    Context, ContextRecord, ContextSettings, EventRecord, Function, Green, GreenRecord, Image, Kernel,
    Library, Making, Module, ModuleRecord, Owner, Placeholders, Recorded, Stream, StreamRecord, Tombstone,
    insert,
};
use crate::session::{Config, Purpose, Session};
use crate::sharing::Sharing;
use crate::state::{Images, ModuleState, SessionState, StateError, VariableState};
use crate::textures::TextureStep;
use crate::transfer::TransferError;
use crate::{lock, write};
use backend::{Backend, Range, StreamArg};
use image::{ObjectKind, SessionId};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Instant;
use store::ReadError;
use thiserror::Error;
use transport::ServerSession;
use wire::{ContextId, CuError, LaunchValue};

/// Why a session cannot be made again.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The image cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The state is damaged.
    #[error(transparent)]
    State(#[from] StateError),
    /// Device memory cannot be had.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// Device memory cannot be filled.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// The same, or the image cannot be read, in one of the threads that fill memory.
    #[error(transparent)]
    Fill(#[from] Arc<FillError>),
    /// A device is missing.
    #[error(
        "the session uses device {device}, and of the GPUs that it is to have {count} are there; name others (--visible-devices), or go on on a machine with as many"
    )]
    Device {
        /// Its number.
        device: u32,
        /// How many there are.
        count: usize,
    },
    /// An object cannot be made again.
    #[error("{object} cannot be made again: {reason}")]
    Object {
        /// Which.
        object: String,
        /// What was answered.
        reason: Failure,
    },
    /// A variable is somewhere else, and the program may have its address.
    #[error("variable {symbol} of {module} lies at {found}, and has to lie at {expected}")]
    Address {
        /// The variable.
        symbol: String,
        /// Its module.
        module: String,
        /// Where it was.
        expected: Range,
        /// Where it is.
        found: Range,
    },
    /// This process has something where the application had memory of its own that it has registered.
    #[error(
        "the addresses {0}, at which the program has registered memory (cuMemHostRegister), are taken in its server"
    )]
    Addresses(Range),
    /// The state names something that is not in it.
    #[error("the session state names {0}, which is not in it")]
    Dangling(String),
}

impl RestoreError {
    /// Whether an object could not be made, or a block of memory mapped, because the device's memory is used up.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        let code = match self {
            Self::Object { reason, .. } => reason.code,
            Self::Memory(MemoryError::Map { code, .. }) => *code,
            _ => return false,
        };
        code == CuError::OUT_OF_MEMORY
    }

    /// Whether it is the session itself that cannot be made again as it was, whoever tries: an object, an address, the table.
    #[must_use]
    pub fn is_of_the_session(&self) -> bool {
        match self {
            Self::State(_)
            | Self::Memory(_)
            | Self::Object { .. }
            | Self::Address { .. }
            | Self::Dangling(_) => true,
            Self::Read(_) | Self::Transfer(_) | Self::Fill(_) | Self::Device { .. } | Self::Addresses(_) => {
                false
            }
        }
    }
}

type Result<T> = std::result::Result<T, RestoreError>;

/// From so many bytes of device memory on it is worth what it takes to compile what hashes them that the first checkpoint after a restart is no full one.
const COMPARED: u64 = 256 << 20;

fn object(name: impl std::fmt::Display) -> impl FnOnce(Failure) -> RestoreError {
    move |reason| RestoreError::Object { object: name.to_string(), reason }
}

fn code(name: impl std::fmt::Display) -> impl FnOnce(CuError) -> RestoreError {
    move |code| RestoreError::Object { object: name.to_string(), reason: code.into() }
}

/// What is made, or unloaded, in its turn.
enum Step<'a> {
    Context(&'a ContextRecord, &'a ContextSettings),
    Green(&'a GreenRecord),
    Stream(&'a StreamRecord),
    Module(&'a ModuleState),
    Texture(TextureStep<'a>),
    Buried(&'a ModuleRecord, u64),
    Bury(&'a ModuleRecord),
}

/// The objects that are made so far and not in the table.
struct Made {
    modules: BTreeMap<(Owner, ContextId), Arc<Module>>,
    buried: BTreeMap<u64, Arc<Module>>,
    placeholders: Placeholders,
}

/// A session of an image that is to be made again.
pub struct Prepared {
    session: SessionId,
    state: SessionState,
    images: Images,
    claims: Claims,
}

impl Prepared {
    /// Session number `session` of an image. From now on it has the addresses that it needs in this process: the earlier, the likelier
    /// nobody else has them.
    ///
    /// # Errors
    /// [`RestoreError`].
    pub fn of(image: &store::Image, session: u32) -> Result<Self> {
        let session = SessionId(session.into());
        let bytes = image.read_to_vec(&ObjectKind::SessionState { session }, STATE_MAX)?;
        let (state, images) = SessionState::from_bytes(&bytes)?;
        let registered = state.pinned.iter().filter(|record| record.registered);
        let claims = Claims::of(registered.map(PinnedRecord::pages)).map_err(RestoreError::Addresses)?;
        Ok(Self { session, state, images, claims })
    }
}

/// What a session's memory has been filled with.
pub(crate) struct Source {
    state: SessionState,
    session: SessionId,
    image: store::Image,
}

impl Session {
    /// Makes a session of an image again, on files that are back in `dir`. Nothing is taken from its rings
    /// before [`crate::session::Rings::start`]. Where there is `patience` for it, memory is filled while it goes on, and the image is held open
    /// until it is.
    ///
    /// # Errors
    /// [`RestoreError`].
    pub fn restore(
        backend: Arc<dyn Backend>,
        link: Arc<ServerSession>,
        (dir, sharing, managed): (PathBuf, Arc<Sharing>, Managed),
        prepared: Prepared,
        image: &store::Image,
        patience: Patience<'_>,
    ) -> Result<Arc<Self>> {
        let Prepared { session: session_id, state, images, claims } = prepared;
        let config = Config { dir, layout: state.layout, sharing, managed };
        let kinds: Vec<&str> = image.manifest().devices.iter().map(|device| &*device.backend).collect();
        backend.continues(&kinds);
        let begun = Instant::now();
        let told = |what: &str| tracing::debug!("{what} after {:.3} s", begun.elapsed().as_secs_f64());
        let made = Self::new(backend, link, config, state.turn);
        for (memory, arena) in made.devices.iter().zip(&state.arenas) {
            if let Some(arena) = arena {
                memory.restore(arena)?;
            }
        }
        made.claim_addresses(&state)?;
        made.restore_memory_of_all(&state)?;
        for record in &state.pools {
            let count = made.devices.len();
            let memory = made.devices.get(record.device as usize);
            let memory = memory.ok_or(RestoreError::Device { device: record.device, count })?;
            memory.restore_pool(record.clone()).map_err(object("a memory pool"))?;
        }
        told("device memory is there");
        made.replay(&state, images)?;
        for record in &state.half_way {
            made.check_half_way(record, &image.manifest().devices).map_err(object(record))?;
        }
        told("objects are made");
        let refused = state.excluded.iter().filter(|range| made.exclude(**range).is_err()).count();
        if refused > 0 {
            tracing::warn!("{refused} ranges of memory that the program has excluded are saved from now on");
        }
        made.restore_heaps(&state)?;
        lock(&made.pinned).claim(claims);
        for record in &state.slabs {
            let name = format!("the pinned memory {}", record.range);
            lock(&made.pinned).restore_slab(*record).map_err(object(name))?;
        }
        for record in &state.pinned {
            let name = format!("pinned memory {:#x} ({})", record.id.handle(), record.range);
            lock(&made.pinned).restore(*record).map_err(object(name))?;
        }
        for record in &state.shadows {
            let name = format!("managed memory {}", record.range);
            made.shadows.restore(*record).map_err(object(name))?;
        }
        if !state.shadows.is_empty() {
            let opened = made.devices.iter().try_for_each(DeviceMemory::open_to_all);
            opened.map_err(code("the way of all devices to managed memory"))?;
        }
        made.restore_graphs(&state, Purpose::Launch)?;
        told("the host's memory is registered");
        let compared = !matches!(patience, Patience::Little) && bytes_of(session_id, image) >= COMPARED;
        if compared {
            made.compile_comparison();
        }
        let later = made.fill(&state, session_id, image, patience)?;
        told("what must be filled is");
        made.restore_output(&state.output);
        made.start_epoch()?;
        let is_filled = later.is_none();
        made.fill_later(later);
        if compared {
            *lock(&made.filled_from) = Some(Source { state, session: session_id, image: image.clone() });
        }
        if is_filled {
            made.compare_with_source();
        }
        Ok(made)
    }

    /// Makes the objects of a state in a session of its own, to see whether every address can be had here.
    ///
    /// # Errors
    /// [`RestoreError`], naming what differs.
    pub fn rehearse(
        backend: Arc<dyn Backend>,
        link: Arc<ServerSession>,
        dir: PathBuf,
        state: &[u8],
    ) -> Result<()> {
        let (state, images) = SessionState::from_bytes(state)?;
        let sharing = Sharing::rehearsal();
        let config = Config { dir, layout: state.layout, sharing, managed: Managed::Coherent };
        let made = Self::new(backend, link, config, state.turn);
        for (memory, arena) in made.devices.iter().zip(&state.arenas) {
            if let Some(arena) = arena {
                memory.restore(&state.textures.blocks_of(arena))?;
            }
        }
        let all = state.textures.reads_outside(&state.arenas);
        made.claim_addresses(&state)?;
        if all {
            made.restore_memory_of_all(&state)?;
        }
        made.replay(&state, images)?;
        made.restore_heaps(&state)?;
        made.restore_graphs(&state, Purpose::Rehearsal)
    }

    /// Compiles what compares memory, beside all else.
    fn compile_comparison(self: &Arc<Self>) {
        let session = Arc::clone(self);
        let compiling = std::thread::Builder::new().name("comparing".into());
        if let Err(error) = compiling.spawn(move || session.prepare_comparison()) {
            tracing::debug!(%error, "it is compiled when it is needed");
        }
    }

    /// Has the next checkpoint read only what has changed since the image that memory has been filled from, if it is filled, and nobody has had it.
    pub(crate) fn compare_with_source(&self) {
        let Some(Source { state, session, image }) = lock(&self.filled_from).take() else { return };
        self.prepare_comparison();
        match self.remember_image(&state, session, &image) {
            Ok(()) => tracing::debug!("the next checkpoint knows what the image has"),
            Err(error) => tracing::debug!(%error, "the next checkpoint reads all of device memory"),
        }
    }

    /// Claims the addresses that the application has reserved, and those of other sessions' memory.
    fn claim_addresses(&self, state: &SessionState) -> Result<()> {
        let reserved = lock(&self.virtual_memory).restore_addresses(&state.virtual_memory);
        reserved.map_err(object("the program's own reservation"))?;
        let claimed = lock(&self.imports).restore_addresses(&state.sharing.imports);
        claimed.map_err(object("the addresses of other processes' memory"))
    }

    /// Makes what is mapped there.
    fn restore_memory_of_all(&self, state: &SessionState) -> Result<()> {
        let restored = self.restore_shared_memory(&state.sharing, &state.virtual_memory);
        restored.map_err(object("memory that the program maps itself or shares"))
    }

    /// Makes all objects, in their turns, and compares addresses.
    fn replay(&self, state: &SessionState, images: Images) -> Result<()> {
        let images: Images = {
            let mut table = write(&self.table);
            images.into_iter().map(|(hash, image)| (hash, table.intern_arc(image))).collect()
        };
        let contexts = state.contexts.iter();
        let mut steps: Vec<(u64, Step<'_>)> = contexts
            .map(|(record, settings)| (record.placement.turn, Step::Context(record, settings)))
            .collect();
        steps.extend(state.greens.iter().map(|record| (record.placement.turn, Step::Green(record))));
        steps.extend(state.streams.iter().map(|record| (record.placement.turn, Step::Stream(record))));
        steps.extend(state.modules.iter().map(|m| (m.record.placement.turn, Step::Module(m))));
        steps.extend(state.textures.steps().map(|(turn, step)| (turn, Step::Texture(step))));
        for (record, unloaded) in &state.tombstones {
            steps.push((record.placement.turn, Step::Buried(record, *unloaded)));
            steps.push((*unloaded, Step::Bury(record)));
        }
        steps.sort_by_key(|(turn, _)| *turn);
        let mut made =
            Made { modules: BTreeMap::new(), buried: BTreeMap::new(), placeholders: Placeholders::default() };
        for (_, step) in steps {
            self.step(step, state, &images, &mut made)?;
        }
        self.restore_stream_attributes(state)?;
        self.connect_peers(state)?;
        self.restore_events(state)?;
        self.restore_handles(state, &images, &made.modules)?;
        state.half_way.iter().try_for_each(|record| self.restore_half_way(record).map_err(object(record)))
    }

    fn step(&self, step: Step<'_>, state: &SessionState, images: &Images, made: &mut Made) -> Result<()> {
        match step {
            Step::Context(record, settings) => self.restore_context(record, settings),
            Step::Green(record) => self.restore_green(record),
            Step::Stream(record) => self.restore_stream(record),
            Step::Texture(step) => {
                let restored = self.restore_texture(&step, &state.textures, &mut made.placeholders);
                restored.map_err(object(step.name()))
            }
            Step::Module(module) => {
                let loaded = self.load_again(&module.record, &module.variables, images)?;
                self.restore_settings(module, &loaded)?;
                verify_variables(module, &loaded)?;
                let mut table = write(&self.table);
                for variable in module.variables.iter().filter(|variable| variable.told) {
                    table.note_global(variable.range, &loaded);
                }
                drop(table);
                made.modules.insert((module.record.owner, module.record.ctx), loaded);
                Ok(())
            }
            Step::Buried(record, unloaded) => {
                let loaded = self.load_again(record, &[], images)?;
                let image = Arc::clone(&loaded.image);
                let record = loaded.record.clone();
                made.buried.insert(record.placement.turn, loaded);
                write(&self.table).tombstones.push(Tombstone { record, unloaded, image });
                Ok(())
            }
            Step::Bury(record) => {
                made.buried.remove(&record.placement.turn);
                Ok(())
            }
        }
    }

    fn restore_context(&self, record: &ContextRecord, settings: &ContextSettings) -> Result<()> {
        let name = format!("context {:#x}", record.id.handle());
        if record.device as usize >= self.devices.len() {
            return Err(RestoreError::Device { device: record.device, count: self.devices.len() });
        }
        let ctx = Context::make(&self.placer, record.clone(), Making::Again).map_err(object(&name))?;
        self.add_context(&ctx).map_err(object(&name))?;
        for (limit, value) in &settings.limits {
            let set = self.backend().context_set_limit(ctx.raw, *limit, *value);
            set.map_err(code(format!("limit {limit} of {name}")))?;
        }
        if let Some(config) = settings.cache_config {
            self.backend().context_set_cache_config(ctx.raw, config).map_err(code(&name))?;
        }
        *lock(&ctx.settings) = settings.clone();
        Ok(())
    }

    fn restore_green(&self, record: &GreenRecord) -> Result<()> {
        let name = format!("green context {:#x}", record.id.handle());
        let ctx = self.context(record.ctx).map_err(object(&name))?;
        let green = Green::make(&self.placer, &ctx, record.clone(), Making::Again).map_err(object(&name))?;
        insert(&mut write(&self.table).greens, record.id, green).map_err(object(&name))
    }

    fn restore_stream(&self, record: &StreamRecord) -> Result<()> {
        let ctx = self.context(record.ctx).map_err(object(record.key))?;
        let green = record.green.map(|id| crate::read(&self.table).green(id));
        let green = green.transpose().map_err(object(record.key))?;
        let stream = Stream::make(&self.placer, &ctx, green, record.clone(), Making::Again);
        let stream = stream.map_err(object(record.key))?;
        self.note_made(&stream).map_err(object(record.key))?;
        let mut table = write(&self.table);
        insert(&mut table.streams, record.key, stream).map_err(object(record.key))
    }

    fn load_again(
        &self,
        record: &ModuleRecord,
        variables: &[VariableState],
        images: &Images,
    ) -> Result<Arc<Module>> {
        let name = || format!("the module of {:?}", record.owner);
        let image =
            images.get(&record.image).ok_or_else(|| RestoreError::Dangling(format!("code of {}", name())))?;
        let ctx = self.context(record.ctx).map_err(object(name()))?;
        let module = Module::make(&self.placer, &ctx, image, record.clone(), Making::Again, variables);
        let module = module.map_err(object(name()))?;
        self.note_marked(&module);
        Ok(module)
    }

    fn restore_settings(&self, state: &ModuleState, module: &Arc<Module>) -> Result<()> {
        for (name, settings) in &state.settings {
            let what = || format!("function {name}");
            let function: Arc<Function> = module.function(name).map_err(code(what()))?;
            for (attribute, value) in &settings.attributes {
                function.set_attribute(*attribute, *value).map_err(code(what()))?;
            }
            if let Some(config) = settings.cache_config {
                function.set_cache_config(config).map_err(code(what()))?;
            }
        }
        Ok(())
    }

    fn restore_stream_attributes(&self, state: &SessionState) -> Result<()> {
        for (key, attribute, bytes) in &state.stream_attributes {
            let name = || format!("attribute {attribute} of {key}");
            let stream = crate::read(&self.table).streams.get(key).cloned();
            let value = <[u8; 64]>::try_from(bytes.as_slice());
            let (Some(stream), Ok(value)) = (stream, value) else {
                return Err(RestoreError::Dangling(name()));
            };
            self.set_stream_attribute(&stream, *attribute, LaunchValue(value)).map_err(object(name()))?;
        }
        Ok(())
    }

    fn connect_peers(&self, state: &SessionState) -> Result<()> {
        for (record, settings) in &state.contexts {
            for peer in &settings.peers {
                let name = format!("peer access of context {:#x}", record.id.handle());
                let ctx = self.context(record.id).map_err(object(&name))?;
                let peer = self.context(ContextId(*peer)).map_err(object(&name))?;
                self.backend().peer_access(ctx.raw, peer.raw, true).map_err(code(&name))?;
                self.open_to_peer(&ctx, &peer).map_err(object(&name))?;
            }
        }
        Ok(())
    }

    fn restore_events(&self, state: &SessionState) -> Result<()> {
        for foreign in [false, true] {
            let now = |record: &EventRecord| state.sharing.is_foreign(record.share) == foreign;
            for (record, recorded) in state.events.iter().filter(|(record, _)| now(record)) {
                let name = format!("event {:#x}", record.id.handle());
                // Nothing is recorded here yet: what an image calls live cannot be.
                let recorded = if *recorded == Recorded::Live { Recorded::Before(0.0) } else { *recorded };
                self.restore_event(&state.sharing, record, recorded).map_err(object(&name))?;
            }
            if !foreign {
                self.config.sharing.ready();
            }
        }
        Ok(())
    }

    fn restore_heaps(&self, state: &SessionState) -> Result<()> {
        for record in &state.heaps {
            let name = format!("the kernels' heap {} of context {:#x}", record.range, record.ctx.handle());
            self.restore_heap(record, state).map_err(object(name))?;
        }
        Ok(())
    }

    fn restore_graphs(&self, state: &SessionState, purpose: Purpose) -> Result<()> {
        let orphans = self.restore_orphans(&state.graphs).map_err(object("an event of a graph"))?;
        let templates =
            self.restore_conditions(&state.conditions).map_err(object("the conditions of graphs"))?;
        for record in &state.graphs {
            let name = format!("graph {:#x}", record.id.handle());
            let template = record.template.map(|id| {
                let missing = || RestoreError::Dangling(format!("the conditions of {name}"));
                templates.get(&id).cloned().ok_or_else(missing)
            });
            let divided = state.divided.iter().find(|divided| divided.id == record.id);
            let made = self.restore_graph((record, divided), template.transpose()?, &orphans, purpose);
            made.map_err(object(name))?;
        }
        Ok(())
    }

    fn restore_handles(
        &self,
        state: &SessionState,
        images: &Images,
        modules: &BTreeMap<(Owner, ContextId), Arc<Module>>,
    ) -> Result<()> {
        let module = |owner: Owner, ctx: ContextId| {
            let found = modules.get(&(owner, ctx)).cloned();
            found.ok_or_else(|| RestoreError::Dangling(format!("the module of {owner:?}")))
        };
        let mut table = write(&self.table);
        for (record, managed) in &state.libraries {
            let image: &Arc<Image> = images
                .get(&record.image)
                .ok_or_else(|| RestoreError::Dangling(format!("code of {:?}", record.id)))?;
            let of_library = modules.iter().filter(|((owner, _), _)| *owner == Owner::Library(record.id));
            let of_library = of_library.map(|((_, ctx), module)| (*ctx, Arc::clone(module))).collect();
            let library = Library {
                record: record.clone(),
                image: Arc::clone(image),
                managed: Mutex::new(managed.clone()),
                modules: Mutex::new(of_library),
            };
            insert(&mut table.libraries, record.id, Arc::new(library)).map_err(object("a library"))?;
        }
        for handle in &state.module_ids {
            let module = module(handle.owner, handle.ctx)?;
            insert(&mut table.modules, handle.id, module).map_err(object("a module handle"))?;
        }
        for record in &state.functions {
            let function = module(record.owner, record.ctx)?.function(&record.name);
            let function = function.map_err(code(format!("function {}", record.name)))?;
            insert(&mut table.functions, record.id, function).map_err(object("a function handle"))?;
        }
        for record in &state.kernels {
            let library = table.library(record.library).map_err(object(&record.name))?;
            let (id, name) = (record.id, record.name.clone());
            let kernel = Kernel { id, library, name, functions: RwLock::default() };
            insert(&mut table.kernels, id, Arc::new(kernel)).map_err(object("a kernel handle"))?;
        }
        Ok(())
    }

    /// Marks, in every context, the moment from which times of events are counted.
    fn start_epoch(&self) -> Result<()> {
        let contexts: Vec<_> = crate::read(&self.table).contexts.values().cloned().collect();
        for ctx in contexts {
            let backend = self.backend();
            let epoch = backend.event_create(ctx.raw, 0).and_then(|epoch| {
                backend.event_record(ctx.raw, epoch, StreamArg::Legacy, 0)?;
                backend.context_synchronize(ctx.raw)?;
                Ok(epoch)
            });
            let epoch = epoch.map_err(code(format!("the clock of context {:#x}", ctx.id().handle())))?;
            // A context is made once and has no epoch before.
            let _ = ctx.epoch.set(epoch);
        }
        Ok(())
    }
}

/// Bytes of device memory that an image has of a session.
fn bytes_of(session: SessionId, image: &store::Image) -> u64 {
    let objects = image.manifest().objects.iter();
    objects.filter(|object| is_memory_of(&object.kind, session)).map(image::Object::len).sum()
}

fn verify_variables(state: &ModuleState, module: &Arc<Module>) -> Result<()> {
    for variable in &state.variables {
        let place =
            if variable.told { module.global(&variable.name) } else { module.place_of(&variable.name) };
        let found = place.map_err(code(format!("variable {}", variable.name)))?;
        if found != variable.range {
            return Err(RestoreError::Address {
                symbol: variable.name.clone(),
                module: module.describe(),
                expected: variable.range,
                found,
            });
        }
    }
    Ok(())
}
