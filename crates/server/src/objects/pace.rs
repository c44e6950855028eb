//! How far a stream may run ahead of its device.
//!
//! A program submits in microseconds what takes a device seconds, and a cut has to wait for what the device has been given.
//! So work beyond a window stays in the ring, where it can be left and captured. The window follows the time that work
//! spends between submission and completion: it doubles while that is short, and shrinks in proportion when it is long;
//! each change is seen to work before the next.
//!
//! Where the device is another machine's, work is on its way for a round trip beside (`Backend::round_trip`), which counts for nothing, and as many
//! pieces as that carries are on their way beside those that the window is for: of short ones, once it has been seen that they are.

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
/// So often a program submits that has nothing else to do.
const BETWEEN: Duration = Duration::from_micros(2);
/// The same where its last work was short, of which the next need not be like it.
const BETWEEN_PAUSED: Duration = Duration::from_micros(10);
/// The same where nothing is known of its work, or that it is long: a network's own delays must not look like that.
const BETWEEN_UNKNOWN: Duration = Duration::from_micros(100);

/// The pace of one stream; `M` marks a place in it.
pub struct Pace<M> {
    round_trip: Duration,
    window: u32,
    /// When that was last changed.
    changed: Option<Instant>,
    /// How old what is not complete was when that last made the window smaller.
    overdue: Option<Duration>,
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

impl<M> Pace<M> {
    /// For a stream of a device that is as far away.
    pub fn new(round_trip: Duration) -> Self {
        // What is further away than that has other troubles.
        let round_trip = round_trip.min(Duration::from_millis(100));
        Self {
            round_trip,
            window: WINDOW_START + carried(round_trip, BETWEEN_UNKNOWN),
            changed: None,
            overdue: None,
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
            // What was given before the last change says no more than that was said already, but for work that goes on and on.
            let goes_on = !is_complete && self.overdue.is_some_and(|before| spent >= 2 * before);
            if known && (goes_on || self.changed.is_none_or(|changed| recorded > changed)) {
                self.adapt(spent);
                self.changed = Some(now);
                self.overdue = (!is_complete).then_some(spent);
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
        let least = WINDOW_MIN + carried(self.round_trip, BETWEEN_UNKNOWN);
        self.window = window.clamp(least, WINDOW_MAX + carried(self.round_trip, BETWEEN));
    }

    /// Learns that the stream has done all it was given: what comes next need not be like it.
    pub fn idle(&mut self) {
        self.outstanding.clear();
        (self.unmarked, self.ahead) = (0, 0);
        (self.watched, self.stalled) = (false, false);
        let unknown = WINDOW_START + carried(self.round_trip, BETWEEN_UNKNOWN);
        let paused = WINDOW_START + carried(self.round_trip, BETWEEN_PAUSED);
        self.window = self.window.clamp(unknown, paused);
        self.overdue = None;
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

    /// What a million short kernels take, by what they would without a round trip.
    fn slower_by(round_trip: Duration, each: Duration) -> f64 {
        let (works, start) = (1_000_000, Instant::now());
        let mut clock = start;
        longest_behind(&mut Pace::new(round_trip), &mut clock, each, works);
        (clock - start).as_secs_f64() / (each * works).as_secs_f64()
    }

    #[test]
    fn a_device_far_away_is_kept_busy() {
        for micros in [0, 100, 500, 2_000, 10_000] {
            let slower = slower_by(Duration::from_micros(micros), Duration::from_micros(3));
            assert!(slower < 1.05, "{micros} µs: {slower}");
        }
    }

    /// How long the last of so many pieces of work of a device far away has to wait, at most, and at the end. A marker is known to be complete when the
    /// far end's word of it has come.
    fn longest_behind(
        pace: &mut Pace<Instant>,
        clock: &mut Instant,
        each: Duration,
        works: u32,
    ) -> (Duration, Duration) {
        let half = pace.round_trip / 2;
        let (mut now, mut free_at) = (*clock, *clock);
        let (mut longest, mut last) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..works {
            while pace.is_full(|end: &Instant| *end + half <= now, now) {
                now += Duration::from_micros(20);
            }
            if pace.count() {
                pace.settle(1, |end| *end + half <= now, now);
                pace.mark(Some(free_at), now);
            }
            now += Duration::from_nanos(500);
            free_at = free_at.max(now + half) + each;
            last = free_at - now;
            longest = longest.max(last);
        }
        *clock = free_at + half;
        (longest, last)
    }

    #[test]
    fn slow_work_far_away_does_not_pile_up() {
        for micros in [500, 2_000, 10_000] {
            let (round_trip, each) = (Duration::from_micros(micros), Duration::from_millis(5));
            let unknown = WINDOW_START + carried(round_trip, BETWEEN_UNKNOWN);
            let (mut pace, mut clock) = (Pace::new(round_trip), Instant::now());
            let (longest, last) = longest_behind(&mut pace, &mut clock, each, 4 * unknown);
            assert!(longest <= each * (unknown + 2) + round_trip, "{micros} µs: {longest:?}");
            assert!(
                last <= each * (4 + carried(round_trip, BETWEEN_UNKNOWN)) + round_trip,
                "{micros} µs: {last:?}"
            );
            // Nor behind a pause, whatever was before it.
            longest_behind(&mut pace, &mut clock, Duration::from_micros(1), 100_000);
            pace.idle();
            let paused = WINDOW_START + carried(round_trip, BETWEEN_PAUSED);
            let (longest, _) = longest_behind(&mut pace, &mut clock, each, 2 * paused);
            assert!(longest <= each * (paused + 2) + round_trip, "{micros} µs: {longest:?}");
            pace.idle();
            assert_eq!(
                pace.window, unknown,
                "what is known to be slow is not given much behind the next pause"
            );
        }
    }

    #[test]
    fn work_that_goes_on_makes_the_window_smaller_before_it_is_over() {
        let (mut pace, now) = (Pace::new(Duration::ZERO), Instant::now());
        longest_stay_after(&mut pace, Duration::from_micros(1), 100_000);
        let now = now + Duration::from_secs(10);
        while !pace.may_be_full() {
            if pace.count() {
                pace.mark(Some(now + Duration::from_secs(60)), now);
            }
        }
        for millis in 1..100 {
            pace.is_full(|_| false, now + Duration::from_millis(millis));
        }
        assert!(pace.window < 16, "{}", pace.window);
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
