//! What is known of a region's pages, and what follows from it when one of them is touched.

use crate::PAGE;
use crate::ahead::Ahead;
use crate::changes::changes;
use crate::habit::Seen;
use crate::twins::{Count, Twins};
use std::ops::Range;

/// Regions of up to so many pages move whole: 256 KiB.
pub(crate) const WHOLE: usize = 64;
/// How many pages the first of a row of faults moves.
const FIRST_READ: usize = 64;
const FIRST_WRITE: usize = 1;

/// Where a page's truth is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Page {
    /// On the device; touching it faults.
    Absent,
    /// On the device, with a copy here; writing it faults.
    Present,
    /// Here. If it has a twin, only in the bytes that differ from that.
    Written,
}

/// What a thread of the application tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// To read a page.
    Read,
    /// To write one.
    Write,
}

/// What has to be done about a fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Service {
    /// Nothing but to have it tried again: what it needs has been done since.
    Wake,
    /// Fetch these pages, and let them be read, or written if that is what was tried.
    Fetch(Range<usize>),
    /// Let these pages be written, which are there.
    Unprotect(Range<usize>),
}

/// The pages of a region.
#[derive(Debug)]
pub struct Pages {
    pages: Vec<Page>,
    /// No other page is there.
    touched: Range<usize>,
    twins: Twins,
    reads: Ahead,
    writes: Ahead,
}

impl Pages {
    /// Of a region of `count` pages; none is there. Their twins are counted by `twins`.
    #[must_use]
    pub fn new(count: usize, twins: &Count) -> Self {
        let (reads, writes) = (Ahead::new(FIRST_READ), Ahead::new(FIRST_WRITE));
        Self { pages: vec![Page::Absent; count], touched: 0..0, twins: Twins::new(twins), reads, writes }
    }

    /// What a fault asks for. `alone` is one that shall move no page but its own.
    pub fn fault(&mut self, page: usize, fault: Fault, alone: bool) -> Service {
        let Some(state) = self.pages.get(page).copied() else { return Service::Wake };
        let like = match (state, fault) {
            (Page::Written, _) | (Page::Present, Fault::Read) => return Service::Wake,
            (like, _) => like,
        };
        let ahead = match fault {
            Fault::Read => &mut self.reads,
            Fault::Write => &mut self.writes,
        };
        let bounds = match self.pages.len() {
            _ if alone => page..page + 1,
            count if count <= WHOLE => 0..count,
            count => ahead.bounds(page, count),
        };
        let run = alike(&self.pages, like, page, bounds);
        ahead.moved(run.clone());
        match like {
            Page::Absent => Service::Fetch(run),
            _ => Service::Unprotect(run),
        }
    }

    /// Which pages are likely to be touched next, if somebody walks fast and none of them is there. Touching the first of them is to fault, so that
    /// [`Self::goes_on`] hears of it.
    pub fn next(&mut self, fault: Fault) -> Option<Range<usize>> {
        let ahead = match fault {
            Fault::Read => &mut self.reads,
            Fault::Write => &mut self.writes,
        };
        let next = ahead.next(self.pages.len())?;
        if self.pages[next.start] != Page::Absent {
            return None;
        }
        let run = alike(&self.pages, Page::Absent, next.start, next);
        ahead.moved(run.clone());
        Some(run)
    }

    /// A page that is there was touched for the first time: the way of which walk went on.
    pub fn goes_on(&mut self, page: usize) -> Option<Fault> {
        let read = self.reads.goes_on(page).then_some(Fault::Read);
        read.or_else(|| self.writes.goes_on(page).then_some(Fault::Write))
    }

    /// These pages are there now, and as they are on the device.
    pub fn fetched(&mut self, run: Range<usize>) {
        self.touch(&run);
        self.pages[run].fill(Page::Present);
    }

    /// These pages, which are there, can be written. `twin` gives what is in each, where work that may reach it may be in flight.
    pub fn written(&mut self, run: Range<usize>, twin: Option<impl Fn(usize) -> Box<[u8]>>) {
        self.touch(&run);
        self.pages[run.clone()].fill(Page::Written);
        if let Some(twin) = twin {
            run.for_each(|page| self.twins.keep(page, twin(page)));
        }
    }

    /// A page is not there any more, or not as it should be, and was not written.
    pub fn lost(&mut self, page: usize) {
        self.pages[page] = Page::Absent;
        self.twins.forget(page);
    }

    /// Whether this has a page that is there.
    #[must_use]
    pub fn is_there(&self, page: usize) -> bool {
        self.pages.get(page).is_some_and(|page| *page != Page::Absent)
    }

    /// Whether it can be written.
    #[must_use]
    pub fn is_written(&self, page: usize) -> bool {
        self.pages.get(page).is_some_and(|page| *page == Page::Written)
    }

