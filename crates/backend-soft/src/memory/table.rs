//! What is reserved, mapped and registered.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use super::physical::Pieces;
use super::{Extents, MODULE_ARENA, MODULE_ARENA_END, MemoryError, pages};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Owner {
    Device(usize),
    Host,
    /// A mapping of a piece of memory that has an existence of its own, and whether it can be touched.
    Physical {
        id: u64,
        accessible: bool,
    },
}

pub(super) struct Entry {
    pub(super) bytes: u64,
    pub(super) owner: Owner,
}

#[derive(Default)]
pub(super) struct State {
    pub(super) reservations: BTreeMap<u64, u64>,
    pub(super) entries: BTreeMap<u64, Entry>,
    pub(super) physical: Pieces,
    pub(super) next_physical: u64,
    /// Bytes taken, by device.
    pub(super) used: Vec<u64>,
    /// Where the next module's variables go.
    next_module: u64,
}

/// All memory that kernels can reach.
pub struct Memory {
    state: Mutex<State>,
    extents: RwLock<Arc<Extents>>,
    total: u64,
}

impl Memory {
    /// Memory of `devices` devices with `total` bytes each.
    pub fn new(devices: usize, total: u64) -> Self {
        let state = State { used: vec![0; devices], next_module: MODULE_ARENA, ..State::default() };
        Self { state: Mutex::new(state), extents: RwLock::default(), total }
    }

