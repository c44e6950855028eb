//! Writing a session into an image: device memory, then the state. The gate is closed and the device idle.

use crate::failure::Failure;
use crate::heaps::HeapRecord;
use crate::memory::arena::BlockState;
use crate::memory::{PhysicalRecord, View};
use crate::session::Session;
use crate::snapshot::INLINE_VARIABLE;
use crate::stand_in::StandIns;
use crate::state::{Images, SessionState, StateError};
use crate::transfer::{Readers, Source, TransferError};
use crate::{lock, read};
use backend::Range;
use image::{DeviceFacts, DeviceOrdinal, MemoryKind, ObjectKind, SessionId};
use std::collections::BTreeSet;
use store::{ChunkWriter, WriteError};
use thiserror::Error;

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
        inline + arrays + physical + pieces(&self.state).iter().map(|piece| piece.range.bytes).sum::<u64>()
    }
}

/// What was captured.
pub struct Captured {
    /// Bytes of device memory.
    pub bytes: u64,
    /// The state object's bytes, as a rehearsal needs them.
    pub state: Vec<u8>,
    /// The devices of the session.
    pub devices: Vec<DeviceFacts>,
}

/// A piece of device memory that becomes an object.
struct Piece {
    device: usize,
    kind: MemoryKind,
    /// What the object is called: its address, or its handle.
    name: u64,
    range: Range,
    /// What in it is live; the rest is written as zeros.
    live: Vec<Range>,
}

impl Piece {
    /// Memory that the application maps itself, whole.
    fn of_view(view: &View) -> Self {
        let View { handle, device, range } = *view;
        Self { device, kind: MemoryKind::Physical, name: handle, range, live: vec![range] }
    }
}

