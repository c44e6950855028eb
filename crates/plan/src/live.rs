//! Which bytes are live at each boundary of a program: they will be read before they are overwritten. What comes tells what was live before, so a
//! boundary's sum is known only later.
//!
//! Exact for accesses that name their bytes. An access that may be anywhere in an allocation reads all of it and overwrites nothing; one that may be anywhere
//! reads everything. What nobody has written yet is not live, whoever reads it.

use std::collections::{BTreeMap, VecDeque};

/// Of an allocation, so many parts are told apart. What would make more overwrites nothing.
const PARTS: usize = 64;

/// Memory all of which has had the same fate.
#[derive(Clone, Copy, Debug)]
struct Part {
    bytes: u64,
    written: bool,
    /// The first boundary at which it is not known whether it is live.
    since: u64,
    /// How many boundaries came before it was written last.
    written_at: u64,
}

/// Follows memory, access by access.
#[derive(Debug)]
pub struct Tracker {
    /// Lengths, by address.
    allocations: BTreeMap<u64, u64>,
    parts: BTreeMap<u64, Part>,
    allocated: u64,
    /// Boundaries so far.
    now: u64,
    /// `now` at the last access to anything.
    anything: u64,
    /// The first boundary that has not been given out, and how much is live just before it.
    first: u64,
    carried: i64,
    /// How much more is live from each boundary on than before it; the last is the one to come.
    changes: VecDeque<i64>,
}

impl Default for Tracker {
    fn default() -> Self {
        Self {
            allocations: BTreeMap::new(),
            parts: BTreeMap::new(),
            allocated: 0,
            now: 0,
            anything: 0,
            first: 0,
            carried: 0,
            changes: VecDeque::from([0]),
        }
    }
}

impl Tracker {
    /// Bytes allocated.
    #[must_use]
    pub fn allocated(&self) -> u64 {
        self.allocated
    }

    /// New memory; `written`, if it holds something already. What lies where it does is gone.
    pub fn allocate(&mut self, base: u64, bytes: u64, written: bool) {
        let end = base.saturating_add(bytes);
        let meeting = self.allocations.range(..end).rev().take_while(|(at, len)| *at + *len > base);
        let stale: Vec<u64> = meeting.map(|(at, _)| *at).collect();
        stale.into_iter().for_each(|at| self.free(at));
        let bytes = end - base;
        if bytes == 0 {
            return;
        }
        self.allocations.insert(base, bytes);
        self.parts.insert(base, Part { bytes, written, since: self.now, written_at: self.now });
        self.allocated += bytes;
    }

    /// The allocation at this address is gone.
    pub fn free(&mut self, base: u64) {
        let Some(bytes) = self.allocations.remove(&base) else { return };
        self.allocated -= bytes;
        for at in self.parts_in(base, bytes) {
            if let Some(mut part) = self.parts.remove(&at) {
                self.settle(&mut part);
            }
        }
    }

    /// These bytes are read.
    pub fn read(&mut self, base: u64, bytes: u64) {
        self.each_in(base, bytes, |this, part| this.decide(part, true));
    }

    /// Of these bytes some may be written.
    pub fn write(&mut self, base: u64, bytes: u64) {
        self.each_in(base, bytes, |this, part| {
            if !part.written {
                this.decide(part, false);
            }
            (part.written, part.written_at) = (true, this.now);
        });
    }

    /// These bytes are overwritten, all of them.
    pub fn overwrite(&mut self, base: u64, bytes: u64) {
        let end = base.saturating_add(bytes);
        let Some((start, len)) = self.around(base) else { return };
        let parts = self.parts_in(start, len).len();
        let fits = end <= start + len && parts + 2 <= PARTS;
        if fits {
            self.split(base);
            self.split(end);
        }
        self.each_in(base, bytes, |this, part| {
            if fits || !part.written {
                this.decide(part, false);
            }
            (part.written, part.written_at) = (true, this.now);
        });
    }

    /// The allocation around an address is read somewhere.
    pub fn read_around(&mut self, address: u64) {
        for (base, bytes) in self.pointed_into(address) {
            self.read(base, bytes);
        }
    }

    /// The allocation around an address is written somewhere.
    pub fn write_around(&mut self, address: u64) {
        for (base, bytes) in self.pointed_into(address) {
            self.write(base, bytes);
        }
    }

    /// Anything may be read and written.
    pub fn touch_anything(&mut self) {
        self.anything = self.now;
    }

    /// A boundary.
    pub fn boundary(&mut self) {
        self.now += 1;
        self.changes.push_back(0);
    }

    /// Bytes that may have changed since there were `since` boundaries.
    #[must_use]
    pub fn changed_since(&self, since: u64) -> u64 {
        if self.anything >= since && self.anything > 0 {
            return self.allocated;
        }
        let changed = self.parts.values().filter(|part| part.written && part.written_at >= since);
        changed.map(|part| part.bytes).sum()
    }

