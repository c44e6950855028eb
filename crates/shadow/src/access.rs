//! Whether the processor may touch what work in flight may reach.

use crate::PAGE;
use crate::userfault::Touch;
use std::collections::BTreeMap;
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

/// What came of a touch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Served {
    /// The thread goes on.
    Done,
    /// It has to wait for the end of work.
    Waits,
}

/// How often it is looked for the end of work: from the first to the second, the longer it takes.
const LOOKS: (Duration, Duration) = (Duration::from_micros(50), Duration::from_millis(1));
/// For how much of the time that it has taken it is not looked.
const PATIENCE: u32 = 16;

/// Touches that wait for the end of work, by thread and page: a system call that waits with a signal pending tells of its touch again and again.
#[derive(Default)]
pub(crate) struct Waiting {
    touches: BTreeMap<(u32, u64), Touch>,
    since: Option<Instant>,
    has_told: bool,
}

impl Waiting {
    pub(crate) fn push(&mut self, touch: Touch) {
        self.since.get_or_insert_with(Instant::now);
        self.touches.insert((touch.thread, touch.address / PAGE as u64), touch);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.touches.is_empty()
    }

    /// When it had better be looked for the end of work, if somebody waits for it.
    pub(crate) fn look(&mut self) -> Option<Duration> {
        self.since = self.since.filter(|_| !self.touches.is_empty());
        self.since.map(|since| (since.elapsed() / PATIENCE).clamp(LOOKS.0, LOOKS.1))
    }

    pub(crate) fn take(&mut self) -> impl Iterator<Item = Touch> + use<> {
        std::mem::take(&mut self.touches).into_values()
    }

    /// Where somebody has waited for long; answers once.
    pub(crate) fn long(&mut self) -> Option<u64> {
        let (_, first) = self.touches.first_key_value()?;
        let is_long = self.since.is_some_and(|since| since.elapsed() >= LONG);
        (is_long && !std::mem::replace(&mut self.has_told, true)).then_some(first.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Fault;
    use crate::userfault::Lack;

    fn touch(thread: u32, address: u64) -> Touch {
        Touch { address, fault: Fault::Read, lack: Lack::Page, thread }
    }

    #[test]
    fn who_tells_again_and_again_is_served_once() {
        let mut waiting = Waiting::default();
        assert_eq!(waiting.look(), None);
        for each in 0..1000 {
            waiting.push(touch(7, 0x5000 + each));
        }
        waiting.push(touch(8, 0x5000));
        assert!(waiting.look().is_some_and(|look| look >= LOOKS.0 && look <= LOOKS.1));
        assert_eq!(waiting.long(), None);
        assert_eq!(waiting.take().count(), 2);
        assert!(waiting.is_empty() && waiting.look().is_none());
    }

    #[test]
    fn it_is_told_once_that_somebody_waits_for_long() {
        let mut waiting = Waiting::default();
        waiting.push(touch(7, 0x5000));
        waiting.since = Instant::now().checked_sub(LONG);
        assert_eq!((waiting.long(), waiting.long()), (Some(0x5000), None));
    }
}
