//! Whether regions that go to and fro with each piece of work had better lie where processor and device both reach them. Nobody can know: it depends on how
//! often each side goes over them, and on the bus. So it is tried, and what decides is how long the program's own cycles take either way.

use std::time::{Duration, Instant};

/// What is to be done about regions that go to and fro, when nothing else happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Change {
    /// Make them coherent.
    Cohere,
    /// Have all that are coherent kept by shadows again.
    Separate,
}

/// A trial, and what it has shown. A *cycle* is the time from one end of all work to the next.
#[derive(Debug, Default)]
pub(crate) struct Trial {
    phase: Phase,
    /// When the last cycle ended.
    ended: Option<Instant>,
    /// How many cycles the next trial waits for, if one has failed.
    pause: u32,
    /// For how many cycles the last result held.
    held: u32,
}

#[derive(Debug)]
enum Phase {
    /// With shadows, for so many cycles at least.
    Rest(u32),
    /// With shadows, and timed.
    Before(Vec<Duration>),
    /// To become coherent; a cycle has taken so long.
    Due(Duration),
    /// Coherent, and timed.
    After { slower: Slower, times: Vec<Duration> },
    /// Coherent, since that is faster; to be tried again after so many more cycles.
    Coherent { since: Since, left: u32 },
}

/// How much cycles in a row have lost.
#[derive(Debug)]
struct Slower {
    /// What one took before.
    before: Duration,
    /// How many in a row took longer than that, and by how much together.
    count: u32,
    excess: Duration,
}

/// What is known of cycles since regions are coherent.
#[derive(Debug)]
struct Since {
    slower: Slower,
    /// What one takes.
    usual: Duration,
    /// How many in a row took half as long as usual.
    fast: u32,
}

impl Default for Phase {
    fn default() -> Self {
        Self::Rest(0)
    }
}

impl Trial {
    /// Cycles that are timed; the median counts.
    const TIMED: usize = 8;
    /// Of those that come after a change so many are left out of the median; what they lose counts.
    const FIRST: usize = 2;
    /// The pause after a trial that has failed, and the longest.
    const PAUSE: std::ops::RangeInclusive<u32> = 64..=4096;
    /// How long a result holds at first, and at most.
    const HELD: std::ops::RangeInclusive<u32> = 1024..=65_536;
    /// The program does something else after cycles in a row that take longer than before, as many cycles together as these would be, at least two;
    const SLOW: u32 = 8;
    /// and a trial is over that has lost as many.
    const LOST: u32 = 1;
    /// or after so many that take half as long as usual: who does not touch a region any more has it on the bus for nothing.
    const FAST: u32 = 16;

    /// A cycle has ended, at which there were regions that go to and fro with shadows, or were none. Answers what had better be done.
    pub(crate) fn cycle(&mut self, now: Instant, to_and_fro: bool) -> Option<Change> {
        let took = now.saturating_duration_since(self.ended.replace(now)?);
        match &mut self.phase {
            // Now and then it is looked whether they still do.
            Phase::Rest(_) | Phase::Before(_) if !to_and_fro => {}
            Phase::Rest(left) => match left.checked_sub(1) {
                Some(less) => *left = less,
                None => self.phase = Phase::Before(Vec::new()),
            },
            Phase::Before(times) => {
                times.push(took);
                if let Some(before) = median(times, Self::FIRST) {
                    self.phase = Phase::Due(before);
                }
            }
            Phase::Due(_) => {}
            Phase::After { slower, times } => {
                times.push(took);
                if slower.has_lost(took, Self::LOST) {
                    self.failed();
                    return Some(Change::Separate);
                }
                let after = median(times, Self::FIRST)?;
                // What gains nothing to speak of is not worth the bus.
                if after < slower.before * 9 / 10 {
                    self.held = (self.held * 2).clamp(*Self::HELD.start(), *Self::HELD.end());
                    let since = Since { slower: Slower::than(slower.before), usual: after, fast: 0 };
                    self.phase = Phase::Coherent { since, left: self.held };
                } else {
                    self.failed();
                    return Some(Change::Separate);
                }
            }
            Phase::Coherent { since, left } => {
                *left = left.saturating_sub(1);
                if since.is_odd(took) {
                    self.held = 0;
                    self.failed();
                    return Some(Change::Separate);
                }
                if *left == 0 {
                    (self.pause, self.phase) = (0, Phase::Rest(0));
                    return Some(Change::Separate);
                }
            }
        }
        matches!(self.phase, Phase::Due(_)).then_some(Change::Cohere)
    }

    /// They are coherent, as was answered, or cannot be; what that took is no part of a cycle.
    pub(crate) fn cohered(&mut self, now: Instant, done: bool) {
        self.ended = Some(now);
        match self.phase {
            Phase::Due(before) if done => {
                self.phase = Phase::After { slower: Slower::than(before), times: Vec::new() };
            }
            _ => self.failed(),
        }
    }

