//! Devices and contexts.

use super::dispatch::Execute;
use super::{Caller, Session};
use crate::failure::{Failure, Result};
use crate::objects::{
    Context, ContextRecord, Making, Stream, StreamKey, StreamRecord, in_use, insert, take_out,
};
use crate::{lock, read, write};
use std::sync::Arc;
use wire::{ContextId, CuError, Device, SessionFacts};

/// The newest driver whose functions the shim knows.
const NEWEST_DRIVER: i32 = 13000;

impl Session {
    pub(super) fn device(&self, device: Device) -> Result<usize> {
        let index = device.0 as usize;
        if index < self.devices.len() {
            Ok(index)
        } else {
            Err(Failure::new(CuError::INVALID_DEVICE, format!("there is no device {index}")))
        }
    }

    /// Puts a context, and its legacy stream, into the table.
    pub(crate) fn add_context(&self, ctx: &Arc<Context>) -> Result<()> {
        let key = StreamKey::Legacy(ctx.id());
        let placement = Default::default();
        let record = StreamRecord { key, ctx: ctx.id(), flags: 0, priority: 0, green: None, placement };
        let legacy = Stream::make(&self.placer, ctx, None, record, Making::New)?;
        let mut table = write(&self.table);
        insert(&mut table.contexts, ctx.id(), Arc::clone(ctx))?;
        table.streams.insert(key, legacy);
        table.changes += 1;
        Ok(())
    }

    /// Has the device of `ctx` reach what is allocated on the device of `peer`.
    pub(crate) fn open_to_peer(&self, ctx: &Context, peer: &Context) -> Result<()> {
        let memory = self.devices.get(peer.device());
        Ok(memory.map_or(Ok(()), |memory| memory.open_to(ctx.device()))?)
    }

    /// Waits for all work of a context; what it printed is collected.
    pub(crate) fn synchronize_context(&self, ctx: ContextId) -> Result<()> {
        let streams = read(&self.table).all_streams(Some(ctx));
        let context = self.context(ctx)?;
        self.wait_streams(&streams)?;
        self.hand_over_all_output(&context)
    }

    /// Takes everything of a context out of the table.
    fn remove_context(&self, ctx: &Arc<Context>) -> Result<()> {
        let id = ctx.id();
        // While its streams are there: calls in other contexts write back what they may reach, this one's regions among it.
        self.shadows.remove_context(id);
        if let Some(memory) = self.devices.get(ctx.device()) {
            memory.leave_copies(id);
        }
        self.remove_graphs(id);
        self.remove_greens(|green| green.ctx == id);
        let mut table = write(&self.table);
        table.contexts.remove(&id);
        for other in table.contexts.values() {
            lock(&other.settings).peers.remove(&id.0);
        }
        // Objects are dropped outside of the lock.
        let streams = take_out(&mut table.streams, |stream| stream.record.ctx == id);
        streams.iter().for_each(|stream| stream.note_gone());
        let dying: Vec<_> = table.dying.extract_if(.., |stream| stream.record.ctx == id).collect();
        let events = take_out(&mut table.events, |event| event.record.ctx == id);
        let modules: Vec<_> =
            table.loaded_modules().into_iter().filter(|module| module.record.ctx == id).collect();
        for library in table.libraries.values() {
            lock(&library.modules).remove(&id);
        }
        for kernel in table.kernels.values() {
            write(&kernel.functions).retain(|(known, _)| *known != id);
        }
        for module in &modules {
            table.bury(module, &self.placer);
        }
        let texels = take_out(&mut table.texels, |texel| texel.record.ctx == id);
        let arrays = take_out(&mut table.arrays, |array| array.ctx.id() == id);
        let mipmaps = take_out(&mut table.mipmaps, |mipmap| mipmap.record.ctx == id);
        table.tombstones.retain(|tombstone| tombstone.record.ctx != id);
        table.changes += 1;
        drop(table);
        drop((streams, dying, events, modules, texels, arrays, mipmaps));
        write(&self.table).prune_tombstones(&self.placer);
        lock(&self.pinned).free_context(id);
        lock(&self.imports).close_context(id)?;
        match self.devices.get(ctx.device()) {
            Some(memory) => Ok(memory.free_context(id)?),
            None => Ok(()),
        }
    }
}

