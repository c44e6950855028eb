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
    /// A few, all over the region, which show what is true of all: of every [`Self::EVERY`] runs the one of this number.
    Sample(usize),
}

impl Protected {
    /// As many pages of a sample lie one behind the other,
    const RUN: usize = WHOLE;
    /// and of so many such runs one belongs to it.
    const EVERY: usize = 32;

    /// A sample of `count` pages, each time others.
    pub(crate) fn sample(turn: usize, count: usize) -> Self {
        Self::Sample(turn % count.div_ceil(Self::RUN).clamp(1, Self::EVERY))
    }

    /// Whether a page is.
    fn has(self, page: usize) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Sample(run) => page / Self::RUN % Self::EVERY == run,
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
        assert_eq!(Protected::sample(33, 10_000).parts(&(70..90)), [(70..90, true)]);
        assert_eq!(
            Protected::Sample(0).parts(&(60..2049)),
            [(60..64, true), (64..2048, false), (2048..2049, true)]
        );
        assert!(Protected::All.parts(&(5..5)).is_empty());
    }

    #[test]
    fn every_sample_has_pages() {
        for (turn, count) in (0..64).flat_map(|turn| (1..2500).step_by(7).map(move |count| (turn, count))) {
            assert!(Protected::sample(turn, count).count(std::slice::from_ref(&(0..count))) > 0);
        }
        for turn in 0..32 {
            assert_eq!(Protected::Sample(turn).count(std::slice::from_ref(&(1000..1000 + 2048))), 64);
        }
    }
}
