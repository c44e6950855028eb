//! How far to go ahead of a program that walks through memory.

use std::ops::Range;

/// The most pages that one fault moves: 2 MiB.
const MOST: usize = 512;

/// Doubles as long as each fault comes where the last one ended; backwards too, as `memcpy` may go.
#[derive(Debug)]
pub(crate) struct Ahead {
    first: usize,
    window: usize,
    last: Range<usize>,
}

impl Ahead {
    /// Begins with `first` pages.
    pub(crate) fn new(first: usize) -> Self {
        Self { first, window: first, last: 0..0 }
    }

    /// Which of `count` pages a fault at one may move.
    pub(crate) fn bounds(&mut self, page: usize, count: usize) -> Range<usize> {
        let (goes_on, goes_back) = (page == self.last.end, page + 1 == self.last.start);
        let is_row = !self.last.is_empty() && (goes_on || goes_back);
        self.window = if is_row { (self.window * 2).min(MOST) } else { self.first };
        match is_row && goes_back {
            true => (page + 1).saturating_sub(self.window)..page + 1,
            false => page..page.saturating_add(self.window).min(count),
        }
    }

    /// The last fault moved these.
    pub(crate) fn moved(&mut self, run: Range<usize>) {
        self.last = run;
    }
}