impl Execute for wire::GetFacts {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<SessionFacts> {
        let backend = session.backend();
        let mut devices = backend.devices().to_vec();
        devices.iter_mut().for_each(crate::facts::tell_what_is_carried);
        Ok(SessionFacts { driver_version: backend.driver_version().min(NEWEST_DRIVER), devices })
    }
}

impl Execute for wire::ContextCreate {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let device = session.device(self.device)?;
        {
            let table = read(&session.table);
            if table.contexts.contains_key(&self.ctx) {
                return Err(in_use(self.ctx));
            }
            let is_primary = |ctx: &Arc<Context>| ctx.record.primary && ctx.device() == device;
            if self.primary && table.contexts.values().any(is_primary) {
                let detail = format!("device {device} has a primary context already");
                return Err(Failure::new(CuError::PRIMARY_CONTEXT_ACTIVE, detail));
            }
        }
        if let Some(memory) = session.devices.get(device) {
            memory.reserve()?;
        }
        let record = ContextRecord {
            id: self.ctx,
            device: self.device.0,
            flags: self.flags,
            primary: self.primary,
            placement: Default::default(),
        };
        let ctx = Context::make(&session.placer, record, Making::New)?;
        session.add_context(&ctx)
    }
}

impl Execute for wire::ContextDestroy {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let ctx = session.context(self.ctx)?;
        match session.synchronize_context(self.ctx) {
            Err(failure) if session.is_ending() => return Err(failure),
            // A context that has failed can still be destroyed: that is how a program recovers.
            Err(_) | Ok(()) => {}
        }
        match session.separate_before(|record| record.ctx == self.ctx) {
            Err(failure) if session.is_ending() => return Err(failure),
            Err(failure) => tracing::debug!(%failure, "coherent memory goes with its context"),
            Ok(()) => {}
        }
        session.remove_context(&ctx)
    }
}

impl Execute for wire::ContextSynchronize {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<()> {
        let streams = read(&session.table).all_streams(Some(self.ctx));
        let context = session.context(self.ctx)?;
        session.await_streams(&streams, caller)?;
        session.note_synchronized();
        if caller.fenced { Ok(()) } else { session.hand_over_all_output(&context) }
    }
}

impl Execute for wire::ContextGetLimit {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<u64> {
        let ctx = session.context(self.ctx)?;
        Ok(session.backend().context_limit(ctx.raw, self.limit)?)
    }
}

impl Execute for wire::ContextSetLimit {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let ctx = session.context(self.ctx)?;
        if self.limit == crate::heaps::LIMIT && session.has_heap(&ctx) {
            let detail = "the heap of kernels has its size since one that may allocate was launched";
            return Err(Failure::new(CuError::INVALID_VALUE, detail));
        }
        session.backend().context_set_limit(ctx.raw, self.limit, self.value)?;
        lock(&ctx.settings).limits.insert(self.limit, self.value);
        write(&session.table).changes += 1;
        Ok(())
    }
}

impl Execute for wire::ContextSetCacheConfig {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let ctx = session.context(self.ctx)?;
        session.backend().context_set_cache_config(ctx.raw, self.config)?;
        lock(&ctx.settings).cache_config = Some(self.config);
        Ok(())
    }
}

impl Execute for wire::PeerAccess {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let (ctx, peer) = (session.context(self.ctx)?, session.context(self.peer)?);
        session.backend().peer_access(ctx.raw, peer.raw, self.enable)?;
        if self.enable {
            session.open_to_peer(&ctx, &peer)?;
        }
        let mut settings = lock(&ctx.settings);
        if self.enable {
            settings.peers.insert(self.peer.0);
        } else {
            settings.peers.remove(&self.peer.0);
        }
        Ok(())
    }
}

impl Execute for wire::CanAccessPeer {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<bool> {
        let (device, peer) = (session.device(self.device)?, session.device(self.peer)?);
        Ok(session.backend().can_access_peer(device, peer)?)
    }
}
