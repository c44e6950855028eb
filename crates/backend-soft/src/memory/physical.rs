//! Memory without an address, which can be mapped at several: a file in memory for each piece.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::table::{Entry, Owner, State};
use super::{Memory, MemoryError, pages};

const NAME: &CStr = c"soft-memory";

/// A piece of memory.
pub(super) struct Physical {
    device: usize,
    bytes: u64,
    file: OwnedFd,
    mappings: usize,
    /// Nobody can map it any more.
    released: bool,
}

impl Memory {
    /// Takes memory of a device, which is zero.
    ///
    /// # Errors
    /// When the device is full.
    pub fn create_physical(&self, device: usize, bytes: u64) -> Result<u64, MemoryError> {
        pages::whole(0, bytes)?;
        let mut state = self.lock();
        self.take(&mut state, device, bytes)?;
        let file = file(bytes).map_err(|source| MemoryError::Taken { base: 0, bytes, source });
        let file = file.inspect_err(|_| state.used[device] -= bytes)?;
        let id = state.next_physical;
        state.next_physical += 1;
        state.physical.insert(id, Physical { device, bytes, file, mappings: 0, released: false });
        Ok(id)
    }

    /// Lets go of it: it is gone when nothing maps it any more.
    ///
    /// # Errors
    /// When there is none.
    pub fn release_physical(&self, id: u64) -> Result<(), MemoryError> {
        let mut state = self.lock();
        let physical = state.physical.get_mut(&id).filter(|physical| !physical.released);
        physical.ok_or(MemoryError::Unknown(id))?.released = true;
        state.bury(id);
        Ok(())
    }

    /// Maps its beginning into a reserved range, where nothing can be touched before [`Memory::set_access`].
    ///
    /// # Errors
    /// When the range is not free or longer than the memory.
    pub fn map_physical(&self, id: u64, base: u64, bytes: u64) -> Result<(), MemoryError> {
        pages::whole(base, bytes)?;
        let mut state = self.lock();
        if !state.is_reserved(base, bytes) || state.overlaps(base, bytes) {
            return Err(MemoryError::NotReserved { base, bytes });
        }
        let physical = state.physical.get_mut(&id).filter(|physical| !physical.released);
        let physical = physical.ok_or(MemoryError::Unknown(id))?;
        if bytes > physical.bytes {
            return Err(MemoryError::Malformed { base, bytes });
        }
        pages::share(physical.file.as_raw_fd(), base, bytes)?;
        physical.mappings += 1;
        state.entries.insert(base, Entry { bytes, owner: Owner::Physical { id, accessible: false } });
        Ok(())
    }

    /// Takes such a mapping away; waits for running kernels' current slices.
    ///
    /// # Errors
    /// When none lies at exactly that range.
    pub fn unmap_physical(&self, base: u64, bytes: u64) -> Result<(), MemoryError> {
        let mut state = self.lock();
        let Some(Entry { bytes: found, owner: Owner::Physical { id, .. } }) = state.entries.get(&base) else {
            return Err(MemoryError::Unknown(base));
        };
        let (found, id) = (*found, *id);
        if found != bytes {
            return Err(MemoryError::Unknown(base));
        }
        state.entries.remove(&base);
        self.retire(&state);
        if let Some(physical) = state.physical.get_mut(&id) {
            physical.mappings -= 1;
        }
        state.bury(id);
        pages::decommit(base, bytes)
    }

    /// Lets kernels touch a mapping, or no longer. What may be read may be written too.
    ///
    /// # Errors
    /// When none lies at exactly that range.
    pub fn set_access(&self, base: u64, bytes: u64, allowed: bool) -> Result<(), MemoryError> {
        let mut state = self.lock();
        match state.entries.get_mut(&base) {
            Some(Entry { bytes: found, owner: Owner::Physical { accessible, .. } }) if *found == bytes => {
                *accessible = allowed;
            }
            _ => return Err(MemoryError::Unknown(base)),
        }
        if allowed {
            drop(self.publish(&state))
        } else {
            self.retire(&state)
        }
        Ok(())
    }
}

impl State {
    /// Gives memory back that nobody can map and nothing maps.
    fn bury(&mut self, id: u64) {
        let Self { physical, used, .. } = self;
        if physical.get(&id).is_some_and(|physical| physical.released && physical.mappings == 0)
            && let Some(gone) = physical.remove(&id)
        {
            used[gone.device] -= gone.bytes;
        }
    }
}

/// Every piece, by number.
pub(super) type Pieces = BTreeMap<u64, Physical>;

fn file(bytes: u64) -> io::Result<OwnedFd> {
    // SAFETY: a NUL-terminated name.
    let raw = unsafe { libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor just made, which nobody else has.
    let file = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: a descriptor of ours.
    if unsafe { libc::ftruncate(file.as_raw_fd(), bytes as libc::off_t) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}
