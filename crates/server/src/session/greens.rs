//! Green contexts, and events that are about all streams of a context.

use super::dispatch::Execute;
use super::{Caller, Session};
use crate::failure::{Failure, Result};
use crate::objects::{
    Context, Green, GreenRecord, Making, NON_BLOCKING, Stream, StreamKey, StreamRecord, in_use, insert,
    take_out,
};
use crate::{read, write};
use std::sync::Arc;
use wire::{
    ContextId, CuError, GreenId, SM_GROUPS_MAX, SM_REMAINDER, SM_STEPS_MAX, SmCount, SmSplit, SmStep,
    StreamId,
};

fn check_split(split: SmSplit) -> Result<()> {
    match (1..=SM_GROUPS_MAX).contains(&split.groups) {
        true => Ok(()),
        false => Err(Failure::new(CuError::INVALID_VALUE, format!("{} groups", split.groups))),
    }
}

/// A message may say anything: as many steps as the device library is to take at most, each part once.
fn check_set(of: &[SmStep]) -> Result<()> {
    let sound = |step: &SmStep| {
        let mut taken = step.taken.clone();
        taken.sort_unstable();
        let once = taken.windows(2).all(|pair| pair[0] != pair[1]);
        once && taken.iter().all(|part| *part < step.split.groups || *part == SM_REMAINDER)
    };
    of.iter().try_for_each(|step| check_split(step.split))?;
    if of.len() > SM_STEPS_MAX || !of.iter().all(sound) {
        return Err(Failure::new(CuError::INVALID_RESOURCE_CONFIGURATION, "no set of multiprocessors"));
    }
    Ok(())
}

impl Session {
    fn add_green_stream(&self, green: &Arc<Green>, stream: StreamId, priority: i32) -> Result<()> {
        let key = StreamKey::Created(stream);
        let record = StreamRecord {
            key,
            ctx: green.record.ctx,
            flags: NON_BLOCKING,
            priority,
            green: None,
            placement: Default::default(),
        };
        self.add_stream(&green.ctx, Some(Arc::clone(green)), record).map(|_| ())
    }

    /// Makes a stream and puts it into the table.
    pub(super) fn add_stream(
        &self,
        ctx: &Arc<Context>,
        green: Option<Arc<Green>>,
        record: StreamRecord,
    ) -> Result<Arc<Stream>> {
        let key = record.key;
        let stream = Stream::make(&self.placer, ctx, green, record, Making::New)?;
        self.note_made(&stream)?;
        let mut table = write(&self.table);
        table.changes += 1;
        insert(&mut table.streams, key, Arc::clone(&stream))?;
        Ok(stream)
    }

    /// The streams of a context and its green ones, or those of one green context.
    fn streams_of(&self, ctx: ContextId, green: Option<GreenId>) -> Vec<Arc<Stream>> {
        let mut streams = read(&self.table).all_streams(Some(ctx));
        streams.retain(|stream| green.is_none() || stream.record.green == green);
        streams
    }

    /// Takes the green contexts that `gone` names out of the table, with their streams; their work still completes.
    pub(super) fn remove_greens(&self, gone: impl Fn(&GreenRecord) -> bool) {
        let mut table = write(&self.table);
        let greens = take_out(&mut table.greens, |green| gone(&green.record));
        let of = |id: Option<GreenId>| greens.iter().any(|green| Some(green.record.id) == id);
        let streams = take_out(&mut table.streams, |stream| of(stream.record.green));
        streams.iter().for_each(|stream| stream.note_gone());
        table.changes += 1;
        table.dying.extend(streams);
        drop(table);
        self.bury_streams();
    }
}

impl Execute for wire::SmResource {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<SmCount> {
        check_set(&self.of)?;
        Ok(session.backend().sm_count(session.device(self.device)?, &self.of)?)
    }
}

impl Execute for wire::SmResourceSplit {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<(Vec<SmCount>, SmCount)> {
        check_set(&self.of)?;
        check_split(self.split)?;
        Ok(session.backend().sm_split(session.device(self.device)?, &self.of, self.split)?)
    }
}

impl Execute for wire::GreenCreate {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        check_set(&self.of)?;
        let (ctx, default) = (session.context(self.ctx)?, StreamId(self.green.0));
        {
            let table = read(&session.table);
            let known = table.greens.contains_key(&self.green);
            if known || table.streams.contains_key(&StreamKey::Created(default)) || default.is_reserved() {
                return Err(in_use(self.green));
            }
        }
        if !ctx.record.primary {
            return Err(Failure::new(
                CuError::INVALID_CONTEXT,
                format!("{:?} is no primary context", self.ctx),
            ));
        }
        let record = GreenRecord {
            id: self.green,
            ctx: self.ctx,
            of: self.of,
            count: SmCount::default(),
            placement: Default::default(),
        };
        let green = Green::make(&session.placer, &ctx, record, Making::New)?;
        session.add_green_stream(&green, default, 0)?;
        insert(&mut write(&session.table).greens, self.green, green)
    }
}

impl Execute for wire::GreenDestroy {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        read(&session.table).green(self.green)?;
        session.remove_greens(|record| record.id == self.green);
        Ok(())
    }
}

impl Execute for wire::GreenStreamCreate {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let green = read(&session.table).green(self.green)?;
        let known = read(&session.table).streams.contains_key(&StreamKey::Created(self.stream));
        if known || self.stream.is_reserved() {
            return Err(in_use(self.stream));
        }
        session.add_green_stream(&green, self.stream, self.priority)
    }
}

impl Execute for wire::ContextRecordEvent {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let (ctx, event) = (session.context(self.ctx)?, read(&session.table).event(self.event)?);
        if event.record.ctx != self.ctx {
            let detail = format!("{:?} is of another context than {:?}", self.event, self.ctx);
            return Err(Failure::new(CuError::INVALID_HANDLE, detail));
        }
        let gather = session.own_stream(&ctx, StreamKey::Gather(ctx.id()))?;
        let _work = gather.begin_work()?;
        for stream in session.streams_of(self.ctx, self.green).iter().filter(|stream| stream.may_be_busy()) {
            let marker = ctx.mark(stream.arg())?;
            session.backend().stream_wait_event(ctx.raw, gather.arg(), marker.event(), 0)?;
        }
        session.backend().event_record(ctx.raw, event.raw, gather.arg(), 0)?;
        event.note_record();
        Ok(())
    }
}

impl Execute for wire::ContextWaitEvent {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let (ctx, event) = (session.context(self.ctx)?, read(&session.table).event(self.event)?);
        for stream in session.streams_of(self.ctx, self.green) {
            let _work = stream.begin_work()?;
            session.backend().stream_wait_event(ctx.raw, stream.arg(), event.raw, 0)?;
        }
        Ok(())
    }
}
