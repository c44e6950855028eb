//! How far a stream may run ahead of its device.
//!
//! A program submits in microseconds what takes a device seconds, and a cut has to wait for what the device has been given.
//! So work beyond a window stays in the ring, where it can be left and captured. The window follows the time that work
//! spends between submission and completion: it doubles while that is short, and shrinks in proportion when it is long;
//! each change is seen to work before the next.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// How long work should spend in a stream, at most.
const RUN_AHEAD: Duration = Duration::from_millis(10);
/// The device always has something to do next.
const WINDOW_MIN: u32 = 2;
/// As many as the driver queues before it makes the caller wait.
const WINDOW_MAX: u32 = 1024;
/// Before anything is known of the work.
const WINDOW_START: u32 = 16;

/// The pace of one stream; `M` marks a place in it.
pub struct Pace<M> {
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

impl<M> Default for Pace<M> {
    fn default() -> Self {
        Self {
            window: WINDOW_START,
            changed: None,
            outstanding: VecDeque::new(),
            unmarked: 0,
            ahead: 0,
            watched: false,
            stalled: false,
        }
    }
}

impl<M> Pace<M> {
    /// Counts a piece of work that is about to be submitted; tells whether to record a marker before it.
    pub fn count(&mut self) -> bool {
        let due = self.unmarked >= (self.window / 8).max(1);
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
        while let Some(&(_, recorded, works)) =
            self.outstanding.front().filter(|(marker, ..)| complete(marker))
        {
            let spent = now.saturating_duration_since(recorded);
            // Unwatched, it may have been complete for long: it has taken no longer than that.
            let known = self.watched || spent < RUN_AHEAD / 2;
            if known && self.changed.is_none_or(|changed| recorded > changed) {
                self.adapt(spent);
                self.changed = Some(now);
            }
            self.outstanding.pop_front();
            self.ahead -= works;
            self.watched = false;
            self.stalled = false;
        }
        let full = self.may_be_full() && !self.outstanding.is_empty() && !self.stalled;
        self.watched = full;
        full
    }

    /// Learns from work that took `spent` from submission to completion.
    fn adapt(&mut self, spent: Duration) {
        let window = if spent > RUN_AHEAD {
            let ratio = RUN_AHEAD.as_secs_f64() / spent.as_secs_f64();
            (f64::from(self.window) * ratio) as u32
        } else if spent < RUN_AHEAD / 2 {
            self.window.saturating_mul(2)
        } else {
            self.window
        };
        self.window = window.clamp(WINDOW_MIN, WINDOW_MAX);
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
        let mut pace = Pace::default();
        let (start, submit) = (Instant::now(), Duration::from_micros(2));
        let (mut now, mut free_at) = (start, start);
        let (mut longest, mut fewest) = (Duration::ZERO, u32::MAX);
        let mut ends = VecDeque::new();
        for work in 0..works {
            while pace.is_full(|end: &Instant| *end <= now, now) {
                now += Duration::from_micros(10);
            }
            if pace.count() {
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

    #[test]
    fn whoever_gave_up_waits_again_after_progress() {
        let (mut pace, now) = (Pace::default(), Instant::now());
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
