//! Where allocations lie: a plain model of one device's address arena, without any device behind it.
//!
//! Device memory comes in *blocks*, multiples of 2 MiB that a backend maps. An allocation above [`SMALL_MAX`] has a block of
//! its own; smaller ones share blocks, at 512-byte alignment. A freed allocation stays taken until it is *reclaimed*: the
//! caller does that when no work submitted before the free can still touch it. Blocks with nothing in them stay mapped up to
//! [`RETAIN`] bytes, so that a program which allocates and frees in a loop maps nothing.
//!
//! The same calls in the same order give the same addresses.

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
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Use {
    /// One allocation.
    Whole,
    /// Many.
    Shared,
}

#[derive(Clone, Debug)]
struct Block {
    bytes: u64,
    kind: Use,
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
    #[serde(with = "crate::ids")]
    pub ctx: ContextId,
}

/// An allocation that has a place but does not exist before [`Arena::commit`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    allocation: Range,
    block: Range,
    kind: Use,
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
pub struct Freed(Range);

/// An arena as it goes into an image: the blocks that hold live allocations, and those.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ArenaState {
    /// Every block, and whether allocations share it, in order of address.
    pub blocks: Vec<(Range, bool)>,
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
    by_size: BTreeSet<(u64, u64)>,
    shared_bytes: u64,
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
            shared_bytes: 0,
            clock: 0,
        }
    }

    /// Finds a place for `bytes` bytes; `None` when the arena has none (`bytes` is 0, or more than a gap holds).
    #[must_use]
    pub fn plan(&self, bytes: u64) -> Option<Plan> {
        if bytes == 0 {
            return None;
        }
        if bytes <= SMALL_MAX { self.plan_shared(bytes) } else { self.plan_whole(bytes) }
    }

    fn plan_shared(&self, bytes: u64) -> Option<Plan> {
        let size = rounded(bytes)?;
        if let Some(&(_, base)) = self.by_size.range((size, 0)..).next() {
            let (&block, found) = self.blocks.range(..=base).next_back()?;
            return Some(Plan {
                allocation: Range { base, bytes },
                block: Range { base: block, bytes: found.bytes },
                kind: Use::Shared,
                mapped: true,
            });
        }
        let wanted = self.shared_bytes.clamp(BLOCK_GRANULARITY, SMALL_BLOCK_MAX);
        let block = self.gap(wanted.next_multiple_of(BLOCK_GRANULARITY))?;
        let allocation = Range { base: block.base, bytes };
        Some(Plan { allocation, block, kind: Use::Shared, mapped: false })
    }

    fn plan_whole(&self, bytes: u64) -> Option<Plan> {
        let size = bytes.checked_next_multiple_of(BLOCK_GRANULARITY)?;
        // An empty block does when it wastes no more than an eighth.
        let most = size.saturating_add(size / 8);
        let reused = self
            .blocks
            .iter()
            .filter(|(_, b)| b.kind == Use::Whole && b.taken == 0 && (size..=most).contains(&b.bytes))
            .min_by_key(|(base, b)| (b.bytes, **base))
            .map(|(&base, b)| Range { base, bytes: b.bytes });
        let block = match reused {
            Some(block) => block,
            None => self.gap(size)?,
        };
        let allocation = Range { base: block.base, bytes };
        Some(Plan { allocation, block, kind: Use::Whole, mapped: reused.is_some() })
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
        let Plan { allocation, block, kind, mapped } = plan;
        if !mapped {
            self.insert_block(block, kind);
        }
        let taken = match kind {
            Use::Whole => block.bytes,
            Use::Shared => {
                let size = allocation.bytes.next_multiple_of(ALIGNMENT);
                self.take_extent(Range { base: allocation.base, bytes: size });
                size
            }
        };
        if let Some(block) = self.blocks.get_mut(&block.base) {
            block.taken += taken;
        }
        let allocation = Allocation { range: allocation, ctx };
        self.live.insert(allocation.range.base, allocation);
        allocation
    }

    fn insert_block(&mut self, range: Range, kind: Use) {
        self.blocks.insert(range.base, Block { bytes: range.bytes, kind, taken: 0, emptied: 0 });
        if kind == Use::Shared {
            self.shared_bytes += range.bytes;
            self.insert_extent(range);
        }
    }

    fn insert_extent(&mut self, range: Range) {
        self.free.insert(range.base, range.bytes);
        self.by_size.insert((range.bytes, range.base));
    }

    fn remove_extent(&mut self, range: Range) {
        self.free.remove(&range.base);
        self.by_size.remove(&(range.bytes, range.base));
    }

    /// The free extent that contains `range`.
    fn extent_around(&self, range: Range) -> Option<Range> {
        let (&base, &bytes) = self.free.range(..=range.base).next_back()?;
        let extent = Range { base, bytes };
        extent.contains(range.base, range.bytes).then_some(extent)
    }

    /// Takes `range` out of the free extent that contains it; false when none does.
    fn take_extent(&mut self, range: Range) -> bool {
        let Some(extent) = self.extent_around(range) else { return false };
        self.remove_extent(extent);
        if extent.base < range.base {
            self.insert_extent(Range { base: extent.base, bytes: range.base - extent.base });
        }
        if range.end() < extent.end() {
            self.insert_extent(Range { base: range.end(), bytes: extent.end() - range.end() });
        }
        true
    }

    /// Ends the live allocation at exactly `address`; `None` when there is none. Its place stays taken.
    pub fn free(&mut self, address: u64) -> Option<Freed> {
        self.live.remove(&address).map(|allocation| Freed(allocation.range))
    }

    /// Makes a freed allocation's place available again.
    pub fn reclaim(&mut self, Freed(range): Freed) {
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
        if kind == Use::Shared {
            self.merge_extent(Range { base: range.base, bytes: size }, bounds);
        }
    }

    /// Gives an extent back, joined with its free neighbours inside the block.
    fn merge_extent(&mut self, mut range: Range, block: Range) {
        let before = self.free.range(..range.base).next_back().map(|(&base, &bytes)| Range { base, bytes });
        if let Some(before) = before.filter(|b| b.end() == range.base && b.base >= block.base) {
            self.remove_extent(before);
            range = Range { base: before.base, bytes: before.bytes + range.bytes };
        }
        let after = self.free.get(&range.end()).map(|&bytes| Range { base: range.end(), bytes });
        if let Some(after) = after.filter(|a| a.end() <= block.end()) {
            self.remove_extent(after);
            range.bytes += after.bytes;
        }
        self.insert_extent(range);
    }

    /// Takes empty blocks out, those longest empty first, until no more than `keep` bytes of them are left; the caller
    /// unmaps them.
    pub fn trim(&mut self, keep: u64) -> Vec<Range> {
        let mut empty: Vec<(u64, Range)> = self
            .blocks
            .iter()
            .filter(|(_, block)| block.taken == 0)
            .map(|(&base, block)| (block.emptied, Range { base, bytes: block.bytes }))
            .collect();
        empty.sort_unstable();
        let mut bytes: u64 = empty.iter().map(|(_, range)| range.bytes).sum();
        let mut out = Vec::new();
        for (_, range) in empty {
            if bytes <= keep {
                break;
            }
            bytes -= range.bytes;
            self.remove_block(range);
            out.push(range);
        }
        out
    }

    fn remove_block(&mut self, range: Range) {
        if let Some(Block { kind: Use::Shared, .. }) = self.blocks.remove(&range.base) {
            self.shared_bytes -= range.bytes;
            // An empty block is one free extent.
            self.remove_extent(range);
        }
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

    /// Bytes mapped with nothing in them: free, as an application counts.
    #[must_use]
    pub fn empty_bytes(&self) -> u64 {
        self.blocks.values().filter(|block| block.taken == 0).map(|block| block.bytes).sum()
    }

    /// The state for an image: empty blocks are left out.
    #[must_use]
    pub fn state(&self) -> ArenaState {
        let blocks = self
            .blocks
            .iter()
            .filter(|(_, block)| block.taken != 0)
            .map(|(&base, block)| (Range { base, bytes: block.bytes }, block.kind == Use::Shared))
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
        for &(block, shared) in &state.blocks {
            let aligned = block.base.is_multiple_of(BLOCK_GRANULARITY)
                && block.bytes.is_multiple_of(BLOCK_GRANULARITY)
                && block.bytes > 0;
            if !aligned || block.base < end || !range.contains(block.base, block.bytes) {
                return Err(StateError::Block(block, range));
            }
            end = block.end();
            arena.insert_block(block, if shared { Use::Shared } else { Use::Whole });
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
        let Some((base, block)) =
            self.blocks.range(..=range.base).next_back().map(|(&base, block)| (base, block.clone()))
        else {
            return false;
        };
        let inside = Range { base, bytes: block.bytes }.contains(range.base, size);
        if !inside || range.bytes == 0 || !range.base.is_multiple_of(ALIGNMENT) {
            return false;
        }
        let taken = match block.kind {
            Use::Whole if block.taken == 0 && base == range.base => block.bytes,
            Use::Whole => return false,
            Use::Shared if self.take_extent(Range { base: range.base, bytes: size }) => size,
            Use::Shared => return false,
        };
        if let Some(block) = self.blocks.get_mut(&base) {
            block.taken += taken;
        }
        self.live.insert(range.base, allocation);
        true
    }
}

fn rounded(bytes: u64) -> Option<u64> {
    bytes.checked_next_multiple_of(ALIGNMENT)
}

#[cfg(test)]
#[path = "arena_tests.rs"]
mod tests;
