//! Whether a program goes on touching the same pages between any two pieces of work, so that they had better stay.

use crate::PAGE;
use crate::guess::Guess;
use crate::window::HUGE;
use std::ops::Range;

/// Pages are dropped after work, and cost faults to come back. Those that came back in the same way several times in a row are kept instead, and
/// brought up to date, for as many times more; then dropped once, to see whether they are still wanted.
#[derive(Debug, Default)]
pub(crate) struct Habit {
    /// What was there when all was dropped, and the number of the work for which it was.
    last: Option<(Seen, u64)>,
    /// For the first page that came after that, if all work was complete: what was settled when the last of it was announced.
    came: Option<u64>,
    /// The same will be there again, between the same two pieces of work.
    same: Guess,
    /// What is read will be written, most of it.
    writes: Guess,
    /// Which are given back to be written, with those that are kept.
    written: Vec<Range<usize>>,
    /// Which have been dropped, to come back at once.
    comes_back: Vec<Range<usize>>,
}

/// Which pages are there, as far as is looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    /// None beside these.
    pub(crate) among: Range<usize>,
    /// How many.
    pub(crate) count: usize,
}

impl Habit {
    /// More are not kept: 16 MiB.
    pub(crate) const MOST: usize = 4096;

    /// The first page comes, when all work is complete of which the last was announced when that up to `since` was settled; or work is in flight.
    pub(crate) fn came(&mut self, since: Option<u64>) {
        self.came = since;
    }

    /// Whether the pages are to be kept.
    pub(crate) fn keeps(&self) -> bool {
        self.same.is_sure()
    }

    /// Whether pages that are read had better be given to be written at once: to let a page be written that is mapped costs two faults, one of which nobody
    /// but the kernel hears of.
    pub(crate) fn is_to_write(&self) -> bool {
        self.writes.is_sure()
    }

    /// So many pages are dropped that were there, of which so many had been written.
    pub(crate) fn drops(&mut self, there: usize, written: usize) {
        match self.writes.is_sure() {
            true => self.writes.used(),
            false => self.writes.looked(written > there / 2),
        }
    }

    /// Of those that are kept, whether these had better be dropped and come back, as new: if they are all written, and many. A page that has been protected
    /// costs a fault of the kernel's own when it may be written again, and is written first; a large one costs little to make.
    pub(crate) fn renews(&mut self, there: Vec<Range<usize>>) -> bool {
        let count = |runs: &[Range<usize>]| runs.iter().map(Range::len).sum::<usize>();
        let renews = count(&self.written) == count(&there) && count(&there) >= HUGE / PAGE;
        if renews {
            self.comes_back = there;
        }
        renews
    }

    /// Which pages to make, to be written.
    pub(crate) fn comes_back(&mut self) -> Vec<Range<usize>> {
        std::mem::take(&mut self.comes_back)
    }

    /// Which pages to give back, to be written.
    pub(crate) fn written(&self) -> &[Range<usize>] {
        &self.written
    }

    /// Work of this number is about to begin, before which these have been written; answers whether the pages are kept.
    pub(crate) fn begins(&mut self, seen: Seen, written: Vec<Range<usize>>, work: u64) -> bool {
        if !self.keeps() {
            let last = self.last.replace((seen.clone(), work));
            // A page that came later than at the first chance, when more work had begun after that was settled for which it was dropped, would have
            // been brought up to date for nothing.
            let is_same = last.is_some_and(|(last, dropped)| {
                last == seen && self.came.is_some_and(|since| since < dropped)
            });
            self.same.looked(is_same && seen.count <= Self::MOST);
            self.written.clear();
        }
        if self.keeps() && !written.is_empty() {
            self.written = written;
        }
        self.keeps()
    }

    /// All work up to this number is complete; answers whether the pages are kept.
    pub(crate) fn ends(&mut self, seen: Seen, work: u64) -> bool {
        if !self.keeps() || seen.count > Self::MOST {
            self.same.was_wrong();
            return false;
        }
        self.same.used();
        if !self.keeps() {
            self.last = Some((seen, work));
        }
        self.keeps()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Seen = Seen { among: 0..16, count: 16 };

    /// A cycle of work and a touch of pages; answers whether there had to be a fault.
    fn cycle(habit: &mut Habit, there: &mut bool, work: &mut u64, seen: &Seen) -> bool {
        let written = Vec::from_iter([seen.among.clone()]);
        let settled = *work;
        *work += 1;
        *there = *there && habit.begins(seen.clone(), written, *work);
        *there = *there && habit.ends(seen.clone(), *work);
        let faulted = !*there;
        if faulted {
            habit.came(Some(settled));
        }
        *there = true;
        faulted
    }

    #[test]
    fn what_comes_back_is_kept_and_looked_at_now_and_then() {
        let (mut habit, mut there, mut work) = (Habit::default(), false, 0);
        let mut faults = |seen: &Seen, cycles| {
            (0..cycles).filter(|_| cycle(&mut habit, &mut there, &mut work, seen)).count()
        };
        assert_eq!(faults(&ALL, 3), 3, "nobody is sure yet");
        assert!(faults(&ALL, 1000) < 30);
        let part = Seen { among: 0..3, count: 3 };
        assert!(faults(&part, 100) > 1);
        assert!(faults(&part, 1000) < 30, "it has another habit now");
        let large = Seen { among: 0..5000, count: 5000 };
        faults(&large, 100);
        assert_eq!(faults(&large, 100), 100, "as much as that is not kept");
    }

    #[test]
    fn pages_that_are_not_touched_at_once_are_not_kept() {
        // One behind the other, settled one by one or not at all before the page comes.
        for since in [|work: u64| Some(work + 1), |_| None] {
            let mut habit = Habit::default();
            for work in (1..60).step_by(3) {
                assert!(!habit.begins(ALL, Vec::new(), work));
                habit.came(since(work));
            }
        }
    }

    #[test]
    fn several_pieces_of_work_before_the_first_chance_do_no_harm() {
        let mut habit = Habit::default();
        let kept = (1..10_u64).step_by(3).filter(|work| {
            let keeps = habit.begins(ALL, Vec::new(), *work);
            habit.came(Some(work - 1));
            keeps
        });
        assert_eq!(kept.count(), 1, "the third time");
    }
}
