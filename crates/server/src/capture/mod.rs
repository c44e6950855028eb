//! Taking a session into an image, in two steps. [`Session::capture`], while the gate is closed and the device idle: the state, and device
//! memory, which is copied to where there is room for it. [`Taken::write`], later and beside the application's work: what was copied,
//! and the state, into the store. What finds no room is written at once. The first step can be [begun](Session::begin_capture) while the application
//! may still write managed memory. (`docs/capture.md`)

mod begun;
mod changes;
mod copies;
mod hash;
mod pieces;
mod places;
mod shortage;

pub use begun::{Begun, Written};
pub(crate) use changes::{Changes, PTX};
pub(crate) use copies::{DeviceCopies, LEFT_TO_OTHERS};
pub use places::{CopyBudget, CopyRoom, DeviceSet};

use self::changes::{Hashes, Span, relative};
use self::pieces::{Piece, clear_dead, pieces};
use self::places::{Part, Place, Planned, places};
use self::shortage::Shortage;
use crate::failure::Failure;
use crate::memory::{Excluded, Packed, PhysicalRecord, Views};
use crate::objects::Context;
use crate::session::Session;
use crate::snapshot::INLINE_VARIABLE;
use crate::stand_in::StandIns;
use crate::state::{Images, SessionState, StateError};
use crate::transfer::{Readers, Source, TransferError, await_marker};
use crate::{lock, read};
use backend::{Backend, Range, StreamArg};
use image::{DeviceFacts, DeviceOrdinal, MemoryKind, ObjectKind, SessionId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use store::{ChunkWriter, ObjectWriter, Receipt, WriteError};
use thiserror::Error;
use wire::{ContextId, CuError};

/// A device that has not even so much room gets no copies, bytes.
const LEAST: u64 = 64 << 20;

/// Why a session was not captured; it goes on as before.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] WriteError),
    /// Device memory could not be read.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// The state could not be encoded.
    #[error(transparent)]
    State(#[from] StateError),
    /// Memory that the application maps itself could not be made readable.
    #[error("memory that the program maps itself cannot be read: {0}")]
    Virtual(Failure),
    /// Memory on a device of which the program has no context, nor could one be made to read it in.
    #[error("device {0} has memory of the program's and no context, and making one to read it failed: {1}")]
    NoContext(usize, Failure),
}

impl CaptureError {
    /// With what the device has failed for good, if that is why: a kernel of the program has.
    #[must_use]
    pub fn device_failure(&self) -> Option<CuError> {
        let transfer = match self {
            Self::Transfer(error) => Some(error),
            Self::Store(WriteError::Source { error, .. }) => error.get_ref()?.downcast_ref::<TransferError>(),
            _ => None,
        };
        transfer?.code().filter(|code| code.is_sticky())
    }

    /// Whether the store is at fault.
    #[must_use]
    pub fn is_of_the_store(&self) -> bool {
        matches!(self, Self::Store(error) if !matches!(error, WriteError::Source { .. }))
    }
}

/// A session at the cut.
pub struct Cut {
    /// Its state.
    pub state: SessionState,
    /// The code images the state names.
    pub images: Images,
}

impl Cut {
    /// Bytes of device memory that a capture reads.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let inline: u64 = inline_variables(&self.state).map(|range| range.bytes).sum();
        let arrays = self.state.textures.bytes();
        let own = |record: &&PhysicalRecord| !self.state.sharing.is_foreign(record.share);
        let physical: u64 =
            self.state.virtual_memory.physical.iter().filter(own).map(|each| each.bytes).sum();
        inline
            + arrays
            + physical
            + pieces(&self.state, &Excluded::default()).iter().map(|piece| piece.range.bytes).sum::<u64>()
    }
}

/// What of device memory a capture reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reads {
    /// All of it: the same run goes on with that, and what the program has excluded is its own in it.
    Everything,
    /// What is not excluded.
    Saved,
    /// Of that, what is not as it was at the last checkpoint, by its hash, nor zero.
    Changed,
}

/// Where device memory was when the application went on, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Kept {
    /// In copies on the device.
    pub on_device: u64,
    /// In copies in the host's memory.
    pub on_host: u64,
    /// In the store already, or in the session's state.
    pub written: u64,
    /// Nowhere: zero, or as it was at the last checkpoint.
    pub unchanged: u64,
    /// Nowhere: whole chunks that the program has excluded.
    #[serde(default)]
    pub excluded: u64,
}

