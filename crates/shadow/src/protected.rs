//! For what pages are given that somebody has touched.

use crate::pages::WHOLE;
use std::ops::Range;

/// Which pages are protected, when they are given: they can be read, and tell when they are written. All others can be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Protected {
    /// All of them.
    All,
    /// None of them.
    None,
    /// A few, all over the region, which show what is true of all; each time others.
    Sample(usize),
}

impl Protected {
    /// As many pages of a sample lie one behind the other,
    const RUN: usize = WHOLE;
    /// and of so many such runs one belongs to it.
    const EVERY: usize = 32;

    /// Whether a page is.
    fn has(self, page: usize) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Sample(turn) => page / Self::RUN % Self::EVERY == turn % Self::EVERY,
        }
    }

    /// The parts of a run, with whether each is protected.
    pub(crate) fn parts(self, run: &Range<usize>) -> Vec<(Range<usize>, bool)> {
        let mut parts: Vec<(Range<usize>, bool)> = Vec::new();
        let mut from = run.start;
        while from < run.end {
            let end = match self {
                Self::All | Self::None => run.end,
                Self::Sample(_) => ((from / Self::RUN + 1) * Self::RUN).min(run.end),
            };
            match parts.last_mut().filter(|(_, protected)| *protected == self.has(from)) {
                Some((last, _)) => last.end = end,
                None => parts.push((from..end, self.has(from))),
            }
            from = end;
        }
        parts
    }

    /// How many pages of these runs are.
    pub(crate) fn count(self, runs: &[Range<usize>]) -> usize {
        let parts = runs.iter().flat_map(|run| self.parts(run));
        parts.filter(|(_, protected)| *protected).map(|(part, _)| part.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_a_run_and_alternate() {
        assert_eq!(Protected::All.parts(&(3..900)), [(3..900, true)]);
        assert_eq!(Protected::None.parts(&(3..900)), [(3..900, false)]);
        assert_eq!(
            Protected::Sample(1).parts(&(3..900)),
            [(3..64, false), (64..128, true), (128..900, false)]
        );
        assert_eq!(Protected::Sample(33).parts(&(70..90)), [(70..90, true)]);
        assert_eq!(
            Protected::Sample(0).parts(&(60..2049)),
            [(60..64, true), (64..2048, false), (2048..2049, true)]
        );
        assert!(Protected::All.parts(&(5..5)).is_empty());
    }

    #[test]
    fn what_is_large_has_pages_of_every_sample() {
        for turn in 0..64 {
            assert_eq!(Protected::Sample(turn).count(std::slice::from_ref(&(1000..1000 + 2048))), 64);
        }
    }
}
