//! Whether a program goes on touching the same pages between any two pieces of work, so that they had better stay.

use crate::PAGE;
use crate::guess::Guess;
use crate::pages::WHOLE;
use crate::protected::Protected;
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
    /// How often it was looked whether it is.
    looks: usize,
    /// The pages that are there have been looked at, or show nothing.
    seen: bool,
    /// None of the last sample was there.
    missed: bool,
    /// Which are given back to be written, with those that are kept.
    written: Vec<Range<usize>>,
    /// Which have been dropped, and come back by themselves.
    returning: Vec<Range<usize>>,
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
    /// So many pages come back at once: 8 MiB.
    const AT_ONCE: usize = 4 * HUGE / PAGE;

    /// The first page comes, when all work is complete of which the last was announced when that up to `since` was settled; or work is in flight.
    pub(crate) fn came(&mut self, since: Option<u64>) {
        self.came = since;
    }

    /// Whether the pages are to be kept.
    pub(crate) fn keeps(&self) -> bool {
        self.same.is_sure()
    }

    /// Which of `count` pages are protected that are read: to let a page be written that is mapped costs two faults, one of which nobody but the kernel hears of. All
    /// as long as nothing is known, none where they are expected to be written as they were, and some where it is to be seen whether they still are.
    pub(crate) fn protected(&self, count: usize) -> Protected {
        match (self.writes.is_sure(), self.writes.was_right()) {
            (true, _) => Protected::None,
            // Few are as soon looked at all together.
            (false, true) if !self.missed && count > WHOLE => Protected::sample(self.looks, count),
            (false, _) => Protected::All,
        }
    }

    /// Pages of a region that has `count` are looked at: those that are `there`, of which some have been written since they came. Once, before they are dropped.
    pub(crate) fn look(
        &mut self,
        count: usize,
        there: impl FnOnce() -> Vec<Range<usize>>,
        written: &[Range<usize>],
    ) {
        if std::mem::replace(&mut self.seen, true) {
            return;
        }
        if self.writes.is_sure() {
            return self.writes.used();
        }
        let sample = self.protected(count);
        let there = sample.count(&there());
        self.missed = there == 0;
        if !self.missed {
            self.looks += 1;
            self.writes.looked(sample.count(written) > there / 2);
        }
    }

    /// None is there any more.
    pub(crate) fn dropped(&mut self) {
        // Those that come back by themselves can be written, and show nothing.
        self.seen = !self.returning.is_empty();
    }

    /// Pages are dropped while work is in flight: to keep them was in vain.
    pub(crate) fn was_in_vain(&mut self) {
        if self.keeps() {
            self.same.looked(false);
        }
    }

    /// Of those that are kept, whether these had better be dropped and come back, as new: if they are all written, and many. A page that has been protected
    /// costs a fault of the kernel's own when it may be written again, and is written first; a large one costs little to make.
    pub(crate) fn renews(&mut self, there: Vec<Range<usize>>) -> bool {
        let count = |runs: &[Range<usize>]| runs.iter().map(Range::len).sum::<usize>();
        let renews = count(&self.written) == count(&there) && count(&there) >= HUGE / PAGE;
        if renews {
            self.returning = there;
        }
        renews
    }

    /// Whether pages come back that nobody has made yet.
    pub(crate) fn is_returning(&self) -> bool {
        !self.returning.is_empty()
    }

    /// Which of the pages that come back to make next, to be written: the first ones, or those around one that somebody waits for; no more than [`Self::AT_ONCE`].
    pub(crate) fn returns(&mut self, waited: Option<usize>) -> Option<Range<usize>> {
        let at = match waited {
            Some(page) => self.returning.iter().position(|run| run.contains(&page))?,
            None => 0,
        };
        let run = self.returning.get(at)?.clone();
        let begin = waited.map_or(run.start, |page| run.start.max(page / Self::AT_ONCE * Self::AT_ONCE));
        let end = run.end.min((begin / Self::AT_ONCE + 1) * Self::AT_ONCE);
        let rest = [run.start..begin, end..run.end].into_iter().filter(|rest| !rest.is_empty());
        self.returning.splice(at..=at, rest);
        Some(begin..end)
    }

    /// No more of them come back.
    pub(crate) fn stay_away(&mut self) {
        self.returning.clear();
    }

    /// Which pages to give back, to be written.
    pub(crate) fn written(&self) -> &[Range<usize>] {
        &self.written
    }

    /// Work of this number is about to begin, before which these have been written; answers whether the pages are kept.
    pub(crate) fn begins(&mut self, seen: Seen, written: &[Range<usize>], work: u64) -> bool {
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
            self.written = written.to_vec();
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
        let written = [seen.among.clone()];
        let settled = *work;
        *work += 1;
        *there = *there && habit.begins(seen.clone(), &written, *work);
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

    /// What is protected of 10,000 pages, of which those are touched and those written, before they are dropped again.
    fn look(habit: &mut Habit, there: Range<usize>, written: Range<usize>) -> Protected {
        let protected = habit.protected(10_000);
        habit.look(10_000, || Vec::from_iter([there.clone()]), &[written]);
        habit.look(10_000, || Vec::from_iter([there]), &[]);
        habit.dropped();
        protected
    }

    #[test]
    fn a_sample_shows_whether_pages_are_still_written() {
        let mut habit = Habit::default();
        let mut turns = (0..20).map(|_| look(&mut habit, 0..10_000, 0..10_000));
        assert_eq!(turns.by_ref().take(2).collect::<Vec<_>>(), [Protected::All; 2], "once may be chance");
        let samples: Vec<_> =
            (2..).zip(turns).filter(|(_, protected)| *protected != Protected::None).collect();
        assert_eq!(samples, [(6, Protected::Sample(2)), (15, Protected::Sample(3))]);
        while habit.protected(10_000) == Protected::None {
            look(&mut habit, 0..10_000, 0..10_000);
        }
        assert_eq!(habit.protected(60), Protected::All, "few are looked at all together");
        assert_eq!(look(&mut habit, 0..100, 0..100), Protected::Sample(4));
        assert_eq!(look(&mut habit, 0..100, 0..0), Protected::All, "none of those was touched");
        assert_eq!(habit.protected(10_000), Protected::All, "they are not written any more");
    }

    #[test]
    fn who_goes_through_a_region_in_step_with_the_samples_is_seen_too() {
        let mut habit = Habit::default();
        let part = |turn: usize| turn % 8 * 1250..(turn % 8 + 1) * 1250;
        for turn in 0..300 {
            look(&mut habit, part(turn), if turn < 200 { part(turn) } else { 0..0 });
        }
        assert_eq!(habit.protected(10_000), Protected::All);
    }

    #[test]
    fn what_is_kept_and_dropped_before_its_time_is_not_kept_again_at_once() {
        let mut habit = Habit::default();
        let begins = |habit: &mut Habit, work| {
            let keeps = habit.begins(ALL, &[], work);
            habit.came(Some(work - 1));
            keeps
        };
        assert_eq!([1, 2, 3].map(|work| begins(&mut habit, work)), [false, false, true]);
        habit.was_in_vain();
        assert_eq!([4, 5].map(|work| begins(&mut habit, work)), [false, true]);
    }

    #[test]
    fn pages_that_are_not_touched_at_once_are_not_kept() {
        // One behind the other, settled one by one or not at all before the page comes.
        for since in [|work: u64| Some(work + 1), |_| None] {
            let mut habit = Habit::default();
            for work in (1..60).step_by(3) {
                assert!(!habit.begins(ALL, &[], work));
                habit.came(since(work));
            }
        }
    }

    #[test]
    fn several_pieces_of_work_before_the_first_chance_do_no_harm() {
        let mut habit = Habit::default();
        let kept = (1..10_u64).step_by(3).filter(|work| {
            let keeps = habit.begins(ALL, &[], *work);
            habit.came(Some(work - 1));
            keeps
        });
        assert_eq!(kept.count(), 1, "the third time");
    }
}
