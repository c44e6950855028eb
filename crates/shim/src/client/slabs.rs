//! Slabs: files that small pinned and managed allocations share. One is mapped when the server first puts an allocation into it, and unmapped
//! when the server says that there is nothing in it and nothing will be; until this library has told it so, the addresses stay the slab's.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cuda_abi::{CuError, CuResult};
use wire::{PinnedFree, PinnedId, SlabFree};

use super::pinned;
use super::session::Session;
use super::thread::Call;
use crate::log::{self, Level};

/// The slabs that are mapped: bytes by base.
#[derive(Default)]
pub struct Slabs(Mutex<BTreeMap<u64, u64>>);

impl Slabs {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Has the slab mapped in which the server has put an allocation.
///
/// # Errors
/// As [`pinned::map`]'s.
pub(super) fn map(session: &Session, (base, bytes): (u64, u64), piece: (u64, u64)) -> CuResult {
    if !(base..base.saturating_add(bytes)).contains(&piece.0) || piece.1 > bytes - (piece.0 - base) {
        let (at, of) = piece;
        log::message(
            Level::Error,
            format_args!("the server put memory at {at:#x}+{of:#x} outside of its slab"),
        );
        return Err(CuError::MAP_FAILED);
    }
    let mut slabs = session.slabs.lock();
    if slabs.get(&base) != Some(&bytes) {
        pinned::map(&session.folder.join(format!("slab-{base:x}")), base, bytes)?;
        slabs.insert(base, bytes);
    }
    Ok(())
}

impl Call<'_> {
    /// Has the server free what lies in a file of its own, and is mapped no more, or in a slab.
    ///
    /// # Errors
    /// What the server says.
    pub(super) fn free_file(&mut self, pinned: PinnedId) -> CuResult {
        let slab = self.ask(&PinnedFree { pinned })?;
        self.leave(slab)
    }

    /// Gives up what nobody has anything in any more, after a context has gone.
    ///
    /// # Errors
    /// What the server says.
    pub(super) fn leave_slabs(&mut self) -> CuResult {
        if self.session.slabs.lock().is_empty() {
            return Ok(());
        }
        let slab = self.ask(&SlabFree { slab: 0 })?;
        self.leave(slab)
    }

    /// Unmaps the slabs that the server names, beginning with this one; 0 ends it.
    fn leave(&mut self, mut slab: u64) -> CuResult {
        while slab != 0 {
            if let Some(bytes) = self.session.slabs.lock().remove(&slab) {
                // SAFETY: mapped by `map`; nothing in it is allocated, and the server gives nothing out from it any more.
                unsafe { pinned::unmap(slab, bytes) };
            }
            slab = self.ask(&SlabFree { slab })?;
        }
        Ok(())
    }
}
