//! Streams, the default ones included, and how far each is.

use super::pace::Pace;
use super::waits::{Batch, Waits};
use super::{Context, Green, Making, Marker, Placement, Placer};
use crate::failure::Result;
use crate::lock;
use backend::{Backend, RawStream, StreamArg};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Instant;
use wire::{ContextId, GreenId, LaunchValue, MemoryOperation, Stream as StreamName, StreamId};

/// `CU_STREAM_NON_BLOCKING`.
pub const NON_BLOCKING: u32 = 1;

/// Which stream.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum StreamKey {
    /// One the application created.
    Created(StreamId),
    /// The legacy stream of a context.
    Legacy(ContextId),
    /// A thread's own, in a context: the thread by its ring.
    PerThread(ContextId, u16),
    /// The server's own in a context, in which events gather what several streams do.
    Gather(ContextId),
    /// The server's own in a context, which copies managed memory from and to its shadow pages and waits for no other.
    Shadows(ContextId),
    /// The server's own in a context, which tells marked kernels to stop.
    Stops(ContextId),
}

impl StreamKey {
    /// What a message of ring `ring` means.
    #[must_use]
    pub fn new(ctx: ContextId, stream: StreamName, ring: u16) -> Self {
        match stream {
            StreamName::Created(id) => Self::Created(id),
            StreamName::Legacy => Self::Legacy(ctx),
            StreamName::PerThread => Self::PerThread(ctx, ring),
        }
    }
}

impl std::fmt::Display for StreamKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Created(id) => write!(f, "stream {:#x}", id.handle()),
            Self::Legacy(ctx) => write!(f, "the default stream of context {:#x}", ctx.handle()),
            Self::PerThread(ctx, ring) => {
                write!(f, "the default stream of thread {ring} in context {:#x}", ctx.handle())
            }
            Self::Gather(ctx) => write!(f, "a record of all of context {:#x}", ctx.handle()),
            Self::Shadows(ctx) => write!(f, "managed memory of context {:#x}", ctx.handle()),
            Self::Stops(ctx) => write!(f, "marked kernels of context {:#x}", ctx.handle()),
        }
    }
}

/// What it takes to make a stream again.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StreamRecord {
    /// Which.
    pub key: StreamKey,
    /// Its context.
    pub ctx: ContextId,
    /// As it was created.
    pub flags: u32,
    /// As it was created.
    pub priority: i32,
    /// The green context that it is in, if any.
    pub green: Option<GreenId>,
    /// When it was made, and what the device library took.
    pub placement: Placement,
}

/// Work of a stream is being submitted.
#[must_use = "the stream may be taken for idle once this is gone"]
pub struct Submitting<'a> {
    flag: &'a AtomicBool,
    pace: MutexGuard<'a, Pace<Marker>>,
}

impl<'a> Submitting<'a> {
    fn new(flag: &'a AtomicBool, pace: MutexGuard<'a, Pace<Marker>>) -> Self {
        flag.store(true, Ordering::Relaxed);
        Self { flag, pace }
    }
}

impl Drop for Submitting<'_> {
    fn drop(&mut self) {
        // The lock is still held.
        self.flag.store(false, Ordering::Release);
    }
}

/// A live stream; ended when the last user lets go.
pub struct Stream {
    /// Its constructor.
    pub record: StreamRecord,
    /// Its context.
    pub ctx: Arc<Context>,
    /// The green context that it is in, which ends later.
    pub green: Option<Arc<Green>>,
    /// `CUstreamAttrID` and value, as far as set.
    pub attributes: Mutex<BTreeMap<u32, LaunchValue>>,
    raw: Option<RawStream>,
    /// Pieces of work it has been given.
    submitted: AtomicU64,
    /// Whether one more has been counted and is not submitted yet.
    submitting: AtomicBool,
    /// How many there were when it was last seen idle.
    idle_at: AtomicU64,
    /// How many there were before the last fence that has been passed.
    passed: AtomicU64,
    /// Handle of the function last launched; 0 for none.
    last_callee: AtomicU64,
    pace: Mutex<Pace<Marker>>,
    /// What [`Pace::may_be_full`] said when `pace` was last held.
    may_be_full: AtomicBool,
    /// What it waits for in memory.
    waits: Mutex<Waits>,
    /// Whether it has left the table.
    gone: AtomicBool,
    backend: Arc<dyn Backend>,
}

