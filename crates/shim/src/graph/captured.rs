//! What events and calls know of captures.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use ::graph::Edge;
use wire::{ContextId, Stream};

/// Where an event was last recorded, if that was in a capture.
#[derive(Default)]
pub struct CapturedAt {
    /// The capture's number; 0 for none. Looked at before anything is asked of the event.
    capture: AtomicU64,
    at: Mutex<Vec<Edge>>,
}

impl CapturedAt {
    /// The capture in which the event was last recorded.
    #[inline]
    pub fn capture(&self) -> Option<u64> {
        Some(self.capture.load(Ordering::Relaxed)).filter(|capture| *capture != 0)
    }

    /// The nodes that the event stands for.
    pub fn edges(&self) -> Vec<Edge> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// It is recorded in a capture, behind these nodes.
    pub fn set(&self, capture: u64, edges: Vec<Edge>) {
        *self.at.lock().unwrap_or_else(PoisonError::into_inner) = edges;
        self.capture.store(capture, Ordering::Relaxed);
    }

    /// It is recorded outside of any.
    #[inline]
    pub fn clear(&self) {
        if self.capture().is_some() {
            self.set(0, Vec::new());
        }
    }
}

/// A stream that is being captured: where a call's work goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Target {
    /// The stream.
    pub stream: Captured,
    /// Its context.
    pub ctx: ContextId,
    /// The capture.
    pub capture: u64,
}

/// A stream that can be captured.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Captured {
    name: Stream,
    ctx: ContextId,
    /// For a thread's default stream: the thread.
    thread: u64,
}

impl Captured {
    /// The stream that a call of this thread means; the legacy stream cannot be captured.
    pub fn new(name: Stream, ctx: ContextId) -> Option<Self> {
        match name {
            Stream::Legacy => None,
            Stream::Created(_) => Some(Self { name, ctx, thread: 0 }),
            Stream::PerThread => Some(Self { name, ctx, thread: thread() }),
        }
    }

    /// Its context.
    pub fn ctx(&self) -> ContextId {
        self.ctx
    }

    /// Its name on the wire.
    pub fn name(&self) -> Stream {
        self.name
    }
}

/// The calling thread's number, which a restart keeps.
pub fn thread() -> u64 {
    // SAFETY: always succeeds. The C library has a function for it only since 2.30.
    unsafe { libc::syscall(libc::SYS_gettid) as u64 }
}
