//! What one client may have.

use crate::lock;
use backend::Result;
use std::sync::Mutex;
use wire::CuError;

/// What one client may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quota {
    /// Device memory, bytes; `None` for all there is.
    pub memory: Option<u64>,
    /// Host memory of this machine that mirrors registered memory, bytes.
    pub host_memory: u64,
    /// Contexts, modules, streams, events and whatever else has a handle, together.
    pub objects: u64,
}

impl Default for Quota {
    fn default() -> Self {
        Self { memory: None, host_memory: 64 << 30, objects: 1 << 20 }
    }
}

/// Of what there is a quota.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Memory,
    Host,
    Objects,
}

/// What a client has of it.
pub(super) struct Account {
    quota: Quota,
    used: Mutex<[u64; 3]>,
}

impl Account {
    pub(super) fn new(quota: Quota) -> Self {
        Self { quota, used: Mutex::new([0; 3]) }
    }

    pub(super) fn limit(&self, kind: Kind) -> Option<u64> {
        match kind {
            Kind::Memory => self.quota.memory,
            Kind::Host => Some(self.quota.host_memory),
            Kind::Objects => Some(self.quota.objects),
        }
    }

    pub(super) fn used(&self, kind: Kind) -> u64 {
        lock(&self.used)[kind as usize]
    }

    /// Takes some before it is made.
    pub(super) fn take(&self, kind: Kind, amount: u64) -> Result<()> {
        let mut used = lock(&self.used);
        let sum = used[kind as usize].checked_add(amount).ok_or(CuError::OUT_OF_MEMORY)?;
        if self.limit(kind).is_some_and(|limit| sum > limit) {
            return Err(CuError::OUT_OF_MEMORY);
        }
        used[kind as usize] = sum;
        Ok(())
    }

    pub(super) fn give_back(&self, kind: Kind, amount: u64) {
        let mut used = lock(&self.used);
        used[kind as usize] = used[kind as usize].saturating_sub(amount);
    }
}
