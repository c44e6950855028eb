//! Slabs: files that small pinned allocations share. A plain model of which of their pages are free, without any file behind it.
//!
//! A slab is what a large allocation is: one file, mapped at one address on both sides and registered as a whole. A small allocation is
//! a *piece* of one: whole pages, which no other piece has a part in. The smallest run of pages that does is taken, so that slabs
//! become empty. A freed piece stays taken until it is *given back*: the caller does that when no work submitted before the free can still
//! touch it, and its pages are zeros again.
//!
//! Of the slabs without a live piece one is kept. Another *leaves*: nothing more comes out of it, the application is told to unmap it, says
//! when it has, and only then, and when all of its pieces are given back, its file goes and its addresses are anybody's.

use super::PAGE;
use backend::Range;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The largest allocation that is a piece. What has a mapping of its own is larger, so that the addresses of a session's pinned memory
/// are full before a process has as many mappings as it may have (65,530).
pub const PIECE_MAX: u64 = 1 << 20;
/// The first slabs are small, for programs that have few pieces; of a large one an eighth is wasted at most, behind its last piece.
const SLAB_BYTES: std::ops::RangeInclusive<u64> = 2 << 20..=8 << 20;

/// A slab.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SlabRecord {
    /// Its pages.
    pub range: Range,
    /// Whether the application has been told to unmap it, and has not said yet that it has.
    pub leaving: bool,
}

/// What becomes of a slab.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Pieces come out of it.
    Open,
    /// The application is to unmap it.
    Leaving,
    /// The application has unmapped it.
    Left,
}

#[derive(Clone, Debug)]
struct Slab {
    bytes: u64,
    stage: Stage,
    /// Live pieces.
    live: usize,
    /// Bytes of pieces that are live, or freed and not given back.
    taken: u64,
}

/// The slabs of a session.
#[derive(Default, Debug)]
pub struct Slabs {
    slabs: BTreeMap<u64, Slab>,
    /// Bytes of all of them.
    bytes: u64,
    /// Runs of free pages in open slabs, by address and by size.
    free: BTreeMap<u64, u64>,
    by_size: BTreeSet<(u64, u64)>,
    /// Open slabs without a live piece.
    idle: BTreeSet<u64>,
}

impl Slabs {
    /// How large the next slab should be: as large as all there are.
    #[must_use]
    pub fn next_bytes(&self) -> u64 {
        self.bytes.clamp(*SLAB_BYTES.start(), *SLAB_BYTES.end())
    }

    /// Adds a slab, all of its pages free and zeros.
    pub fn add(&mut self, range: Range) {
        self.restore(SlabRecord { range, leaving: false });
    }

    /// Adds a slab of an image, without its pieces.
    pub fn restore(&mut self, SlabRecord { range, leaving }: SlabRecord) {
        let stage = if leaving { Stage::Leaving } else { Stage::Open };
        self.slabs.insert(range.base, Slab { bytes: range.bytes, stage, live: 0, taken: 0 });
        self.bytes += range.bytes;
        if stage == Stage::Open {
            self.idle.insert(range.base);
            self.insert_run(range);
        }
    }

