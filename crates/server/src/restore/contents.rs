//! What memory is to hold: what of it is filled before the program goes on, and what may come later.

use super::filling::{Filling, Part, Plan, Progress};
use super::proof::Checks;
use super::{RestoreError, Result, object};
use crate::buffers::BufferPool;
use crate::lock;
use crate::memory::Views;
use crate::objects::Context;
use crate::session::Session;
use crate::stand_in::StandIns;
use crate::state::SessionState;
use crate::transfer::{OwnStream, Target, TransferError, Writer};
use backend::Range;
use image::{DeviceOrdinal, MemoryKind, Object, ObjectKind, SessionId};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use store::Piece;
use wire::ContextId;

/// Whether whoever restores a session waits until its memory is filled.
#[derive(Clone, Copy)]
pub enum Patience<'a> {
    /// To the last byte, and hears now and then how many more are there.
    All(&'a (dyn Fn(u64) + Sync)),
    /// Only for what is seldom much, or what others than the session's messages can reach; whoever has the program go on waits for the rest.
    Some,
    /// The same, and nobody waits.
    Little,
}

impl Patience<'_> {
    fn tell(self, bytes: u64) {
        if let Self::All(progress) = self {
            progress(bytes);
        }
    }
}

/// Where an object's bytes go.
struct Place {
    ctx: Arc<Context>,
    range: Range,
    /// Whether nobody but this session's messages reaches it.
    private: bool,
}

/// Parts, and the streams in which they are written.
#[derive(Default)]
struct Parts {
    parts: Vec<Part>,
    streams: Vec<OwnStream>,
    /// Number of each context's stream.
    numbers: BTreeMap<ContextId, usize>,
}

impl Parts {
    /// Adds an object's.
    fn add(
        &mut self,
        place: &Place,
        (number, stored): (usize, &Object),
    ) -> std::result::Result<(), TransferError> {
        let stream = match self.numbers.get(&place.ctx.id()) {
            Some(known) => *known,
            None => {
                self.streams.push(OwnStream::of(&place.ctx)?);
                self.numbers.insert(place.ctx.id(), self.streams.len() - 1);
                self.streams.len() - 1
            }
        };
        self.parts.extend(stored.placed_extents().map(|(offset, extent)| {
            let range = Range { base: place.range.base + offset, bytes: extent.len() };
            Part { range, stream, object: number, offset, extent: *extent }
        }));
        Ok(())
    }

    fn plan(self, image: &store::Image, buffers: &Arc<BufferPool>, checks: Checks) -> Plan {
        let Self { parts, streams, .. } = self;
        Plan { image: image.clone(), buffers: Arc::clone(buffers), streams, parts, checks }
    }
}

impl Session {
    /// Reads memory's contents from the image, but for what may come later and is given back.
    pub(super) fn fill(
        &self,
        state: &SessionState,
        session: SessionId,
        image: &store::Image,
        patience: Patience<'_>,
    ) -> Result<Option<Plan>> {
        self.fill_variables(state)?;
        self.fill_arrays(session, image, patience)?;
        let mut contexts = StandIns::of(self);
        let views = lock(&self.virtual_memory).views();
        let views = views.map_err(object("memory that the program maps itself"))?;
        let late = !matches!(patience, Patience::All(_)) && !state.sharing.is_any();
        let (mut now, mut later) = (Parts::default(), Parts::default());
        for (number, stored) in image.manifest().objects.iter().enumerate() {
            if let Some(place) = self.place_of(stored, session, state, (&views, &mut contexts))? {
                let parts = if late && place.private { &mut later } else { &mut now };
                parts.add(&place, (number, stored))?;
            }
        }
        let mut told = 0;
        let checks = Checks::of(self.backend(), image, &now.parts);
        Filling::begin(now.plan(image, &self.buffers, checks)).finish(|Progress { done, .. }| {
            patience.tell(done - told);
            told = done;
        })?;
        let checks = match patience {
            // The program's kernels are there by then.
            Patience::Little => Checks::OnProcessor,
            Patience::All(_) | Patience::Some => Checks::of(self.backend(), image, &later.parts),
        };
        Ok((!later.parts.is_empty()).then(|| later.plan(image, &self.buffers, checks)))
    }

    /// Begins with what was left.
    pub(super) fn fill_later(&self, later: Option<Plan>) {
        if let Some(plan) = later {
            // A session is restored once.
            let _ = self.filling.set(Filling::begin(plan));
        }
    }

    /// Small variables of code, which the state has.
    fn fill_variables(&self, state: &SessionState) -> Result<()> {
        let mut writers = BTreeMap::new();
        for module in &state.modules {
            let ctx = self.context(module.record.ctx).map_err(object("a module's variables"))?;
            for variable in &module.variables {
                if let Some(contents) = &variable.contents {
                    let target = Target::Memory(variable.range.base);
                    Writers::of(&mut writers, &self.buffers, &ctx).write(target, Piece::Bytes(contents))?;
                }
            }
        }
        Ok(Writers::finish(writers)?)
    }