    /// What can be touched now. Hold it no longer than one slice of execution: giving memory back waits for it.
    pub fn extents(&self) -> Arc<Extents> {
        self.extents.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Bytes free and in all on a device.
    pub fn info(&self, device: usize) -> (u64, u64) {
        let used = self.lock().used.get(device).copied().unwrap_or(0);
        (self.total.saturating_sub(used), self.total)
    }

    /// Claims an address range.
    ///
    /// # Errors
    /// When something else is mapped there.
    pub fn reserve(&self, base: u64, bytes: u64) -> Result<(), MemoryError> {
        pages::whole(base, bytes)?;
        let mut state = self.lock();
        pages::reserve(base, bytes)?;
        state.reservations.insert(base, bytes);
        Ok(())
    }

    /// Maps zeroed memory of `device` into a reserved range.
    ///
    /// # Errors
    /// When the range is not reserved, not free, or the device is full.
    pub fn map(&self, device: usize, base: u64, bytes: u64) -> Result<(), MemoryError> {
        pages::whole(base, bytes)?;
        let mut state = self.lock();
        if !state.is_reserved(base, bytes) || state.overlaps(base, bytes) {
            return Err(MemoryError::NotReserved { base, bytes });
        }
        self.take(&mut state, device, bytes)?;
        pages::commit(base, bytes).inspect_err(|_| state.used[device] -= bytes)?;
        state.entries.insert(base, Entry { bytes, owner: Owner::Device(device) });
        self.publish(&state);
        Ok(())
    }

    /// Counts bytes of a device as taken.
    pub(super) fn take(&self, state: &mut State, device: usize, bytes: u64) -> Result<(), MemoryError> {
        let free = self.total.saturating_sub(state.used.get(device).copied().unwrap_or(self.total));
        if bytes > free {
            return Err(MemoryError::Exhausted { asked: bytes, free });
        }
        state.used[device] += bytes;
        Ok(())
    }

    /// Takes away what [`Self::map`] put there; waits for running kernels' current slices.
    ///
    /// # Errors
    /// When no mapping of a device begins at `base`.
    pub fn unmap(&self, base: u64) -> Result<(), MemoryError> {
        let mut state = self.lock();
        let Some(Entry { bytes, owner: Owner::Device(device) }) = state.entries.get(&base) else {
            return Err(MemoryError::Unknown(base));
        };
        let (bytes, device) = (*bytes, *device);
        state.entries.remove(&base);
        self.retire(&state);
        state.used[device] -= bytes;
        pages::decommit(base, bytes)
    }

    /// Makes host memory usable by kernels at its own address. The caller keeps it mapped until [`Self::unregister`].
    ///
    /// # Errors
    /// When a part of it already is.
    pub fn register(&self, base: u64, bytes: u64) -> Result<(), MemoryError> {
        let mut state = self.lock();
        if bytes == 0 || base.checked_add(bytes).is_none() {
            return Err(MemoryError::Malformed { base, bytes });
        }
        if state.overlaps(base, bytes) {
            return Err(MemoryError::NotReserved { base, bytes });
        }
        state.entries.insert(base, Entry { bytes, owner: Owner::Host });
        self.publish(&state);
        Ok(())
    }

    /// Ends that; no kernel touches the memory when this returns.
    ///
    /// # Errors
    /// When no registration begins at `base`.
    pub fn unregister(&self, base: u64) -> Result<(), MemoryError> {
        let mut state = self.lock();
        if state.entries.get(&base).is_none_or(|entry| entry.owner != Owner::Host) {
            return Err(MemoryError::Unknown(base));
        }
        state.entries.remove(&base);
        self.retire(&state);
        Ok(())
    }

    /// Memory for a module's variables: where `at` says, else after the last module's.
    ///
    /// # Errors
    /// When the place is taken or the device full.
    pub fn map_module(&self, device: usize, at: Option<u64>, bytes: u64) -> Result<u64, MemoryError> {
        let bytes = bytes.next_multiple_of(pages::PAGE);
        let (base, before) = {
            let mut state = self.lock();
            let before = state.next_module;
            let base = at.unwrap_or(before);
            if base < MODULE_ARENA {
                return Err(MemoryError::Malformed { base, bytes });
            }
            let end = base.checked_add(bytes).filter(|end| *end <= MODULE_ARENA_END);
            let free = MODULE_ARENA_END.saturating_sub(base);
            let end = end.ok_or(MemoryError::Exhausted { asked: bytes, free })?;
            // Places are never used twice, so that what a module kept of a place means the same for ever.
            state.next_module = before.max(end);
            (base, before)
        };
        let made = self
            .reserve(base, bytes)
            .and_then(|()| self.map(device, base, bytes).inspect_err(|_| self.release(base)));
        if made.is_err() {
            let mut state = self.lock();
            if state.next_module == base + bytes {
                state.next_module = before;
            }
        }
        made.map(|()| base)
    }

    /// Gives that back.
    ///
    /// # Errors
    /// When no module's memory begins there.
    pub fn unmap_module(&self, base: u64) -> Result<(), MemoryError> {
        self.unmap(base)?;
        self.release(base);
        Ok(())
    }

    /// Whether an address lies in a reserved range, mapped or not.
    pub fn is_device(&self, address: u64) -> bool {
        self.lock().is_reserved(address, 1)
    }

    pub(super) fn release(&self, base: u64) {
        if let Some(bytes) = self.lock().reservations.remove(&base) {
            pages::release(base, bytes);
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn publish(&self, state: &State) -> Arc<Extents> {
        let untouchable = |entry: &Entry| matches!(entry.owner, Owner::Physical { accessible: false, .. });
        let entries = state.entries.iter().filter(|(_, entry)| !untouchable(entry));
        let ranges = entries.map(|(base, entry)| (*base, base + entry.bytes));
        let mut extents = self.extents.write().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut extents, Arc::new(Extents::new(ranges)))
    }

    /// Publishes a table without some entry and waits until nobody uses the one that had it.
    pub(super) fn retire(&self, state: &State) {
        let old = self.publish(state);
        while Arc::strong_count(&old) > 1 {
            std::thread::sleep(std::time::Duration::from_micros(20));
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        for (base, bytes) in std::mem::take(&mut self.lock().reservations) {
            pages::release(base, bytes);
        }
    }
}

impl State {
    pub(super) fn is_reserved(&self, base: u64, bytes: u64) -> bool {
        let below = self.reservations.range(..=base).next_back();
        below.is_some_and(|(start, length)| base - start <= *length && bytes <= length - (base - start))
    }

    pub(super) fn overlaps(&self, base: u64, bytes: u64) -> bool {
        let below = self.entries.range(..base.saturating_add(bytes)).next_back();
        below.is_some_and(|(start, entry)| start + entry.bytes > base)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const ARENA: u64 = 0x2f00_0000_0000;

    #[test]
    fn maps_only_what_is_reserved_and_free() {
        let memory = Memory::new(1, 1 << 20);
        assert!(matches!(memory.map(0, ARENA, 4096), Err(MemoryError::NotReserved { .. })));
        memory.reserve(ARENA, 1 << 21).unwrap();
        assert!(matches!(memory.reserve(ARENA + 4096, 4096), Err(MemoryError::Taken { .. })));
        memory.map(0, ARENA, 8192).unwrap();
        assert!(matches!(memory.map(0, ARENA + 4096, 4096), Err(MemoryError::NotReserved { .. })));
        assert!(matches!(memory.map(0, ARENA + 8192, 1 << 20), Err(MemoryError::Exhausted { .. })));
        assert_eq!(memory.info(0), ((1 << 20) - 8192, 1 << 20));
        assert!(memory.extents().find(ARENA, 8192).is_some());
        memory.unmap(ARENA).unwrap();
        assert!(memory.extents().find(ARENA, 1).is_none());
        assert_eq!(memory.info(0).0, 1 << 20);
        assert!(memory.is_device(ARENA) && !memory.is_device(ARENA + (1 << 21)));
    }

    #[test]
    fn memory_mapped_again_is_zero() {
        let memory = Memory::new(1, 1 << 20);
        let base = ARENA + (1 << 32);
        memory.reserve(base, 4096).unwrap();
        memory.map(0, base, 4096).unwrap();
        // SAFETY: just mapped.
        unsafe { *(base as *mut u64) = 7 };
        memory.unmap(base).unwrap();
        memory.map(0, base, 4096).unwrap();
        // SAFETY: just mapped.
        assert_eq!(unsafe { *(base as *const u64) }, 0);
    }

    #[test]
    fn modules_never_share_a_place() {
        let memory = Memory::new(1, 1 << 20);
        let at = MODULE_ARENA + (1 << 36);
        let first = memory.map_module(0, Some(at), 10).unwrap();
        assert_eq!(first, at);
        memory.unmap_module(first).unwrap();
        let second = memory.map_module(0, None, 10).unwrap();
        assert_eq!(second, at + 4096);
        assert!(memory.map_module(0, Some(second), 10).is_err());
        assert!(memory.map_module(0, Some(ARENA), 10).is_err());
        // What was not had took no place, so that a full device does not use the addresses up; when they are, it says so.
        for bytes in [u64::from(u32::MAX) << 8, MODULE_ARENA_END] {
            let refused = memory.map_module(0, None, bytes).unwrap_err();
            assert!(matches!(refused, MemoryError::Exhausted { .. }), "{refused}");
        }
        let third = memory.map_module(0, None, 10).unwrap();
        assert_eq!(third, second + 4096);
        memory.unmap_module(third).unwrap();
        memory.unmap_module(second).unwrap();
    }
}
