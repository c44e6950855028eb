//! Which work that may reach managed memory is in flight.

use crate::lock;
use std::sync::Mutex;

/// One for the session.
#[derive(Default)]
pub(crate) struct Work(Mutex<State>);

#[derive(Default)]
struct State {
    /// How often work was announced.
    announced: u64,
    /// Work that is announced and may not be submitted yet.
    pending: usize,
    known: Known,
}

/// Some work that was announced.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Announced {
    /// It was the so-manyeth; 0 is none.
    pub(crate) number: u64,
    /// What was settled at that time.
    settled: u64,
}

/// What is known of work in flight.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Known {
    /// The last that may reach all regions.
    all: Announced,
    /// Work up to this number is complete, and no page is left that may be from before it.
    settled: u64,
}

/// What is known of the work that may reach a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    /// Whether some may be in flight, or complete with pages from before left.
    pub(crate) loose: bool,
    /// What was settled when the last of it was announced.
    pub(crate) since: u64,
}

impl Known {
    /// What follows for a region, of which `named` was the last work that named it.
    pub(crate) fn flight(&self, named: Announced) -> Flight {
        let last = self.all.max(named);
        Flight { loose: last.number > self.settled, since: last.settled }
    }
}

/// What was known before the device was asked.
pub(crate) struct Glimpse {
    /// Work up to this number was announced.
    pub(crate) announced: u64,
    /// Whether all of it has been given to the device.
    pub(crate) all_submitted: bool,
}

impl Work {
    /// Announces work that may reach all regions, or those alone that are told of it.
    pub(crate) fn announce(&self, all: bool) -> Announced {
        let mut state = lock(&self.0);
        state.announced += 1;
        state.pending += 1;
        let work = Announced { number: state.announced, settled: state.known.settled };
        if all {
            state.known.all = work;
        }
        work
    }

    pub(crate) fn submitted(&self) {
        lock(&self.0).pending -= 1;
    }

    pub(crate) fn known(&self) -> Known {
        lock(&self.0).known
    }

    /// To be had before the device is asked whether it is busy; nothing if all work is known to be complete.
    pub(crate) fn glimpse(&self) -> Option<Glimpse> {
        let state = lock(&self.0);
        let (announced, all_submitted) = (state.announced, state.pending == 0);
        (announced > state.known.settled).then_some(Glimpse { announced, all_submitted })
    }

    /// All work that was announced before the glimpse is complete, and no page from before is left as it was. Answers whether nobody had said so before.
    pub(crate) fn settled(&self, glimpse: &Glimpse) -> bool {
        let known = &mut lock(&self.0).known;
        let is_first = glimpse.announced > known.settled;
        known.settled = known.settled.max(glimpse.announced);
        is_first
    }
}
