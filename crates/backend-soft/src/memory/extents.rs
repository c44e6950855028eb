//! Which addresses exist.

/// Sorted, disjoint address ranges; neighbours are merged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extents(Vec<(u64, u64)>);

impl Extents {
    /// From `(start, end)` pairs in any order, overlapping or not.
    pub fn new(ranges: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut sorted: Vec<_> = ranges.into_iter().filter(|(start, end)| start < end).collect();
        sorted.sort_unstable();
        let mut merged: Vec<(u64, u64)> = Vec::with_capacity(sorted.len());
        for (start, end) in sorted {
            match merged.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => merged.push((start, end)),
            }
        }
        Self(merged)
    }

    /// The range that holds `bytes` bytes at `address`.
    pub fn find(&self, address: u64, bytes: u64) -> Option<(u64, u64)> {
        let after = self.0.partition_point(|(start, _)| *start <= address);
        let (start, end) = *self.0.get(after.checked_sub(1)?)?;
        (end >= address && bytes <= end - address).then_some((start, end))
    }

    /// Whether any byte of `address..address + bytes` exists.
    pub fn overlaps(&self, address: u64, bytes: u64) -> bool {
        let after = self.0.partition_point(|(start, _)| *start < address.saturating_add(bytes));
        after > 0 && self.0[after - 1].1 > address
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_merge_and_gaps_stay() {
        let extents = Extents::new([(0x30, 0x40), (0x10, 0x20), (0x20, 0x28)]);
        assert_eq!(extents.find(0x1c, 8), Some((0x10, 0x28)));
        assert_eq!(extents.find(0x24, 8), None);
        assert_eq!(extents.find(0x28, 1), None);
        assert_eq!(extents.find(0x3f, 1), Some((0x30, 0x40)));
        assert_eq!(extents.find(0x40, 0), Some((0x30, 0x40)));
        assert_eq!(extents.find(0, 1), None);
        assert_eq!(extents.find(0x38, u64::MAX), None);
        assert!(extents.overlaps(0x28, 9) && !extents.overlaps(0x28, 8) && !extents.overlaps(0x40, 8));
    }
}
