//! Whether the processor may touch what work in flight may reach.

use crate::userfault::Touch;
use std::time::{Duration, Instant};

/// How long a thread waits for the end of work before that is told.
const LONG: Duration = Duration::from_secs(10);

/// Who may touch a region at a time.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Access {
    /// Processor and device: of a page that both write each byte is somebody's.
    #[default]
    Concurrent,
    /// The device, as long as work that may reach the region is in flight. Whoever touches a page that is not there waits for the end of that.
    Exclusive,
}

/// Touches that wait for the end of work.
#[derive(Default)]
pub(crate) struct Waiting {
    touches: Vec<Touch>,
    since: Option<Instant>,
    has_told: bool,
}

impl Waiting {
    pub(crate) fn push(&mut self, touch: Touch) {
        self.since.get_or_insert_with(Instant::now);
        self.touches.push(touch);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.touches.is_empty()
    }

    pub(crate) fn take(&mut self) -> Vec<Touch> {
        self.since = None;
        std::mem::take(&mut self.touches)
    }

    /// Where somebody has waited for long; answers once.
    pub(crate) fn long(&mut self) -> Option<u64> {
        let first = self.touches.first()?;
        let is_long = self.since.is_some_and(|since| since.elapsed() >= LONG);
        (is_long && !std::mem::replace(&mut self.has_told, true)).then_some(first.address)
    }
}