impl Kept {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> u64 {
        [self.on_host, self.written, self.unchanged, self.excluded]
            .into_iter()
            .fold(self.on_device, u64::saturating_add)
    }
}

impl std::ops::AddAssign for Kept {
    fn add_assign(&mut self, other: Self) {
        self.on_device = self.on_device.saturating_add(other.on_device);
        self.on_host = self.on_host.saturating_add(other.on_host);
        self.written = self.written.saturating_add(other.written);
        self.unchanged = self.unchanged.saturating_add(other.unchanged);
        self.excluded = self.excluded.saturating_add(other.excluded);
    }
}

/// A session as it was at the cut, of which something may not be in the store yet.
pub struct Taken {
    session: SessionId,
    state: SessionState,
    images: Images,
    /// The devices of the session.
    pub devices: Vec<DeviceFacts>,
    /// Where its device memory is.
    pub kept: Kept,
    copied: Vec<Copied>,
    on_devices: OnDevices,
    room: CopyRoom,
    hashes: Hashes,
}

/// What a capture has seen, to be compared with at the next.
pub struct Remembered(Hashes);

/// The copies on devices, which end with this.
#[derive(Default)]
struct OnDevices(BTreeMap<usize, Arc<DeviceCopies>>);

impl Drop for OnDevices {
    fn drop(&mut self) {
        self.0.values().for_each(|copies| copies.end());
    }
}

/// An object, or the first part of one, of which the bytes are in copies.
struct Copied {
    kind: ObjectKind,
    range: Range,
    /// What of it is not written as zeros, if not all.
    live: Option<Vec<Range>>,
    ctx: Arc<Context>,
    spans: Vec<Span>,
    /// Where what is read lies, from front to back.
    parts: Vec<Part>,
    /// Chunks that were not read until something was written into them, by where they begin: they are in no part.
    late: BTreeMap<u64, Vec<u8>>,
}

/// Contexts in whose legacy streams copies are under way: nothing that they read or write may go before they are complete.
struct UnderWay<'a> {
    backend: &'a dyn Backend,
    contexts: BTreeMap<ContextId, Arc<Context>>,
}

impl<'a> UnderWay<'a> {
    fn on(backend: &'a dyn Backend) -> Self {
        Self { backend, contexts: BTreeMap::new() }
    }

    fn in_context(&mut self, ctx: &Arc<Context>) {
        self.contexts.entry(ctx.id()).or_insert_with(|| Arc::clone(ctx));
    }

    /// Waits for all of them.
    fn finish(&mut self) -> backend::Result<()> {
        for ctx in self.contexts.values() {
            await_marker(&ctx.mark(StreamArg::Legacy)?)?;
        }
        self.contexts.clear();
        Ok(())
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        // Where some failed, those before them may still run.
        for ctx in self.contexts.values() {
            if let Err(error) = self.backend.context_synchronize(ctx.raw) {
                tracing::debug!(%error, "copies ended with their context");
            }
        }
    }
}

/// What has been copied, and what has not.
struct Copies {
    copied: Vec<Copied>,
    on_devices: OnDevices,
    kept: Kept,
    left: Vec<Item>,
}

/// Something that becomes an object, or what is left of it.
struct Item {
    ctx: Arc<Context>,
    kind: ObjectKind,
    content: Content,
    live: Option<Vec<Range>>,
    /// From which byte on.
    at: u64,
    spans: Vec<Span>,
}

/// What is in an object.
#[derive(Clone)]
enum Content {
    Memory(Range),
    Array(Packed),
}

impl Item {
    fn new(ctx: Arc<Context>, kind: ObjectKind, content: Content, live: Option<Vec<Range>>) -> Self {
        let mut item = Self { ctx, kind, content, live, at: 0, spans: Vec::new() };
        let live = item.live.as_ref().map(|_| item.live_within());
        item.spans = Span::of(item.source().bytes(), live.as_deref());
        item
    }

