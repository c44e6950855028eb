//! Where a checkpoint is to be taken, decided as the program comes there. The thread whose launch is next then waits, so that the cut finds everything
//! before that kernel done and nothing behind it begun.

use crate::lock;
use plan::Error;
use plan::follow::{AHEAD, Follower, Passed, Seen};
use plan::online::{Decision, Scheduler};
use plan::units::Nanos;
use serde::{Deserialize, Serialize};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a thread waits at its boundary for a cut that does not come.
const HELD: Duration = Duration::from_secs(10);
/// Nobody who has not asked for so long takes a checkpoint at once.
const ATTENTION: Duration = Duration::from_secs(2);
/// Between two looks whether the session ends.
const LOOK: Duration = Duration::from_millis(100);

/// By what a program is steered.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "by")]
pub enum Course {
    /// A plan.
    Plan {
        /// Its file.
        file: image::RawPath,
    },
    /// What has been seen so far.
    Online {
        /// From one checkpoint to the next, ns.
        every_ns: u64,
        /// By how much one may be early or late, ns.
        offset_ns: u64,
    },
}

/// How near the next checkpoint is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Approach {
    /// Boundaries that the program has passed.
    pub boundaries: u64,
    /// Whether one had better get ready for it.
    pub near: bool,
    /// Of a planned one that is near, how long it took from there in the profile, ms.
    pub lead_ms: u64,
    /// Whether nothing yet that the program did is in its plan.
    pub strange: bool,
}

enum Pilot {
    Plan(Box<Follower>),
    Online(Scheduler),
}

struct State {
    pilot: Pilot,
    boundaries: u64,
    near: bool,
    lead: Nanos,
    /// When somebody asked last.
    asked: Option<Instant>,
    /// Whether somebody waits for the program to come to its boundary.
    awaited: bool,
    /// The planned checkpoint at which a thread waits, or, where there is no plan, 0.
    held: Option<usize>,
    /// Whether a planned checkpoint was passed with nobody there to take it: the next cut is in its stead.
    missed: bool,
}

/// Steers a session.
pub struct Steering {
    began: Instant,
    state: Mutex<State>,
    changed: Condvar,
}

impl Steering {
    /// By a plan.
    ///
    /// # Errors
    /// As [`Follower::new`].
    pub fn by_plan(plan: &plan::planfile::Plan, passed: Option<Passed>) -> Result<Self, Error> {
        Ok(Self::by(Pilot::Plan(Box::new(Follower::new(plan, passed)?))))
    }

    /// By what has been seen.
    #[must_use]
    pub fn online(every: Nanos, offset: Nanos) -> Self {
        Self::by(Pilot::Online(Scheduler::new(every, offset)))
    }

