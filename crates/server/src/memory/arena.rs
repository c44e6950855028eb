//! Where allocations lie: a plain model of one device's address arena, without any device behind it.
//!
//! Device memory comes in *blocks*, multiples of 2 MiB that a backend maps. An allocation above [`SMALL_MAX`] has a block of
//! its own; smaller ones share blocks, at 512-byte alignment. A freed allocation stays taken until it is *reclaimed*: the
//! caller does that when no work submitted before the free can still touch it. Blocks with nothing in them stay mapped for a moment,
//! and up to [`RETAIN`] bytes of them for longer, so that a program which allocates and frees in a loop maps nothing.
//!
//! Blocks belong to a *holder*: `cuMemAlloc`, one memory pool, or a managed region. A pool takes over empty blocks that `cuMemAlloc` has no use
//! for before it has new ones mapped, and what it gives up goes back there.
//!
//! The same calls in the same order give the same addresses.

use super::placement::Home;
use super::pool::PoolKey;
use backend::{BLOCK_GRANULARITY, Range};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;
use wire::ContextId;

/// Every allocation begins at a multiple of this; the driver promises 256.
pub const ALIGNMENT: u64 = 512;
/// The largest allocation that shares a block.
pub const SMALL_MAX: u64 = 1 << 20;
/// Bytes of empty blocks that stay mapped.
pub const RETAIN: u64 = 128 << 20;
/// The largest block for small allocations; they double up to it.
const SMALL_BLOCK_MAX: u64 = 32 << 20;

/// What a block is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Use {
    /// One allocation.
    Whole,
    /// Many.
    Shared,
}

/// Whose allocations lie in a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum Holder {
    /// `cuMemAlloc` and its like.
    Plain,
    /// A memory pool.
    Pool(PoolKey),
    /// Managed memory that may move: each region has a block of its own, which is nobody else's before or after.
    Region(Home),
}

#[derive(Clone, Debug)]
struct Block {
    bytes: u64,
    kind: Use,
    holder: Holder,
    /// Bytes that are allocated, or freed and not yet reclaimed.
    taken: u64,
    /// When it became empty, in calls of `reclaim`.
    emptied: u64,
}

/// A live allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Allocation {
    /// Address, and the bytes asked for.
    pub range: Range,
    /// The context that it belongs to.
    pub ctx: ContextId,
    /// Whose blocks it lies in.
    pub holder: Holder,
}

impl Allocation {
    /// Bytes that it takes, as its pool counts them.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.range.bytes.next_multiple_of(ALIGNMENT)
    }
}

/// An allocation that has a place but does not exist before [`Arena::commit`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    allocation: Range,
    block: Range,
    kind: Use,
    holder: Holder,
    mapped: bool,
}

impl Plan {
    /// The block to map before committing; none when the place is mapped already.
    #[must_use]
    pub fn block_to_map(&self) -> Option<Range> {
        (!self.mapped).then_some(self.block)
    }
}

/// An allocation that the application has freed and that work may still touch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a freed allocation is lost until it is reclaimed"]
pub struct Freed {
    range: Range,
    holder: Holder,
}

impl Freed {
    /// Bytes, at least.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.range.bytes
    }

    /// Whose block it lies in.
    #[must_use]
    pub fn holder(&self) -> Holder {
        self.holder
    }
}

/// The size of a place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    kind: Use,
    bytes: u64,
}

/// What a holder has, bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    /// Mapped.
    pub mapped: u64,
    /// Of that, in blocks that small allocations share.
    shared: u64,
    /// Of that, in blocks with nothing in them.
    pub empty: u64,
}

/// A block of a recorded arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BlockState {
    /// Where it is.
    pub range: Range,
    /// Whether allocations share it.
    pub shared: bool,
    /// Whose it is.
    pub holder: Holder,
}

/// An arena as it goes into an image: the blocks that hold live allocations, and those.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ArenaState {
    /// Every block, in order of address.
    pub blocks: Vec<BlockState>,
    /// Every live allocation, in order of address.
    pub allocations: Vec<Allocation>,
}

/// Why a recorded arena cannot be.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum StateError {
    /// A block is misaligned, empty, outside the arena or over another.
    #[error("block {0} of the recorded arena is misaligned, outside {1}, or overlaps another")]
    Block(Range, Range),
    /// An allocation lies in no block, or over another.
    #[error("allocation {0} of the recorded arena lies in no block or over another allocation")]
    Allocation(Range),
}

