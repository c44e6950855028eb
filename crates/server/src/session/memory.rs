//! Allocations, on the device and pinned.

use super::dispatch::Execute;
use super::wait::Backoff;
use super::{Caller, Session};
use crate::failure::{Failure, Result};
use crate::memory::arena::{ALIGNMENT, Allocation, SMALL_MAX};
use crate::memory::{DeviceMemory, PAGE, Room, ShadowRecord};
use crate::objects::{Marker, Stream, StreamKey};
use crate::{lock, read};
use backend::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use wire::{ContextId, CuError, PinnedPlace};

impl Session {
    pub(super) fn device_memory(&self, device: usize) -> Result<&DeviceMemory> {
        self.devices.get(device).ok_or_else(|| CuError::INVALID_DEVICE.into())
    }

    /// Makes something of `bytes` bytes for which the device library needs memory of the device itself. What the
    /// application has freed is there for it: a driver's `cuMemFree` would have waited for it, and so do we, now that it is needed.
    pub(super) fn with_room<T>(
        &self,
        device: usize,
        bytes: u64,
        mut make: impl FnMut() -> Result<T>,
    ) -> Result<T> {
        let memory = self.device_memory(device)?;
        let mut backoff = Backoff::new();
        let mut rehearsals = self.config.sharing.rehearsals();
        loop {
            match make() {
                Err(failure) if failure.code == CuError::OUT_OF_MEMORY => {}
                made => return made,
            }
            match memory.make_room(bytes, self.free_on(device)?)? {
                Room::Same if self.make_way(memory, bytes, &mut rehearsals)? => {}
                Room::Same => return Err(CuError::OUT_OF_MEMORY.into()),
                Room::More => {}
                Room::Later if self.is_ending() => return Err(CuError::DEVICE_UNAVAILABLE.into()),
                Room::Later => backoff.pause(),
            }
        }
    }

    /// Excludes the contents of a range of device memory from images.
    ///
    /// # Errors
    /// `INVALID_VALUE` when it is none, `NOT_SUPPORTED` when such memory is always saved, `OUT_OF_MEMORY` when there are too many ranges.
    pub(crate) fn exclude(&self, range: Range) -> Result<()> {
        let in_arena = self.devices.iter().find_map(|memory| memory.exclude(range));
        in_arena.unwrap_or_else(|| lock(&self.virtual_memory).exclude(range))
    }

    /// Has it saved again.
    fn include(&self, range: Range) -> Result<()> {
        let in_arenas = self.devices.iter().filter(|memory| memory.include(range)).count() > 0;
        let is_mapped = lock(&self.virtual_memory).include(range);
        if in_arenas || is_mapped {
            Ok(())
        } else {
            Err(Failure::new(CuError::INVALID_VALUE, format!("{range} is no device memory")))
        }
    }

    /// Bytes of a device that are free. Without a context nothing waits for work, whatever is free: none.
    pub(super) fn free_on(&self, device: usize) -> Result<u64> {
        let info = self.context_on(device).map(|ctx| self.backend().memory_info(ctx.raw)).transpose()?;
        Ok(info.map_or(0, |(free, _)| free))
    }

    /// Bytes that are free on the session's devices: on the one that has least, where it has a context on any.
    pub(crate) fn least_free(&self) -> Option<u64> {
        let devices = (0..self.devices.len()).filter(|device| self.context_on(*device).is_some());
        devices.map(|device| self.free_on(device).unwrap_or(0)).min()
    }

    /// A marker behind all that a stream has been given so far; `None` when that is over.
    pub(super) fn mark(&self, stream: &Stream) -> Result<Option<Marker>> {
        let marked = match stream.poll() {
            Ok(true) => return Ok(None),
            Ok(false) => stream.ctx.mark(stream.arg()),
            Err(code) => Err(code),
        };
        match marked {
            Ok(marker) => Ok(Some(marker)),
            // What a failed context had is over.
            Err(code) if code.is_sticky() => Ok(None),
            // There is no marker, and yet something may be to come.
            Err(_) => self.wait(|| stream.poll()).map(|()| None),
        }
    }