    fn source(&self) -> Source<'_> {
        match &self.content {
            Content::Memory(range) => Source::Memory(*range),
            Content::Array(packed) => Source::Array(packed),
        }
    }

    /// What of it is live, from its first byte on.
    fn live_within(&self) -> Vec<Range> {
        self.live.iter().flatten().map(|live| relative(*live, self.range())).collect()
    }

    fn planned(&self) -> Planned {
        Planned { device: self.ctx.device(), bytes: self.reads().map(|(_, bytes)| bytes).sum() }
    }

    /// Takes away what comes after so many bytes that are read, where a chunk begins.
    fn split_off(&mut self, reads: u64) -> Self {
        let rest = Span::split_off(&mut self.spans, reads);
        let at = self.at + self.spans.iter().map(Span::bytes).sum::<u64>();
        let Self { ctx, kind, content, live, .. } = &*self;
        let (ctx, kind, content, live) = (Arc::clone(ctx), kind.clone(), content.clone(), live.clone());
        Self { ctx, kind, content, live, at, spans: rest }
    }

    /// What is to be read: from which byte on, and how many.
    fn reads(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        Span::reads(&self.spans)
    }

    /// Its range; an array's bytes count from 0.
    fn range(&self) -> Range {
        match &self.content {
            Content::Memory(range) => *range,
            Content::Array(packed) => Range { base: 0, bytes: packed.bytes() },
        }
    }
}