/// One device's arena.
#[derive(Debug)]
pub struct Arena {
    range: Range,
    blocks: BTreeMap<u64, Block>,
    live: BTreeMap<u64, Allocation>,
    /// Free extents of shared blocks, by address and by size.
    free: BTreeMap<u64, u64>,
    by_size: BTreeSet<(Holder, u64, u64)>,
    held: BTreeMap<Holder, Held>,
    clock: u64,
}

impl Arena {
    /// An empty arena over `range`, which is a multiple of 2 MiB at a multiple of 2 MiB.
    #[must_use]
    pub fn new(range: Range) -> Self {
        Self {
            range,
            blocks: BTreeMap::new(),
            live: BTreeMap::new(),
            free: BTreeMap::new(),
            by_size: BTreeSet::new(),
            held: BTreeMap::new(),
            clock: 0,
        }
    }

    /// Finds a place for `bytes` bytes; `None` when the arena has none (`bytes` is 0, or more than a gap holds).
    #[must_use]
    pub fn plan(&self, holder: Holder, bytes: u64) -> Option<Plan> {
        if bytes == 0 {
            return None;
        }
        if bytes <= SMALL_MAX { self.plan_shared(holder, bytes) } else { self.plan_whole(holder, bytes) }
    }

    fn plan_shared(&self, holder: Holder, bytes: u64) -> Option<Plan> {
        let size = rounded(bytes)?;
        let plan = |base, block, mapped| {
            let allocation = Range { base, bytes };
            Plan { allocation, block, kind: Use::Shared, holder, mapped }
        };
        let mut fitting = self.by_size.range((holder, size, 0)..=(holder, u64::MAX, u64::MAX));
        if let Some(&(_, _, base)) = fitting.next() {
            let (&block, found) = self.blocks.range(..=base).next_back()?;
            return Some(plan(base, Range { base: block, bytes: found.bytes }, true));
        }
        if let Some(block) = self.adoptable(holder, Use::Shared, size, u64::MAX) {
            return Some(plan(block.base, block, true));
        }
        let wanted = self.held(holder).shared.clamp(BLOCK_GRANULARITY, SMALL_BLOCK_MAX);
        let block = self.gap(wanted.next_multiple_of(BLOCK_GRANULARITY))?;
        Some(plan(block.base, block, false))
    }

    fn plan_whole(&self, holder: Holder, bytes: u64) -> Option<Plan> {
        let size = bytes.checked_next_multiple_of(BLOCK_GRANULARITY)?;
        let reused = self.adoptable(holder, Use::Whole, size, most(size));
        let block = match reused {
            Some(block) => block,
            None => self.gap(size)?,
        };
        let allocation = Range { base: block.base, bytes };
        Some(Plan { allocation, block, kind: Use::Whole, holder, mapped: reused.is_some() })
    }

    /// The best empty block that `holder` may use: its own, or one that `cuMemAlloc` does not need.
    fn adoptable(&self, holder: Holder, kind: Use, least: u64, most: u64) -> Option<Range> {
        if matches!(holder, Holder::Region(_)) {
            return None;
        }
        if self.held(holder).empty + self.held(Holder::Plain).empty == 0 {
            return None;
        }
        let fits = |block: &Block| {
            block.taken == 0
                && block.kind == kind
                && (block.holder == holder || block.holder == Holder::Plain)
                && (least..=most).contains(&block.bytes)
        };
        let fitting = self.blocks.iter().filter(|(_, block)| fits(block));
        let best = fitting.min_by_key(|(base, block)| (block.bytes, block.holder != holder, **base));
        best.map(|(&base, block)| Range { base, bytes: block.bytes })
    }

    /// The lowest unmapped range of `bytes` bytes.
    fn gap(&self, bytes: u64) -> Option<Range> {
        let mut base = self.range.base;
        for (&start, block) in &self.blocks {
            if start - base >= bytes {
                break;
            }
            base = start + block.bytes;
        }
        self.range.contains(base, bytes).then_some(Range { base, bytes })
    }

    /// Makes a planned allocation live; nothing else may have been done to the arena since. Its block is mapped now.
    pub fn commit(&mut self, plan: Plan, ctx: ContextId) -> Allocation {
        let Plan { allocation, block, kind, holder, mapped } = plan;
        if mapped {
            self.hand_over(block.base, holder);
        } else {
            self.insert_block(block, kind, holder);
        }
        let taken = match kind {
            Use::Whole => block.bytes,
            Use::Shared => {
                let size = allocation.bytes.next_multiple_of(ALIGNMENT);
                self.take_extent(Range { base: allocation.base, bytes: size }, holder);
                size
            }
        };
        self.take(block.base, taken);
        self.make_live(Allocation { range: allocation, ctx, holder })
    }

