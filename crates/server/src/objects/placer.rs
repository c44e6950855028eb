//! The order in which objects are made, and what the device library takes while making each.

use crate::failure::{Failure, Result};
use backend::{Backend, Range};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use wire::CuError;

/// When an object was made, and what the device library took for it: what a restart repeats.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Placement {
    /// Its turn in the order of creations and unloadings.
    pub turn: u64,
    /// The ranges taken.
    pub ranges: Vec<Range>,
}

/// Whether an object is new.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Making {
    /// It is made for the application.
    New,
    /// It is made again, as its record says.
    Again,
}

/// Makes objects one at a time, in turns.
pub struct Placer {
    /// The device library.
    pub backend: Arc<dyn Backend>,
    next: AtomicU64,
}

impl Placer {
    /// A placer whose first new object has turn `next`.
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>, next: u64) -> Self {
        Self { backend, next: AtomicU64::new(next) }
    }

    /// The next turn, taken.
    pub fn turn(&self) -> u64 {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    /// The next turn, not taken.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// Runs `make` in a turn of its own, or again in the one it had, and notes in `placement` what it took.
    ///
    /// # Errors
    /// What `make` answers; when the object is made again and the device library did not take the ranges of the first time, which
    /// ones: an address in them that the program has seen (of a function, say) would mean something else.
    pub fn place<T>(
        &self,
        placement: &mut Placement,
        making: Making,
        make: impl FnOnce() -> backend::Result<T>,
    ) -> Result<T> {
        let recorded = (making == Making::Again).then(|| placement.ranges.clone());
        let made = self.place_unseen(placement, making, make)?;
        let ranges = &placement.ranges;
        if let Some(recorded) = recorded
            && sorted(&recorded) != sorted(ranges)
        {
            let detail = format!(
                "the device library took {} for it, and has to take {} as before; restart with the same driver and device",
                list(ranges),
                list(&recorded)
            );
            return Err(Failure::new(CuError::OPERATING_SYSTEM, detail));
        }
        Ok(made)
    }

    /// The same for an object none of whose addresses the program can see: it is given the ranges of the first time so that
    /// others get theirs, and may take other ones.
    ///
    /// # Errors
    /// What `make` answers.
    pub fn place_unseen<T>(
        &self,
        placement: &mut Placement,
        making: Making,
        make: impl FnOnce() -> backend::Result<T>,
    ) -> Result<T> {
        let mut turn = placement.turn;
        let mut make = Some(make);
        let mut made = None;
        let replay = (making == Making::Again).then_some(placement.ranges.as_slice());
        let ranges = self.backend.place(replay, &mut || {
            let make = make.take().ok_or(CuError::UNKNOWN)?;
            if making == Making::New {
                turn = self.turn();
            }
            made = Some(make()?);
            Ok(())
        })?;
        *placement = Placement { turn, ranges };
        Ok(made.ok_or(CuError::UNKNOWN)?)
    }
}

/// The order in which the device library asks depends on what it had before.
fn sorted(ranges: &[Range]) -> Vec<Range> {
    let mut ranges = ranges.to_vec();
    ranges.sort_unstable();
    ranges
}

fn list(ranges: &[Range]) -> String {
    match ranges {
        [] => "nothing".to_owned(),
        ranges => ranges.iter().map(Range::to_string).collect::<Vec<_>>().join(", "),
    }
}