impl Session {
    /// Takes the session, which has not changed since `cut`, as number `session` of an image. What finds no place in `room` is written to
    /// `writer` at once; the rest is [`Taken::write`]'s. What `reads` leaves out is not read.
    ///
    /// # Errors
    /// [`CaptureError`].
    pub fn capture(
        &self,
        cut: &Cut,
        session: u32,
        writer: &ChunkWriter,
        room: CopyRoom,
        reads: Reads,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Taken, CaptureError> {
        let begun = self.begin_capture(cut, session, writer, room, reads)?;
        self.finish_capture(begun, &Written::default(), writer, progress)
    }

    /// Begins to take the session: what finds a place in `room` is copied, and nothing is written. The application may go on touching managed memory, and what of
    /// that changes from now on is for [`Self::finish_capture`].
    ///
    /// # Errors
    /// [`CaptureError`].
    pub fn begin_capture(
        &self,
        cut: &Cut,
        session: u32,
        writer: &ChunkWriter,
        room: CopyRoom,
        reads: Reads,
    ) -> Result<Begun, CaptureError> {
        let (state, session) = (cut.state.clone(), SessionId(session.into()));
        let views = lock(&self.virtual_memory).views().map_err(CaptureError::Virtual)?;
        let (in_arenas, of_pieces) = match reads {
            Reads::Everything => Default::default(),
            Reads::Saved | Reads::Changed => self.excluded_of(&state),
        };
        let mut contexts = StandIns::of(self);
        let mut items = memory_items(&state, session, &views, (&in_arenas, &of_pieces), &mut contexts)?;
        for (ctx, packed) in self.packed_arrays() {
            let kind = kind(session, ctx.device(), MemoryKind::Array, packed.handle);
            // In the array's own context: no other's stream is in order with its copies.
            items.push(Item::new(ctx, kind, Content::Array(packed), None));
        }
        let excluded: u64 = items.iter().map(|item| left_out(item, &in_arenas, &of_pieces)).sum();
        let hashes = self.compare(&mut items, (reads == Reads::Changed).then_some(writer));
        let all: u64 = items.iter().map(|item| item.source().bytes()).sum();
        let changed: u64 = items.iter().map(|item| item.planned().bytes).sum();
        let Copies { copied, on_devices, mut kept, left } = self.copy(&room, items)?;
        kept.excluded = excluded;
        kept.unchanged = all - changed - excluded;
        let (images, devices) = (cut.images.clone(), self.used_devices());
        let taken = Taken { session, state, images, devices, kept, copied, on_devices, room, hashes };
        Ok(Begun { taken, left, views })
    }

    /// To be called when a capture's objects are in the store.
    pub fn remember(&self, seen: Remembered, receipt: &Receipt) {
        self.changes.remember(seen.0, receipt.objects.iter());
    }

    /// Has the next checkpoint read what has changed since the image only from which the session's memory has just been filled; nobody has had it yet.
    ///
    /// # Errors
    /// [`CaptureError`]; the next checkpoint reads all then.
    pub(crate) fn remember_image(
        &self,
        state: &SessionState,
        session: SessionId,
        image: &store::Image,
    ) -> Result<(), CaptureError> {
        let views = lock(&self.virtual_memory).views().map_err(CaptureError::Virtual)?;
        let (in_arenas, of_pieces) = self.excluded_of(state);
        let mut contexts = StandIns::of(self);
        let mut items = memory_items(state, session, &views, (&in_arenas, &of_pieces), &mut contexts)?;
        let hashes = self.compare(&mut items, None);
        let objects = image.manifest().objects.iter();
        self.changes.remember(hashes, objects.filter(|object| is_memory_of(&object.kind, session)));
        Ok(())
    }

    /// What the program has excluded: of arenas, and of each piece of memory that it maps itself.
    fn excluded_of(&self, state: &SessionState) -> (Excluded, BTreeMap<u64, Excluded>) {
        (Excluded::of_state(&state.excluded), lock(&self.virtual_memory).excluded_of_pieces())
    }

    /// Copies what finds room, and waits for the copies.
    fn copy(&self, room: &CopyRoom, items: Vec<Item>) -> Result<Copies, CaptureError> {
        let backend = &self.placer.backend;
        let planned: Vec<Planned> = items.iter().map(Item::planned).collect();
        let mut budgets = self.budgets(room, &items);
        let (planned, on_devices) = loop {
            let planned = places(&planned, &budgets, &room.slices());
            match self.make_copies(&planned, &items) {
                Ok(copies) => break (planned, copies),
                // The device has less than it said.
                Err(full) => match budgets.get_mut(&full).filter(|budget| **budget > LEAST) {
                    Some(budget) => *budget /= 2,
                    None => drop(budgets.remove(&full)),
                },
            }
        };
        room.begin();
        let mut copies = Copies { copied: Vec::new(), on_devices, kept: Kept::default(), left: Vec::new() };
        let mut under_way = UnderWay::on(&**backend);
        for (mut item, parts) in items.into_iter().zip(planned) {
            let placed = parts.iter().map(|(bytes, _)| bytes).sum();
            if placed < item.planned().bytes {
                // An array is read whole.
                let kept = if matches!(item.content, Content::Memory(_)) { placed } else { 0 };
                copies.left.push(item.split_off(kept));
                if item.spans.is_empty() {
                    continue;
                }
            }
            under_way.in_context(&item.ctx);
            for (first, bytes, place) in pair(item.reads(), &parts) {
                match place {
                    Place::Device(_) => copies.kept.on_device += bytes,
                    Place::Host(..) => copies.kept.on_host += bytes,
                }
                let to = self.address_of(place, item.ctx.device(), room);
                let source = item.source();
                let copied = source.read(&**backend, (&item.ctx, StreamArg::Legacy), first, bytes, to);
                copied.map_err(|code| source.failed(code))?;
            }
            let range = item.range();
            let Item { ctx, kind, live, spans, .. } = item;
            copies.copied.push(Copied { kind, range, live, ctx, spans, parts, late: BTreeMap::new() });
        }
        under_way.finish().map_err(|code| CaptureError::Transfer(TransferError::Copies(code)))?;
        Ok(copies)
    }

    /// Where a place is to which something of a device is copied.
    fn address_of(&self, place: Place, device: usize, room: &CopyRoom) -> u64 {
        match place {
            Place::Device(offset) => self.config.layout.copies(device).base + offset,
            Place::Host(slice, offset) => room.base(slice) + offset,
        }
    }

    /// Puts the contents of small variables into the state.
    fn read_variables(
        &self,
        state: &mut SessionState,
        readers: &mut Readers<'_>,
    ) -> Result<u64, CaptureError> {
        let mut bytes = 0;
        let contexts = read(&self.table).contexts.clone();
        for (id, ctx) in contexts {
            let modules = state.modules.iter_mut().filter(|module| module.record.ctx == id);
            let small = modules
                .flat_map(|module| &mut module.variables)
                .filter(|variable| variable.range.bytes <= INLINE_VARIABLE);
            for variable in small {
                variable.contents = Some(readers.of(&ctx)?.read(variable.range)?);
                bytes += variable.range.bytes;
            }
        }
        Ok(bytes)
    }

    /// The devices that the session uses, as an image records them.
    #[must_use]
    pub fn used_devices(&self) -> Vec<DeviceFacts> {
        let backend = self.backend();
        let mut used: BTreeSet<usize> = read(&self.table).contexts.values().map(|ctx| ctx.device()).collect();
        used.extend(lock(&self.virtual_memory).pieces().map(|record| record.device as usize));
        let devices = backend.devices().iter().enumerate().filter(|(device, _)| used.contains(device));
        devices
            .map(|(ordinal, facts)| DeviceFacts {
                ordinal: DeviceOrdinal(ordinal as u32),
                backend: backend.kind().to_owned(),
                name: facts.name.clone(),
                uuid: facts.uuid,
                compute_capability: crate::facts::compute_capability(facts),
                total_memory: facts.total_memory,
                driver_version: u32::try_from(backend.driver_version()).unwrap_or(0),
            })
            .collect()
    }
}

fn kind(session: SessionId, device: usize, memory: MemoryKind, base: u64) -> ObjectKind {
    ObjectKind::DeviceMemory { session, device: DeviceOrdinal(device as u32), memory, base }
}

/// Whether it is device memory of a session.
pub(crate) fn is_memory_of(kind: &ObjectKind, session: SessionId) -> bool {
    matches!(kind, ObjectKind::DeviceMemory { session: of, .. } if *of == session)
}

/// What of device memory becomes objects, but for arrays.
fn memory_items(
    state: &SessionState,
    session: SessionId,
    views: &Views,
    (in_arenas, of_pieces): (&Excluded, &BTreeMap<u64, Excluded>),
    contexts: &mut StandIns<'_>,
) -> Result<Vec<Item>, CaptureError> {
    // What another session owns is in its part of the image.
    let foreign = |record: &&PhysicalRecord| state.sharing.is_foreign(record.share);
    let foreign: BTreeSet<u64> =
        state.virtual_memory.physical.iter().filter(foreign).map(|record| record.id.handle()).collect();
    let own_views = views.all.iter().filter(|view| !foreign.contains(&view.handle));
    let own_views = own_views.map(|view| Piece::of_view(view, of_pieces.get(&view.handle)));
    let item = |Piece { device, kind: memory, name, range, live }| {
        let ctx = contexts.on(device).map_err(|failure| CaptureError::NoContext(device, failure))?;
        Ok(Item::new(ctx, kind(session, device, memory, name), Content::Memory(range), Some(live)))
    };
    pieces(state, in_arenas).into_iter().chain(own_views).map(item).collect()
}

impl Taken {
    /// Launches of marked kernels that are half-way.
    pub(crate) fn half_way(&self) -> u64 {
        self.state.half_way.len() as u64
    }

