//! Reading the object table into a [`SessionState`]; the gate is closed and the device idle.

use crate::capture::Cut;
use crate::conditions::ConditionState;
use crate::objects::{Event, FunctionRecord, Module, Recorded, StreamKey, Table};
use crate::session::Session;
use crate::state::{Images, KernelRecord, ModuleHandle, ModuleState, SessionState, VariableState};
use crate::textures::TextureState;
use crate::{lock, read};
use backend::{Range, StreamArg};
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::{ContextId, CuError, EventId};

/// Larger variables are objects of their own in an image.
pub(crate) const INLINE_VARIABLE: u64 = 256 << 10;

impl Session {
    /// What there is to capture: the session's state, but for the contents of variables, and the code images it names.
    ///
    /// # Errors
    /// The backend's, from reading the time line.
    pub fn cut(&self) -> backend::Result<Cut> {
        let times = self.time_line()?;
        let (graphs, divided) = self.graph_records();
        let heaps = self.heaps();
        let virtual_memory = lock(&self.virtual_memory).state();
        let shared: Vec<_> = read(&self.table).events.values().filter_map(|event| event.share()).collect();
        let sharing =
            self.sharing_state(&virtual_memory, shared.into_iter()).map_err(|failure| failure.code)?;
        let table = read(&self.table);
        let modules = table.loaded_modules();
        let mut images = Images::new();
        for image in modules
            .iter()
            .map(|module| &module.image)
            .chain(table.libraries.values().map(|library| &library.image))
            .chain(table.tombstones.iter().map(|tombstone| &tombstone.image))
        {
            images.insert(image.hash, Arc::clone(image));
        }
        let (slabs, pinned) = {
            let pinned = lock(&self.pinned);
            (pinned.slabs().collect(), pinned.records().collect())
        };
        let state = SessionState {
            layout: self.config.layout,
            turn: self.placer.next(),
            arenas: self.devices.iter().map(crate::memory::DeviceMemory::state).collect(),
            virtual_memory,
            pools: self.devices.iter().flat_map(crate::memory::DeviceMemory::pools).collect(),
            contexts: table
                .contexts
                .values()
                .map(|ctx| (ctx.record.clone(), lock(&ctx.settings).clone()))
                .collect(),
            greens: table.greens.values().map(|green| green.record.clone()).collect(),
            streams: table
                .streams
                .values()
                .map(|stream| stream.record.clone())
                .filter(|record| !matches!(record.key, StreamKey::Legacy(_)))
                .collect(),
            events: table
                .events
                .iter()
                .map(|(id, event)| {
                    (event.state(), times.get(id).copied().unwrap_or_else(|| event.recorded()))
                })
                .collect(),
            modules: modules.iter().map(module_state).collect(),
            tombstones: table.tombstones.iter().map(|t| (t.record.clone(), t.unloaded)).collect(),
            module_ids: table
                .modules
                .iter()
                .map(|(id, module)| ModuleHandle {
                    id: *id,
                    owner: module.record.owner,
                    ctx: module.record.ctx,
                })
                .collect(),
            functions: function_records(&table),
            libraries: table
                .libraries
                .values()
                .map(|library| (library.record.clone(), lock(&library.managed).clone()))
                .collect(),
            kernels: table
                .kernels
                .values()
                .map(|kernel| KernelRecord {
                    id: kernel.id,
                    library: kernel.library.record.id,
                    name: kernel.name.clone(),
                })
                .collect(),
            graphs,
            slabs,
            pinned,
            shadows: self.shadows.records(),
            stream_attributes: table
                .streams
                .values()
                .flat_map(|stream| {
                    let set = lock(&stream.attributes).clone();
                    set.into_iter().map(|(id, value)| (stream.record.key, id, value.0.to_vec()))
                })
                .collect(),
            textures: TextureState::of(&table),
            heaps,
            conditions: ConditionState::of(&table),
            sharing,
            output: self.unsent_output(),
            excluded: self.excluded(),
            half_way: self.half_way_records(),
            divided,
        };
        Ok(Cut { state, images })
    }

    /// Device memory whose contents are not saved.
    fn excluded(&self) -> Vec<Range> {
        let in_arenas: Vec<_> = self.devices.iter().map(crate::memory::DeviceMemory::excluded).collect();
        let mapped = lock(&self.virtual_memory);
        in_arenas.iter().chain([mapped.excluded()]).flat_map(crate::memory::Excluded::all).collect()
    }

    /// When each event was recorded, counted back from now.
    fn time_line(&self) -> backend::Result<BTreeMap<EventId, Recorded>> {
        let mut by_context: BTreeMap<ContextId, Vec<Arc<Event>>> = BTreeMap::new();
        let contexts = {
            let table = read(&self.table);
            for event in table.events.values().filter(|event| event.recorded() != Recorded::Never) {
                by_context.entry(event.record.ctx).or_default().push(Arc::clone(event));
            }
            table.contexts.clone()
        };
        let mut times = BTreeMap::new();
        for (id, events) in by_context {
            let Some(ctx) = contexts.get(&id) else { continue };
            let now = self.backend().event_create(ctx.raw, 0)?;
            let read = self.backend().event_record(ctx.raw, now, StreamArg::Legacy, 0).and_then(|()| {
                self.backend().event_synchronize(ctx.raw, now)?;
                let elapsed = |from: backend::RawEvent, to: backend::RawEvent| {
                    self.backend().event_elapsed(from, to).map(f64::from)
                };
                let since_restart = match ctx.epoch.get() {
                    Some(epoch) => elapsed(*epoch, now)?,
                    None => 0.0,
                };
                let mut live = Vec::new();
                for event in &events {
                    match event.recorded() {
                        Recorded::Before(ms) => {
                            times.insert(event.record.id, Recorded::Before(ms + since_restart));
                        }
                        Recorded::Live if event.is_timed() => live.push((elapsed(event.raw, now)?, event)),
                        // No time is ever asked of it.
                        Recorded::Live | Recorded::Never => {
                            times.insert(event.record.id, Recorded::Before(0.0));
                        }
                    }
                }
                // From the newest to the oldest, so that each step is short enough for a single's precision.
                live.sort_by(|(a, _), (b, _)| a.total_cmp(b));
                let (mut total, mut newer) = (0.0, now);
                for (_, event) in live {
                    total += elapsed(event.raw, newer)?;
                    newer = event.raw;
                    times.insert(event.record.id, Recorded::Before(total));
                }
                Ok::<(), CuError>(())
            });
            self.backend().event_destroy(ctx.raw, now)?;
            read?;
        }
        Ok(times)
    }
}

fn module_state(module: &Arc<Module>) -> ModuleState {
    let told = module.told_globals();
    let mut variables: BTreeMap<String, VariableState> = BTreeMap::new();
    for name in module.saved_variables().chain(told.iter().map(String::as_str)) {
        // A variable that the loaded code does not have has no contents.
        if let Ok(range) = module.place_of(name) {
            let told = told.contains(name);
            let name = name.to_owned();
            variables.insert(name.clone(), VariableState { name, range, told, contents: None });
        }
    }
    ModuleState {
        record: module.record.clone(),
        settings: lock(&module.settings).clone(),
        variables: variables.into_values().collect(),
    }
}

fn function_records(table: &Table) -> Vec<FunctionRecord> {
    table
        .functions
        .iter()
        .map(|(id, function)| FunctionRecord {
            id: *id,
            owner: function.module.record.owner,
            ctx: function.module.record.ctx,
            name: function.name.clone(),
        })
        .collect()
}