    fn fill_arrays(&self, session: SessionId, image: &store::Image, patience: Patience<'_>) -> Result<()> {
        let arrays = self.packed_arrays().into_iter();
        let mut arrays: BTreeMap<_, _> = arrays.map(|(ctx, packed)| (packed.handle, (ctx, packed))).collect();
        let mut writers = BTreeMap::new();
        for stored in &image.manifest().objects {
            let ObjectKind::DeviceMemory { session: of, memory: MemoryKind::Array, base, .. } = stored.kind
            else {
                continue;
            };
            if of != session {
                continue;
            }
            let array = arrays.remove(&base).filter(|(_, packed)| packed.bytes() == stored.len());
            let missing = || RestoreError::Dangling(format!("the contents of array {base:#x}"));
            let (ctx, packed) = array.ok_or_else(missing)?;
            let writers = &*Writers::of(&mut writers, &self.buffers, &ctx);
            image.for_each_piece(&stored.kind, |offset, piece| {
                writers.write(Target::Array(&packed, offset), piece)?;
                patience.tell(match piece {
                    Piece::Bytes(bytes) => bytes.len() as u64,
                    Piece::Zeros(bytes) => bytes,
                });
                Ok(())
            })?;
        }
        Writers::finish(writers)?;
        match arrays.keys().next() {
            None => Ok(()),
            Some(handle) => {
                Err(RestoreError::Dangling(format!("array {handle:#x}, whose contents it needs")))
            }
        }
    }

    /// Where the bytes of an object go, if it is device memory of this session and no array.
    fn place_of(
        &self,
        stored: &Object,
        session: SessionId,
        state: &SessionState,
        (views, contexts): (&Views, &mut StandIns<'_>),
    ) -> Result<Option<Place>> {
        let ObjectKind::DeviceMemory { session: of, device: DeviceOrdinal(device), memory, base } =
            stored.kind
        else {
            return Ok(None);
        };
        if of != session || memory == MemoryKind::Array {
            return Ok(None);
        }
        let device = device as usize;
        let range = Range { base, bytes: stored.len() };
        let view = views.all.iter().find(|view| memory == MemoryKind::Physical && view.handle == base);
        let view = view.filter(|view| view.range.bytes == range.bytes && view.device == device);
        let (range, private) = match view {
            Some(view) => (view.range, view.only),
            None if is_described(state, device, memory, range) => (range, memory == MemoryKind::Allocation),
            None => return Err(RestoreError::Dangling(format!("device memory {range}"))),
        };
        let ctx = contexts.on(device);
        let ctx = ctx.map_err(object(format!("a context to fill memory of device {device} in")))?;
        // A context of our own ends before the program goes on.
        let private = private && self.context_on(device).is_some();
        Ok(Some(Place { ctx, range, private }))
    }
}
/// Writers of one context, as many as there are threads at work at a time.
struct Writers<'a> {
    ctx: Arc<Context>,
    buffers: &'a Arc<BufferPool>,
    idle: Mutex<Vec<Writer>>,
}

impl<'a> Writers<'a> {
    /// Those of a context, among all that are made: registering their buffers takes time.
    fn of<'m>(
        made: &'m mut BTreeMap<ContextId, Self>,
        buffers: &'a Arc<BufferPool>,
        ctx: &Arc<Context>,
    ) -> &'m mut Self {
        let new = || Self { ctx: Arc::clone(ctx), buffers, idle: Mutex::default() };
        made.entry(ctx.id()).or_insert_with(new)
    }

    fn write(&self, target: Target<'_>, piece: Piece<'_>) -> std::result::Result<(), TransferError> {
        let spare = lock(&self.idle).pop();
        let mut writer = match spare {
            Some(writer) => writer,
            None => Writer::new(self.buffers, &self.ctx)?,
        };
        match piece {
            Piece::Bytes(bytes) => writer.write(target, bytes)?,
            Piece::Zeros(bytes) => writer.zeros(target, bytes)?,
        }
        lock(&self.idle).push(writer);
        Ok(())
    }

    /// Waits until everything is written.
    fn finish(made: BTreeMap<ContextId, Self>) -> std::result::Result<(), TransferError> {
        made.values().try_for_each(|writers| lock(&writers.idle).iter_mut().try_for_each(Writer::finish))
    }
}

/// Whether the state says that there is such memory.
fn is_described(state: &SessionState, device: usize, memory: MemoryKind, range: Range) -> bool {
    match memory {
        MemoryKind::Allocation => {
            let arena = state.arenas.get(device).and_then(Option::as_ref);
            let imported = state
                .sharing
                .owned_imports()
                .any(|record| record.device as usize == device && record.range == range);
            imported
                || arena.is_some_and(|arena| {
                    arena.blocks.iter().any(|block| block.range.contains(range.base, range.bytes))
                })
        }
        MemoryKind::Global => {
            let mut variables = state.modules.iter().flat_map(|module| &module.variables);
            variables.any(|variable| variable.range == range)
        }
        MemoryKind::Array | MemoryKind::Driver | MemoryKind::Physical => false,
    }
}