    /// The state's bytes, as a rehearsal needs them.
    ///
    /// # Errors
    /// [`CaptureError::State`].
    pub fn state(&self) -> Result<Vec<u8>, CaptureError> {
        Ok(self.state.to_bytes(&self.images)?)
    }

    /// Writes what is not in the store yet. Gives what [`Session::remember`] needs. `progress` is told of each piece how many
    /// bytes it has, and may stop it.
    ///
    /// # Errors
    /// [`CaptureError`].
    pub fn write(
        self,
        writer: &ChunkWriter,
        progress: &mut dyn FnMut(u64) -> std::io::Result<()>,
    ) -> Result<Remembered, CaptureError> {
        self.on_devices.0.values().for_each(|copies| copies.make_ready());
        let mut shortage = Shortage::new(self.kept.on_host, writer);
        for copied in &self.copied {
            let mut before = 0;
            write(
                writer.object(copied.kind.clone()),
                (copied.range, copied.live.as_deref()),
                &copied.spans,
                &mut |object, offset, bytes, clear| {
                    let late = copied.late.get(&offset);
                    object.fill(bytes, |within, room| {
                        match late {
                            Some(chunk) => fill_from(chunk, room)?,
                            None => self.read(copied, before + within, room)?,
                        }
                        clear(offset + within, room);
                        shortage.look()?;
                        progress(room.len() as u64)
                    })?;
                    before += if late.is_some() { 0 } else { bytes };
                    Ok(())
                },
            )?;
        }
        writer.put(ObjectKind::SessionState { session: self.session }, &self.state()?)?;
        Ok(Remembered(self.hashes))
    }

