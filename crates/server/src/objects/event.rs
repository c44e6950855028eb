//! Events, and the time line that survives a restart.

use super::Context;
use crate::lock;
use crate::sharing::Sharing;
use backend::{Backend, RawEvent, SharedEvent};
use serde::{Deserialize, Serialize};
use std::sync::{Arc, Mutex};
use wire::{ContextId, CuError, EventId, ShareId};

/// `CU_EVENT_DISABLE_TIMING`.
pub const DISABLE_TIMING: u32 = 2;
/// `CU_EVENT_INTERPROCESS`.
pub const INTERPROCESS: u32 = 4;

/// What it takes to make an event again.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct EventRecord {
    /// Its handle.
    pub id: EventId,
    /// Its context.
    pub ctx: ContextId,
    /// As it was created.
    pub flags: u32,
    /// Its name, where other sessions may have it.
    pub share: Option<ShareId>,
    /// Whether another process made it, and this one has opened it.
    pub opened: bool,
}

/// When an event was last recorded.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub enum Recorded {
    /// Never.
    Never,
    /// Since the session was started or restarted: the backend knows.
    Live,
    /// So many milliseconds before the cut that the session was restarted from.
    Before(f64),
}

/// A live event; ended when the last user lets go.
pub struct Event {
    /// Its constructor.
    pub record: EventRecord,
    /// Its context.
    pub ctx: Arc<Context>,
    /// The backend's handle.
    pub raw: RawEvent,
    recorded: Mutex<Recorded>,
    made: Arc<Made>,
}

/// What the device library has made: several handles' where an event of another session was opened more than once.
struct Made {
    ctx: Arc<Context>,
    raw: RawEvent,
    /// Its name, and where it is known.
    share: Mutex<Option<(ShareId, Arc<Sharing>)>>,
    backend: Arc<dyn Backend>,
}

impl Event {
    /// Makes the event.
    ///
    /// # Errors
    /// The backend's.
    pub fn make(
        backend: &Arc<dyn Backend>,
        ctx: &Arc<Context>,
        record: EventRecord,
        recorded: Recorded,
    ) -> backend::Result<Arc<Self>> {
        let raw = backend.event_create(ctx.raw, record.flags)?;
        Ok(Self::of(backend, ctx, record, raw, recorded))
    }

    /// Takes an event of another session.
    ///
    /// # Errors
    /// The backend's.
    pub fn import(
        backend: &Arc<dyn Backend>,
        ctx: &Arc<Context>,
        record: EventRecord,
        shared: SharedEvent,
    ) -> backend::Result<Arc<Self>> {
        let raw = backend.event_import(ctx.raw, shared)?;
        Ok(Self::of(backend, ctx, record, raw, Recorded::Never))
    }

    fn of(
        backend: &Arc<dyn Backend>,
        ctx: &Arc<Context>,
        record: EventRecord,
        raw: RawEvent,
        recorded: Recorded,
    ) -> Arc<Self> {
        let (ctx, backend) = (Arc::clone(ctx), Arc::clone(backend));
        let made = Made { ctx: Arc::clone(&ctx), raw, share: Mutex::default(), backend };
        Arc::new(Self { record, ctx, raw, recorded: Mutex::new(recorded), made: Arc::new(made) })
    }

    /// The same event by another handle.
    #[must_use]
    pub fn again(&self, id: EventId) -> Arc<Self> {
        let record = EventRecord { id, ..self.record.clone() };
        let (ctx, made) = (Arc::clone(&self.ctx), Arc::clone(&self.made));
        Arc::new(Self { record, ctx, raw: self.raw, recorded: Mutex::new(self.recorded()), made })
    }

    /// Its record, with the name that it has now.
    #[must_use]
    pub fn state(&self) -> EventRecord {
        EventRecord { share: self.share(), ..self.record.clone() }
    }

    /// Whether other sessions may record it and wait for it.
    #[must_use]
    pub fn is_interprocess(&self) -> bool {
        self.record.flags & INTERPROCESS != 0
    }

    /// Its name, where other sessions may have it.
    #[must_use]
    pub fn share(&self) -> Option<ShareId> {
        lock(&self.made.share).as_ref().map(|(share, _)| *share)
    }

    /// Its name, one of those that `name` gives when it has none: this session holds it from then on.
    ///
    /// # Errors
    /// What `name` answers.
    pub fn share_as(
        &self,
        sharing: &Arc<Sharing>,
        name: impl FnOnce() -> crate::failure::Result<ShareId>,
    ) -> crate::failure::Result<ShareId> {
        let mut share = lock(&self.made.share);
        if let Some((share, _)) = &*share {
            return Ok(*share);
        }
        let name = name()?;
        sharing.hold(name);
        *share = Some((name, Arc::clone(sharing)));
        Ok(name)
    }

    /// When it was last recorded.
    #[must_use]
    pub fn recorded(&self) -> Recorded {
        *lock(&self.recorded)
    }

    /// Notes that it is recorded now.
    pub fn note_record(&self) {
        *lock(&self.recorded) = Recorded::Live;
    }

    /// Whether its last record is complete; one from before a restart is.
    ///
    /// # Errors
    /// The execution error the context is in.
    pub fn poll(&self) -> backend::Result<bool> {
        match self.recorded() {
            // Others may have recorded it.
            _ if self.is_interprocess() => self.made.backend.event_query(self.ctx.raw, self.raw),
            Recorded::Never | Recorded::Before(_) => Ok(true),
            Recorded::Live => self.made.backend.event_query(self.ctx.raw, self.raw),
        }
    }

    /// Whether times are taken.
    #[must_use]
    pub fn is_timed(&self) -> bool {
        self.record.flags & DISABLE_TIMING == 0
    }

    /// Milliseconds from `self` to `end`, as `cuEventElapsedTime`, also across restarts: the time between the cut and the
    /// moment the session went on does not count.
    ///
    /// # Errors
    /// `INVALID_HANDLE` when either was never recorded or takes no times, `NOT_READY` when either is not complete.
    pub fn elapsed(&self, end: &Self) -> backend::Result<f32> {
        if !self.is_timed() || !end.is_timed() {
            return Err(CuError::INVALID_HANDLE);
        }
        match (self.recorded(), end.recorded()) {
            (Recorded::Never, _) | (_, Recorded::Never) => Err(CuError::INVALID_HANDLE),
            (Recorded::Live, Recorded::Live) => self.made.backend.event_elapsed(self.raw, end.raw),
            // A double holds what the subtraction of two singles would lose.
            _ => Ok((end.since_restart()? - self.since_restart()?) as f32),
        }
    }

    /// Milliseconds from the restart to its record; negative before it.
    fn since_restart(&self) -> backend::Result<f64> {
        match self.recorded() {
            Recorded::Never => Err(CuError::INVALID_HANDLE),
            Recorded::Before(ms) => Ok(-ms),
            Recorded::Live => {
                let epoch = self.ctx.epoch.get().ok_or(CuError::INVALID_HANDLE)?;
                self.made.backend.event_elapsed(*epoch, self.raw).map(f64::from)
            }
        }
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Some((share, sharing)) = lock(&self.share).take() {
            sharing.release(share);
        }
        if let Err(error) = self.backend.event_destroy(self.ctx.raw, self.raw) {
            tracing::warn!(%error, "event not destroyed");
        }
    }
}
