//! Whether work that may reach managed memory is in flight.

use crate::lock;
use std::sync::Mutex;

/// One for the session.
#[derive(Default)]
pub(crate) struct Work(Mutex<State>);

#[derive(Default)]
struct State {
    /// Whether work may have been in flight since it was last found to be complete.
    loose: bool,
    /// How often work was announced.
    announced: u64,
    /// Work that is announced and may not be submitted yet.
    pending: usize,
    /// How often all of it was found to be complete.
    settled: u64,
}

/// What is known of work in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    /// Whether work may be in flight, or complete with pages from before left.
    pub(crate) loose: bool,
    /// How often all work was found to be complete.
    pub(crate) settled: u64,
}

/// What was known before the device was asked.
pub(crate) struct Glimpse {
    announced: u64,
    /// Whether all that was announced has been given to the device.
    pub(crate) all_submitted: bool,
}

impl Work {
    pub(crate) fn announce(&self) {
        let mut state = lock(&self.0);
        state.loose = true;
        state.announced += 1;
        state.pending += 1;
    }

    pub(crate) fn submitted(&self) {
        lock(&self.0).pending -= 1;
    }

    pub(crate) fn flight(&self) -> Flight {
        let state = lock(&self.0);
        Flight { loose: state.loose, settled: state.settled }
    }

    /// To be had before the device is asked whether it is busy; nothing if all work is known to be complete.
    pub(crate) fn glimpse(&self) -> Option<Glimpse> {
        let state = lock(&self.0);
        state.loose.then_some(Glimpse { announced: state.announced, all_submitted: state.pending == 0 })
    }

    /// All work that was announced before the glimpse is complete, and no page from before is left as it was; answers whether that is all work.
    pub(crate) fn is_complete(&self, glimpse: &Glimpse) -> bool {
        let mut state = lock(&self.0);
        let is_all = state.announced == glimpse.announced;
        if is_all && state.loose {
            state.loose = false;
            state.settled += 1;
        }
        is_all
    }
}
