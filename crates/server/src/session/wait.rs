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
static SPIN: LazyLock<Duration> =
    LazyLock::new(|| if *CORES_ABOUND { Duration::from_micros(500) } else { Duration::from_micros(5) });
static CORES_ABOUND: LazyLock<bool> =
    LazyLock::new(|| std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 4));
/// How long to go on polling between other threads' turns.
const YIELD: Duration = Duration::from_millis(2);
/// The same where a program waits, if cores abound: it would natively spin, and in a virtual machine a core that slept takes a tenth of a millisecond to come back.
const EAGER_YIELD: Duration = Duration::from_millis(20);
/// How small a part of a wait the sleeps between two polls are, where a program waits and would natively spin: as much longer, half of it on
/// average, the program takes that waits for each of its kernels. With an eighth, one of kernels of up to 4 ms took 13 % longer, with a 128th one of kernels of
/// 60 ms 0.6 %.
const EAGER: u32 = 1024;
/// The same where others want the cores.
const CROWDED_EAGER: u32 = 128;
/// The same where nobody notices.
const PATIENT: u32 = 8;
/// The shortest and the longest of these sleeps.
const SLEEP: std::ops::RangeInclusive<Duration> = Duration::from_micros(20)..=Duration::from_micros(500);
/// Between two polls of a thread that does not sleep only other threads' turns can take so long.
const CROWDED: Duration = Duration::from_micros(200);

/// Grows patient, at once where other threads want the processor.
pub(crate) struct Backoff {
    begun: Instant,
    /// How long had been waited at the last poll.
    seen: Duration,
    sleeps: bool,
    /// How long it goes on polling.
    yields: Duration,
    /// The part of a wait that its sleeps are.
    part: u32,
}

impl Backoff {
    pub(crate) fn new() -> Self {
        Self { begun: Instant::now(), seen: Duration::ZERO, sleeps: false, yields: YIELD, part: PATIENT }
    }

    /// For what the program itself waits for.
    pub(super) fn eager() -> Self {
        let (yields, part) = if *CORES_ABOUND { (EAGER_YIELD, EAGER) } else { (YIELD, CROWDED_EAGER) };
        Self { part, yields, ..Self::new() }
    }

    /// Whether it has come to sleeping between polls, so that there is time for a longer look.
    pub(super) fn sleeps(&self) -> bool {
        self.sleeps
    }

    /// Lets a little time pass, more the longer this goes on.
    pub(crate) fn pause(&mut self) {
        let waited = self.begun.elapsed();
        self.sleeps |= waited >= *SPIN + self.yields || waited - self.seen > CROWDED;
        self.seen = waited;
        if self.sleeps {
            std::thread::sleep((waited / self.part).clamp(*SLEEP.start(), *SLEEP.end()));
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
        self.wait_looking(|_| done())
    }

    /// The same, where it depends on how long this has been going on how closely to look.
    pub(super) fn wait_looking(&self, mut done: impl FnMut(&Backoff) -> backend::Result<bool>) -> Result<()> {
        let mut backoff = Backoff::eager();
        loop {
            if done(&backoff)? {
                self.note_wait(backoff.begun);
                return Ok(());
            }
            if self.is_ending() {
                return Err(Failure::new(CuError::DEVICE_UNAVAILABLE, "the session has ended"));
            }
            backoff.pause();
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
