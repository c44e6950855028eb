//! The least of what lies in a window that only moves on: the heart of the planner, and of the scheduler.

use std::collections::VecDeque;

/// Keys that came at times, of which the least is wanted that is not too old. Each comes and goes once.
#[derive(Debug, Clone)]
pub(crate) struct SlidingMin<K, V> {
    /// Times and keys both ascend.
    queue: VecDeque<(u64, K, V)>,
}

impl<K: Ord + Copy, V: Copy> SlidingMin<K, V> {
    pub(crate) fn new() -> Self {
        Self { queue: VecDeque::new() }
    }

    /// Of equal keys the later one is had: it lasts longer.
    pub(crate) fn push(&mut self, at: u64, key: K, value: V) {
        while self.queue.back().is_some_and(|(_, last, _)| *last >= key) {
            self.queue.pop_back();
        }
        self.queue.push_back((at, key, value));
    }

    /// The least of those that came at `since` or later; earlier ones are forgotten.
    pub(crate) fn least(&mut self, since: u64) -> Option<(K, V)> {
        while self.queue.front().is_some_and(|(at, ..)| *at < since) {
            self.queue.pop_front();
        }
        self.queue.front().map(|(_, key, value)| (*key, *value))
    }
}
