//! What the client knows of memory: which addresses are allocations, of which kind and size.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};

use wire::{PinnedId, PoolId};

use super::advice::Advised;
use super::context::{Context, Owner};
use super::moving::Pages;
use crate::graph::GraphMemory;

/// Where device memory and what the device library places itself can lie (`ARCHITECTURE.md`, addresses).
pub const DEVICE: std::ops::Range<u64> = 0x2000_0000_0000..0x5000_0000_0000;
/// The part of it that holds allocations made by `cuMemAlloc`, and nothing else.
pub const ARENAS: std::ops::Range<u64> = 0x2000_0000_0000..0x3000_0000_0000;
/// The part of it where the application reserves addresses itself.
const RESERVED: std::ops::Range<u64> = 0x4000_0000_0000..0x5000_0000_0000;
/// Where pinned and managed memory can lie: 64 windows of 64 GiB.
pub const PINNED: std::ops::Range<u64> = 0x5000_0000_0000..0x5400_0000_0000;

/// What kind of allocation it is.
#[derive(Clone, Debug)]
pub enum Kind {
    /// `cuMemAlloc` and its like.
    Device,
    /// `cuMemAllocAsync` and its like.
    Pooled(PoolId),
    /// What the application has mapped itself: of no context.
    Mapped,
    /// What another process has allocated, and this one has open.
    Opened,
    /// Memory of a graph's node, as long as there is one.
    Graph(Weak<GraphMemory>),
    /// A variable of the module or library with this handle.
    Global(u64),
    /// `cuMemHostAlloc` and its like.
    Pinned {
        /// Where it lies.
        file: File,
        /// `CU_MEMHOSTALLOC_*`.
        flags: u32,
    },
    /// `cuMemAllocManaged`, or variables.
    Managed {
        /// Where it lies, or its shadow pages.
        file: File,
        /// What it goes with.
        holder: Holder,
        /// What the application has said of it.
        advice: Arc<Mutex<Advised>>,
    },
    /// Memory of the application's own that `cuMemHostRegister` was told of.
    Registered {
        /// `CU_MEMHOSTREGISTER_*`.
        flags: u32,
        /// The file that it has been moved to; without one it is out of the device's reach.
        file: Option<PinnedId>,
    },
}

/// What an allocation that both sides have mapped lies in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct File {
    /// Its handle.
    pub id: PinnedId,
    /// Whether it is a piece of a slab; if not, the file is its own, with the handle's number in its name.
    pub is_piece: bool,
}

impl Allocation {
    /// Whether it goes with the context that it is said to be of, and that is gone.
    pub fn is_gone(&self) -> bool {
        let of_no_context = matches!(self.kind, Kind::Mapped | Kind::Managed { holder: Holder::Library, .. });
        !of_no_context && !self.owner.is_alive()
    }
}

impl Kind {
    /// Whether it is freed by `cuMemFree` or `cuMemFreeAsync`: each takes what the other's counterpart has allocated.
    pub fn is_freed(&self) -> bool {
        match self {
            Self::Device | Self::Pooled(_) => true,
            // What a launch has allocated outlives its graph.
            Self::Graph(memory) => memory.strong_count() == 0,
            Self::Mapped
            | Self::Opened
            | Self::Global(_)
            | Self::Pinned { .. }
            | Self::Managed { .. }
            | Self::Registered { .. } => false,
        }
    }
}

/// What managed memory goes with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Holder {
    /// The application frees it.
    Application,
    /// The module whose variables lie in it.
    Module,
    /// The library whose variables lie in it: that is of no context.
    Library,
}

/// An allocation.
#[derive(Clone)]
pub struct Allocation {
    /// Its first address.
    pub base: u64,
    /// Bytes.
    pub bytes: u64,
    /// Its context.
    pub owner: Owner,
    /// A number that no other allocation of the process has.
    pub number: u32,
    /// What it is.
    pub kind: Kind,
}

/// What an address is, for a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Device memory.
    Device,
    /// Pinned or managed memory: the server has it at the same address.
    Pinned,
    /// Memory of this process alone.
    Host,
    /// The same, but registered: a copy from it happens when the stream gets there, not when it is asked for.
    Registered,
}

impl Place {
    /// Whether only this process can reach it.
    pub fn is_local(self) -> bool {
        matches!(self, Self::Host | Self::Registered)
    }
}

/// All allocations, by first address.
#[derive(Default)]
pub struct Memory {
    all: RwLock<BTreeMap<u64, Allocation>>,
    /// Whether anything has ever been registered: if not, copies from pageable memory need no look at the table.
    registered: AtomicBool,
}

