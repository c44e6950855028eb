//! Parts of some bytes that lie as rows do, so that one copy takes many: a program that writes a field of each element of an array changes a few bytes here and there.

use backend::Pitched;
use std::ops::Range;

/// Parts as wide as one another, with the same from each to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Rows {
    /// Where the first begins.
    pub(super) start: usize,
    /// Bytes of each.
    pub(super) width: usize,
    /// From the beginning of one to that of the next.
    pitch: usize,
    pub(super) count: usize,
}

impl Rows {
    /// These parts, which are in order and do not meet, in as few as they are when each is taken with those before it.
    pub(super) fn of(parts: &[Range<usize>]) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for part in parts {
            let taken = all.last_mut().is_some_and(|last| last.take(part));
            if !taken {
                all.push(Self::one(part.clone()));
            }
        }
        all
    }

    /// A part alone.
    pub(super) fn one(part: Range<usize>) -> Self {
        Self { start: part.start, width: part.len(), pitch: part.len(), count: 1 }
    }

    /// Takes a part that follows, if it is one more of these.
    fn take(&mut self, part: &Range<usize>) -> bool {
        let pitch = if self.count == 1 { part.start - self.start } else { self.pitch };
        let is_next = part.len() == self.width && part.start == self.start + self.count * pitch;
        if is_next {
            (self.pitch, self.count) = (pitch, self.count + 1);
        }
        is_next
    }

    /// As a side of a copy, with the bytes that they are parts of at `address`.
    pub(super) fn at(&self, address: u64) -> Pitched {
        Pitched { address: address + self.start as u64, pitch: self.pitch as u64, rows: self.count as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rows(start: usize, width: usize, pitch: usize, count: usize) -> Rows {
        Rows { start, width, pitch, count }
    }

    #[test]
    fn a_field_of_each_element_is_rows() {
        let fields: Vec<_> = (0..100).map(|element| 8 + 64 * element..12 + 64 * element).collect();
        assert_eq!(Rows::of(&fields), [rows(8, 4, 64, 100)]);
        assert_eq!(
            Rows::of(&[0..4, 8..12, 16..20, 28..32, 40..41]),
            [rows(0, 4, 8, 3), rows(28, 4, 4, 1), rows(40, 1, 1, 1)]
        );
        assert_eq!(Rows::of(&[]), []);
    }

    proptest! {
        #[test]
        fn rows_are_the_parts(lengths in prop::collection::vec((0..3usize, 1..3usize), 0..40)) {
            let mut at = 0;
            let parts: Vec<_> = lengths
                .into_iter()
                .map(|(gap, length)| {
                    let start = at + gap + usize::from(at > 0);
                    at = start + length;
                    start..at
                })
                .collect();
            let again = Rows::of(&parts).into_iter().flat_map(|rows| {
                (0..rows.count).map(move |row| rows.start + row * rows.pitch..rows.start + row * rows.pitch + rows.width)
            });
            prop_assert_eq!(again.collect::<Vec<_>>(), parts);
        }
    }
}