    fn make_live(&mut self, allocation: Allocation) -> Allocation {
        self.live.insert(allocation.range.base, allocation);
        allocation
    }

    /// Counts bytes of a block as taken.
    fn take(&mut self, block: u64, bytes: u64) {
        let Some(block) = self.blocks.get_mut(&block) else { return };
        if block.taken == 0 {
            self.held.entry(block.holder).or_default().empty -= block.bytes;
        }
        block.taken += bytes;
    }

    fn insert_block(&mut self, range: Range, kind: Use, holder: Holder) {
        self.blocks.insert(range.base, Block { bytes: range.bytes, kind, holder, taken: 0, emptied: 0 });
        let held = self.held.entry(holder).or_default();
        held.mapped += range.bytes;
        held.empty += range.bytes;
        if kind == Use::Shared {
            held.shared += range.bytes;
            self.insert_extent(range, holder);
        }
    }

    /// Takes an empty block out.
    fn remove_block(&mut self, base: u64) -> Option<Block> {
        let block = self.blocks.remove(&base)?;
        let held = self.held.entry(block.holder).or_default();
        held.mapped -= block.bytes;
        held.empty -= block.bytes;
        if block.kind == Use::Shared {
            held.shared -= block.bytes;
        }
        if *held == Held::default() {
            self.held.remove(&block.holder);
        }
        if block.kind == Use::Shared {
            // An empty block is one free extent.
            self.remove_extent(Range { base, bytes: block.bytes }, block.holder);
        }
        Some(block)
    }

    /// Makes an empty block another's, unless it is already.
    fn hand_over(&mut self, base: u64, holder: Holder) {
        if self.blocks.get(&base).is_some_and(|block| block.holder != holder)
            && let Some(block) = self.remove_block(base)
        {
            let emptied = block.emptied;
            self.insert_block(Range { base, bytes: block.bytes }, block.kind, holder);
            if let Some(block) = self.blocks.get_mut(&base) {
                block.emptied = emptied;
            }
        }
    }

    fn insert_extent(&mut self, range: Range, holder: Holder) {
        self.free.insert(range.base, range.bytes);
        self.by_size.insert((holder, range.bytes, range.base));
    }

    fn remove_extent(&mut self, range: Range, holder: Holder) {
        self.free.remove(&range.base);
        self.by_size.remove(&(holder, range.bytes, range.base));
    }

    /// The free extent that contains `range`.
    fn extent_around(&self, range: Range) -> Option<Range> {
        let (&base, &bytes) = self.free.range(..=range.base).next_back()?;
        let extent = Range { base, bytes };
        extent.contains(range.base, range.bytes).then_some(extent)
    }

    /// Takes `range` out of the free extent that contains it; false when none does.
    fn take_extent(&mut self, range: Range, holder: Holder) -> bool {
        let Some(extent) = self.extent_around(range) else { return false };
        self.remove_extent(extent, holder);
        if extent.base < range.base {
            self.insert_extent(Range { base: extent.base, bytes: range.base - extent.base }, holder);
        }
        if range.end() < extent.end() {
            self.insert_extent(Range { base: range.end(), bytes: extent.end() - range.end() }, holder);
        }
        true
    }

    /// Ends the live allocation at exactly `address`; `None` when there is none. Its place stays taken.
    pub fn free(&mut self, address: u64) -> Option<Freed> {
        let Allocation { range, holder, .. } = self.live.remove(&address)?;
        Some(Freed { range, holder })
    }

    /// How large a freed allocation's place is.
    #[must_use]
    pub fn place(&self, freed: &Freed) -> Option<Place> {
        let (_, block) = self.block_of(freed.range.base)?;
        Some(match block.kind {
            Use::Whole => Place { kind: Use::Whole, bytes: block.bytes },
            Use::Shared => Place { kind: Use::Shared, bytes: rounded(freed.range.bytes)? },
        })
    }

    /// The smallest and the largest place that does for `bytes` bytes.
    #[must_use]
    pub fn places_for(bytes: u64) -> Option<(Place, Place)> {
        let of = |kind, least, most| (Place { kind, bytes: least }, Place { kind, bytes: most });
        if bytes <= SMALL_MAX {
            return Some(of(Use::Shared, rounded(bytes)?, u64::MAX));
        }
        let size = bytes.checked_next_multiple_of(BLOCK_GRANULARITY)?;
        Some(of(Use::Whole, size, most(size)))
    }