impl Session {
    /// Writes the session, which has not changed since `cut`, as number `session` into a draft.
    ///
    /// # Errors
    /// [`CaptureError`].
    pub fn capture(
        &self,
        cut: &Cut,
        session: u32,
        writer: &ChunkWriter,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Captured, CaptureError> {
        let mut state = cut.state.clone();
        let session_id = SessionId(session.into());
        let mut pieces = pieces(&state);
        let views = lock(&self.virtual_memory).views().map_err(CaptureError::Virtual)?;
        // What another session owns is in its part of the image.
        let foreign = |record: &&PhysicalRecord| state.sharing.is_foreign(record.share);
        let foreign: BTreeSet<u64> =
            state.virtual_memory.physical.iter().filter(foreign).map(|record| record.id.handle()).collect();
        pieces.extend(views.all.iter().filter(|view| !foreign.contains(&view.handle)).map(Piece::of_view));
        let mut done = 0;
        let mut contexts = StandIns::of(self);
        let mut readers = Readers::new(&self.placer.backend);
        for piece in &pieces {
            let ctx = contexts.on(piece.device);
            let ctx = ctx.map_err(|failure| CaptureError::NoContext(piece.device, failure))?;
            let mut read = readers.of(&ctx)?.begin(Source::Memory(piece.range));
            let mut object = writer.object(ObjectKind::DeviceMemory {
                session: session_id,
                device: DeviceOrdinal(piece.device as u32),
                memory: piece.kind,
                base: piece.name,
            });
            object.fill(piece.range.bytes, |offset, room| {
                read.next(room)?;
                let bytes = room.len() as u64;
                clear_dead(Range { base: piece.range.base + offset, bytes }, &piece.live, room);
                done += bytes;
                progress(done);
                Ok(())
            })?;
            object.finish()?;
        }
        for (ctx, packed) in self.packed_arrays() {
            let device = ctx.device();
            // Of the array's own context: no other's stream is in order with its copies.
            let mut read = readers.of(&ctx)?.begin(Source::Array(&packed));
            let mut object = writer.object(ObjectKind::DeviceMemory {
                session: session_id,
                device: DeviceOrdinal(device as u32),
                memory: MemoryKind::Array,
                base: packed.handle,
            });
            object.fill(packed.bytes(), |_, room| {
                read.next(room)?;
                done += room.len() as u64;
                progress(done);
                Ok(())
            })?;
            object.finish()?;
        }
        done += self.read_variables(&mut state, &mut readers)?;
        progress(done);
        let bytes = state.to_bytes(&cut.images)?;
        writer.put(ObjectKind::SessionState { session: session_id }, &bytes)?;
        Ok(Captured { bytes: done, state: bytes, devices: self.image_facts(&state) })
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
    fn image_facts(&self, state: &SessionState) -> Vec<DeviceFacts> {
        let backend = self.backend();
        let of_contexts = state.contexts.iter().map(|(ctx, _)| ctx.device);
        let of_memory = state.virtual_memory.physical.iter().map(|record| record.device);
        let used: BTreeSet<_> = of_contexts.chain(of_memory).map(|device| device as usize).collect();
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

fn inline_variables(state: &SessionState) -> impl Iterator<Item = Range> + '_ {
    let variables = state.modules.iter().flat_map(|module| &module.variables);
    variables.map(|variable| variable.range).filter(|range| range.bytes <= INLINE_VARIABLE)
}

/// The pieces of device memory that become objects: each large allocation, each block that small ones share, each heap of kernels,
/// each large variable.
fn pieces(state: &SessionState) -> Vec<Piece> {
    let mut pieces = Vec::new();
    for (device, arena) in state.arenas.iter().enumerate() {
        let Some(arena) = arena else { continue };
        let mut live = arena.allocations.iter().map(|allocation| allocation.range).peekable();
        for BlockState { range: block, shared, .. } in &arena.blocks {
            let mut inside = Vec::new();
            while let Some(range) = live.next_if(|range| range.base < block.end()) {
                inside.push(range);
            }
            // Nothing behind the last live byte is worth an object's zeros.
            let Some(end) = inside.iter().map(|range| range.end()).max() else { continue };
            let range = Range { base: block.base, bytes: end - block.base };
            let live = if *shared { inside } else { vec![range] };
            pieces.push(Piece { device, kind: MemoryKind::Allocation, name: range.base, range, live });
        }
    }
    for record in state.sharing.owned_imports() {
        let (range, kind) = (record.range, MemoryKind::Allocation);
        pieces.push(Piece {
            device: record.device as usize,
            kind,
            name: range.base,
            range,
            live: vec![range],
        });
    }
    for HeapRecord { device, heap, .. } in &state.heaps {
        let Some(end) = heap.allocations.last().map(|last| last.end()) else { continue };
        let range = Range { base: heap.range.base, bytes: end.saturating_sub(heap.range.base) };
        let (device, kind, live) = (*device as usize, MemoryKind::Driver, heap.allocations.clone());
        pieces.push(Piece { device, kind, name: range.base, range, live });
    }
    for module in &state.modules {
        let of_context = state.contexts.iter().find(|(ctx, _)| ctx.id == module.record.ctx);
        let Some((ctx, _)) = of_context else { continue };
        for variable in module.variables.iter().filter(|variable| variable.range.bytes > INLINE_VARIABLE) {
            let (device, range) = (ctx.device as usize, variable.range);
            let kind = MemoryKind::Global;
            pieces.push(Piece { device, kind, name: range.base, range, live: vec![range] });
        }
    }
    pieces
}

/// Clears what of `room`, which holds the bytes of `range`, belongs to no live allocation, so that garbage costs nothing.
fn clear_dead(range: Range, live: &[Range], room: &mut [u8]) {
    let first = live.partition_point(|each| each.end() <= range.base);
    let mut at = range.base;
    let clear = |room: &mut [u8], from: u64, to: u64| {
        if let Some(dead) = room.get_mut((from - range.base) as usize..(to - range.base) as usize) {
            dead.fill(0);
        }
    };
    for each in live[first..].iter().take_while(|each| each.base < range.end()) {
        if each.base > at {
            clear(room, at, each.base);
        }
        at = at.max(each.end().min(range.end()));
    }
    clear(room, at, range.end());
}

/// Room for a state and its images, bytes: more is refused before it is read.
pub(crate) const STATE_MAX: usize = 16 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_live_bytes_are_kept() {
        let live =
            [Range { base: 100, bytes: 10 }, Range { base: 120, bytes: 5 }, Range { base: 140, bytes: 100 }];
        let mut room = vec![1; 50];
        clear_dead(Range { base: 105, bytes: 50 }, &live, &mut room);
        let kept: Vec<u64> = (0..50).filter(|i| room[*i as usize] == 1).map(|i| i + 105).collect();
        let expected: Vec<u64> = (105..110).chain(120..125).chain(140..155).collect();
        assert_eq!(kept, expected);
    }
}
