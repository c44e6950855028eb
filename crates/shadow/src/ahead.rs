//! How far to go ahead of a program that walks through memory.

use std::ops::Range;

/// The most pages that one fault moves: 8 MiB, and up to where a huge page begins or ends.
pub(crate) const MOST: usize = 2048;

/// A walk for which so many are moved is fast, and gone ahead of: those of a huge page, 2 MiB.
pub(crate) const FAST: usize = 512;

/// How many walks are followed at a time: threads that each have a part, arrays that are read side by side.
const ROWS: usize = 8;

/// A walk: doubles as long as each fault comes where its last one ended; backwards too, as `memcpy` may go.
#[derive(Debug)]
struct Row {
    window: usize,
    last: Range<usize>,
}

impl Row {
    /// Where what is moved from a page on ends, of so many pages; of a fast walk where a huge one does.
    fn end(&self, page: usize, count: usize) -> usize {
        let end = page.saturating_add(self.window);
        let end = if self.window >= FAST { end.next_multiple_of(FAST) } else { end };
        end.min(count)
    }

    /// The same backwards, for what ends before `end`.
    fn begin(&self, end: usize) -> usize {
        let begin = end.saturating_sub(self.window);
        if self.window >= FAST { begin / FAST * FAST } else { begin }
    }
}

/// The walks through a region, those that went on last in front.
#[derive(Debug)]
pub(crate) struct Ahead {
    first: usize,
    rows: Vec<Row>,
}

impl Ahead {
    /// Each walk begins with `first` pages.
    pub(crate) fn new(first: usize) -> Self {
        Self { first, rows: Vec::new() }
    }

    /// Which of `count` pages a fault at one may move.
    pub(crate) fn bounds(&mut self, page: usize, count: usize) -> Range<usize> {
        let goes_on = |row: &Row| page == row.last.end || page + 1 == row.last.start;
        let Some(index) = self.rows.iter().position(goes_on) else {
            self.rows.truncate(ROWS - 1);
            self.rows.insert(0, Row { window: self.first, last: 0..0 });
            return page..page.saturating_add(self.first).min(count);
        };
        self.rows[..=index].rotate_right(1);
        let row = &mut self.rows[0];
        row.window = (row.window * 2).min(MOST);
        match page == row.last.end {
            true => page..row.end(page, count),
            false => row.begin(page + 1)..page + 1,
        }
    }

    /// The last fault moved these.
    pub(crate) fn moved(&mut self, run: Range<usize>) {
        if let Some(row) = self.rows.first_mut() {
            row.last = run;
        }
    }

    /// Whether a walk got to the beginning of what was moved last.
    pub(crate) fn goes_on(&mut self, page: usize) -> bool {
        let found = self.rows.iter().position(|row| row.window >= FAST && row.last.start == page);
        found.map(|index| self.rows[..=index].rotate_right(1)).is_some()
    }

    /// Of which pages the next fault of the walk that went on last will be the first, if that goes forwards and as fast as it can.
    pub(crate) fn next(&mut self, count: usize) -> Option<Range<usize>> {
        let row = self.rows.first_mut().filter(|row| row.window >= FAST)?;
        row.window = (row.window * 2).min(MOST);
        let next = row.last.end..row.end(row.last.end, count);
        (!next.is_empty()).then_some(next)
    }
}