impl Stream {
    /// Makes the stream, in a green context of its own context if one is given, and completes its record. The legacy stream is there
    /// already.
    ///
    /// # Errors
    /// The backend's.
    pub fn make(
        placer: &Placer,
        ctx: &Arc<Context>,
        green: Option<Arc<Green>>,
        mut record: StreamRecord,
        making: Making,
    ) -> Result<Arc<Self>> {
        let backend = &placer.backend;
        let raw = match record.key {
            StreamKey::Legacy(_) => None,
            StreamKey::Created(_)
            | StreamKey::PerThread(..)
            | StreamKey::Gather(_)
            | StreamKey::Shadows(_)
            | StreamKey::Stops(_) => {
                record.green = green.as_ref().map(|green| green.record.id);
                Some(placer.place(&mut record.placement, making, || match &green {
                    Some(green) => backend.green_stream_create(ctx.raw, green.raw, record.priority),
                    None => backend.stream_create(ctx.raw, record.flags, record.priority),
                })?)
            }
        };
        Ok(Arc::new(Self {
            record,
            ctx: Arc::clone(ctx),
            green,
            attributes: Mutex::default(),
            raw,
            submitted: AtomicU64::new(0),
            submitting: AtomicBool::new(false),
            idle_at: AtomicU64::new(0),
            passed: AtomicU64::new(u64::MAX),
            last_callee: AtomicU64::new(0),
            pace: Mutex::new(Pace::new(backend.round_trip())),
            may_be_full: AtomicBool::new(false),
            waits: Mutex::default(),
            gone: AtomicBool::new(false),
            backend: Arc::clone(backend),
        }))
    }

    /// The backend's name for it.
    #[must_use]
    pub fn arg(&self) -> StreamArg {
        self.raw.map_or(StreamArg::Legacy, StreamArg::Created)
    }