    /// Fills `room`, a chunk at most, with what is copied from `offset` of it on, where a chunk begins.
    fn read(&self, copied: &Copied, offset: u64, room: &mut [u8]) -> std::io::Result<()> {
        let mut within = offset;
        let found = copied.parts.iter().find(|(bytes, _)| match within.checked_sub(*bytes) {
            Some(behind) => {
                within = behind;
                false
            }
            None => true,
        });
        match found {
            Some((_, Place::Device(from))) => match self.on_devices.0.get(&copied.ctx.device()) {
                Some(copies) => Ok(copies.read(from + within, room)?),
                None => Err(std::io::ErrorKind::NotFound.into()),
            },
            Some((_, Place::Host(slice, from))) => self.room.read(*slice, from + within, room),
            None => Err(std::io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Fills all of `room` from the front of these bytes.
fn fill_from(bytes: &[u8], room: &mut [u8]) -> std::io::Result<()> {
    room.copy_from_slice(bytes.get(..room.len()).ok_or(std::io::ErrorKind::UnexpectedEof)?);
    Ok(())
}

/// Adds so many bytes, from this one of the object on, after clearing what is not live.
type Fill<'a> =
    dyn FnMut(&mut ObjectWriter<'_>, u64, u64, &dyn Fn(u64, &mut [u8])) -> Result<(), WriteError> + 'a;

/// Writes an object, or a part of one: what of it is to be read as `fill` does; what is not live as zeros.
fn write(
    mut object: ObjectWriter<'_>,
    (range, live): (Range, Option<&[Range]>),
    spans: &[Span],
    fill: &mut Fill<'_>,
) -> Result<(), WriteError> {
    let clear = |offset: u64, room: &mut [u8]| {
        if let Some(live) = live {
            let bytes = room.len() as u64;
            clear_dead(Range { base: range.base + offset, bytes }, live, room);
        }
    };
    for span in spans {
        match *span {
            Span::Known(extent) => object.known(extent)?,
            Span::Read { offset, bytes } => fill(&mut object, offset, bytes, &clear)?,
        }
    }
    object.finish()
}

/// How many bytes of an item are not read because they are excluded; those of pieces of memory are counted from each one's beginning.
fn left_out(item: &Item, in_arenas: &Excluded, of_pieces: &BTreeMap<u64, Excluded>) -> u64 {
    let ObjectKind::DeviceMemory { memory, base, .. } = item.kind else { return 0 };
    let (excluded, mut at) = match memory {
        MemoryKind::Physical => (of_pieces.get(&base), 0),
        _ => (Some(in_arenas), item.range().base),
    };
    let mut bytes = 0;
    for span in &item.spans {
        let here = Range { base: at, bytes: span.bytes() };
        at += here.bytes;
        if let (Span::Known(_), Some(excluded)) = (span, excluded) {
            bytes += excluded.of(here).iter().map(|part| part.bytes).sum::<u64>();
        }
    }
    bytes
}

/// What is read, from which byte on and how many each, put into parts: from which byte on, how many, and where to.
fn pair(reads: impl Iterator<Item = (u64, u64)>, parts: &[Part]) -> Vec<(u64, u64, Place)> {
    let mut paired = Vec::new();
    let mut parts = parts.iter().copied();
    let mut part = parts.next();
    for (mut offset, mut left) in reads {
        while let Some((room, place)) = part.filter(|_| left > 0) {
            let bytes = room.min(left);
            paired.push((offset, bytes, place));
            (offset, left) = (offset + bytes, left - bytes);
            part = if room > bytes { Some((room - bytes, place.further(bytes))) } else { parts.next() };
        }
    }
    paired
}

fn inline_variables(state: &SessionState) -> impl Iterator<Item = Range> + '_ {
    let variables = state.modules.iter().flat_map(|module| &module.variables);
    variables.map(|variable| variable.range).filter(|range| range.bytes <= INLINE_VARIABLE)
}

/// Room for a state and its images, bytes: more is refused before it is read.
pub(crate) const STATE_MAX: usize = 16 << 30;