    /// Markers behind all work that any stream has been given so far.
    fn marks(&self) -> Result<Vec<Marker>> {
        let busy: Vec<_> = {
            let table = read(&self.table);
            let streams = table.streams.values().chain(&table.dying);
            streams.filter(|stream| stream.may_be_busy()).cloned().collect()
        };
        let marks = busy.iter().map(|stream| self.mark(stream));
        marks.filter_map(Result::transpose).collect()
    }

    /// Allocates memory of a context's device with `from`, and answers its address.
    pub(crate) fn allocate(
        &self,
        ctx: ContextId,
        from: impl Fn(&DeviceMemory) -> Result<Option<Allocation>>,
    ) -> Result<u64> {
        let memory = self.device_memory(self.context(ctx)?.device())?;
        let mut backoff = Backoff::new();
        loop {
            if let Some(allocation) = from(memory)? {
                return Ok(allocation.range.base);
            }
            // `cuMemFree` would have waited; now that its memory is needed, so do we.
            if self.is_ending() {
                return Err(CuError::DEVICE_UNAVAILABLE.into());
            }
            backoff.pause();
        }
    }

    /// Waits until all work submitted so far is complete.
    pub(super) fn wait_for_everything(&self) -> Result<()> {
        let marks = self.marks()?;
        self.wait(|| Ok(marks.iter().all(Marker::is_complete)))
    }
}

impl Execute for wire::MemAlloc {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<u64> {
        if self.bytes == 0 {
            return Err(CuError::INVALID_VALUE.into());
        }
        session.allocate(self.ctx, |memory| {
            session.or_make_way(memory, self.bytes, || Ok(memory.allocate(self.ctx, self.bytes)?))
        })
    }
}

impl Execute for wire::ManagedAlloc {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<u64> {
        let made = make_shadowed(self, session);
        caller.unshadowed = None;
        match &made {
            _ if session.shadows.are_all() => session.shortage.tell(None, &made),
            // The application tries memory of another kind next.
            Err(failure) if failure.code == CuError::OUT_OF_MEMORY => {
                caller.unshadowed = Some(failure.clone());
            }
            _ => {}
        }
        made
    }
}

/// What the user is told, once each, where there is no room for memory as it was asked for.
#[derive(Default)]
pub(super) struct Shortage {
    is_beside_told: AtomicBool,
    is_refusal_told: AtomicBool,
}

impl Shortage {
    /// Tells what has become of an allocation, if it is to be told; `unshadowed` is why it has no shadow pages, where it was to have some.
    fn tell<T>(&self, unshadowed: Option<Failure>, made: &Result<T>) {
        if let Some(text) = self.due(unshadowed, made) {
            tracing::warn!("{text}");
        }
    }

    fn due<T>(&self, unshadowed: Option<Failure>, made: &Result<T>) -> Option<String> {
        let (is_told, text) = match (made, unshadowed) {
            (Ok(_), Some(failure)) => (
                &self.is_beside_told,
                format!(
                    "managed memory is put into the host's memory, where kernels reach it over the bus: {failure}"
                ),
            ),
            (Err(failure), _) if failure.code == CuError::OUT_OF_MEMORY => {
                (&self.is_refusal_told, format!("the program is told that memory is out: {failure}"))
            }
            _ => return None,
        };
        (!is_told.swap(true, Ordering::Relaxed)).then_some(text)
    }
}

/// Makes managed memory with shadow pages; 0 where it is to have none.
fn make_shadowed(asked: wire::ManagedAlloc, session: &Session) -> Result<u64> {
    if asked.bytes == 0 {
        return Err(CuError::INVALID_VALUE.into());
    }
    let device = session.context(asked.ctx)?.device();
    let memory = session.devices.get(device);
    let all_reach = memory.map_or(Ok(true), DeviceMemory::is_for_all)?;
    if !all_reach || !session.shadows.are_wanted(asked.bytes) {
        return Ok(0);
    }
    // Whole pages, wherever a small allocation begins.
    let pages = asked.bytes.checked_next_multiple_of(PAGE).ok_or(CuError::OUT_OF_MEMORY)?;
    let bytes = if pages > SMALL_MAX { pages } else { pages + PAGE - ALIGNMENT };
    let allocation = session.allocate(asked.ctx, |memory| Ok(memory.allocate_region(asked.ctx, bytes)?))?;
    let range = Range { base: allocation.next_multiple_of(PAGE), bytes: pages };
    let record = ShadowRecord { id: asked.managed, ctx: asked.ctx, allocation, range, kept: false };
    let stream =
        session.context(asked.ctx).and_then(|ctx| session.own_stream(&ctx, StreamKey::Shadows(asked.ctx)));
    let made = stream.and_then(|stream| session.shadows.make(record, &stream));
    made.inspect_err(|_| {
        session.devices.iter().any(|memory| memory.free(allocation, Vec::new()));
    })?;
    Ok(range.base)
}

