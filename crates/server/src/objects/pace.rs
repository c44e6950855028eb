//! How far a stream may run ahead of its device.
//!
//! A program submits in microseconds what takes a device seconds, and a cut has to wait for what the device has been given.
//! So work beyond a window stays in the ring, where it can be left and captured. The window follows the time that work
//! spends between submission and completion: it doubles while that is short, and shrinks in proportion when it is long;
//! each change is seen to work before the next.
//!
//! Where the device is another machine's, work is on its way for a round trip beside (`Backend::round_trip`), which counts for nothing, and as many
//! pieces as that carries are on their way beside those that the window is for.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long work should spend in a stream, at most.
const RUN_AHEAD: Duration = Duration::from_millis(10);
/// The device always has something to do next.
const WINDOW_MIN: u32 = 2;
/// Enough for the shortest kernels; what comes after them may be the longest.
const WINDOW_MAX: u32 = 256;
/// Before anything is known of the work.
const WINDOW_START: u32 = 16;
/// So often a program may submit that has nothing else to do.
const BETWEEN: Duration = Duration::from_micros(2);
/// The same where nothing is known of its work.
const BETWEEN_START: Duration = Duration::from_micros(10);

/// The pace of one stream; `M` marks a place in it.
pub struct Pace<M> {
    round_trip: Duration,
    window: u32,
    /// When that was last changed.
    changed: Option<Instant>,
    /// Markers not known to be complete: when each was recorded, and how many pieces of work lie between it and the one
    /// before.
    outstanding: VecDeque<(M, Instant, u32)>,
    /// Pieces of work behind the last marker.
    unmarked: u32,
    /// Pieces of work not known to be complete.
    ahead: u32,
    /// Whether somebody waits for room, so that a completion is seen as it happens.
    watched: bool,
    /// Whether whoever waited has given up; nobody waits before something is complete.
    stalled: bool,
}

/// How many pieces of work are submitted meanwhile.
fn carried(time: Duration, between: Duration) -> u32 {
    (time.as_nanos() / between.as_nanos()).try_into().unwrap_or(u32::MAX / 2)
}

fn first_window(round_trip: Duration) -> u32 {
    WINDOW_START + carried(round_trip, BETWEEN_START)
}

impl<M> Pace<M> {
    /// For a stream of a device that is as far away.
    pub fn new(round_trip: Duration) -> Self {
        // What is further away than that has other troubles.
        let round_trip = round_trip.min(Duration::from_millis(100));
        Self {
            round_trip,
            window: first_window(round_trip),
            changed: None,
            outstanding: VecDeque::new(),
            unmarked: 0,
            ahead: 0,
            watched: false,
            stalled: false,
        }
    }

    /// Whether an answer takes longer than the question.
    pub fn is_far(&self) -> bool {
        self.round_trip > Duration::ZERO
    }

    /// Counts a piece of work that is about to be submitted; tells whether to record a marker before it.
    pub fn count(&mut self) -> bool {
        let due = self.unmarked >= (self.window / 4).max(1);
        if !due {
            self.unmarked += 1;
            self.ahead += 1;
        }
        due
    }

    /// Takes the marker that [`Pace::count`] asked for, or learns that there is none.
    pub fn mark(&mut self, marker: Option<M>, now: Instant) {
        match marker {
            Some(marker) => self.outstanding.push_back((marker, now, self.unmarked)),
            None => self.ahead -= self.unmarked,
        }
        self.unmarked = 1;
        self.ahead += 1;
    }

    /// Whether the next piece of work may have to wait; asks nobody.
    pub fn may_be_full(&self) -> bool {
        self.ahead >= self.window
    }

    /// Whether the next piece of work should wait.
    pub fn is_full(&mut self, complete: impl Fn(&M) -> bool, now: Instant) -> bool {
        self.settle(0, complete, now);
        let full = self.may_be_full() && !self.outstanding.is_empty() && !self.stalled;
        self.watched = full;
        full
    }

    /// Forgets what is complete, and learns from it, and from what is not complete although it is old. Of the last `unasked` markers nothing is asked: each
    /// question takes a tenth of a launch or more, and with one of them it is one for each marker where the device keeps up.
    pub fn settle(&mut self, unasked: usize, complete: impl Fn(&M) -> bool, now: Instant) {
        while self.outstanding.len() > unasked
            && let Some((marker, recorded, works)) = self.outstanding.front()
        {
            let (recorded, works) = (*recorded, *works);
            let spent = now.saturating_duration_since(recorded);
            let is_complete = complete(marker);
            // Of what nobody has watched it is known that it took no longer than this, or that it takes longer.
            let known = match is_complete {
                true => self.watched || spent < self.round_trip + RUN_AHEAD / 2,
                false => spent > self.round_trip + RUN_AHEAD,
            };
            if known && self.changed.is_none_or(|changed| recorded > changed) {
                self.adapt(spent);
                self.changed = Some(now);
            }
            if !is_complete {
                return;
            }
            self.outstanding.pop_front();
            self.ahead -= works;
            self.watched = false;
            self.stalled = false;
        }
    }

    /// Learns from work that took `spent` from submission to completion.
    fn adapt(&mut self, spent: Duration) {
        let spent = spent.saturating_sub(self.round_trip);
        let window = if spent > RUN_AHEAD {
            let ratio = RUN_AHEAD.as_secs_f64() / spent.as_secs_f64();
            (f64::from(self.window) * ratio) as u32
        } else if spent < RUN_AHEAD / 2 {
            self.window.saturating_mul(2)
        } else {
            self.window
        };
        self.window = window.clamp(WINDOW_MIN, WINDOW_MAX + carried(self.round_trip, BETWEEN));
    }

