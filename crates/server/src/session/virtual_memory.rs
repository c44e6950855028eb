//! Virtual memory that the application manages.

use super::dispatch::Execute;
use super::{Caller, Session};
use crate::failure::{Failure, Result};
use crate::memory::PhysicalRecord;
use crate::{lock, write};
use backend::{Access, Range};
use wire::{CuError, Device, PhysicalId};

impl Execute for wire::AddressReserve {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<u64> {
        let base = lock(&session.virtual_memory).reserve(self.bytes, self.alignment, self.wanted)?;
        // Addresses are all of it that a rehearsal can try.
        write(&session.table).changes += 1;
        Ok(base)
    }
}

impl Execute for wire::AddressFree {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        lock(&session.virtual_memory).free(Range { base: self.address, bytes: self.bytes })?;
        write(&session.table).changes += 1;
        Ok(())
    }
}

impl Execute for wire::PhysicalCreate {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let Self { physical: id, device, bytes, handle_types, compressible } = self;
        let (device, handles, share) = (device.0, 1, None);
        let record = PhysicalRecord { id, device, bytes, handle_types, compressible, handles, share };
        let make = || lock(&session.virtual_memory).create(record.clone());
        session.with_room(device as usize, bytes, make)
    }
}

impl Execute for wire::PhysicalRelease {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        lock(&session.virtual_memory).release(self.physical)
    }
}

impl Execute for wire::PhysicalRetain {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<PhysicalId> {
        lock(&session.virtual_memory).retain(self.address)
    }
}

impl Execute for wire::PhysicalProperties {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<(Device, (u32, bool))> {
        lock(&session.virtual_memory).properties(self.physical)
    }
}

impl Execute for wire::MemMap {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let range = Range { base: self.address, bytes: self.bytes };
        lock(&session.virtual_memory).map(range, self.physical)
    }
}

impl Execute for wire::MemUnmap {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        session.wait_for_everything()?;
        lock(&session.virtual_memory).unmap(Range { base: self.address, bytes: self.bytes })
    }
}

impl Execute for wire::MemSetAccess {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let access = Access::from_number(self.access);
        let access = access.ok_or_else(|| Failure::new(CuError::INVALID_VALUE, "no such access"))?;
        if access != Access::ReadWrite {
            // Work submitted so far may still do what is taken away.
            session.wait_for_everything()?;
        }
        let range = Range { base: self.address, bytes: self.bytes };
        lock(&session.virtual_memory).set_access(range, self.device.0, access)
    }
}

impl Execute for wire::MemGetAccess {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<u32> {
        Ok(lock(&session.virtual_memory).access(self.address, self.device.0)? as u32)
    }
}
