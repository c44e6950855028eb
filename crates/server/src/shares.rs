//! What a session shares with others, in an image and out of it: what it owns it writes, and makes again before it asks the others for
//! what they own.

use crate::failure::{Failure, Result};
use crate::memory::{Exports, ImportRecord, PhysicalRecord, VirtualState};
use crate::objects::{Event, EventRecord, Recorded, insert};
use crate::session::Session;
use crate::sharing::Given;
use crate::{lock, write};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;
use wire::{CuError, ShareId};

/// What a session shares, as it goes into an image.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct SharingState {
    /// What others may have of each device's memory.
    pub exports: Vec<Exports>,
    /// Memory of others.
    pub imports: Vec<ImportRecord>,
    /// What others own: it is in their part of the image.
    foreign: BTreeSet<ShareId>,
}

impl SharingState {
    /// Whether another session owns it.
    #[must_use]
    pub fn is_foreign(&self, share: Option<ShareId>) -> bool {
        share.is_some_and(|share| self.foreign.contains(&share))
    }

    /// Whether the session has memory in common with others.
    #[must_use]
    pub fn is_any(&self) -> bool {
        !self.imports.is_empty() || !self.foreign.is_empty() || self.exports.iter().any(Exports::is_any)
    }

    /// The blocks of others that this session owns now.
    pub fn owned_imports(&self) -> impl Iterator<Item = &ImportRecord> {
        self.imports.iter().filter(|record| !self.foreign.contains(&record.share))
    }
}

impl Session {
    /// What the session shares; the gate is closed.
    ///
    /// # Errors
    /// `DEVICE_UNAVAILABLE` when the broker is gone.
    pub(crate) fn sharing_state(
        &self,
        pieces: &VirtualState,
        events: impl Iterator<Item = ShareId>,
    ) -> Result<SharingState> {
        let exports: Vec<Exports> = self.devices.iter().map(crate::memory::DeviceMemory::exports).collect();
        let imports = lock(&self.imports).state();
        let held: Vec<ShareId> = pieces
            .physical
            .iter()
            .filter_map(|record| record.share)
            .chain(imports.iter().map(|record| record.share))
            .chain(events)
            .collect();
        let owned = self.config.sharing.owned(&held)?;
        let foreign = held.iter().zip(owned).filter(|(_, owned)| !owned).map(|(share, _)| *share).collect();
        // Blocks of its own arenas are the session's, whoever else has them.
        Ok(SharingState { exports, imports, foreign })
    }

    /// What a foreign piece or block is made of; `None` for one of the session's own.
    fn given(&self, state: &SharingState, share: Option<ShareId>) -> Result<Option<Given>> {
        match share.filter(|share| state.foreign.contains(share)) {
            None => Ok(None),
            Some(share) => self.ask_others(share, None),
        }
    }

    /// Makes the memory again that is shared, and all that the program maps itself; first what the session owns, so that no two
    /// sessions wait for each other. The arenas are there, and addresses are claimed.
    pub(crate) fn restore_shared_memory(&self, state: &SharingState, pieces: &VirtualState) -> Result<()> {
        for (memory, exports) in self.devices.iter().zip(&state.exports) {
            memory.restore_exports(exports)?;
        }
        for foreign in [false, true] {
            let now = |record: &&PhysicalRecord| state.is_foreign(record.share) == foreign;
            for record in pieces.physical.iter().filter(now) {
                let given = self.given(state, record.share)?;
                lock(&self.virtual_memory).restore_piece(record, given)?;
            }
            let now = |record: &&ImportRecord| state.is_foreign(Some(record.share)) == foreign;
            for record in state.imports.iter().filter(now) {
                let given = self.given(state, Some(record.share))?;
                lock(&self.imports).restore(record, given)?;
            }
        }
        lock(&self.virtual_memory).restore_mappings(pieces)
    }

    /// Makes an event again; one of others is complete, as all work is at a cut.
    pub(crate) fn restore_event(
        &self,
        state: &SharingState,
        record: &EventRecord,
        recorded: Recorded,
    ) -> Result<()> {
        let ctx = self.context(record.ctx)?;
        // Another handle of one that is there already.
        if let Some(event) = record.share.and_then(|share| self.shared_event(share)) {
            return insert(&mut write(&self.table).events, record.id, event.again(record.id));
        }
        let event = match self.given(state, record.share)? {
            None => Event::make(&self.placer.backend, &ctx, record.clone(), recorded)?,
            Some(given) => self.import_event(record, given)?,
        };
        insert(&mut write(&self.table).events, record.id, Arc::clone(&event))?;
        let Some(share) = record.share else { return Ok(()) };
        if !event.is_interprocess() {
            return Err(Failure::new(CuError::INVALID_VALUE, "it cannot have been shared"));
        }
        // Others are given it from now on.
        event.share_as(&self.config.sharing, || Ok(share)).map(drop)
    }
}
