//! Waiting for the device without waiting in the driver: a poll that can be ended, so that no thread of the server is ever
//! out of reach.

use super::Session;
use crate::failure::{Failure, Result};
use crate::objects::Stream;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use wire::CuError;

/// How long to poll without giving up the processor: what a native wait costs is there at once where cores abound, and
/// hardly anything is taken from others where they do not.
static SPIN: LazyLock<Duration> = LazyLock::new(|| {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if cores > 4 { Duration::from_micros(500) } else { Duration::from_micros(5) }
});
/// How long to go on polling between other threads' turns.
const YIELD: Duration = Duration::from_millis(2);
/// The shortest and the longest sleep between two polls.
const SLEEP: std::ops::RangeInclusive<Duration> = Duration::from_micros(20)..=Duration::from_micros(500);
/// Between two polls of a thread that does not sleep only other threads' turns can take so long.
const CROWDED: Duration = Duration::from_micros(200);

/// Grows patient, at once where other threads want the processor.
pub(crate) struct Backoff {
    begun: Instant,
    /// How long had been waited at the last poll.
    seen: Duration,
    sleeps: bool,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { begun: Instant::now(), seen: Duration::ZERO, sleeps: false }
    }

    /// Lets a little time pass, more the longer this goes on.
    pub(crate) fn pause(&mut self) {
        let waited = self.begun.elapsed();
        self.sleeps |= waited >= *SPIN + YIELD || waited - self.seen > CROWDED;
        self.seen = waited;
        if self.sleeps {
            // What a wait is longer than it has to be is a small part of it.
            std::thread::sleep((waited / 8).clamp(*SLEEP.start(), *SLEEP.end()));
        } else if waited < *SPIN {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

impl Session {
    /// Waits until `done`, or until the session ends.
    pub(crate) fn wait(&self, mut done: impl FnMut() -> backend::Result<bool>) -> Result<()> {
        if done()? {
            return Ok(());
        }
        let mut backoff = Backoff::new();
        loop {
            if self.is_ending() {
                return Err(Failure::new(CuError::DEVICE_UNAVAILABLE, "the session has ended"));
            }
            backoff.pause();
            if done()? {
                return Ok(());
            }
        }
    }

    /// Waits until the streams have done everything they were given before.
    pub(crate) fn wait_streams(&self, streams: &[Arc<Stream>]) -> Result<()> {
        for stream in streams.iter().filter(|stream| stream.may_be_busy()) {
            self.wait(|| stream.poll())?;
        }
        Ok(())
    }
}
