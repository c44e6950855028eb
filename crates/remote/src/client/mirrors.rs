//! Registered host memory. The far end has a mirror of a region, at the same address, from the moment that the device can reach it:
//! when an address inside is given to a kernel, is copied to the device, is found in memory that has a mirror, or is named by a call
//! whose work reads or writes it there. From then on what changes at either end is carried over: ours before any work is submitted, the device's before its work
//! is told to be complete. What is only copied explicitly never has a mirror.

use super::Link;
use crate::area::Area;
use crate::messages::{Changes, MirrorDrop, MirrorMake};
use crate::ranges::Ranges;
use crate::{diff, lock};
use backend::{MemoryOperation, Range, Result};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use wire::{Bytes, CuError};

/// What several threads look through for addresses, each: one reads memory more slowly than a fast line carries what is in it.
const SHARE: usize = 1 << 20;
/// So many do, where cores abound.
static LOOKERS: LazyLock<usize> = LazyLock::new(|| {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
    (cores / 4).clamp(1, 4)
});
/// How much of a region is compared before what has changed is sent: its runs fit into a message.
const STEP: usize = 256 << 10;

struct Twin {
    range: Range,
    /// What the far end knows.
    known: Mutex<Area>,
    /// Whoever sends changes: they arrive in the order in which they were found. How many regions had been registered when all of
    /// this one was last looked through for addresses.
    sending: Mutex<u64>,
}

#[derive(Default)]
struct Region {
    twin: Option<Arc<Twin>>,
    /// It is being unregistered, and gets no mirror any more.
    leaves: bool,
}

/// All registered memory.
#[derive(Default)]
pub(super) struct Mirrors {
    regions: Mutex<Ranges<Region>>,
    /// One region at a time gets its mirror.
    reaching: Mutex<()>,
    reached: AtomicBool,
    /// Between which addresses all regions without a mirror lie.
    low: AtomicU64,
    high: AtomicU64,
    /// How many regions have been registered.
    registered: AtomicU64,
    /// Regions without a mirror that mirrored memory points into, by their bases.
    wanted: Mutex<BTreeSet<u64>>,
    /// One thread at a time mirrors what is wanted: no kernel of another's overtakes it.
    following: Mutex<()>,
}

/// What an address range is in registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Registered {
    No,
    /// Only the host's.
    Here,
    /// Both ends'.
    Mirrored,
}

/// What each of several threads looks through: all of it, and no word in two of them.
fn shares(bytes: &[u8], threads: usize) -> std::slice::Chunks<'_, u8> {
    bytes.chunks(bytes.len().div_ceil(threads).next_multiple_of(8).max(SHARE))
}

