//! What this session gives to others and has from them.

use super::dispatch::Execute;
use super::{Caller, Session};
use crate::Application;
use crate::failure::{Failure, Result};
use crate::objects::{DISABLE_TIMING, Event, EventRecord, INTERPROCESS, in_use, insert};
use crate::sharing::{Gift, Given, Giver, fresh};
use crate::{lock, read, write};
use backend::SharedEvent;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use wire::{Claim, ContextId, CuError, EventId, PhysicalId, ShareId};

/// What another session knows an event as.
fn event_of(given: Given) -> Result<SharedEvent> {
    match given {
        (Gift::Event { bytes }, file) => Ok(SharedEvent { file, bytes }),
        (gift, _) => Err(Failure::new(CuError::INVALID_VALUE, format!("{gift:?} is no event"))),
    }
}

fn own(what: impl std::fmt::Display) -> Failure {
    Failure::new(CuError::INVALID_CONTEXT, format!("{what} is this process's own: only another can open it"))
}

impl Session {
    /// The event with that name.
    pub(crate) fn shared_event(&self, share: ShareId) -> Option<Arc<Event>> {
        read(&self.table).events.values().find(|event| event.share() == Some(share)).cloned()
    }

    /// Gets something from whoever owns it.
    pub(crate) fn ask_others(&self, share: ShareId, claim: Option<Claim>) -> Result<Option<Given>> {
        self.config.sharing.open(share, claim, || self.is_ending())
    }

    /// The same where there is somebody to be asked.
    fn obtain(&self, share: ShareId, claim: Option<Claim>) -> Result<Given> {
        let given = self.ask_others(share, claim)?;
        given.ok_or_else(|| Failure::new(CuError::INVALID_HANDLE, format!("nobody has {share}")))
    }

    /// One more handle of an event that is open already.
    fn reopen_event(&self, id: EventId, ctx: ContextId, event: Arc<Event>) -> Result<()> {
        if !event.record.opened {
            return Err(own("the event"));
        }
        if event.record.ctx != ctx {
            let detail = "the event is open in another context of this process";
            return Err(Failure::new(CuError::NOT_SUPPORTED, detail));
        }
        insert(&mut write(&self.table).events, id, event.again(id))
    }

    /// Makes an event of another session again.
    pub(crate) fn import_event(&self, record: &EventRecord, given: Given) -> Result<Arc<Event>> {
        let ctx = self.context(record.ctx)?;
        Ok(Event::import(&self.placer.backend, &ctx, record.clone(), event_of(given)?)?)
    }
}

impl Giver for Session {
    fn take_application(&self, application: Application) {
        // It has one.
        let _ = self.application.set(application);
        self.tell_watch_of_process();
    }

    fn take_userfault(&self, userfault: OwnedFd) {
        self.shadows.take(userfault);
    }

    fn give(&self, share: ShareId, claim: Option<Claim>) -> Result<Given> {
        for memory in &self.devices {
            if let Some(given) = memory.give(share, claim)? {
                return Ok(given);
            }
        }
        if claim.is_some() {
            return Err(Failure::new(CuError::INVALID_HANDLE, "the process that allocated it has ended"));
        }
        if let Some(given) = lock(&self.virtual_memory).give(share)? {
            return Ok(given);
        }
        if let Some(given) = lock(&self.imports).give(share)? {
            return Ok(given);
        }
        let event = self.shared_event(share);
        let event =
            event.ok_or_else(|| Failure::new(CuError::INVALID_HANDLE, format!("there is no {share}")))?;
        let SharedEvent { file, bytes } = self.backend().event_export(event.ctx.raw, event.raw)?;
        Ok((Gift::Event { bytes }, file))
    }
}

impl Execute for wire::IpcGetMem {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<Claim> {
        for memory in &session.devices {
            if let Some(claim) = memory.export(self.address)? {
                session.config.sharing.settle()?;
                return Ok(claim);
            }
        }
        let detail = format!("{:#x} lies in no allocation that others could have", self.address);
        Err(Failure::new(CuError::INVALID_VALUE, detail))
    }
}

impl Execute for wire::IpcOpenMem {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<u64> {
        let ctx = session.context(self.ctx)?;
        if session.devices.iter().any(|memory| memory.has_exported(self.claim.share)) {
            return Err(own("the allocation"));
        }
        let opener = (self.ctx, ctx.record.device);
        if let Some(address) = lock(&session.imports).reopen(&self.claim, opener)? {
            return Ok(address);
        }
        let given = session.obtain(self.claim.share, Some(self.claim))?;
        let address = lock(&session.imports).open(&self.claim, given, opener)?;
        write(&session.table).changes += 1;
        // Whoever is told that this process has it can get it from here.
        session.config.sharing.settle()?;
        Ok(address)
    }
}

impl Execute for wire::IpcCloseMem {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<bool> {
        if lock(&session.imports).closes_at_last(self.address) {
            session.wait_for_everything()?;
        }
        let gone = lock(&session.imports).close(self.address)?;
        write(&session.table).changes += u64::from(gone);
        Ok(gone)
    }
}

impl Execute for wire::IpcGetEvent {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<ShareId> {
        let event = read(&session.table).event(self.event)?;
        if !event.is_interprocess() {
            let detail = format!("{:?} was not made for other processes (CU_EVENT_INTERPROCESS)", self.event);
            return Err(Failure::new(CuError::INVALID_VALUE, detail));
        }
        let share = event.share_as(&session.config.sharing, fresh)?;
        session.config.sharing.settle()?;
        Ok(share)
    }
}

impl Execute for wire::IpcOpenEvent {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        session.context(self.ctx)?;
        if read(&session.table).events.contains_key(&self.event) {
            return Err(in_use(self.event));
        }
        // Opened by two threads at once it would be there twice.
        let _opening = lock(&session.opening);
        if let Some(event) = session.shared_event(self.share) {
            return session.reopen_event(self.event, self.ctx, event);
        }
        let given = session.obtain(self.share, None)?;
        let flags = DISABLE_TIMING | INTERPROCESS;
        let record = EventRecord { id: self.event, ctx: self.ctx, flags, share: None, opened: true };
        let event = session.import_event(&record, given)?;
        insert(&mut write(&session.table).events, self.event, Arc::clone(&event))?;
        event.share_as(&session.config.sharing, || Ok(self.share))?;
        session.config.sharing.settle()
    }
}

impl Execute for wire::PhysicalExport {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<ShareId> {
        let share = lock(&session.virtual_memory).export(self.physical)?;
        session.config.sharing.settle()?;
        Ok(share)
    }
}

impl Execute for wire::PhysicalImport {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<PhysicalId> {
        if let Some(id) = lock(&session.virtual_memory).reopen(self.share) {
            return Ok(id);
        }
        let given = session.obtain(self.share, None)?;
        let id = lock(&session.virtual_memory).import(self.physical, self.share, given)?;
        session.config.sharing.settle()?;
        Ok(id)
    }
}