    /// All pages that can be there.
    #[must_use]
    pub fn touched(&self) -> Range<usize> {
        self.touched.clone()
    }

    /// Runs of written pages, none longer than `most`.
    #[must_use]
    pub fn changed(&self, most: usize) -> Vec<Range<usize>> {
        self.runs(most, |page| self.is_written(page))
    }

    /// The same, of those that have no twins.
    #[must_use]
    pub fn changed_alone(&self, most: usize) -> Vec<Range<usize>> {
        self.runs(most, |page| self.is_written(page) && self.twins.of(page).is_none())
    }

    /// What of a run of written pages, in which there is `now`, has to be written back: all of it, but for pages that are so on the device, if it is known what is `there`; of
    /// pages with a twin what differs from that.
    #[must_use]
    pub fn to_write(&self, run: Range<usize>, now: &[u8], there: Option<&[u8]>) -> Vec<Range<usize>> {
        let mut parts: Vec<Range<usize>> = Vec::new();
        for (page, (index, now)) in run.zip(now.chunks(PAGE).enumerate()) {
            let is_there = || there.is_some_and(|there| there[index * PAGE..].starts_with(now));
            let within = match self.twins.of(page) {
                Some(twin) => changes(twin, now).collect(),
                None if is_there() => Vec::new(),
                None => vec![Range { start: 0, end: PAGE }],
            };
            for part in within {
                let part = index * PAGE + part.start..index * PAGE + part.end;
                match parts.last_mut() {
                    Some(last) if last.end == part.start => last.end = part.end,
                    _ => parts.push(part),
                }
            }
        }
        parts
    }

    /// How many written pages have twins.
    #[must_use]
    pub fn twins(&self) -> usize {
        self.twins.len()
    }

    /// Written pages have been written back: they are as they are on the device, and can be written no more.
    pub fn clean(&mut self, run: Range<usize>) {
        run.clone().for_each(|page| self.twins.forget(page));
        self.pages[run].fill(Page::Present);
    }

    /// No page is there any more; none was written.
    pub fn dropped(&mut self) {
        debug_assert!(self.twins.len() == 0, "nothing that was written is dropped");
        let touched = std::mem::take(&mut self.touched);
        self.pages[touched].fill(Page::Absent);
    }

    /// Which of them are there, as far as a habit goes.
    pub(crate) fn seen(&self) -> Seen {
        let among = self.touched();
        let count = self.pages[among.clone()].iter().filter(|page| **page != Page::Absent).count();
        Seen { among, count }
    }

    /// Runs of pages that are there, none longer than `most`.
    #[must_use]
    pub fn there(&self, most: usize) -> Vec<Range<usize>> {
        self.runs(most, |page| self.is_there(page))
    }

    /// Runs of pages among these that are not there.
    #[must_use]
    pub fn missing(&self, among: Range<usize>) -> Vec<Range<usize>> {
        runs(among, usize::MAX, |page| !self.is_there(page))
    }

    fn runs(&self, most: usize, wanted: impl Fn(usize) -> bool) -> Vec<Range<usize>> {
        runs(self.touched(), most, wanted)
    }

    fn touch(&mut self, run: &Range<usize>) {
        self.touched = match self.touched.is_empty() {
            true => run.clone(),
            false => self.touched.start.min(run.start)..self.touched.end.max(run.end),
        };
    }
}

/// Runs of those pages that are wanted, none longer than `most`.
fn runs(among: Range<usize>, most: usize, wanted: impl Fn(usize) -> bool) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for page in among.filter(|page| wanted(*page)) {
        match runs.last_mut() {
            Some(last) if last.end == page && last.len() < most => last.end += 1,
            _ => runs.push(page..page + 1),
        }
    }
    runs
}