impl Execute for wire::ManagedLeave {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        session.separate_before(|record| record.range.base == self.address)?;
        session.shadows.leave(self.address)
    }
}

impl Execute for wire::ManagedKeep {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        session.shadows.keep(self.address)
    }
}

impl Execute for wire::MemFree {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let managed = session.shadows.remove(self.address);
        let address = managed.map_or(self.address, |record| record.allocation);
        let holder = session.devices.iter().find(|memory| memory.find(address).is_some());
        let marks = session.marks()?;
        if holder.is_some_and(|memory| memory.free(address, marks)) {
            Ok(())
        } else {
            let detail = format!("{:#x} is no allocation's address", self.address);
            Err(Failure::new(CuError::INVALID_VALUE, detail))
        }
    }
}

impl Execute for wire::Exclude {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let range = Range { base: self.address, bytes: self.bytes };
        if range.bytes == 0 || range.base.checked_add(range.bytes).is_none() {
            return Err(Failure::new(CuError::INVALID_VALUE, format!("{range} is no range")));
        }
        if self.exclude { session.exclude(range) } else { session.include(range) }
    }
}

impl Execute for wire::MemInfo {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<(u64, u64)> {
        let ctx = session.context(self.ctx)?;
        // Mapped blocks with nothing in them, and a checkpoint's copies, are ours to give: the application counts them as free.
        let memory = session.device_memory(ctx.device())?;
        let ours = memory.empty_bytes()?.saturating_add(memory.copied_bytes());
        let (free, total) = session.backend().memory_info(ctx.raw)?;
        Ok((free.saturating_add(ours).min(total), total))
    }
}

impl Execute for wire::PinnedAlloc {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<PinnedPlace> {
        if self.ctx != ContextId::NONE {
            session.context(self.ctx)?;
        }
        let made = lock(&session.pinned).allocate(self.pinned, self.ctx, self.bytes, self.flags);
        session.shortage.tell(caller.unshadowed.take(), &made);
        made
    }
}

impl Execute for wire::HostRegister {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        session.context(self.ctx)?;
        let range = Range { base: self.address, bytes: self.bytes };
        lock(&session.pinned).register(self.pinned, self.ctx, range, self.flags)
    }
}

impl Execute for wire::HostUnregister {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        session.wait_for_everything()
    }
}

impl Execute for wire::PinnedFree {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<u64> {
        let marks = session.marks()?;
        lock(&session.pinned).free(self.pinned, marks)
    }
}

impl Execute for wire::SlabFree {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<u64> {
        lock(&session.pinned).leave(self.slab)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_told_what_has_become_of_an_allocation_and_once() {
        let (shortage, full) = (Shortage::default(), || Failure::new(CuError::OUT_OF_MEMORY, "full"));
        let refused = shortage.due(Some(full()), &Err::<(), _>(full()));
        assert!(refused.is_some_and(|text| text.contains("memory is out")), "it lies nowhere");
        assert_eq!(shortage.due(None, &Err::<(), _>(full())), None);
        assert_eq!(shortage.due(None, &Ok(())), None, "it lies where it was to");
        let beside = shortage.due(Some(full()), &Ok(()));
        assert!(beside.is_some_and(|text| text.contains("the host's memory") && text.ends_with("full")));
        assert_eq!(shortage.due(Some(full()), &Ok(())), None);
        let other = Failure::from(CuError::INVALID_VALUE);
        assert_eq!(Shortage::default().due(None, &Err::<(), _>(other)), None);
    }
}
