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
/// The longest sleep between two polls.
const SLEEP_MAX: Duration = Duration::from_micros(500);

/// Grows patient.
pub(crate) struct Backoff {
    begun: Instant,
    sleep: Duration,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { begun: Instant::now(), sleep: Duration::from_micros(20) }
    }

    /// Lets a little time pass, more the longer this goes on.
    pub(crate) fn pause(&mut self) {
        let waited = self.begun.elapsed();
        if waited < *SPIN {
            std::hint::spin_loop();
        } else if waited < *SPIN + YIELD {
            std::thread::yield_now();
        } else {
            std::thread::sleep(self.sleep);
            self.sleep = (self.sleep * 2).min(SLEEP_MAX);
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