    fn by(pilot: Pilot) -> Self {
        let state = State {
            pilot,
            boundaries: 0,
            near: false,
            lead: Nanos(0),
            asked: None,
            awaited: false,
            held: None,
            missed: false,
        };
        Self { began: Instant::now(), state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Whether a thread that is about to launch this, while so much is allocated, is to wait first: then [`Self::hold`].
    pub(crate) fn stops(&self, name: u64, allocated: u64) -> bool {
        let now = self.now();
        let mut state = self.state();
        // The others go on: the gate closes behind them.
        if state.held.is_some() {
            return false;
        }
        let attended = state.awaited || state.asked.is_some_and(|asked| asked.elapsed() < ATTENTION);
        let State { pilot, near, lead, awaited, held, missed, .. } = &mut *state;
        match pilot {
            Pilot::Plan(follower) => match follower.at(name) {
                Seen::Other => return false,
                Seen::Near(number) => (*near, *lead) = (true, follower.lead(number)),
                Seen::Planned(number) if attended => {
                    (*near, *lead, *held) = (true, Nanos(0), Some(number));
                }
                // It is left to the time limit.
                Seen::Planned(number) => {
                    follower.done(number);
                    *missed = true;
                }
            },
            Pilot::Online(scheduler) => {
                if scheduler.at(now, allocated) == Decision::Take {
                    // Who comes only now is ready for the next one that is as good.
                    (*near, *held) = (true, awaited.then_some(0));
                }
            }
        }
        let stops = held.is_some();
        if stops {
            self.changed.notify_all();
        }
        stops
    }

    /// Waits at the boundary until the gate is closed, or nobody comes to close it.
    pub(crate) fn hold(&self, is_ending: impl Fn() -> bool) {
        let until = Instant::now() + HELD;
        let mut state = self.state();
        while state.held.is_some() && !is_ending() {
            if Instant::now() >= until {
                tracing::debug!("a planned checkpoint has not been taken");
                state.give_up();
                break;
            }
            (state, _) = self.changed.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// This is launched.
    pub(crate) fn pass(&self, name: u64) {
        let mut state = self.state();
        state.boundaries += 1;
        if let Pilot::Plan(follower) = &mut state.pilot {
            follower.pass(name);
        }
    }

    /// How near the next checkpoint is.
    pub fn approach(&self) -> Approach {
        let now = self.now();
        let mut state = self.state();
        state.asked = Some(Instant::now());
        let (near, strange) = match &state.pilot {
            Pilot::Plan(follower) => (state.near, !follower.is_recognised()),
            Pilot::Online(scheduler) => (state.near || scheduler.ends_within(now, AHEAD), false),
        };
        Approach { boundaries: state.boundaries, near, lead_ms: state.lead.0 / 1_000_000, strange }
    }

    /// Waits until the program has come to its boundary, no longer than that; whether it has.
    pub fn wait(&self, within: Duration) -> bool {
        let until = Instant::now() + within;
        let mut state = self.state();
        state.awaited = true;
        while state.held.is_none() {
            let rest = until.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                return false;
            }
            (state, _) = self.changed.wait_timeout(state, rest).unwrap_or_else(PoisonError::into_inner);
        }
        true
    }

    /// The gate is closed and all is idle: this is the cut. Who waits at a boundary comes to the gate now.
    pub fn cut(&self) {
        let now = self.now();
        let mut state = self.state();
        let is_planned = state.awaited || state.held.is_some();
        match &mut state.pilot {
            Pilot::Online(scheduler) => {
                scheduler.taken(now);
                state.near = false;
            }
            Pilot::Plan(_) if is_planned => state.give_up(),
            // Somebody has asked for it; the plan is as it was.
            Pilot::Plan(_) => {}
        }
        // Who has closed the gate writes now, and does not come to a boundary.
        (state.awaited, state.held, state.asked) = (false, None, None);
        self.changed.notify_all();
    }

    /// Nobody waits any more. Who waits at a boundary goes on.
    pub fn release(&self) {
        let mut state = self.state();
        if state.held.is_some() {
            state.give_up();
        }
        (state.awaited, state.near, state.asked) = (false, false, None);
        self.changed.notify_all();
    }

    /// How far the program is in its plan, if it has one.
    pub fn passed(&self) -> Option<Passed> {
        match &self.state().pilot {
            Pilot::Plan(follower) => Some(follower.passed()),
            Pilot::Online(_) => None,
        }
    }

    fn now(&self) -> Nanos {
        Nanos(self.began.elapsed().as_nanos() as u64)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

impl State {
    /// The next checkpoint has been taken, or will not be.
    fn give_up(&mut self) {
        let (held, missed) = (self.held.take(), std::mem::take(&mut self.missed));
        if let Pilot::Plan(follower) = &mut self.pilot
            && (held.is_some() || !missed)
        {
            let number = held.unwrap_or_else(|| follower.next());
            follower.done(number);
        }
        (self.near, self.awaited) = (false, false);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Nothing is due for a long time.
    fn idle() -> Steering {
        Steering::online(Nanos(3_600_000_000_000), Nanos(0))
    }

    #[test]
    fn who_comes_to_a_boundary_waits_for_the_cut() {
        let steering = Steering::online(Nanos(1), Nanos(1_000_000_000));
        assert!(!steering.stops(7, 100), "nobody waits for it");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| steering.wait(Duration::from_secs(10)));
            while !steering.stops(7, 100) {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(!steering.stops(7, 100), "one is enough");
            let held = scope.spawn(|| steering.hold(|| false));
            assert!(waits.join().unwrap());
            assert!(!held.is_finished());
            steering.cut();
            held.join().unwrap();
        });
        assert!(!steering.approach().near || steering.passed().is_none());
    }

    #[test]
    fn a_boundary_that_does_not_come_is_not_waited_for() {
        let steering = idle();
        assert!(!steering.approach().near);
        assert!(!steering.wait(Duration::from_millis(5)));
        assert!(!steering.stops(7, 100));
        steering.release();
    }

    #[test]
    fn who_comes_too_late_is_ready_for_the_next() {
        let steering = Steering::online(Nanos(3_600_000_000_000), Nanos(7_200_000_000_000));
        assert!(!steering.approach().near, "there is an hour yet");
        assert!(!steering.stops(7, 100), "nobody waits for it");
        assert!(steering.approach().near);
        assert!(!steering.wait(Duration::ZERO));
        assert!(!steering.stops(7, 1000), "there is less elsewhere");
        assert!(steering.stops(7, 100));
        steering.cut();
        steering.hold(|| false);
        assert!(!steering.stops(7, 100), "nobody waits for the next");
    }

    #[test]
    fn a_session_that_ends_lets_go() {
        let steering = Steering::online(Nanos(1), Nanos(0));
        assert!(!steering.wait(Duration::ZERO));
        assert!(steering.stops(7, 100));
        steering.hold(|| true);
        steering.release();
    }
}
