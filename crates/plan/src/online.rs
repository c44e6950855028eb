//! The same without a profile: at each boundary, whether to take the checkpoint that is due, or to wait a while for one with less data.

use crate::units::Nanos;
use crate::window::SlidingMin;

/// Decides while a program runs.
#[derive(Debug, Clone)]
pub struct Scheduler {
    every: Nanos,
    offset: Nanos,
    due: Nanos,
    /// Bytes live at recent boundaries.
    recent: SlidingMin<u64, ()>,
}

/// What to do at a boundary.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Nothing: no checkpoint is due.
    RunOn,
    /// One is due, and boundaries with less data are to be expected: wait, but not beyond this time.
    Wait {
        /// The latest.
        until: Nanos,
    },
    /// Take it here.
    Take,
}

impl Scheduler {
    /// A checkpoint each `every`, moved by up to `offset` to either side.
    #[must_use]
    pub fn new(every: Nanos, offset: Nanos) -> Self {
        Self { every, offset, due: every, recent: SlidingMin::new() }
    }

    /// At a boundary, or whenever a time limit has come. From `offset` before it is due until `offset` after, a checkpoint is taken where no more is
    /// live than anywhere in the last interval; at the end of that time, anyhow.
    pub fn at(&mut self, now: Nanos, live: u64) -> Decision {
        self.recent.push(now.0, live, ());
        let early = Nanos(self.due.0.saturating_sub(self.offset.0));
        if now < early {
            return Decision::RunOn;
        }
        let until = Nanos(self.due.0.saturating_add(self.offset.0));
        let least = self.recent.least(now.0.saturating_sub(self.every.0)).map_or(live, |(least, ())| least);
        // A sixteenth more is as good.
        if now >= until || live <= least.saturating_add(least / 16) {
            Decision::Take
        } else {
            Decision::Wait { until }
        }
    }

    /// Whether one is taken within this time from now wherever the program is.
    #[must_use]
    pub fn ends_within(&self, now: Nanos, within: Nanos) -> bool {
        now.0.saturating_add(within.0) >= self.due.0.saturating_add(self.offset.0)
    }

    /// When a checkpoint has been taken.
    pub fn taken(&mut self, now: Nanos) {
        self.due = Nanos(now.0.saturating_add(self.every.0));
    }
}
