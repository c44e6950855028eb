//! Managed memory: memory that application and device have in common, as pinned memory is, with what the application has said of it.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use cuda_abi::{CuError, CuResult};

use super::advice::Advised;
use super::memory::Kind;
use super::thread::Call;

/// Bytes of one managed allocation.
pub struct Managed {
    advice: Arc<Mutex<Advised>>,
    bytes: Range<u64>,
}

impl Managed {
    /// Looks at what has been said of the allocation, and at which bytes of it these are.
    pub fn with_advice<T>(&self, look: impl FnOnce(&mut Advised, Range<u64>) -> T) -> T {
        look(&mut self.advice.lock().unwrap_or_else(PoisonError::into_inner), self.bytes.clone())
    }

    /// Whether it is the whole allocation.
    pub fn is_whole(&self, allocation: u64) -> bool {
        self.bytes == (0..allocation)
    }
}

fn file(kind: &Kind) -> Option<wire::PinnedId> {
    match kind {
        Kind::Managed { id, .. } => Some(*id),
        _ => None,
    }
}

impl Call<'_> {
    /// Allocates managed memory in the current context.
    ///
    /// # Errors
    /// What the server says; `MAP_FAILED`.
    pub fn allocate_managed(&mut self, bytes: u64) -> CuResult<u64> {
        self.allocate_shared(bytes, 0, |id| Kind::Managed { id, advice: Arc::default() })
    }

    /// Whether a managed allocation begins there.
    pub fn is_managed(&self, address: u64) -> bool {
        let found = self.session.memory.find(address);
        found.is_some_and(|found| found.base == address && file(&found.kind).is_some())
    }

    /// Frees managed memory, when nothing uses it any more.
    ///
    /// # Errors
    /// `INVALID_VALUE` for an address that is none; what the server says.
    pub fn free_managed(&mut self, address: u64) -> CuResult {
        self.free_shared(address, file)
    }

    /// Managed memory.
    ///
    /// # Errors
    /// `INVALID_VALUE` for no bytes, or some that are not all of one managed allocation.
    pub fn managed(&self, address: u64, bytes: u64) -> CuResult<Managed> {
        let found = self.session.memory.find(address).ok_or(CuError::INVALID_VALUE)?;
        let first = address - found.base;
        match found.kind {
            Kind::Managed { advice, .. } if bytes > 0 && bytes <= found.bytes - first => {
                Ok(Managed { advice, bytes: first..first + bytes })
            }
            _ => Err(CuError::INVALID_VALUE),
        }
    }
}
