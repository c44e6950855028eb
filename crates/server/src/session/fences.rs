//! Fences: where a round trip waits for a stream, the device itself tells the application's thread that it is done.
//!
//! A fence is work of its stream, and work has an order with other streams' that a wait does not have: in a blocking stream it comes behind what the
//! legacy stream has been given, in the legacy stream behind that of all blocking ones. So there is one only where those have
//! nothing to do, and are kept from being given anything while it is submitted.

use super::{Caller, Session};
use crate::failure::Result;
use crate::objects::{Stream, StreamKey};
use crate::read;
use backend::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::{MemoryOperation, Word};

/// Looks at a fence between two looks at the clock.
const LOOKS: usize = 16;
/// So many of these between two questions to the device library, which also tells errors, but takes a microsecond in which a fence may be passed.
const ROUNDS: u32 = 64;
/// How long after a fence was passed its stream may look busy yet.
const SEEN: Duration = Duration::from_micros(100);
/// Streams that are asked whether they are idle for the sake of a fence.
const ASKED: usize = 8;

impl Session {
    /// Waits until a stream has done everything it was given before; the device tells the caller's thread of the application itself, where
    /// nothing else is to be told or done before that goes on.
    pub(super) fn await_stream(&self, stream: &Stream, caller: &mut Caller) -> Result<()> {
        if is_idle(stream, caller)? { Ok(()) } else { self.await_busy(stream, caller) }
    }

    /// The same for a stream that is busy, or was a moment ago.
    fn await_busy(&self, stream: &Stream, caller: &mut Caller) -> Result<()> {
        let Some(given) = self.put_fence(stream, caller) else {
            return self.wait(|| stream.poll());
        };
        caller.fenced = true;
        let (fence, mut rounds) = (self.link.fence(caller.ring), 0u32);
        let is_passed = || {
            std::hint::spin_loop();
            fence.is_at(caller.round_trip)
        };
        self.wait_looking(|backoff| {
            rounds = rounds.wrapping_add(1);
            if (0..LOOKS).any(|_| is_passed()) {
                stream.note_passed(given);
                return Ok(true);
            }
            if backoff.sleeps() || rounds.is_multiple_of(ROUNDS) { stream.poll() } else { Ok(false) }
        })
    }

    /// The same for all streams of a context: there is a fence where one of them is found busy.
    pub(super) fn await_streams(&self, streams: &[Arc<Stream>], caller: &mut Caller) -> Result<()> {
        let mut busy = Vec::new();
        for stream in streams.iter().filter(|stream| stream.may_be_busy() && !stream.has_passed()) {
            if !is_idle(stream, caller)? {
                busy.push(stream);
            }
        }
        match busy.as_slice() {
            [stream] => self.await_busy(stream, caller),
            streams => streams.iter().try_for_each(|stream| self.wait(|| stream.poll())),
        }
    }

    /// Whether a stream has nothing to do. The device library sees a fence some microseconds later than the application, which has waited and
    /// must not be told that there is something left.
    pub(super) fn is_stream_done(&self, stream: &Stream) -> Result<bool> {
        let until = stream.has_passed().then(|| Instant::now() + SEEN);
        loop {
            if stream.poll()? {
                return Ok(true);
            }
            if until.is_none_or(|until| Instant::now() >= until) {
                return Ok(false);
            }
        }
    }

    /// Has the device write the caller's fence behind what the stream has been given, if that is in order; answers how much that was.
    fn put_fence(&self, stream: &Stream, caller: &Caller) -> Option<u64> {
        if stream.ctx.may_print() || self.shadows.are_kept() || !self.fences_are_known() {
            return None;
        }
        // No stream is made meanwhile.
        let table = read(&self.table);
        let (_held, given) = stream.hold()?;
        let others = table.streams.values().chain(&table.dying).filter(|other| is_in_order(stream, other));
        let mut idle = Vec::new();
        for other in others {
            if idle.len() == ASKED {
                return None;
            }
            idle.push(other.hold_idle()?);
        }
        let word =
            Word { address: self.link.fence(caller.ring).address(), value: caller.round_trip, wide: true };
        let operations = [MemoryOperation::Write { word }];
        self.backend().memory_operations(stream.ctx.raw, stream.arg(), &operations).ok()?;
        Some(given)
    }

    /// Makes the fences known to the device library, at first use.
    fn fences_are_known(&self) -> bool {
        *self.fences.get_or_init(|| {
            let known = self.backend().register_host(self.fences_range());
            if let Err(error) = &known {
                tracing::debug!(%error, "waits are answered by the server alone");
            }
            known.is_ok()
        })
    }

    fn fences_range(&self) -> Range {
        let (base, bytes) = self.link.fences_range();
        Range { base, bytes }
    }

    /// Lets go of the fences; of a session that ends while the device may still write one, the process ends soon.
    pub(super) fn forget_fences(&self) {
        if self.fences.get() != Some(&true) {
            return;
        }
        if !self.is_idle() || self.backend().unregister_host(self.fences_range()).is_err() {
            std::mem::forget(Arc::clone(&self.link));
        }
    }
}

/// Whether a stream has done everything. One to which the caller's last message gave a kernel, a moment ago, is not asked: the answer takes as long as it has
/// been running.
fn is_idle(stream: &Stream, caller: &Caller) -> Result<bool> {
    Ok(caller.launched != Some(stream.record.key) && stream.poll()?)
}

/// Whether work in `stream` comes behind what `other` has been given before.
pub(super) fn is_in_order(stream: &Stream, other: &Stream) -> bool {
    let legacy = |stream: &Stream| matches!(stream.record.key, StreamKey::Legacy(_));
    stream.record.ctx == other.record.ctx
        && stream.record.key != other.record.key
        && (legacy(stream) || legacy(other))
        && !stream.is_non_blocking()
        && !other.is_non_blocking()
}
