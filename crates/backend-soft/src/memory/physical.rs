//! Memory without an address, which can be mapped at several, by several processes: a file in memory for each piece. What the server
//! maps as a block is such a piece too, so that it can be shared.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use super::table::{Entry, Owner, State};
use super::{Memory, MemoryError, pages};

const NAME: &CStr = c"soft-memory";

/// A piece of memory; without handles nobody can map it any more.
pub(super) struct Physical {
    /// Whose memory it is taken from, if any device's; another process's counts there.
    device: Option<usize>,
    bytes: u64,
    file: OwnedFd,
    mappings: usize,
    handles: usize,
}

impl Memory {
    /// Takes memory of a device, or of none, which is zero.
    ///
    /// # Errors
    /// When the device is full.
    pub fn create_physical(&self, device: Option<usize>, bytes: u64) -> Result<u64, MemoryError> {
        pages::whole(0, bytes)?;
        let file = file(bytes).map_err(|source| MemoryError::Taken { base: 0, bytes, source })?;
        let mut state = self.lock();
        device.map_or(Ok(()), |device| self.take(&mut state, device, bytes))?;
        Ok(state.add(Physical { device, bytes, file, mappings: 0, handles: 1 }))
    }

    /// Lets go of a handle: with the last, it is gone when nothing maps it any more.
    ///
    /// # Errors
    /// When there is none.
    pub fn release_physical(&self, id: u64) -> Result<(), MemoryError> {
        let mut state = self.lock();
        state.mappable(id)?.handles -= 1;
        state.bury(id);
        Ok(())
    }

    /// Another handle of what is mapped at `base`.
    ///
    /// # Errors
    /// When no mapping begins there.
    pub fn retain_physical(&self, base: u64) -> Result<u64, MemoryError> {
        let mut state = self.lock();
        let Some(Entry { owner: Owner::Physical { id, .. }, .. }) = state.entries.get(&base) else {
            return Err(MemoryError::Unknown(base));
        };
        let id = *id;
        state.physical.get_mut(&id).ok_or(MemoryError::Unknown(base))?.handles += 1;
        Ok(id)
    }

    /// What another process needs to map it.
    ///
    /// # Errors
    /// When there is none, or no descriptor to be had.
    pub fn export_physical(&self, id: u64) -> Result<OwnedFd, MemoryError> {
        let mut state = self.lock();
        let physical = state.mappable(id)?;
        physical.file.try_clone().map_err(|source| MemoryError::Taken {
            base: 0,
            bytes: physical.bytes,
            source,
        })
    }

    /// Memory of another process.
    ///
    /// # Errors
    /// When there are not that many bytes.
    pub fn import_physical(&self, file: OwnedFd, bytes: u64) -> Result<u64, MemoryError> {
        pages::whole(0, bytes)?;
        let file = std::fs::File::from(file);
        let there = file.metadata().map_err(|source| MemoryError::Taken { base: 0, bytes, source })?.len();
        if there < bytes {
            return Err(MemoryError::Malformed { base: 0, bytes });
        }
        Ok(self.lock().add(Physical { device: None, bytes, file: file.into(), mappings: 0, handles: 1 }))
    }

    /// Puts fresh memory of a device behind a part of a reserved range, for all to touch.
    ///
    /// # Errors
    /// When the range is not free, or the device full.
    pub fn map_block(&self, device: usize, base: u64, bytes: u64) -> Result<(), MemoryError> {
        let id = self.create_physical(Some(device), bytes)?;
        let mapped = self.map_physical(id, base, bytes).and_then(|()| self.set_access(base, bytes, true));
        // It lives as long as it is mapped.
        self.release_physical(id)?;
        mapped
    }

    /// Takes a block away; waits for running kernels' current slices.
    ///
    /// # Errors
    /// When none begins at `base`.
    pub fn unmap_block(&self, base: u64) -> Result<(), MemoryError> {
        let bytes = self.lock().entries.get(&base).map(|entry| entry.bytes);
        self.unmap_physical(base, bytes.ok_or(MemoryError::Unknown(base))?)
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
        let physical = state.mappable(id)?;
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
    fn add(&mut self, physical: Physical) -> u64 {
        let id = self.next_physical;
        self.next_physical += 1;
        self.physical.insert(id, physical);
        id
    }

    /// A piece that somebody has a handle of.
    fn mappable(&mut self, id: u64) -> Result<&mut Physical, MemoryError> {
        let found = self.physical.get_mut(&id).filter(|physical| physical.handles > 0);
        found.ok_or(MemoryError::Unknown(id))
    }

    /// Gives memory back that nobody can map and nothing maps.
    fn bury(&mut self, id: u64) {
        let Self { physical, used, .. } = self;
        if physical.get(&id).is_some_and(|physical| physical.handles == 0 && physical.mappings == 0)
            && let Some(gone) = physical.remove(&id)
            && let Some(device) = gone.device
        {
            used[device] -= gone.bytes;
        }
    }
}

/// Every piece, by number.
pub(super) type Pieces = BTreeMap<u64, Physical>;

/// Lets this process have as many descriptors as it may: each block of a program's memory is one.
fn raise_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: reads and sets a limit of this process.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

fn file(bytes: u64) -> io::Result<OwnedFd> {
    // SAFETY: a NUL-terminated name.
    let create = || unsafe { libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC) };
    let mut raw = create();
    if raw < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EMFILE) {
        raise_limit();
        raw = create();
    }
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
