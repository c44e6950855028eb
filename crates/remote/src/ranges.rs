//! Sets of address ranges.

use backend::Range;
use std::collections::BTreeMap;

/// Ranges by their first address; they do not overlap.
pub(crate) struct Ranges<T = ()>(BTreeMap<u64, (u64, T)>);

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> Ranges<T> {
    /// Adds one; `false` where it overlaps another, is empty or wraps.
    pub(crate) fn insert(&mut self, range: Range, of: T) -> bool {
        let fits = range.bytes > 0 && range.base.checked_add(range.bytes).is_some() && !self.overlaps(range);
        if fits {
            self.0.insert(range.base, (range.bytes, of));
        }
        fits
    }

    pub(crate) fn remove(&mut self, base: u64) -> Option<(Range, T)> {
        self.0.remove(&base).map(|(bytes, of)| (Range { base, bytes }, of))
    }

    pub(crate) fn get_mut(&mut self, base: u64) -> Option<&mut T> {
        self.0.get_mut(&base).map(|(_, of)| of)
    }

    /// Takes some of them out.
    pub(crate) fn take(&mut self, goes: impl Fn(&T) -> bool) -> Vec<(Range, T)> {
        let (taken, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.0).into_iter().partition(|(_, (_, of))| goes(of));
        self.0 = kept.into_iter().collect();
        taken.into_iter().map(|(base, (bytes, of))| (Range { base, bytes }, of)).collect()
    }

    pub(crate) fn overlaps(&self, range: Range) -> bool {
        let last = self.0.range(..range.end()).next_back();
        last.is_some_and(|(base, (bytes, _))| base.saturating_add(*bytes) > range.base)
    }

    /// The one that an address lies in.
    pub(crate) fn at(&self, address: u64) -> Option<(Range, &T)> {
        let (base, (bytes, of)) = self.0.range(..=address).next_back()?;
        let range = Range { base: *base, bytes: *bytes };
        range.contains(address, 1).then_some((range, of))
    }

    /// Whether ranges side by side cover all of these bytes.
    pub(crate) fn covers(&self, address: u64, bytes: u64) -> bool {
        let Some(end) = address.checked_add(bytes) else { return false };
        let mut at = address;
        while at < end {
            match self.at(at) {
                Some((range, _)) => at = range.end(),
                None => return false,
            }
        }
        true
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Range, &T)> {
        self.0.iter().map(|(base, (bytes, of))| (Range { base: *base, bytes: *bytes }, of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_side_by_side_cover_what_lies_across() {
        let mut ranges = Ranges::default();
        assert!(ranges.insert(Range { base: 10, bytes: 10 }, ()));
        assert!(ranges.insert(Range { base: 20, bytes: 5 }, ()));
        assert!(!ranges.insert(Range { base: 24, bytes: 5 }, ()));
        assert!(!ranges.insert(Range { base: u64::MAX, bytes: 5 }, ()));
        assert!(ranges.covers(10, 15) && ranges.covers(24, 1) && ranges.covers(10, 0));
        assert!(!ranges.covers(9, 2) && !ranges.covers(20, 6) && !ranges.covers(20, u64::MAX));
        assert!(
            ranges.overlaps(Range { base: 0, bytes: 11 }) && !ranges.overlaps(Range { base: 0, bytes: 10 })
        );
        assert!(ranges.remove(10).is_some());
        assert!(!ranges.covers(10, 1));
    }
}
