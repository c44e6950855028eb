//! Streams.

use super::dispatch::Execute;
use super::{Caller, Session};
use crate::failure::{Failure, Result};
use crate::objects::{Context, NON_BLOCKING, Stream, StreamKey, StreamRecord, in_use};
use crate::{read, write};
use std::sync::Arc;
use wire::{ContextId, CuError};

impl Session {
    /// Lets go of destroyed streams whose work is complete. Until that is seen they stay in the table, where whoever asks for all work that is under way
    /// finds them.
    pub(crate) fn bury_streams(&self) {
        let dying = read(&self.table).dying.clone();
        // Polled, and ended, outside of the lock.
        let idle: Vec<_> = dying.into_iter().filter(|stream| stream.poll().unwrap_or(true)).collect();
        if !idle.is_empty() {
            let is_idle = |stream: &mut Arc<Stream>| idle.iter().any(|each| Arc::ptr_eq(each, stream));
            let gone: Vec<_> = write(&self.table).dying.extract_if(.., is_idle).collect();
            drop(gone);
        }
    }

    /// A stream of the server's own in a context, made when it is first used.
    pub(crate) fn own_stream(&self, ctx: &Arc<Context>, key: StreamKey) -> Result<Arc<Stream>> {
        let find = || read(&self.table).streams.get(&key).cloned();
        if let Some(found) = find() {
            return Ok(found);
        }
        let record = StreamRecord {
            key,
            ctx: ctx.id(),
            flags: NON_BLOCKING,
            priority: 0,
            green: None,
            placement: Default::default(),
        };
        // Another thread may have been faster.
        self.add_stream(ctx, None, record).or_else(|failure| find().ok_or(failure))
    }

    /// The stream by which managed memory of a context and its shadow pages are kept in step: made with the first such memory, and gone with
    /// the context.
    pub(crate) fn shadow_stream(&self, ctx: ContextId) -> Option<Arc<Stream>> {
        read(&self.table).streams.get(&StreamKey::Shadows(ctx)).cloned()
    }

    /// Notes that a stream has come into its context.
    pub(crate) fn note_made(&self, stream: &Stream) -> Result<()> {
        if !stream.is_non_blocking() {
            return Ok(());
        }
        let legacy = read(&self.table).streams.get(&StreamKey::Legacy(stream.record.ctx)).cloned();
        match legacy {
            Some(legacy) => Ok(stream.ctx.host_copy().note_non_blocking(&legacy)?),
            // The context is gone, and the stream with it.
            None => Err(CuError::INVALID_CONTEXT.into()),
        }
    }

    /// Takes a stream out of the table; its work still completes.
    pub(crate) fn destroy_stream(&self, key: StreamKey) -> Result<()> {
        let mut table = write(&self.table);
        let Some(stream) = table.streams.remove(&key) else {
            return Err(Failure::new(CuError::INVALID_HANDLE, format!("there is no {key}")));
        };
        stream.note_gone();
        table.changes += 1;
        if stream.may_be_busy() {
            table.dying.push(Arc::clone(&stream));
        }
        drop(table);
        drop(stream);
        self.bury_streams();
        Ok(())
    }
}

impl Execute for wire::StreamCreate {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let key = StreamKey::Created(self.stream);
        let ctx = session.context(self.ctx)?;
        if self.stream.is_reserved() || read(&session.table).streams.contains_key(&key) {
            return Err(in_use(self.stream));
        }
        let record = StreamRecord {
            key,
            ctx: self.ctx,
            flags: self.flags,
            priority: self.priority,
            green: None,
            placement: Default::default(),
        };
        session.add_stream(&ctx, None, record).map(|_| ())
    }
}

impl Execute for wire::StreamDestroy {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        session.destroy_stream(StreamKey::Created(self.stream))
    }
}

impl Execute for wire::StreamSynchronize {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<()> {
        let stream = session.stream(caller, self.ctx, self.stream)?;
        // The legacy stream may have to wait for others although it has nothing to do itself.
        session.await_stream(&stream, caller)?;
        session.note_synchronized();
        if caller.fenced { Ok(()) } else { session.hand_over_output(&stream) }
    }
}

impl Execute for wire::StreamQuery {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<bool> {
        let stream = session.stream(caller, self.ctx, self.stream)?;
        Ok(!session.is_half_way(&stream) && session.is_stream_done(&stream)?)
    }
}

impl Execute for wire::StreamWaitEvent {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<()> {
        let stream = session.stream(caller, self.ctx, self.stream)?;
        let event = read(&session.table).event(self.event)?;
        let _work = stream.begin_work()?;
        Ok(session.backend().stream_wait_event(stream.ctx.raw, stream.arg(), event.raw, self.flags)?)
    }
}
