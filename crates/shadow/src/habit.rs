//! Whether a program goes on touching the same pages between any two pieces of work, so that they had better stay.

use std::ops::Range;

/// Pages are dropped after work, and cost faults to come back. Those that came back in the same way several times in a row are kept instead, and
/// brought up to date, for as many times more; then dropped once, to see whether they are still wanted.
#[derive(Debug, Default)]
pub(crate) struct Habit {
    /// What was there when all was dropped, and when that was.
    last: Option<(Seen, u64)>,
    /// When the first page came after that.
    came: u64,
    /// How often the same was there again, each time between the same two pieces of work.
    again: u32,
    /// How often they will be kept yet.
    left: u32,
    /// Which are given back to be written, with those that are kept.
    written: Vec<Range<usize>>,
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
    const MOST: usize = 4096;
    /// How often the same has to be seen before it is expected.
    const SURE: u32 = 2;
    /// The most times that pages are kept without a look, as a power of two.
    const LONGEST: u32 = 6;

    /// The first page comes. `now` counts how often all work was found to be complete.
    pub(crate) fn came(&mut self, now: u64) {
        self.came = now;
    }

    /// Whether the pages are to be kept.
    pub(crate) fn keeps(&self) -> bool {
        self.left > 0
    }

    /// Which pages to give back, to be written.
    pub(crate) fn written(&self) -> &[Range<usize>] {
        &self.written
    }

    /// Work is about to begin, before which these have been written; answers whether the pages are kept.
    pub(crate) fn begins(&mut self, seen: Seen, written: Vec<Range<usize>>, now: u64) -> bool {
        if self.left == 0 {
            let last = self.last.replace((seen.clone(), now));
            // A page that came later than at the first chance would have been brought up to date for nothing.
            let is_same = last.is_some_and(|(last, dropped)| last == seen && self.came == dropped + 1);
            self.again =
                if is_same && seen.count <= Self::MOST { (self.again + 1).min(Self::LONGEST) } else { 0 };
            self.left = if self.again >= Self::SURE { 1 << self.again } else { 0 };
            self.written.clear();
        }
        if self.left > 0 && !written.is_empty() {
            self.written = written;
        }
        self.left > 0
    }

    /// The work is complete; answers whether the pages are kept.
    pub(crate) fn ends(&mut self, seen: Seen, now: u64) -> bool {
        if self.left == 0 || seen.count > Self::MOST {
            self.left = 0;
            return false;
        }
        self.left -= 1;
        if self.left == 0 {
            self.last = Some((seen, now));
        }
        self.left > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Seen = Seen { among: 0..16, count: 16 };

    /// A cycle of work and a touch of pages; answers whether there had to be a fault.
    fn cycle(habit: &mut Habit, there: &mut bool, now: &mut u64, seen: &Seen) -> bool {
        let written = Vec::from_iter([seen.among.clone()]);
        *there = *there && habit.begins(seen.clone(), written, *now);
        *there = *there && habit.ends(seen.clone(), *now);
        *now += 1;
        let faulted = !*there;
        if faulted {
            habit.came(*now);
        }
        *there = true;
        faulted
    }

    #[test]
    fn what_comes_back_is_kept_and_looked_at_now_and_then() {
        let (mut habit, mut there, mut now) = (Habit::default(), false, 0);
        let mut faults = |seen: &Seen, cycles| {
            (0..cycles).filter(|_| cycle(&mut habit, &mut there, &mut now, seen)).count()
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
        let (mut habit, mut now) = (Habit::default(), 0);
        for _ in 0..20 {
            assert!(!habit.begins(ALL, Vec::new(), now));
            now += 2;
            habit.came(now);
        }
    }
}
