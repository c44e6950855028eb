//! Memory whose contents the application does not want saved (`docs/self-checkpoint.md`). Ranges that only touch stay apart, since each lies in one
//! allocation.

use crate::failure::{Failure, Result};
use backend::Range;
use std::collections::BTreeMap;
use wire::CuError;

/// The most ranges that are kept of a device, or of the memory that the application maps itself.
const MOST: usize = 1 << 16;

/// Ranges of addresses, none of which overlaps another.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Excluded {
    /// Where they end, by where they begin.
    ranges: BTreeMap<u64, u64>,
}

impl Excluded {
    /// Those of a session's state.
    pub(crate) fn of_state(ranges: &[Range]) -> Self {
        Self { ranges: ranges.iter().map(|range| (range.base, range.end())).collect() }
    }

    /// Adds a range, which may overlap others.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` when there are too many.
    pub fn add(&mut self, range: Range) -> Result<()> {
        if range.bytes == 0 {
            return Ok(());
        }
        let (mut base, mut end) = (range.base, range.end());
        let joined: Vec<(u64, u64)> = self.inside(range).map(|(base, end, _)| (base, end)).collect();
        if self.ranges.len() >= MOST + joined.len() {
            return Err(Failure::new(CuError::OUT_OF_MEMORY, format!("{MOST} ranges are excluded already")));
        }
        for (other, other_end) in joined {
            self.ranges.remove(&other);
            (base, end) = (base.min(other), end.max(other_end));
        }
        self.ranges.insert(base, end);
        Ok(())
    }

    /// Takes a range away. Where that would divide one and there are too many, what lies behind goes too: it is saved.
    pub fn remove(&mut self, range: Range) {
        let touched: Vec<(u64, u64)> = self.inside(range).map(|(base, end, _)| (base, end)).collect();
        for (base, end) in touched {
            self.ranges.remove(&base);
            if base < range.base {
                self.ranges.insert(base, range.base);
            }
            if end > range.end() && self.ranges.len() < MOST {
                self.ranges.insert(range.end(), end);
            }
        }
    }

    /// What of `range` is excluded, in order.
    pub fn of(&self, range: Range) -> Vec<Range> {
        let mut found: Vec<Range> = self.inside(range).map(|(_, _, inside)| inside).collect();
        found.reverse();
        found
    }

    /// What of `ranges`, which are in order, is not.
    pub fn without(&self, ranges: Vec<Range>) -> Vec<Range> {
        if self.ranges.is_empty() {
            return ranges;
        }
        let mut left = Vec::new();
        for range in ranges {
            let mut at = range.base;
            for gone in self.of(range) {
                left.extend((at < gone.base).then(|| Range { base: at, bytes: gone.base - at }));
                at = gone.end();
            }
            left.extend((at < range.end()).then(|| Range { base: at, bytes: range.end() - at }));
        }
        left
    }

    /// All of it, in order.
    pub fn all(&self) -> impl Iterator<Item = Range> + '_ {
        self.ranges.iter().map(|(base, end)| Range { base: *base, bytes: end - base })
    }

    /// How many bytes.
    pub fn bytes(&self) -> u64 {
        self.all().map(|range| range.bytes).sum()
    }

    /// Those of which something lies in `range`, from the last to the first: where each begins and ends, and that.
    fn inside(&self, range: Range) -> impl Iterator<Item = (u64, u64, Range)> + '_ {
        let before = self.ranges.range(..range.end()).rev().map(|(base, end)| (*base, *end));
        before.take_while(move |(_, end)| *end > range.base).map(move |(base, end)| {
            let from = base.max(range.base);
            (base, end, Range { base: from, bytes: end.min(range.end()) - from })
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(base: u64, end: u64) -> Range {
        Range { base, bytes: end - base }
    }

    proptest! {
        /// As a set of addresses would be.
        #[test]
        fn it_is_the_set_of_what_was_added_and_not_removed(
            calls in prop::collection::vec((any::<bool>(), 0_u64..64, 0_u64..64), 0..40), (from, to) in (0_u64..64, 0_u64..64)
        ) {
            let (mut excluded, mut set) = (Excluded::default(), std::collections::BTreeSet::new());
            for (adds, a, b) in calls {
                let (a, b) = (a.min(b), a.max(b));
                if adds {
                    excluded.add(range(a, b)).unwrap();
                    set.extend(a..b);
                } else {
                    excluded.remove(range(a, b));
                    set.retain(|address| !(a..b).contains(address));
                }
            }
            let addresses = |ranges: &[Range]| -> Vec<u64> { ranges.iter().flat_map(|each| each.base..each.end()).collect() };
            let all: Vec<Range> = excluded.all().collect();
            prop_assert_eq!(addresses(&all), set.iter().copied().collect::<Vec<_>>());
            prop_assert!(all.windows(2).all(|two| two[0].end() <= two[1].base));
            prop_assert_eq!(excluded.bytes(), set.len() as u64);
            let (from, to) = (from.min(to), from.max(to));
            prop_assert_eq!(addresses(&excluded.of(range(from, to))), set.range(from..to).copied().collect::<Vec<_>>());
            let rest: Vec<u64> = (from..to).filter(|address| !set.contains(address)).collect();
            prop_assert_eq!(addresses(&excluded.without(vec![range(from, to)])), rest);
        }
    }

    #[test]
    fn there_are_only_so_many() {
        let mut excluded = Excluded::default();
        for number in 0..MOST as u64 {
            excluded.add(range(4 * number, 4 * number + 3)).unwrap();
        }
        let end = 4 * MOST as u64;
        assert_eq!(excluded.add(range(end + 4, end + 5)).unwrap_err().code, CuError::OUT_OF_MEMORY);
        excluded.add(range(0, 5)).unwrap();
        assert_eq!(excluded.ranges.len(), MOST - 1, "what joins others takes no room");
        excluded.add(range(end + 4, end + 7)).unwrap();
        excluded.remove(range(end + 5, end + 6));
        assert_eq!(excluded.ranges.len(), MOST);
        assert_eq!(excluded.of(range(end, u64::MAX)), [range(end + 4, end + 5)], "the rest is saved");
    }
}
