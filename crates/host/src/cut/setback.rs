//! Ways that have failed, and when they are tried again.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// No way is passed over more often than this before it is tried again.
const MOST: u32 = 64;

/// For how many dumps a way is passed over that has failed: one after the first time, two after the next, then four.
#[derive(Debug, Default)]
pub(crate) struct Setback(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    left: u32,
    /// How many they were at first.
    all: u32,
}

impl Setback {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the next dump takes another way.
    pub(crate) fn is_passed_over(&self) -> bool {
        self.state().left > 0
    }

    /// A dump begins, whichever way it goes.
    pub(crate) fn dumping(&self) {
        let mut state = self.state();
        state.left = state.left.saturating_sub(1);
    }

    /// It worked: what was before is forgiven.
    pub(crate) fn worked(&self) {
        *self.state() = State::default();
    }

    /// It did not work.
    pub(crate) fn failed(&self) {
        let mut state = self.state();
        let all = (state.all * 2).clamp(1, MOST);
        *state = State { left: all, all };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_that_fails_again_is_passed_over_more_often() {
        let way = Setback::default();
        assert!(!way.is_passed_over());
        let mut passed = Vec::new();
        for _ in 0..9 {
            way.failed();
            let mut dumps = 0;
            while way.is_passed_over() {
                way.dumping();
                dumps += 1;
            }
            passed.push(dumps);
        }
        assert_eq!(passed, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
        way.worked();
        assert!(!way.is_passed_over());
        way.failed();
        way.dumping();
        assert!(!way.is_passed_over(), "as after the first time");
    }
}
