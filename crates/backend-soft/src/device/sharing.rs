//! Memory and events of other servers: files in memory, which all of them map.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use backend::{RawBlock, RawContext, RawEvent, RawPhysical, Result, SharedEvent, Sharing};
use wire::CuError;

use super::backend::{Of, SoftBackend, memory_error};
use crate::stream::{Event, Interprocess};

impl Sharing for SoftBackend {
    fn block_physical(&self, block: RawBlock) -> Result<RawPhysical> {
        let base = self.blocks.get(block.0)?;
        self.memory.retain_physical(*base).map(RawPhysical).map_err(memory_error)
    }

    fn physical_export(&self, physical: RawPhysical) -> Result<OwnedFd> {
        self.memory.export_physical(physical.0).map_err(memory_error)
    }

    fn physical_import(&self, device: usize, file: OwnedFd, bytes: u64) -> Result<RawPhysical> {
        ::backend::Backend::devices(self).get(device).ok_or(CuError::INVALID_DEVICE)?;
        self.memory.import_physical(file, bytes).map(RawPhysical).map_err(memory_error)
    }

    fn event_export(&self, ctx: RawContext, event: RawEvent) -> Result<SharedEvent> {
        self.context(ctx)?;
        let event = self.events.get(event.0)?;
        let shared = event.object.shared.as_ref().ok_or(CuError::INVALID_VALUE)?;
        let file = shared.export().map_err(|_| CuError::OUT_OF_MEMORY)?;
        Ok(SharedEvent { file: Some(file), bytes: Vec::new() })
    }

    fn event_import(&self, ctx: RawContext, shared: SharedEvent) -> Result<RawEvent> {
        self.context(ctx)?;
        let file = shared.file.ok_or(CuError::INVALID_VALUE)?;
        let event = Event::interprocess(Interprocess::import(file).map_err(|_| CuError::INVALID_VALUE)?);
        Ok(RawEvent(self.events.insert(Arc::new(Of { context: ctx.0, object: event }))))
    }
}
