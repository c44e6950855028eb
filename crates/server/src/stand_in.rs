//! Contexts to copy in on devices of which the program has none: memory of `cuMemCreate` outlives every context.

use crate::failure::Result;
use crate::objects::{Context, ContextRecord, Making};
use crate::read;
use crate::session::Session;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;
use wire::ContextId;

/// The contexts in which a session's memory is read or filled; those made for that end with the value.
pub(crate) struct StandIns<'a> {
    session: &'a Session,
    made: BTreeMap<usize, Arc<Context>>,
}

impl<'a> StandIns<'a> {
    /// None made yet.
    pub(crate) fn of(session: &'a Session) -> Self {
        Self { session, made: BTreeMap::new() }
    }

    /// A context on the device: the program's own if it has any.
    ///
    /// # Errors
    /// The device library's, making one.
    pub(crate) fn on(&mut self, device: usize) -> Result<Arc<Context>> {
        if let Some(own) = self.session.context_on(device) {
            return Ok(own);
        }
        match self.made.entry(device) {
            Entry::Occupied(known) => Ok(Arc::clone(known.get())),
            Entry::Vacant(new) => {
                // Not the primary one: the end of that would be the end of what the program keeps on the device without a context.
                let record = ContextRecord {
                    id: ContextId(u32::MAX - device as u32),
                    device: device as u32,
                    flags: 0,
                    primary: false,
                    placement: Default::default(),
                };
                Ok(Arc::clone(new.insert(Context::make(&self.session.placer, record, Making::New)?)))
            }
        }
    }
}

impl Session {
    /// Any context of the program's on the device.
    pub(crate) fn context_on(&self, device: usize) -> Option<Arc<Context>> {
        read(&self.table).contexts.values().find(|ctx| ctx.device() == device).cloned()
    }
}