impl Mirrors {
    pub(super) fn register(&self, range: Range) -> Result<()> {
        let mut regions = lock(&self.regions);
        if !regions.insert(range, Region::default()) {
            return Err(CuError::HOST_MEMORY_ALREADY_REGISTERED);
        }
        self.bound(&regions);
        // What points into it may have been written before.
        self.registered.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// A region gets no mirror from now on, if it has none; whether it has one. Where it is just getting one, that is waited for.
    fn begin_leaving(&self, range: Range) -> Result<bool> {
        let _one = lock(&self.reaching);
        let mut regions = lock(&self.regions);
        if regions.at(range.base).is_none_or(|(known, region)| known != range || region.leaves) {
            return Err(CuError::HOST_MEMORY_NOT_REGISTERED);
        }
        let region = regions.get_mut(range.base).ok_or(CuError::HOST_MEMORY_NOT_REGISTERED)?;
        region.leaves = true;
        Ok(region.twin.is_some())
    }

    /// Forgets a region.
    fn unregister(&self, base: u64) {
        let mut regions = lock(&self.regions);
        regions.remove(base);
        self.bound(&regions);
    }

    fn bound(&self, regions: &Ranges<Region>) {
        let without = || regions.iter().filter(|(_, region)| region.twin.is_none()).map(|(range, _)| range);
        self.low.store(without().map(|range| range.base).min().unwrap_or(u64::MAX), Ordering::Release);
        self.high.store(without().map(Range::end).max().unwrap_or(0), Ordering::Release);
        self.reached.store(regions.iter().any(|(_, region)| region.twin.is_some()), Ordering::Release);
    }

    pub(super) fn is(&self, address: u64, bytes: u64) -> Registered {
        let regions = lock(&self.regions);
        match regions.at(address) {
            Some((range, region)) if range.contains(address, bytes) => match region.twin {
                Some(_) => Registered::Mirrored,
                None => Registered::Here,
            },
            _ => Registered::No,
        }
    }

    /// Writes a word of registered memory as the device would.
    pub(super) fn write(&self, operation: &MemoryOperation) {
        let MemoryOperation::Write { word } = operation else { return };
        let regions = lock(&self.regions);
        if !regions.at(word.address).is_some_and(|(range, _)| range.contains(word.address, word.bytes())) {
            return;
        }
        let place = std::ptr::with_exposed_provenance_mut::<u8>(word.address as usize);
        // SAFETY: an aligned word of memory that is registered as long as the lock is held; who reads it meanwhile reads it as one.
        unsafe {
            if word.wide {
                AtomicU64::from_ptr(place.cast()).store(word.value, Ordering::Release);
            } else {
                std::sync::atomic::AtomicU32::from_ptr(place.cast())
                    .store(word.value as u32, Ordering::Release);
            }
        }
    }

    /// Applies what the device has changed; `false` where that is no such region, or are no changes of it.
    pub(super) fn apply(&self, base: u64, runs: &[u8]) -> bool {
        let regions = lock(&self.regions);
        let (range, twin) = match regions.at(base) {
            Some((range, Region { twin: Some(twin), .. })) => (range, Arc::clone(twin)),
            // It has just been unregistered.
            _ => return true,
        };
        if !base.is_multiple_of(8) {
            return false;
        }
        let place = std::ptr::with_exposed_provenance_mut::<u8>(base as usize);
        let mut known = lock(&twin.known);
        let known = &mut known.bytes_mut()[(base - range.base) as usize..];
        // SAFETY: `known` is as long as the rest of the region, which is registered as long as the lock is held.
        unsafe { diff::apply(place, known, runs) }.is_some()
    }

    /// Hands over every address in these bytes, each at a multiple of `step`, that may lie in a region without a mirror.
    fn addresses(&self, bytes: &[u8], step: usize, found: &mut impl FnMut(u64) -> Result<()>) -> Result<()> {
        let (low, high) = (self.low.load(Ordering::Acquire), self.high.load(Ordering::Acquire));
        if low >= high {
            return Ok(());
        }
        let inside = |word: &[u8; 8]| u64::from_le_bytes(*word).wrapping_sub(low) < high - low;
        for begin in (0..8).step_by(step) {
            let (words, _) = bytes.get(begin..).unwrap_or_default().as_chunks::<8>();
            for some in words.chunks(512) {
                // Without a way out, it is several words at a time.
                if some.iter().fold(false, |found, word| found | inside(word)) {
                    some.iter()
                        .filter(|word| inside(word))
                        .try_for_each(|word| found(u64::from_le_bytes(*word)))?;
                }
            }
        }
        Ok(())
    }

    /// Remembers which regions without a mirror the words of mirrored memory point into.
    fn look_through(&self, regions: &Ranges<Region>, bytes: &[u8]) {
        let mut found = |address: u64| {
            if let Some((range, Region { twin: None, leaves: false })) = regions.at(address) {
                lock(&self.wanted).insert(range.base);
            }
            Ok(())
        };
        let _ = self.addresses(bytes, 8, &mut found);
    }

    fn twins(&self) -> Vec<Arc<Twin>> {
        lock(&self.regions).iter().filter_map(|(_, region)| region.twin.clone()).collect()
    }
}

impl Link {
    /// Gives the far end a mirror of the region that an address lies in, if it is one.
    pub(super) fn reach(self: &Arc<Self>, address: u64) -> Result<()> {
        let mirrors = &self.mirrors;
        let _one = lock(&mirrors.reaching);
        let range = match lock(&mirrors.regions).at(address) {
            Some((range, region)) if region.twin.is_none() && !region.leaves => range,
            _ => return Ok(()),
        };
        let bytes = usize::try_from(range.bytes).map_err(|_| CuError::OUT_OF_MEMORY)?;
        let known = Mutex::new(Area::new(bytes).map_err(|_| CuError::OUT_OF_MEMORY)?);
        // What is on its way into the region comes first: the mirror begins with it.
        self.transfers.wait_for(range);
        self.progress.wait_words(range);
        self.ask(&MirrorMake { range })?;
        let twin = Arc::new(Twin { range, known, sending: Mutex::default() });
        {
            let mut regions = lock(&mirrors.regions);
            // It is there still: it does not leave as long as the lock is held.
            regions.get_mut(range.base).ok_or(CuError::HOST_MEMORY_NOT_REGISTERED)?.twin = Some(twin);
            mirrors.bound(&regions);
        }
        self.push_changes();
        self.keep_in_step();
        Ok(())
    }

