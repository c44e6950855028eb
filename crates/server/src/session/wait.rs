//! Waiting for the device without waiting in the driver: a poll that can be ended, so that no thread of the server is ever
//! out of reach.

use super::{Caller, Session};
use crate::failure::{Failure, Result};
use crate::objects::Stream;
use backend::Range;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use wire::{CuError, MemoryOperation, Word};

/// How long to poll without giving up the processor: what a native wait costs is there at once where cores abound, and
/// hardly anything is taken from others where they do not.
static SPIN: LazyLock<Duration> = LazyLock::new(|| {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    if cores > 4 { Duration::from_micros(500) } else { Duration::from_micros(5) }
});
/// How long to go on polling between other threads' turns.
const YIELD: Duration = Duration::from_millis(2);
/// How small a part of a wait the sleeps between two polls are: a program that waits for each of its kernels waits as much longer, half of it on
/// average. With an eighth, one of kernels of up to 4 ms took 13 % longer than natively.
const PART: u32 = 128;
/// The shortest and the longest of these sleeps.
const SLEEP: std::ops::RangeInclusive<Duration> = Duration::from_micros(20)..=Duration::from_micros(500);
/// Between two polls of a thread that does not sleep only other threads' turns can take so long.
const CROWDED: Duration = Duration::from_micros(200);

/// Looks at a fence between two questions to the device library, which takes longer to answer than memory, but also tells errors.
const LOOKS: u32 = 32;

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
            std::thread::sleep((waited / PART).clamp(*SLEEP.start(), *SLEEP.end()));
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

    /// Waits for what a round trip that tells nothing else waits for: if that is one stream, the device tells the caller's thread of the
    /// application itself.
    pub(super) fn await_streams(&self, streams: &[Arc<Stream>], caller: &mut Caller) -> Result<()> {
        let mut busy = Vec::new();
        for stream in streams.iter().filter(|stream| stream.may_be_busy()) {
            if !stream.poll()? {
                busy.push(Arc::clone(stream));
            }
        }
        match busy.as_slice() {
            [stream] => self.await_stream(stream, caller),
            streams => self.wait_streams(streams),
        }
    }

    fn await_stream(&self, stream: &Stream, caller: &mut Caller) -> Result<()> {
        let given = stream.given();
        if !self.put_fence(stream, caller) {
            return self.wait(|| stream.poll());
        }
        let (fence, mut looks) = (self.link.fence(caller.ring), 0u32);
        self.wait(|| {
            looks = looks.wrapping_add(1);
            if fence.is_at(caller.round_trip) {
                stream.note_passed(given);
                return Ok(true);
            }
            if looks.is_multiple_of(LOOKS) { stream.poll() } else { Ok(false) }
        })
    }

    /// Has the device write the caller's fence behind what the stream has been given, unless something must be told or done before the
    /// application goes on.
    fn put_fence(&self, stream: &Stream, caller: &mut Caller) -> bool {
        if stream.ctx.may_print() || self.shadows.are_kept() || !self.fences_are_known() {
            return false;
        }
        let word =
            Word { address: self.link.fence(caller.ring).address(), value: caller.round_trip, wide: true };
        let put = self.backend().memory_operations(
            stream.ctx.raw,
            stream.arg(),
            &[MemoryOperation::Write { word }],
        );
        caller.fenced = put.is_ok();
        caller.fenced
    }

    /// Makes the fences known to the device library, at first use.
    fn fences_are_known(&self) -> bool {
        *self.fences.get_or_init(|| {
            let (base, bytes) = self.link.fences_range();
            let known = self.backend().register_host(Range { base, bytes });
            if let Err(error) = &known {
                tracing::debug!(%error, "waits are answered by the server alone");
            }
            known.is_ok()
        })
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.fences.get() == Some(&true) {
            let (base, bytes) = self.link.fences_range();
            // The process ends, and with it all that the device library knows of it.
            let _ = self.backend().unregister_host(Range { base, bytes });
        }
    }
}