    /// Makes a freed allocation's place that does ([`Arena::places_for`]) live again, before it is reclaimed: whoever uses it does so
    /// after all work that may still touch it. What is left of the place stays freed.
    pub fn reuse(&mut self, freed: Freed, bytes: u64, ctx: ContextId) -> (Allocation, Option<Freed>) {
        let Freed { range, holder } = freed;
        let shared = self.block_of(range.base).is_some_and(|(_, block)| block.kind == Use::Shared);
        let size = bytes.next_multiple_of(ALIGNMENT);
        let rest = range.bytes.next_multiple_of(ALIGNMENT).saturating_sub(size);
        let rest = (shared && rest > 0)
            .then_some(Freed { range: Range { base: range.base + size, bytes: rest }, holder });
        (self.make_live(Allocation { range: Range { base: range.base, bytes }, ctx, holder }), rest)
    }

    fn block_of(&self, address: u64) -> Option<(u64, &Block)> {
        self.blocks.range(..=address).next_back().map(|(&base, block)| (base, block))
    }

    /// Makes a freed allocation's place available again.
    pub fn reclaim(&mut self, Freed { range, holder }: Freed) {
        self.clock += 1;
        let clock = self.clock;
        let Some((&base, block)) = self.blocks.range_mut(..=range.base).next_back() else { return };
        let bounds = Range { base, bytes: block.bytes };
        let kind = block.kind;
        let size = match kind {
            Use::Whole => block.bytes,
            Use::Shared => range.bytes.next_multiple_of(ALIGNMENT),
        };
        block.taken -= size;
        block.emptied = clock;
        if block.taken == 0 {
            self.held.entry(holder).or_default().empty += bounds.bytes;
        }
        if kind == Use::Shared {
            self.merge_extent(Range { base: range.base, bytes: size }, bounds, holder);
        }
    }

    /// Gives an extent back, joined with its free neighbours inside the block.
    fn merge_extent(&mut self, mut range: Range, block: Range, holder: Holder) {
        let before = self.free.range(..range.base).next_back().map(|(&base, &bytes)| Range { base, bytes });
        if let Some(before) = before.filter(|b| b.end() == range.base && b.base >= block.base) {
            self.remove_extent(before, holder);
            range = Range { base: before.base, bytes: before.bytes + range.bytes };
        }
        let after = self.free.get(&range.end()).map(|&bytes| Range { base: range.end(), bytes });
        if let Some(after) = after.filter(|a| a.end() <= block.end()) {
            self.remove_extent(after, holder);
            range.bytes += after.bytes;
        }
        self.insert_extent(range, holder);
    }

    /// What a holder has.
    #[must_use]
    pub fn held(&self, holder: Holder) -> Held {
        self.held.get(&holder).copied().unwrap_or_default()
    }

    /// Gives `cuMemAlloc` empty blocks of a pool, those longest empty first, as long as the pool keeps `keep` bytes.
    pub fn release(&mut self, holder: Holder, keep: u64) {
        for range in self.longest_empty(holder) {
            if self.held(holder).mapped.saturating_sub(range.bytes) >= keep {
                self.hand_over(range.base, Holder::Plain);
            }
        }
    }

    fn longest_empty(&self, holder: Holder) -> Vec<Range> {
        if self.held(holder).empty == 0 {
            return Vec::new();
        }
        let empty = self.blocks.iter().filter(|(_, block)| block.taken == 0 && block.holder == holder);
        let mut empty: Vec<(u64, Range)> =
            empty.map(|(&base, block)| (block.emptied, Range { base, bytes: block.bytes })).collect();
        empty.sort_unstable();
        empty.into_iter().map(|(_, range)| range).collect()
    }

    /// Counts calls of [`Arena::reclaim`].
    #[must_use]
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// Has a live region's block, which begins at `base`, lie elsewhere from now on.
    pub fn rehome(&mut self, base: u64, home: Home) {
        let Some(block) = self.blocks.get_mut(&base) else { return };
        let (bytes, now) = (block.bytes, Holder::Region(home));
        let before = std::mem::replace(&mut block.holder, now);
        self.held.entry(before).or_default().mapped -= bytes;
        self.held.entry(now).or_default().mapped += bytes;
        if let Some(live) = self.live.get_mut(&base) {
            live.holder = now;
        }
    }

    /// Takes the empty blocks of regions out; the caller unmaps them.
    pub fn trim_regions(&mut self) -> Vec<Range> {
        let homes = [Home::Device, Home::Host].map(Holder::Region);
        let out: Vec<_> = homes.into_iter().flat_map(|holder| self.longest_empty(holder)).collect();
        for range in &out {
            self.remove_block(range.base);
        }
        out
    }