impl Memory {
    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<u64, Allocation>> {
        self.all.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<u64, Allocation>> {
        self.all.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an allocation.
    pub fn insert(&self, allocation: Allocation) {
        self.write().insert(allocation.base, allocation);
    }

    /// Adds memory of the application's own, unless some of it is registered already.
    pub fn register(&self, registration: Allocation) -> bool {
        let mut all = self.write();
        let end = registration.base.saturating_add(registration.bytes);
        let before = all.range(..end).next_back();
        if before.is_some_and(|(base, found)| base + found.bytes > registration.base) {
            return false;
        }
        all.insert(registration.base, registration);
        self.registered.store(true, Ordering::Release);
        true
    }

    /// Whether pinned memory has that id.
    pub fn has_pinned(&self, id: u32) -> bool {
        let is = |kind: &Kind| match kind {
            Kind::Pinned { file, .. } | Kind::Managed { file, .. } => file.id.0 == id,
            Kind::Registered { file: Some(found), .. } => found.0 == id,
            _ => false,
        };
        self.read().values().any(|found| is(&found.kind))
    }

    /// What registered memory is for a copy; `None` where there is none.
    fn registered(&self, address: u64, bytes: u64) -> Option<Place> {
        let found = self.find(address)?;
        let Kind::Registered { file, .. } = found.kind else { return None };
        // What reaches beyond it the server cannot copy.
        let inside = bytes <= found.bytes - (address - found.base);
        Some(if file.is_some() && inside { Place::Pinned } else { Place::Registered })
    }

    /// Notes whether registered memory has been moved to a file.
    pub fn set_file(&self, base: u64, moved: Option<PinnedId>) {
        if let Some(Allocation { kind: Kind::Registered { file, .. }, .. }) = self.write().get_mut(&base) {
            *file = moved;
        }
    }

    /// Registered memory that has been moved, and where to.
    pub fn moved(&self) -> Vec<(Pages, PinnedId)> {
        let pages = |found: &Allocation| match found.kind {
            Kind::Registered { file: Some(id), .. } => Some((Pages::around(found.base, found.bytes)?, id)),
            _ => None,
        };
        self.read().values().filter_map(pages).collect()
    }

    /// Managed memory with shadow pages that goes with that context: addresses and bytes.
    pub fn shadowed(&self, context: &Context) -> Vec<(u64, u64)> {
        let goes = |found: &&Allocation| {
            matches!(found.kind, Kind::Managed { .. })
                && ARENAS.contains(&found.base)
                && found.owner.is(context)
        };
        self.read().values().filter(goes).map(|found| (found.base, found.bytes)).collect()
    }

    /// Whether some of these pages have been moved.
    pub fn has_moved(&self, pages: Pages) -> bool {
        self.moved().iter().any(|(moved, _)| moved.start() < pages.end() && pages.start() < moved.end())
    }

    /// Takes the allocation that begins there away, if it is of that kind.
    pub fn remove(&self, base: u64, kind: impl Fn(&Kind) -> bool) -> Option<Allocation> {
        let mut all = self.write();
        all.get(&base).filter(|found| kind(&found.kind))?;
        all.remove(&base)
    }

    /// Takes every allocation away for which `dead` holds.
    pub fn sweep(&self, dead: impl Fn(&Allocation) -> bool) -> Vec<Allocation> {
        let mut gone = Vec::new();
        self.write().retain(|_, allocation| {
            let keep = !dead(allocation);
            if !keep {
                gone.push(allocation.clone());
            }
            keep
        });
        gone
    }

    /// The allocation that an address lies in.
    pub fn find(&self, address: u64) -> Option<Allocation> {
        self.read()
            .range(..=address)
            .next_back()
            .map(|(_, found)| found)
            .filter(|found| address - found.base < found.bytes)
            .cloned()
    }

    /// What `bytes` bytes at an address are; `None` for the null pointer, and when they are device or pinned addresses, but not all of one allocation.
    pub fn place(&self, address: u64, bytes: u64) -> Option<Place> {
        let place = if address == 0 {
            return None;
        } else if DEVICE.contains(&address) {
            Place::Device
        } else if PINNED.contains(&address) {
            Place::Pinned
        } else if self.registered.load(Ordering::Acquire) {
            return Some(self.registered(address, bytes).unwrap_or(Place::Host));
        } else {
            return Some(Place::Host);
        };
        // Variables may be known to the program without its having asked for their addresses: the server checks those.
        if place == Place::Device && !ARENAS.contains(&address) && !RESERVED.contains(&address) {
            return Some(place);
        }
        let all = self.read();
        let (_, found) = all.range(..=address).next_back()?;
        let offset = address - found.base;
        // The host sees it too, on the device or not.
        let place = if matches!(found.kind, Kind::Managed { .. }) { Place::Pinned } else { place };
        if RESERVED.contains(&address) {
            return is_mapped(&all, address, bytes).then_some(place);
        }
        (offset < found.bytes && bytes <= found.bytes - offset).then_some(place)
    }
}

/// Whether the bytes are mapped without a gap.
fn is_mapped(all: &BTreeMap<u64, Allocation>, address: u64, bytes: u64) -> bool {
    let Some(end) = address.checked_add(bytes) else { return false };
    let mut at = address;
    while at < end {
        match all.range(..=at).next_back() {
            Some((base, found)) if at - base < found.bytes => at = base + found.bytes,
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;

    use super::super::context::Context;
    use super::*;
    use wire::{ContextId, Device};

    fn allocation(base: u64, bytes: u64, kind: Kind) -> Allocation {
        let context = Arc::new(Context::new(ContextId(1), Device(0), false, 0, 0));
        context.begin();
        Allocation { base, bytes, owner: Owner::new(&context), number: 1, kind }
    }

    /// `crates/bounce` has no part in anything else, and no crate of ours beneath it.
    #[test]
    fn what_is_preloaded_knows_where_devices_memory_lies() {
        let bounce = include_str!("../../../bounce/src/buffer.rs");
        let digits = |at: u64| format!("{:#x}_{:04x}_{:04x}", at >> 32, at >> 16 & 0xffff, at & 0xffff);
        let range = format!("Range<usize> = {}..{};", digits(DEVICE.start), digits(DEVICE.end));
        assert!(bounce.contains(&range), "{range}");
    }

    #[test]
    fn addresses_are_told_apart() {
        let memory = Memory::default();
        let (device, pinned) = (0x2000_0000_0200, 0x5000_0000_0000);
        memory.insert(allocation(device, 100, Kind::Device));
        let file = File { id: PinnedId(1), is_piece: false };
        memory.insert(allocation(pinned, 4096, Kind::Pinned { file, flags: 0 }));
        assert_eq!(memory.place(device + 50, 50), Some(Place::Device));
        assert_eq!(memory.place(device + 50, 51), None, "beyond the end");
        assert_eq!(memory.place(device - 1, 1), None);
        assert_eq!(memory.place(device + 99, u64::MAX), None);
        assert_eq!(memory.place(pinned, 4096), Some(Place::Pinned));
        assert_eq!(memory.place(pinned + 4096, 1), None);
        assert_eq!(
            memory.place(0x3000_0000_1000, 8),
            Some(Place::Device),
            "a variable: the server checks it"
        );
        let mapped = 0x4000_0000_0000;
        memory.insert(allocation(mapped, 4096, Kind::Mapped));
        memory.insert(allocation(mapped + 4096, 4096, Kind::Mapped));
        assert_eq!(memory.place(mapped + 4000, 4192), Some(Place::Device), "over the border of two mappings");
        assert_eq!(memory.place(mapped + 4000, 4193), None, "beyond the last");
        assert_eq!(memory.place(0x1234, 8), Some(Place::Host));
        assert_eq!(memory.place(0, 8), None);
        assert!(memory.remove(device, |kind| matches!(kind, Kind::Pinned { .. })).is_none(), "another kind");
        assert!(memory.remove(device + 1, |_| true).is_none(), "not its beginning");
        assert!(memory.remove(device, |kind| matches!(kind, Kind::Device)).is_some());
        assert_eq!(memory.place(device, 1), None);
    }

    #[test]
    fn registered_memory_does_not_overlap() {
        let memory = Memory::default();
        let registered =
            |base, bytes| memory.register(allocation(base, bytes, Kind::Registered { flags: 0, file: None }));
        assert!(registered(0x10_0000, 0x1000));
        for (base, bytes) in [(0x10_0000, 1), (0xf_f000, 0x1001), (0x10_0fff, 1), (0xf_0000, 0x10_0000)] {
            assert!(!registered(base, bytes), "{base:#x}+{bytes:#x}");
        }
        assert!(registered(0xf_f000, 0x1000));
        assert!(registered(0x10_1000, 0x1000));
        assert_eq!(memory.place(0x10_1fff, 1), Some(Place::Registered));
        assert_eq!(memory.place(0x10_2000, 1), Some(Place::Host));
        memory.set_file(0x10_1000, Some(PinnedId(7)));
        assert!(memory.has_pinned(7) && !memory.has_pinned(8));
        assert_eq!(memory.place(0x10_1fff, 1), Some(Place::Pinned));
        assert_eq!(
            memory.place(0x10_1fff, 2),
            Some(Place::Registered),
            "the device does not reach beyond it"
        );
        let pages = Pages::around(0x10_1fff, 1).unwrap();
        assert_eq!(memory.moved(), [(pages, PinnedId(7))]);
        assert!(memory.has_moved(pages) && !memory.has_moved(Pages::around(0x10_2000, 1).unwrap()));
    }

    #[test]
    fn what_a_context_owned_goes_with_its_life() {
        let context = Arc::new(Context::new(ContextId(1), Device(0), true, 0, 0));
        assert!(!Owner::new(&context).is_alive(), "a context that is not there owns nothing");
        context.begin();
        let first = Owner::new(&context);
        assert!(first.is_alive());
        context.end();
        context.begin();
        assert!(
            !first.is_alive() && Owner::new(&context).is_alive(),
            "a primary context made anew is another one"
        );
    }
}