    /// Mirrors every region that an address in these bytes points into: a kernel may follow it.
    pub(super) fn reach_all(self: &Arc<Self>, bytes: &[u8], step: usize) -> Result<()> {
        self.mirrors.addresses(bytes, step, &mut |address| self.reach(address))
    }

    /// The same of many bytes, in which addresses lie at multiples of 8.
    pub(super) fn reach_all_of_many(self: &Arc<Self>, bytes: &[u8]) -> Result<()> {
        let mut shares = shares(bytes, *LOOKERS);
        let own = shares.next().unwrap_or_default();
        std::thread::scope(|scope| {
            let others: Vec<_> = shares.map(|share| scope.spawn(move || self.reach_all(share, 8))).collect();
            let reached = self.reach_all(own, 8);
            others
                .into_iter()
                .fold(reached, |all, other| all.and(other.join().unwrap_or(Err(CuError::UNKNOWN))))
        })
    }

    /// Sends what the host has written to mirrored memory, and mirrors what that points to: a kernel may follow it.
    pub(super) fn push_for_kernels(self: &Arc<Self>) -> Result<()> {
        if !self.mirrors.reached.load(Ordering::Acquire) {
            return Ok(());
        }
        let _one = lock(&self.mirrors.following);
        loop {
            self.push_changes();
            let wanted = std::mem::take(&mut *lock(&self.mirrors.wanted));
            if wanted.is_empty() {
                return Ok(());
            }
            if let Err(error) = wanted.iter().try_for_each(|base| self.reach(*base)) {
                lock(&self.mirrors.wanted).extend(wanted);
                return Err(error);
            }
        }
    }

    /// Sends what the host has written to mirrored memory. Called before work is submitted that may read it.
    pub(super) fn push_changes(&self) {
        if !self.mirrors.reached.load(Ordering::Acquire) {
            return;
        }
        for twin in self.mirrors.twins() {
            let mut looked_through = lock(&twin.sending);
            let registered = self.mirrors.registered.load(Ordering::Acquire);
            for begin in (0..twin.range.bytes as usize).step_by(STEP) {
                let mut runs = Vec::new();
                {
                    let regions = lock(&self.mirrors.regions);
                    if regions.at(twin.range.base).is_none_or(|(range, _)| range != twin.range) {
                        break;
                    }
                    let mut known = lock(&twin.known);
                    let known = known.bytes_mut();
                    let end = known.len().min(begin + STEP);
                    let place = std::ptr::with_exposed_provenance::<u8>(twin.range.base as usize + begin);
                    // SAFETY: a part of a region that is registered as long as the lock is held.
                    unsafe { diff::collect(place, &mut known[begin..end], &mut runs) };
                    if !runs.is_empty() || *looked_through != registered {
                        self.mirrors.look_through(&regions, &known[begin..end]);
                    }
                }
                if !runs.is_empty() {
                    // Runs count from the beginning of what was compared.
                    let base = twin.range.base + begin as u64;
                    self.tell_always(&Changes { base, runs: Bytes(runs) });
                }
            }
            *looked_through = registered;
        }
    }

    /// Takes the mirror away, if the far end has one.
    pub(super) fn leave(&self, range: Range) -> Result<()> {
        let mirrored = self.mirrors.begin_leaving(range)?;
        self.uploads.wait_for(range);
        self.transfers.wait_for(range);
        self.transfers.abandon(range);
        // What the device has written comes before the mirror goes.
        let left = if mirrored { self.ask(&MirrorDrop { range }) } else { Ok(()) };
        self.mirrors.unregister(range.base);
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_make_up_the_whole_and_part_no_word() {
        let bytes = vec![0; 4 * SHARE + 13];
        for (all, threads) in
            [(0, 4), (13, 4), (SHARE, 4), (SHARE + 1, 4), (4 * SHARE + 13, 3), (bytes.len(), 1)]
        {
            let shares: Vec<_> = shares(&bytes[..all], threads).map(<[u8]>::len).collect();
            assert_eq!(shares.iter().sum::<usize>(), all);
            assert!(shares.len() <= threads, "{all}, {threads}");
            assert!(shares.iter().rev().skip(1).all(|share| share.is_multiple_of(8)), "{all}, {threads}");
        }
    }
}
