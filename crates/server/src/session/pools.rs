//! Memory pools and stream-ordered allocation.

use super::dispatch::Execute;
use super::{Caller, Session};
use crate::failure::{Failure, Result};
use crate::memory::DeviceMemory;
use crate::memory::pool::{PoolKey, named};
use wire::CuError;

impl Session {
    /// The device that a pool is of, and which of its pools it is.
    fn pool(&self, pool: wire::Pool) -> Result<(usize, PoolKey)> {
        let (device, key) = named(pool);
        let device = device.or_else(|| self.devices.iter().position(|memory| memory.has_pool(key)));
        let device = device.filter(|device| *device < self.devices.len());
        match device {
            Some(device) => Ok((device, key)),
            None => Err(Failure::new(CuError::INVALID_VALUE, format!("there is no {pool:?}"))),
        }
    }

    fn pool_memory(&self, pool: wire::Pool) -> Result<(&DeviceMemory, PoolKey)> {
        let (device, key) = self.pool(pool)?;
        let memory = self.devices.get(device).ok_or(CuError::INVALID_DEVICE)?;
        Ok((memory, key))
    }

    /// Somebody has waited for work: pools give up what they need not keep.
    pub(super) fn note_synchronized(&self) {
        self.devices.iter().for_each(DeviceMemory::note_synchronized);
    }
}

impl Execute for wire::PoolCreate {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let memory = session.devices.get(self.device.0 as usize).ok_or(CuError::INVALID_DEVICE)?;
        memory.create_pool(PoolKey::Created(self.pool), self.max_bytes)
    }
}

impl Execute for wire::PoolDestroy {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let (memory, key) = session.pool_memory(wire::Pool::Created(self.pool))?;
        memory.destroy_pool(key)
    }
}

impl Execute for wire::PoolTrim {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let (memory, key) = session.pool_memory(self.pool)?;
        memory.trim_pool(key, self.keep)
    }
}

impl Execute for wire::PoolGetAttribute {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<u64> {
        let (memory, key) = session.pool_memory(self.pool)?;
        memory.pool_attribute(key, self.attribute)
    }
}

impl Execute for wire::PoolSetAttribute {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let (memory, key) = session.pool_memory(self.pool)?;
        memory.set_pool_attribute(key, self.attribute, self.value)
    }
}

impl Execute for wire::MemAllocAsync {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<u64> {
        let stream = session.stream(caller, self.ctx, self.stream)?;
        let (device, key) = session.pool(self.pool)?;
        if device != stream.ctx.device() {
            let detail = format!("a pool of device {device} in a stream of device {}", stream.ctx.device());
            return Err(Failure::new(CuError::NOT_SUPPORTED, detail));
        }
        session.allocate(self.ctx, |memory| {
            let allocate = || memory.allocate_ordered(&stream, key, self.bytes);
            // No region makes way for what is beyond the pool's own limit.
            match memory.pool_has_room(key, self.bytes) {
                true => session.or_make_way(memory, self.bytes, allocate),
                false => allocate(),
            }
        })
    }
}

impl Execute for wire::MemFreeAsync {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<()> {
        let stream = session.stream(caller, self.ctx, self.stream)?;
        let holder = session.devices.iter().find(|memory| memory.find(self.address).is_some());
        // A piece of work like any other: who waits for the stream waits for the free.
        drop(stream.begin_work()?);
        let marker = session.mark(&stream)?;
        if holder.is_some_and(|memory| memory.free_ordered(self.address, &stream, marker)) {
            Ok(())
        } else {
            let detail = format!("{:#x} is no allocation's address", self.address);
            Err(Failure::new(CuError::INVALID_VALUE, detail))
        }
    }
}