    /// They have been separated for another reason: what was to be found out, or was, is to be found out again; what has failed not before its time.
    pub(crate) fn separated(&mut self) {
        if matches!(self.phase, Phase::After { .. } | Phase::Coherent { .. }) {
            self.phase = Phase::Rest(0);
        }
    }

    fn failed(&mut self) {
        self.pause = (self.pause * 2).clamp(*Self::PAUSE.start(), *Self::PAUSE.end());
        self.phase = Phase::Rest(self.pause);
    }
}

impl Slower {
    fn than(before: Duration) -> Self {
        Self { before, count: 0, excess: Duration::ZERO }
    }

    /// Whether cycles in a row, two or more with one that has taken so long, have lost more than so many would have taken.
    fn has_lost(&mut self, took: Duration, cycles: u32) -> bool {
        (self.count, self.excess) = match took.checked_sub(self.before) {
            Some(longer) if !longer.is_zero() => (self.count + 1, self.excess + longer),
            _ => (0, Duration::ZERO),
        };
        self.count >= 2 && self.excess > self.before * cycles
    }
}

impl Since {
    /// Whether the program does something else than it did, now that a cycle has taken so long.
    fn is_odd(&mut self, took: Duration) -> bool {
        let has_lost = self.slower.has_lost(took, Trial::SLOW);
        self.fast = if took * 2 < self.usual { self.fast + 1 } else { 0 };
        self.fast >= Trial::FAST || has_lost
    }
}

/// Of enough times, of which the first few are left out, the one in the middle.
fn median(times: &[Duration], but: usize) -> Option<Duration> {
    let mut counted = times.get(but..).filter(|counted| counted.len() >= Trial::TIMED)?.to_vec();
    let middle = counted.len() / 2;
    Some(*counted.select_nth_unstable(middle).1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program, of which a cycle takes so many microseconds with shadows, and coherent.
    struct Program {
        trial: Trial,
        now: Instant,
        is_coherent: bool,
        changes: u32,
    }

    impl Program {
        fn new() -> Self {
            Self { trial: Trial::default(), now: Instant::now(), is_coherent: false, changes: 0 }
        }

        /// Some cycles; how many of them were coherent.
        fn run(&mut self, cycles: usize, shadows: u64, coherent: u64) -> usize {
            let of_these = (0..cycles).filter(|turn| {
                let is_coherent = self.is_coherent;
                // Here and there one takes much longer.
                let spike = if turn % 50 == 7 { 20 } else { 1 };
                self.now += Duration::from_micros(spike * if is_coherent { coherent } else { shadows });
                match self.trial.cycle(self.now, !is_coherent && turn % 64 != 9) {
                    Some(Change::Cohere) => {
                        (self.is_coherent, self.changes) = (true, self.changes + 1);
                        self.now += Duration::from_millis(9);
                        self.trial.cohered(self.now, true);
                    }
                    Some(Change::Separate) => (self.is_coherent, self.changes) = (false, self.changes + 1),
                    None => {}
                }
                is_coherent
            });
            of_these.count()
        }
    }

    #[test]
    fn what_is_faster_is_kept_and_tried_again_now_and_then() {
        let mut program = Program::new();
        assert!(program.run(30, 4000, 1700) > 10);
        assert!(program.run(100_000, 4000, 1700) > 99_000);
        assert!(program.changes < 20, "{}", program.changes);
    }

    #[test]
    fn what_is_slower_is_left_alone() {
        for (coherent, at_most) in [(4000, 600), (3700, 600), (6500, 90), (50_000, 90)] {
            let mut program = Program::new();
            assert!(program.run(100_000, 4000, coherent) < at_most);
        }
    }

    #[test]
    fn a_program_that_goes_on_to_something_else_has_its_shadows_back() {
        for (then, at_most) in [(100, 24), (80_000, 2)] {
            let mut program = Program::new();
            program.run(1000, 4000, 1700);
            assert!(program.is_coherent);
            assert!(program.run(60, 50, then) <= at_most);
            program.run(1000, 4000, 1700);
            assert!(program.is_coherent, "and it may come back");
        }
    }

    #[test]
    fn what_has_failed_waits_whoever_separates_meanwhile() {
        let mut trial = Trial::default();
        let mut now = Instant::now();
        let mut cycle = |trial: &mut Trial, took| {
            now += Duration::from_millis(took);
            trial.cycle(now, true)
        };
        while cycle(&mut trial, 4) != Some(Change::Cohere) {}
        trial.cohered(Instant::now(), true);
        while cycle(&mut trial, 5) != Some(Change::Separate) {}
        trial.separated();
        assert!((0..60).all(|_| cycle(&mut trial, 4).is_none()));
    }

    #[test]
    fn what_cannot_be_is_not_asked_for_again_and_again() {
        let mut trial = Trial::default();
        let (mut now, mut asked) = (Instant::now(), 0);
        for _ in 0..10_000 {
            now += Duration::from_millis(4);
            if trial.cycle(now, true) == Some(Change::Cohere) {
                asked += 1;
                trial.cohered(now, false);
            }
        }
        assert!((2..12).contains(&asked), "{asked}");
    }
}