    /// The device library.
    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// To be called before work is submitted; what is given back lives until it has been.
    ///
    /// # Errors
    /// The backend's, for instance an execution error of the context.
    pub fn begin_work(&self) -> backend::Result<Submitting<'_>> {
        let mut submitting = Submitting::new(&self.submitting, lock(&self.pace));
        let pace = &mut submitting.pace;
        // Written by whoever holds the lock alone; who sees it sees the flag too.
        self.submitted.store(self.submitted.load(Ordering::Relaxed) + 1, Ordering::Release);
        if pace.count() {
            let now = Instant::now();
            pace.settle(1, Marker::is_complete, now);
            // In a failed context nothing is in the way any more.
            let marker = self.ctx.mark(self.arg()).ok();
            if pace.is_far() {
                // So that the answer is on its way when somebody needs it.
                let _ = marker.as_ref().map(Marker::is_complete);
            }
            pace.mark(marker, now);
        }
        self.may_be_full.store(pace.may_be_full(), Ordering::Relaxed);
        self.ctx.host_copy().hold_back(self)?;
        Ok(submitting)
    }

    /// Whether it has been given so much that the next piece of work should wait.
    #[must_use]
    pub fn is_full(&self) -> bool {
        if !self.may_be_full.load(Ordering::Relaxed) {
            return false;
        }
        let mut pace = lock(&self.pace);
        let full = pace.may_be_full() && pace.is_full(Marker::is_complete, Instant::now());
        self.may_be_full.store(pace.may_be_full(), Ordering::Relaxed);
        full
    }

    /// Lets work through until some is complete.
    pub fn let_through(&self) {
        lock(&self.pace).give_up();
    }

    /// To be called before the function with this handle is launched.
    ///
    /// # Errors
    /// As [`Stream::begin_work`].
    pub fn begin_launch(&self, callee: u64) -> backend::Result<Submitting<'_>> {
        self.last_callee.store(callee, Ordering::Relaxed);
        self.begin_work()
    }

    /// To be called after operations on memory were submitted: notes what they wait for.
    ///
    /// # Errors
    /// The backend's.
    pub fn note_waits(&self, operations: &[MemoryOperation]) -> backend::Result<()> {
        if let Some(waits) = Batch::among(operations) {
            let marker = self.ctx.mark(self.arg())?;
            lock(&self.waits).push(marker, waits);
        }
        Ok(())
    }

    /// The waits for memory that hold it, or that it has yet to come to.
    #[must_use]
    pub fn wait(&self) -> Option<Batch> {
        lock(&self.waits).first()
    }

    /// Handle of the function last launched, if any.
    #[must_use]
    pub fn last_callee(&self) -> Option<u64> {
        Some(self.last_callee.load(Ordering::Relaxed)).filter(|handle| *handle != 0)
    }

    /// Whether it has been given work since it was last seen idle; asks nobody.
    #[must_use]
    pub fn may_be_busy(&self) -> bool {
        self.submitted.load(Ordering::Acquire) != self.idle_at.load(Ordering::Relaxed)
    }

    /// Whether all its work is complete. It is not while somebody is about to give it some, who has counted that already.
    ///
    /// # Errors
    /// The execution error the context is in.
    pub fn poll(&self) -> backend::Result<bool> {
        let held = match self.pace.try_lock() {
            Ok(pace) => Some(pace),
            Err(TryLockError::Poisoned(pace)) => Some(pace.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        };
        let idle = self.backend.stream_query(self.ctx.raw, self.arg())?;
        let Some(mut pace) = held else {
            // Whoever has it may only be looking, as this one.
            return Ok(idle && !self.submitting.load(Ordering::Acquire));
        };
        if idle {
            self.idle_at.store(self.submitted.load(Ordering::Relaxed), Ordering::Release);
            pace.idle();
        }
        Ok(idle)
    }

    /// Keeps others from giving it work as long as the guard lives, if nobody is about to; with the number of pieces that it has been given.
    #[must_use]
    pub fn hold(&self) -> Option<(MutexGuard<'_, impl Sized>, u64)> {
        let pace = self.pace.try_lock().ok()?;
        Some((pace, self.submitted.load(Ordering::Relaxed)))
    }

    /// The same, if it is known to be idle. What the legacy stream is asked it answers for others too, so only what it was last seen to be
    /// counts.
    #[must_use]
    pub fn hold_idle(&self) -> Option<MutexGuard<'_, impl Sized>> {
        let (pace, _) = self.hold()?;
        let is_legacy = self.raw.is_none();
        let idle = !self.may_be_busy()
            || self.has_passed()
            || (!is_legacy && self.backend.stream_query(self.ctx.raw, self.arg()).unwrap_or(false));
        idle.then_some(pace)
    }

    /// Notes that a fence behind the first `given` pieces of work has been passed. The application could have written that too: it is good for what
    /// the application is told and for the stream's pace, and no memory is used again by it.
    pub fn note_passed(&self, given: u64) {
        self.passed.store(given, Ordering::Release);
        if let Ok(mut pace) = self.pace.try_lock()
            && self.has_passed()
        {
            pace.idle();
        }
    }

    /// Whether the last that it was given was behind a fence that has been passed: it is idle, or will be as soon as the device library has seen it.
    #[must_use]
    pub fn has_passed(&self) -> bool {
        self.submitted.load(Ordering::Acquire) == self.passed.load(Ordering::Acquire)
    }

    /// Notes that it has left the table: no message means it any more.
    pub fn note_gone(&self) {
        self.gone.store(true, Ordering::Release);
    }

    /// Whether it has left the table.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Whether `CU_STREAM_NON_BLOCKING`: not ordered with the legacy stream.
    #[must_use]
    pub fn is_non_blocking(&self) -> bool {
        self.record.flags & NON_BLOCKING != 0
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let Some(raw) = self.raw
            && let Err(error) = self.backend.stream_destroy(self.ctx.raw, raw)
        {
            tracing::warn!(stream = %self.record.key, %error, "stream not destroyed");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::objects::ContextRecord;
    use backend_soft::SoftBackend;

    #[test]
    fn a_stream_that_is_about_to_be_given_work_is_not_idle() {
        let placer = Placer::new(Arc::new(SoftBackend::default()), 0);
        let (id, ctx) = (StreamId(2), ContextId(1));
        let record =
            ContextRecord { id: ctx, device: 0, flags: 0, primary: true, placement: Placement::default() };
        let context = Context::make(&placer, record, Making::New).unwrap();
        let (key, placement) = (StreamKey::Created(id), Placement::default());
        let record = StreamRecord { key, ctx, flags: 0, priority: 0, green: None, placement };
        let stream = Stream::make(&placer, &context, None, record, Making::New).unwrap();
        assert!(stream.poll().unwrap() && !stream.may_be_busy());
        // The device has nothing to do yet, but whoever frees memory now has to wait for what comes.
        let work = stream.begin_work().unwrap();
        assert!(!stream.poll().unwrap() && stream.may_be_busy());
        drop(work);
        assert!(stream.may_be_busy(), "nobody has looked since");
        // Another thread that looks does not make it busy.
        let looking = lock(&stream.pace);
        assert!(stream.poll().unwrap() && stream.may_be_busy());
        drop(looking);
        assert!(stream.poll().unwrap() && !stream.may_be_busy());
    }
}