    /// Learns that the stream has done all it was given: what comes next need not be like it.
    pub fn idle(&mut self) {
        self.outstanding.clear();
        (self.unmarked, self.ahead) = (0, 0);
        (self.watched, self.stalled) = (false, false);
        self.window = first_window(self.round_trip);
    }

    /// Lets work through until something is complete: the device may be waiting for what comes later.
    pub fn give_up(&mut self) {
        self.stalled = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device that takes `each` for a piece of work, and a program that submits as fast as it may; tells the longest time
    /// that work has spent waiting and running, over the second half.
    fn longest_stay(each: Duration, works: u32) -> (Duration, u32) {
        longest_stay_after(&mut Pace::new(Duration::ZERO), each, works)
    }

    fn longest_stay_after(pace: &mut Pace<Instant>, each: Duration, works: u32) -> (Duration, u32) {
        let (start, submit) = (Instant::now(), Duration::from_micros(2));
        let (mut now, mut free_at) = (start, start);
        let (mut longest, mut fewest) = (Duration::ZERO, u32::MAX);
        let mut ends = VecDeque::new();
        for work in 0..works {
            while pace.is_full(|end: &Instant| *end <= now, now) {
                now += Duration::from_micros(10);
            }
            if pace.count() {
                pace.settle(1, |end| *end <= now, now);
                pace.mark(Some(free_at), now);
            }
            now += submit;
            free_at = free_at.max(now) + each;
            ends.push_back(free_at);
            while ends.front().is_some_and(|end| *end <= now) {
                ends.pop_front();
            }
            if work > works / 2 {
                longest = longest.max(free_at - now);
                fewest = fewest.min(ends.len() as u32);
            }
        }
        (longest, fewest)
    }

    #[test]
    fn the_device_is_never_far_behind_and_never_idle() {
        for (each, works) in [(5, 100_000), (50, 20_000), (1_000, 2_000), (5_000, 500), (100_000, 100)] {
            let each = Duration::from_micros(each);
            let (longest, fewest) = longest_stay(each, works);
            assert!(longest <= 3 * RUN_AHEAD.max(each), "{each:?}: {longest:?}");
            assert!(fewest >= 1, "{each:?}: the device runs dry");
        }
    }

    /// What a million short kernels take, by what they would without a round trip. A marker is known to be complete when the far end's word of it
    /// has come.
    fn slower_by(round_trip: Duration, each: Duration) -> f64 {
        let (works, submit, half) = (1_000_000, Duration::from_nanos(500), round_trip / 2);
        let mut pace = Pace::new(round_trip);
        let start = Instant::now();
        let (mut now, mut free_at) = (start, start);
        for _ in 0..works {
            while pace.is_full(|end: &Instant| *end + half <= now, now) {
                now += Duration::from_micros(20);
            }
            if pace.count() {
                pace.settle(1, |end| *end + half <= now, now);
                pace.mark(Some(free_at), now);
            }
            now += submit;
            free_at = free_at.max(now + half) + each;
        }
        (free_at - start).as_secs_f64() / (each * works).as_secs_f64()
    }

    #[test]
    fn a_device_far_away_is_kept_busy() {
        for micros in [0, 100, 500, 2_000, 10_000] {
            let slower = slower_by(Duration::from_micros(micros), Duration::from_micros(3));
            assert!(slower < 1.05, "{micros} µs: {slower}");
        }
    }

    #[test]
    fn work_that_is_far_away_and_becomes_slow_is_noticed() {
        let round_trip = Duration::from_millis(2);
        let mut pace = Pace::new(round_trip);
        longest_stay_after(&mut pace, Duration::from_micros(1), 100_000);
        let works = 4 * pace.window;
        let (longest, _) = longest_stay_after(&mut pace, Duration::from_millis(5), works);
        assert!(longest <= 3 * (RUN_AHEAD + round_trip), "{longest:?}");
    }

    #[test]
    fn work_that_becomes_slow_is_noticed() {
        let mut pace = Pace::new(Duration::ZERO);
        longest_stay_after(&mut pace, Duration::from_micros(1), 100_000);
        assert_eq!(pace.window, WINDOW_MAX);
        let (longest, _) = longest_stay_after(&mut pace, Duration::from_millis(5), 4 * WINDOW_MAX);
        assert!(longest <= 3 * RUN_AHEAD, "{longest:?}");
    }

    #[test]
    fn nothing_is_expected_of_work_after_a_pause() {
        let mut pace = Pace::new(Duration::ZERO);
        longest_stay_after(&mut pace, Duration::from_micros(1), 100_000);
        pace.idle();
        assert_eq!((pace.window, pace.ahead, pace.outstanding.len()), (WINDOW_START, 0, 0));
    }

    #[test]
    fn work_that_nobody_waits_for_is_forgotten_when_it_is_complete() {
        let (mut pace, now) = (Pace::new(Duration::ZERO), Instant::now());
        for work in 0..10_000 {
            if pace.count() {
                pace.settle(1, |made: &u32| work - made > 20, now);
                pace.mark(Some(work), now);
            }
        }
        assert!(pace.outstanding.len() < 64, "{}", pace.outstanding.len());
    }

    #[test]
    fn whoever_gave_up_waits_again_after_progress() {
        let (mut pace, now) = (Pace::new(Duration::ZERO), Instant::now());
        for _ in 0..100 {
            if pace.count() {
                pace.mark(Some(()), now);
            }
        }
        assert!(pace.is_full(|()| false, now));
        pace.give_up();
        assert!(!pace.is_full(|()| false, now));
        assert!(!pace.is_full(|()| true, now));
        for _ in 0..100 {
            if pace.count() {
                pace.mark(Some(()), now);
            }
        }
        assert!(pace.is_full(|()| false, now));
    }
}