/// The run of pages like this one around it, within bounds.
fn alike(pages: &[Page], like: Page, page: usize, bounds: Range<usize>) -> Range<usize> {
    let is_other = |at: &usize| pages[*at] != like;
    let begin = (bounds.start..page).rev().find(is_other).map_or(bounds.start, |other| other + 1);
    let end = (page..bounds.end).find(is_other).unwrap_or(bounds.end);
    begin..end
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Serves a fault as the keeper does.
    fn serve(pages: &mut Pages, page: usize, fault: Fault) -> Service {
        let service = pages.fault(page, fault, false);
        match (&service, fault) {
            (Service::Fetch(run), Fault::Read) => pages.fetched(run.clone()),
            (Service::Fetch(run) | Service::Unprotect(run), _) => {
                pages.written(run.clone(), None::<fn(usize) -> Box<[u8]>>);
            }
            (Service::Wake, _) => {}
        }
        service
    }

    #[test]
    fn a_row_of_faults_moves_more_each_time() {
        let mut pages = Pages::new(3000, &Count::default());
        assert_eq!(serve(&mut pages, 100, Fault::Read), Service::Fetch(100..164));
        assert_eq!(serve(&mut pages, 164, Fault::Read), Service::Fetch(164..292));
        assert_eq!(serve(&mut pages, 120, Fault::Write), Service::Unprotect(120..121));
        assert_eq!(
            serve(&mut pages, 292, Fault::Read),
            Service::Fetch(292..548),
            "writes are walks of their own"
        );
        assert_eq!(serve(&mut pages, 99, Fault::Read), Service::Fetch(99..100), "not what is there");
        assert_eq!(serve(&mut pages, 98, Fault::Read), Service::Fetch(0..99), "backwards too");
        assert_eq!(serve(&mut pages, 121, Fault::Write), Service::Unprotect(121..123));
        assert_eq!(serve(&mut pages, 2995, Fault::Write), Service::Fetch(2995..2996));
        assert_eq!(serve(&mut pages, 2990, Fault::Read), Service::Fetch(2990..2995), "up to what is there");
        assert_eq!(serve(&mut pages, 548, Fault::Read), Service::Fetch(548..1536), "several walks at a time");
        assert_eq!(serve(&mut pages, 2996, Fault::Write), Service::Fetch(2996..2998));
        assert_eq!(
            serve(&mut pages, 2998, Fault::Write),
            Service::Fetch(2998..3000),
            "no further than the end"
        );
        assert_eq!(pages.fault(2500, Fault::Read, true), Service::Fetch(2500..2501));
    }

    #[test]
    fn who_walks_fast_is_gone_ahead_of() {
        let mut pages = Pages::new(3000, &Count::default());
        for page in [0, 64, 192] {
            serve(&mut pages, page, Fault::Read);
            assert_eq!(pages.next(Fault::Read), None, "not fast yet");
        }
        serve(&mut pages, 448, Fault::Read);
        assert_eq!(pages.next(Fault::Read), Some(1024..2048), "where huge pages begin and end");
        pages.fetched(1024..2048);
        assert_eq!(pages.goes_on(1025), None);
        assert_eq!(pages.goes_on(1024), Some(Fault::Read), "it has got there");
        pages.written(2900..2901, None::<fn(usize) -> Box<[u8]>>);
        assert_eq!(pages.next(Fault::Read), Some(2048..2900), "up to what is there");
        pages.fetched(2048..2900);
        assert_eq!(pages.next(Fault::Read), None);
    }

    #[test]
    fn what_has_been_done_is_not_done_again() {
        let mut pages = Pages::new(10, &Count::default());
        assert_eq!(serve(&mut pages, 7, Fault::Read), Service::Fetch(0..10));
        assert_eq!(serve(&mut pages, 3, Fault::Read), Service::Wake);
        assert_eq!(serve(&mut pages, 3, Fault::Write), Service::Unprotect(0..10));
        assert_eq!(serve(&mut pages, 4, Fault::Write), Service::Wake);
        assert_eq!(serve(&mut pages, 10, Fault::Read), Service::Wake, "out of the region");
        assert_eq!(pages.changed(4), [0..4, 4..8, 8..10]);
        pages.clean(0..10);
        assert!(pages.changed(4).is_empty());
        pages.dropped();
        assert_eq!(serve(&mut pages, 4, Fault::Write), Service::Fetch(0..10));
    }

    #[test]
    fn of_a_page_with_a_twin_what_differs_is_written_back() {
        let mut pages = Pages::new(100, &Count::default());
        pages.written(0..3, Some(|_| vec![0; PAGE].into()));
        pages.written(3..5, None::<fn(usize) -> Box<[u8]>>);
        assert_eq!(pages.changed(4), [0..4, 4..5]);
        let mut now = vec![0; 5 * PAGE];
        now[5] = 1;
        now[3 * PAGE - 2..3 * PAGE].fill(1);
        assert_eq!(pages.to_write(0..5, &now, None), [5..6, 3 * PAGE - 2..5 * PAGE]);
        assert_eq!(pages.changed_alone(1), [3..4, 4..5]);
        let mut there = now.clone();
        there[5 * PAGE - 1] = 1;
        assert_eq!(
            pages.to_write(0..5, &now, Some(&there)),
            [5..6, 3 * PAGE - 2..3 * PAGE, 4 * PAGE..5 * PAGE],
            "what is there already is left out where there is no twin"
        );
        pages.clean(0..5);
        pages.written(0..1, None::<fn(usize) -> Box<[u8]>>);
        assert_eq!(pages.to_write(0..1, &now[..PAGE], None).first(), Some(&(0..PAGE)), "no twin is left");
    }
}