    /// Takes blocks of `cuMemAlloc` out that have been empty since the clock was `since`, those longest empty first, until no more than `keep`
    /// bytes are left in empty blocks; the caller unmaps them.
    pub fn trim(&mut self, keep: u64, since: u64) -> Vec<Range> {
        if self.empty_bytes() <= keep {
            return Vec::new();
        }
        let mut out = Vec::new();
        for range in self.longest_empty(Holder::Plain) {
            let idle = self.blocks.get(&range.base).is_some_and(|block| block.emptied <= since);
            if !idle || self.empty_bytes() <= keep {
                break;
            }
            self.remove_block(range.base);
            out.push(range);
        }
        out
    }

    /// The block that contains `address`.
    #[must_use]
    pub fn block_around(&self, address: u64) -> Option<Range> {
        let (base, block) = self.block_of(address)?;
        let range = Range { base, bytes: block.bytes };
        range.contains(address, 1).then_some(range)
    }

    /// The live allocation that contains `address`.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<Allocation> {
        let (_, allocation) = self.live.range(..=address).next_back()?;
        allocation.range.contains(address, 1).then_some(*allocation)
    }

    /// Every live allocation, in order of address.
    pub fn allocations(&self) -> impl Iterator<Item = Allocation> + '_ {
        self.live.values().copied()
    }

    /// Every mapped block, in order of address.
    pub fn blocks(&self) -> impl Iterator<Item = Range> + '_ {
        self.blocks.iter().map(|(&base, block)| Range { base, bytes: block.bytes })
    }

    /// Bytes mapped with nothing in them, and held by no pool: free, as an application counts.
    #[must_use]
    pub fn empty_bytes(&self) -> u64 {
        self.held(Holder::Plain).empty
    }

    /// The state for an image: empty blocks are left out.
    #[must_use]
    pub fn state(&self) -> ArenaState {
        let blocks = self
            .blocks
            .iter()
            .filter(|(_, block)| block.taken != 0)
            .map(|(&base, block)| BlockState {
                range: Range { base, bytes: block.bytes },
                shared: block.kind == Use::Shared,
                holder: block.holder,
            })
            .collect();
        ArenaState { blocks, allocations: self.allocations().collect() }
    }

    /// The arena that `state` describes; its blocks are to be mapped by the caller.
    ///
    /// # Errors
    /// [`StateError`] when blocks or allocations overlap or lie outside: the state was not made by [`Arena::state`].
    pub fn from_state(range: Range, state: &ArenaState) -> Result<Self, StateError> {
        let mut arena = Self::new(range);
        let mut end = range.base;
        for &BlockState { range: block, shared, holder } in &state.blocks {
            let aligned = block.base.is_multiple_of(BLOCK_GRANULARITY)
                && block.bytes.is_multiple_of(BLOCK_GRANULARITY)
                && block.bytes > 0;
            if !aligned || block.base < end || !range.contains(block.base, block.bytes) {
                return Err(StateError::Block(block, range));
            }
            end = block.end();
            arena.insert_block(block, if shared { Use::Shared } else { Use::Whole }, holder);
        }
        for &allocation in &state.allocations {
            if !arena.insert_live(allocation) {
                return Err(StateError::Allocation(allocation.range));
            }
        }
        Ok(arena)
    }

    fn insert_live(&mut self, allocation: Allocation) -> bool {
        let range = allocation.range;
        let Some(size) = rounded(range.bytes) else { return false };
        let Some((base, block)) = self.block_of(range.base).map(|(base, block)| (base, block.clone())) else {
            return false;
        };
        let inside = Range { base, bytes: block.bytes }.contains(range.base, size);
        if !inside
            || range.bytes == 0
            || !range.base.is_multiple_of(ALIGNMENT)
            || block.holder != allocation.holder
        {
            return false;
        }
        let taken = match block.kind {
            Use::Whole if block.taken == 0 && base == range.base => block.bytes,
            Use::Whole => return false,
            Use::Shared if self.take_extent(Range { base: range.base, bytes: size }, block.holder) => size,
            Use::Shared => return false,
        };
        self.take(base, taken);
        self.make_live(allocation);
        true
    }
}

/// The largest block that an allocation of `size` bytes may have to itself: an eighth is wasted at most.
fn most(size: u64) -> u64 {
    size.saturating_add(size / 8)
}

fn rounded(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
#[path = "arena_tests.rs"]
mod tests;
