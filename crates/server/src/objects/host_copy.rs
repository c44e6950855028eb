//! Copies from the application's memory that return early.
//!
//! `cuMemcpyHtoD` waits for its stream before it begins, so what it has copied is there for whoever is told, also in streams
//! that no rule of CUDA's puts in order with it. Here the call returns as soon as the bytes have left the application, and
//! the device keeps the order: other streams are held back until the copy is complete.

use super::{Stream, StreamKey};
use crate::lock;
use backend::RawEvent;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// `CU_EVENT_DISABLE_TIMING`.
const UNTIMED: u32 = 2;

/// The last such copy of a context.
#[derive(Default)]
pub struct HostCopy {
    /// Whether there is one that is not known to be complete; looked at before all work.
    any: AtomicBool,
    /// How many non-blocking streams the context has had.
    non_blocking: AtomicU32,
    last: Mutex<Last>,
}

#[derive(Default)]
struct Last {
    stream: Option<StreamKey>,
    event: Option<RawEvent>,
}

impl HostCopy {
    /// Notes that `stream`, a default one, has been given such a copy.
    ///
    /// # Errors
    /// The backend's.
    pub fn note(&self, stream: &Stream) -> backend::Result<()> {
        // Every other stream is in order with the legacy one.
        let in_order = matches!(stream.record.key, StreamKey::Legacy(_))
            && self.non_blocking.load(Ordering::Relaxed) == 0;
        if in_order || matches!(stream.record.key, StreamKey::Created(_)) {
            return Ok(());
        }
        self.record(stream)
    }

    /// Notes that the context gets a non-blocking stream: what the legacy stream has been given may be such copies.
    ///
    /// # Errors
    /// The backend's.
    pub fn note_non_blocking(&self, legacy: &Stream) -> backend::Result<()> {
        self.non_blocking.fetch_add(1, Ordering::Relaxed);
        if legacy.may_be_busy() { self.record(legacy) } else { Ok(()) }
    }

    fn record(&self, stream: &Stream) -> backend::Result<()> {
        let (backend, ctx) = (stream.backend(), stream.ctx.raw);
        let mut last = lock(&self.last);
        let event = match last.event {
            Some(event) => event,
            None => *last.event.insert(backend.event_create(ctx, UNTIMED)?),
        };
        backend.event_record(ctx, event, stream.arg(), 0)?;
        last.stream = Some(stream.record.key);
        self.any.store(true, Ordering::Release);
        Ok(())
    }

    /// Holds `stream` back behind the copy where nothing else does.
    ///
    /// # Errors
    /// The backend's, for instance an execution error of the context.
    pub fn hold_back(&self, stream: &Stream) -> backend::Result<()> {
        if !self.any.load(Ordering::Acquire) {
            return Ok(());
        }
        let last = lock(&self.last);
        let (Some(of), Some(event)) = (last.stream, last.event) else { return Ok(()) };
        let in_order = of == stream.record.key
            || (!stream.is_non_blocking() && matches!(of, StreamKey::Legacy(_)))
            || matches!(stream.record.key, StreamKey::Legacy(_));
        if in_order {
            return Ok(());
        }
        let (backend, ctx) = (stream.backend(), stream.ctx.raw);
        if backend.event_query(ctx, event)? {
            self.any.store(false, Ordering::Release);
            return Ok(());
        }
        backend.stream_wait_event(ctx, stream.arg(), event, 0)
    }

    /// The event, to be ended with the context.
    pub(super) fn event(&self) -> Option<RawEvent> {
        lock(&self.last).event
    }
}
