//! What one client may have.

use crate::{Choice, lock};
use backend::Result;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use wire::CuError;

/// What one client may have.
#[derive(Clone, Debug)]
pub struct Quota {
    /// Device memory, bytes; `None` for all there is.
    pub memory: Option<u64>,
    /// What it has of that which several sessions have together.
    pub together: Option<Arc<dyn Together>>,
    /// The devices that there are for it.
    pub devices: Choice,
    /// Host memory of this machine that mirrors registered memory, bytes.
    pub host_memory: u64,
    /// Contexts, modules, streams, events and whatever else has a handle, together.
    pub objects: u64,
}

impl Default for Quota {
    fn default() -> Self {
        let (host_memory, objects) = (64 << 30, 1 << 20);
        Self { memory: None, together: None, devices: Choice::default(), host_memory, objects }
    }
}

/// Device memory that several sessions have together.
pub trait Together: Debug + Send + Sync {
    /// Takes so many bytes for this one; false when that is more than all may have.
    fn take(&self, bytes: u64) -> bool;
    /// Gives some of them back.
    fn give_back(&self, bytes: u64);
    /// Says that all that this one has is about to be free.
    fn leaves(&self);
    /// How many there are yet.
    fn left(&self) -> u64;
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

    fn limit(&self, kind: Kind) -> Option<u64> {
        match kind {
            Kind::Memory => self.quota.memory,
            Kind::Host => Some(self.quota.host_memory),
            Kind::Objects => Some(self.quota.objects),
        }
    }

    /// How much device memory may be taken yet, and how much there is in all; as much as can be said where nothing is bounded.
    pub(super) fn memory(&self) -> (u64, u64) {
        let most = self.quota.memory.unwrap_or(u64::MAX);
        let left = most.saturating_sub(lock(&self.used)[Kind::Memory as usize]);
        (self.quota.together.as_ref().map_or(left, |together| together.left().min(left)), most)
    }

    fn together(&self, kind: Kind) -> Option<&dyn Together> {
        self.quota.together.as_deref().filter(|_| kind == Kind::Memory)
    }

    /// Takes some before it is made.
    pub(super) fn take(&self, kind: Kind, amount: u64) -> Result<()> {
        let mut used = lock(&self.used);
        let sum = used[kind as usize].checked_add(amount).ok_or(CuError::OUT_OF_MEMORY)?;
        if self.limit(kind).is_some_and(|limit| sum > limit) {
            return Err(CuError::OUT_OF_MEMORY);
        }
        used[kind as usize] = sum;
        drop(used);
        if self.together(kind).is_some_and(|together| !together.take(amount)) {
            self.forget(kind, amount);
            return Err(CuError::OUT_OF_MEMORY);
        }
        Ok(())
    }

    /// Answers how much of it there was.
    fn forget(&self, kind: Kind, amount: u64) -> u64 {
        let mut used = lock(&self.used);
        let had = amount.min(used[kind as usize]);
        used[kind as usize] -= had;
        had
    }

    /// The client is gone.
    pub(super) fn leaves(&self) {
        if let Some(together) = &self.quota.together {
            together.leaves();
        }
    }

    pub(super) fn give_back(&self, kind: Kind, amount: u64) {
        let had = self.forget(kind, amount);
        if let Some(together) = self.together(kind) {
            together.give_back(had);
        }
    }
}