    /// Boundaries so far.
    #[must_use]
    pub fn boundaries(&self) -> u64 {
        self.now
    }

    /// Boundaries that have not been given out.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.changes.len() - 1
    }

    /// What is live at the oldest boundaries, in order, so that `keep` are left. What nobody has read until now counts as read.
    pub fn give_out(&mut self, keep: usize) -> Vec<u64> {
        let until = self.now - (keep.min(self.pending()) as u64);
        let bases: Vec<u64> = self.parts.keys().copied().collect();
        for base in bases {
            let Some(mut part) = self.parts.get(&base).copied() else { continue };
            self.settle(&mut part);
            if part.since < until {
                self.live(&part, until);
                part.since = until;
            }
            self.parts.insert(base, part);
        }
        self.take(until)
    }

    /// The same for all, when the program has ended: what was not read by then never is.
    pub fn end(mut self) -> Vec<u64> {
        let parts = std::mem::take(&mut self.parts);
        parts.into_values().for_each(|mut part| self.settle(&mut part));
        self.take(self.now)
    }

    fn take(&mut self, until: u64) -> Vec<u64> {
        let count = usize::try_from(until - self.first).unwrap_or(usize::MAX).min(self.pending());
        self.first += count as u64;
        let mut taken = Vec::with_capacity(count);
        for change in self.changes.drain(..count) {
            self.carried += change;
            taken.push(u64::try_from(self.carried).unwrap_or(0));
        }
        taken
    }

    /// Notes what accesses to anything say of a part.
    fn settle(&mut self, part: &mut Part) {
        if self.anything > part.since {
            (part.written, part.written_at) = (true, part.written_at.max(self.anything));
            let until = self.anything;
            self.live(part, until);
            part.since = until;
        }
    }

    /// The boundaries since `part.since` are decided.
    fn decide(&mut self, part: &mut Part, read: bool) {
        if read {
            self.live(part, self.now);
        }
        part.since = self.now;
    }

    fn live(&mut self, part: &Part, until: u64) {
        // Unwritten, or decided already.
        if !part.written || part.since >= until {
            return;
        }
        let bytes = i64::try_from(part.bytes).unwrap_or(i64::MAX);
        let at = |boundary: u64| usize::try_from(boundary.saturating_sub(self.first)).unwrap_or(usize::MAX);
        let (from, to) = (at(part.since), at(until));
        if let (Some(_), Some(_)) = (self.changes.get(from), self.changes.get(to)) {
            self.changes[from] = self.changes[from].saturating_add(bytes);
            self.changes[to] = self.changes[to].saturating_sub(bytes);
        }
    }

    fn around(&self, address: u64) -> Option<(u64, u64)> {
        let (base, bytes) = self.allocations.range(..=address).next_back()?;
        (address - base < *bytes).then_some((*base, *bytes))
    }

    /// What a pointer may have come from: the allocation around it, and one that ends there, whose end may be pointed to.
    fn pointed_into(&self, address: u64) -> impl Iterator<Item = (u64, u64)> + use<> {
        let before = self.allocations.range(..address).next_back().map(|(base, bytes)| (*base, *bytes));
        let ending = before.filter(|(base, bytes)| address - base == *bytes);
        self.around(address).into_iter().chain(ending)
    }

    /// Addresses of parts that meet these bytes.
    fn parts_in(&self, base: u64, bytes: u64) -> Vec<u64> {
        let end = base.saturating_add(bytes);
        let before = self.parts.range(..=base).next_back().filter(|(at, part)| *at + part.bytes > base);
        let first = before.map_or(base, |(at, _)| *at);
        self.parts.range(first..end.max(first)).map(|(at, _)| *at).collect()
    }

    fn each_in(&mut self, base: u64, bytes: u64, mut see: impl FnMut(&mut Self, &mut Part)) {
        for at in self.parts_in(base, bytes) {
            if let Some(mut part) = self.parts.get(&at).copied() {
                self.settle(&mut part);
                see(self, &mut part);
                self.parts.insert(at, part);
            }
        }
    }

    /// Has a part begin at this address, if one lies around it.
    fn split(&mut self, address: u64) {
        let Some((at, part)) = self.parts.range_mut(..address).next_back() else { return };
        let head = address - at;
        if head < part.bytes {
            let tail = Part { bytes: part.bytes - head, ..*part };
            part.bytes = head;
            self.parts.insert(address, tail);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Tracker;

    #[test]
    fn the_end_of_an_allocation_points_into_it() {
        // Of two that touch, and of one beyond a gap.
        for (address, live) in [(64, 96), (96, 32), (63, 64), (160, 16), (200, 0)] {
            let mut tracker = Tracker::default();
            for (base, bytes) in [(0, 64), (64, 32), (144, 16)] {
                tracker.allocate(base, bytes, true);
            }
            tracker.boundary();
            tracker.read_around(address);
            assert_eq!(tracker.end(), [live], "{address}");
        }
    }
}