    /// Every slab, in order of address.
    pub fn records(&self) -> impl Iterator<Item = SlabRecord> + '_ {
        self.slabs.iter().map(|(&base, slab)| SlabRecord {
            range: Range { base, bytes: slab.bytes },
            leaving: slab.stage != Stage::Open,
        })
    }

    /// The slab that an address lies in.
    #[must_use]
    pub fn around(&self, address: u64) -> Option<Range> {
        let (&base, slab) = self.slabs.range(..=address).next_back()?;
        let range = Range { base, bytes: slab.bytes };
        range.contains(address, 1).then_some(range)
    }

    /// Takes a piece of so many whole pages, and answers its address; `None` when no slab has them.
    pub fn take(&mut self, bytes: u64) -> Option<u64> {
        let &(_, base) = self.by_size.range((bytes, 0)..).next()?;
        self.take_at(Range { base, bytes }).then_some(base)
    }

    /// Takes these whole pages, if they are free.
    pub fn take_at(&mut self, piece: Range) -> bool {
        let run = self.free.range(..=piece.base).next_back().map(|(&base, &bytes)| Range { base, bytes });
        let Some(run) = run.filter(|run| run.contains(piece.base, piece.bytes)) else { return false };
        self.remove_run(run);
        self.insert_run(Range { base: run.base, bytes: piece.base - run.base });
        self.insert_run(Range { base: piece.end(), bytes: run.end() - piece.end() });
        if let Some((base, slab)) = self.slabs.range_mut(..=piece.base).next_back() {
            slab.live += 1;
            slab.taken += piece.bytes;
            self.idle.remove(base);
        }
        true
    }

    /// Notes that the piece at an address is live no more; its pages stay taken.
    pub fn free(&mut self, address: u64) {
        if let Some((&base, slab)) = self.slabs.range_mut(..=address).next_back() {
            slab.live -= 1;
            if slab.live == 0 && slab.stage == Stage::Open {
                self.idle.insert(base);
            }
        }
    }

    /// Gives the pages of a freed piece back, which are zeros; answers its slab where that was the last of one that nobody wants any more.
    pub fn give_back(&mut self, piece: Range) -> Option<Range> {
        let (&base, slab) = self.slabs.range_mut(..=piece.base).next_back()?;
        slab.taken -= piece.bytes;
        let bounds = Range { base, bytes: slab.bytes };
        if slab.stage == Stage::Open {
            self.merge_run(piece, bounds);
        }
        self.remove_if_over(base)
    }

    /// A slab that leaves, if there is a live piece in all others but one.
    pub fn spare(&mut self) -> Option<u64> {
        if self.idle.len() < 2 {
            return None;
        }
        let base = self.idle.pop_last()?;
        let slab = self.slabs.get_mut(&base)?;
        slab.stage = Stage::Leaving;
        let end = base + slab.bytes;
        while let Some((&at, &bytes)) = self.free.range(base..end).next() {
            self.remove_run(Range { base: at, bytes });
        }
        Some(base)
    }

    /// Notes that the application has unmapped a slab that leaves; `Err` where none does there. Answers the slab when nobody wants it any more.
    pub fn leave(&mut self, base: u64) -> Result<Option<Range>, ()> {
        let slab = self.slabs.get_mut(&base).filter(|slab| slab.stage == Stage::Leaving).ok_or(())?;
        slab.stage = Stage::Left;
        Ok(self.remove_if_over(base))
    }

    fn remove_if_over(&mut self, base: u64) -> Option<Range> {
        self.slabs.get(&base).filter(|slab| slab.stage == Stage::Left && slab.taken == 0)?;
        let bytes = self.slabs.remove(&base)?.bytes;
        self.bytes -= bytes;
        Some(Range { base, bytes })
    }

    fn insert_run(&mut self, run: Range) {
        if run.bytes != 0 {
            self.free.insert(run.base, run.bytes);
            self.by_size.insert((run.bytes, run.base));
        }
    }

    fn remove_run(&mut self, run: Range) {
        self.free.remove(&run.base);
        self.by_size.remove(&(run.bytes, run.base));
    }

    /// Adds a run, joined with its free neighbours inside the slab.
    fn merge_run(&mut self, mut run: Range, slab: Range) {
        let before =
            self.free.range(slab.base..run.base).next_back().map(|(&base, &bytes)| Range { base, bytes });
        if let Some(before) = before.filter(|before| before.end() == run.base) {
            self.remove_run(before);
            run = Range { base: before.base, bytes: before.bytes + run.bytes };
        }
        if run.end() < slab.end()
            && let Some(&bytes) = self.free.get(&run.end())
        {
            self.remove_run(Range { base: run.end(), bytes });
            run.bytes += bytes;
        }
        self.insert_run(run);
    }
}

/// Whole pages for so many bytes, where those are a piece's.
#[must_use]
pub fn piece_bytes(bytes: u64) -> Option<u64> {
    (1..=PIECE_MAX).contains(&bytes).then(|| bytes.next_multiple_of(PAGE))
}

#[cfg(test)]
#[path = "slabs_tests.rs"]
mod tests;
