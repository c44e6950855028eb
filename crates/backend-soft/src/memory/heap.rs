//! The heap of a context's kernels: what `malloc` and `new` in device code hand out.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{HEAP_ARENA, HEAP_ARENA_END, Memory, MemoryError, pages};

/// Every allocation begins at a multiple of this, as on a GPU.
const ALIGNMENT: u64 = 16;

/// Which parts of a heap are handed out. The kernels' memory holds none of it, so that no kernel can spoil it.
#[derive(Debug)]
struct Table {
    taken: BTreeMap<u64, u64>,
    free: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
}

impl Table {
    fn new(base: u64, bytes: u64) -> Self {
        let mut table = Self { taken: BTreeMap::new(), free: BTreeMap::new(), by_size: BTreeSet::new() };
        table.insert_free(base, bytes);
        table
    }

    fn insert_free(&mut self, base: u64, bytes: u64) {
        if bytes > 0 {
            self.free.insert(base, bytes);
            self.by_size.insert((bytes, base));
        }
    }

    fn remove_free(&mut self, base: u64) -> Option<u64> {
        let bytes = self.free.remove(&base)?;
        self.by_size.remove(&(bytes, base));
        Some(bytes)
    }

    /// Takes `bytes` bytes at `base`, where they must be free.
    fn take(&mut self, base: u64, bytes: u64) -> Option<()> {
        let (&start, &whole) = self.free.range(..=base).next_back()?;
        let before = base - start;
        let behind = whole.checked_sub(before)?.checked_sub(bytes)?;
        self.remove_free(start);
        self.insert_free(start, before);
        self.insert_free(base + bytes, behind);
        self.taken.insert(base, bytes);
        Some(())
    }

    fn give_back(&mut self, base: u64) -> Option<()> {
        let (mut start, mut bytes) = (base, self.taken.remove(&base)?);
        if let Some((&before, &length)) = self.free.range(..base).next_back()
            && before + length == base
        {
            self.remove_free(before);
            (start, bytes) = (before, bytes + length);
        }
        bytes += self.remove_free(start + bytes).unwrap_or(0);
        self.insert_free(start, bytes);
        Some(())
    }
}

/// A heap; its memory is given back with it.
pub struct Heap {
    memory: Arc<Memory>,
    base: u64,
    bytes: u64,
    table: Mutex<Table>,
}

impl Heap {
    /// A heap of `bytes` bytes of a device, of which these parts are handed out: at `at`, else wherever there is room.
    ///
    /// # Errors
    /// When the place is taken or the device full; [`MemoryError::Malformed`] for parts that cannot be.
    pub fn new(
        memory: &Arc<Memory>,
        device: usize,
        at: Option<u64>,
        bytes: u64,
        taken: impl Iterator<Item = (u64, u64)>,
    ) -> Result<Self, MemoryError> {
        let bytes = bytes.max(1).checked_next_multiple_of(pages::PAGE);
        let bytes = bytes.ok_or(MemoryError::Malformed { base: HEAP_ARENA, bytes: u64::MAX })?;
        let base = memory.map_heap(device, at, bytes)?;
        let heap =
            Self { memory: Arc::clone(memory), base, bytes, table: Mutex::new(Table::new(base, bytes)) };
        for (part, length) in taken {
            let whole = part.is_multiple_of(ALIGNMENT) && length > 0 && length.is_multiple_of(ALIGNMENT);
            let had = whole.then(|| heap.lock().take(part, length)).flatten();
            had.ok_or(MemoryError::Malformed { base: part, bytes: length })?;
        }
        Ok(heap)
    }

    /// First address, and bytes.
    pub fn range(&self) -> (u64, u64) {
        (self.base, self.bytes)
    }

    /// What is handed out, in order of address.
    pub fn taken(&self) -> Vec<(u64, u64)> {
        self.lock().taken.iter().map(|(base, bytes)| (*base, *bytes)).collect()
    }

    /// As `malloc` in device code: 0 when there is no room, or nothing was asked for.
    pub fn malloc(&self, bytes: u64) -> u64 {
        let mut table = self.lock();
        let Some(size) = bytes.checked_next_multiple_of(ALIGNMENT).filter(|size| *size > 0) else { return 0 };
        let Some(&(_, base)) = table.by_size.range((size, 0)..).next() else { return 0 };
        table.take(base, size).map_or(0, |()| base)
    }

    /// As `free` in device code; false for what is not handed out.
    pub fn free(&self, address: u64) -> bool {
        address == 0 || self.lock().give_back(address).is_some()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        if let Err(error) = self.memory.unmap_module(self.base) {
            tracing::warn!("a heap stays: {error}");
        }
    }
}

/// Where heaps lie.
pub(super) fn contains(base: u64, bytes: u64) -> bool {
    base >= HEAP_ARENA && base.checked_add(bytes).is_some_and(|end| end <= HEAP_ARENA_END)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const AT: u64 = HEAP_ARENA + (1 << 36);

    fn heap(at: u64, bytes: u64, taken: &[(u64, u64)]) -> Result<Heap, MemoryError> {
        let memory = Arc::new(Memory::new(1, 1 << 20));
        Heap::new(&memory, 0, Some(at), bytes, taken.iter().copied())
    }

    #[test]
    fn what_is_freed_is_handed_out_again() {
        let heap = heap(AT, 4096, &[]).unwrap();
        let all: Vec<u64> = (0..4).map(|_| heap.malloc(1000)).collect();
        assert_eq!(all, [AT, AT + 1008, AT + 2016, AT + 3024]);
        assert_eq!((heap.malloc(1000), heap.malloc(0), heap.malloc(u64::MAX)), (0, 0, 0));
        assert!(
            heap.free(all[1])
                && heap.free(all[2])
                && !heap.free(all[2])
                && !heap.free(AT + 16)
                && heap.free(0)
        );
        assert_eq!(heap.malloc(2016), all[1], "two neighbours make one place");
        assert!(heap.free(all[0]) && heap.free(all[1]) && heap.free(all[3]));
        assert_eq!((heap.malloc(4096), heap.taken()), (AT, vec![(AT, 4096)]));
    }

    #[test]
    fn a_heap_is_made_again_with_what_was_handed_out() {
        let at = AT + (1 << 30);
        let again = heap(at, 8192, &[(at + 32, 48), (at + 4096, 16)]).unwrap();
        assert_eq!(again.taken(), [(at + 32, 48), (at + 4096, 16)]);
        assert!(again.free(at + 4096) && again.free(at + 32));
        assert_eq!(again.malloc(8192), at);
        for wrong in [(at + 8, 16), (at, 0), (at + 8176, 32), (at - 16, 32)] {
            assert!(heap(at + (1 << 30), 8192, &[wrong, wrong]).is_err(), "{wrong:x?}");
        }
    }
}
