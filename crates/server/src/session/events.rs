//! Events.

use super::dispatch::Execute;
use super::{Caller, Session};
use crate::failure::{Failure, Result};
use crate::objects::{Event, EventRecord, Recorded, in_use, insert};
use crate::{read, write};
use wire::CuError;

impl Execute for wire::EventCreate {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let ctx = session.context(self.ctx)?;
        if read(&session.table).events.contains_key(&self.event) {
            return Err(in_use(self.event));
        }
        let Self { ctx: of, event: id, flags } = self;
        let record = EventRecord { id, ctx: of, flags, share: None, opened: false };
        let event = Event::make(&session.placer.backend, &ctx, record, Recorded::Never)?;
        insert(&mut write(&session.table).events, self.event, event)
    }
}

impl Execute for wire::EventDestroy {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let gone = write(&session.table).events.remove(&self.event);
        match gone {
            Some(_) => Ok(()),
            None => Err(Failure::new(CuError::INVALID_HANDLE, format!("there is no {:?}", self.event))),
        }
    }
}

impl Execute for wire::EventRecord {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<()> {
        let stream = session.stream(caller, self.ctx, self.stream)?;
        let event = read(&session.table).event(self.event)?;
        if event.record.ctx != stream.record.ctx {
            let detail = format!("{:?} is of another context than {}", self.event, stream.record.key);
            return Err(Failure::new(CuError::INVALID_HANDLE, detail));
        }
        let _work = stream.begin_work()?;
        session.backend().event_record(stream.ctx.raw, event.raw, stream.arg(), self.flags)?;
        event.note_record();
        Ok(())
    }
}

impl Execute for wire::EventRecordNow {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<()> {
        let Self { ctx, stream, event, flags } = self;
        wire::EventRecord { ctx, stream, event, flags }.execute(session, caller)
    }
}

impl Execute for wire::EventQuery {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<bool> {
        let event = read(&session.table).event(self.event)?;
        Ok(event.poll()?)
    }
}

impl Execute for wire::EventSynchronize {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let event = read(&session.table).event(self.event)?;
        session.wait(|| event.poll())?;
        session.note_synchronized();
        if event.ctx.may_print() {
            session.collect_output();
        }
        Ok(())
    }
}

impl Execute for wire::EventElapsed {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<f32> {
        let (start, end) = {
            let table = read(&session.table);
            (table.event(self.start)?, table.event(self.end)?)
        };
        Ok(start.elapsed(&end)?)
    }
}
