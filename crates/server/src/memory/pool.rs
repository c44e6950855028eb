//! Memory pools: what the application can ask and set of them. A pool is a name for blocks of the arena and for some numbers;
//! the device library knows of none.

use super::arena::{Arena, Holder};
use crate::failure::{Failure, Result};
use cudarc::driver::sys::CUmemPool_attribute as Attribute;
use serde::{Deserialize, Serialize};
use wire::{CuError, Device, PoolId};

/// Which pool of a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum PoolKey {
    /// The default one.
    Default,
    /// One that the application created.
    Created(PoolId),
}

impl PoolKey {
    /// The handle of a created pool as the application sees it, and the default one by name.
    fn describe(self) -> String {
        match self {
            Self::Default => "the default memory pool".to_owned(),
            Self::Created(id) => format!("memory pool {:#x}", id.handle()),
        }
    }
}

/// What it takes to make a pool again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PoolRecord {
    /// Index of its device.
    pub device: u32,
    /// Which of the device's.
    pub key: PoolKey,
    /// The most it may hold; 0 for no limit.
    pub max_bytes: u64,
    /// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`.
    pub threshold: u64,
    /// `CU_MEMPOOL_ATTR_REUSE_*`, in the order of their numbers. The second and third are what the server does anyway where it
    /// can; the first would need to know which events a stream has waited for, and only saves memory.
    pub reuse: [bool; 3],
    /// The most bytes it has had allocated.
    pub used_high: u64,
    /// The most bytes it has held.
    pub reserved_high: u64,
    /// Whether the application has destroyed it; it is there until its last allocation is freed.
    pub destroyed: bool,
}

/// A live pool.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    pub(super) record: PoolRecord,
    /// Bytes allocated.
    pub(super) used: u64,
}

impl Pool {
    pub(super) fn new(device: usize, key: PoolKey, max_bytes: u64) -> Self {
        let record = PoolRecord {
            device: device as u32,
            key,
            max_bytes,
            threshold: 0,
            reuse: [true; 3],
            used_high: 0,
            reserved_high: 0,
            destroyed: false,
        };
        Self { record, used: 0 }
    }

    pub(super) fn holder(&self) -> Holder {
        Holder::Pool(self.record.key)
    }

    /// Whether it may hold so many bytes more.
    pub(super) fn has_room(&self, bytes: u64) -> bool {
        let max = self.record.max_bytes;
        max == 0 || bytes <= max.saturating_sub(self.used)
    }

    /// Notes that `bytes` bytes more are allocated from it.
    pub(super) fn count(&mut self, bytes: u64, arena: &Arena) {
        self.used += bytes;
        self.record.used_high = self.record.used_high.max(self.used);
        self.record.reserved_high = self.record.reserved_high.max(arena.held(self.holder()).mapped);
    }

    /// As `cuMemPoolGetAttribute`.
    pub(super) fn attribute(&self, number: u32, arena: &Arena) -> Result<u64> {
        use Attribute::*;
        let PoolRecord { threshold, reuse, used_high, reserved_high, .. } = self.record;
        Ok(match attribute(number)? {
            CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES => reuse[0].into(),
            CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC => reuse[1].into(),
            CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => reuse[2].into(),
            CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => threshold,
            CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT => arena.held(self.holder()).mapped,
            CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH => reserved_high,
            CU_MEMPOOL_ATTR_USED_MEM_CURRENT => self.used,
            CU_MEMPOOL_ATTR_USED_MEM_HIGH => used_high,
        })
    }

    /// As `cuMemPoolSetAttribute`.
    pub(super) fn set_attribute(&mut self, number: u32, value: u64, arena: &Arena) -> Result<()> {
        use Attribute::*;
        let record = &mut self.record;
        match attribute(number)? {
            CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES => record.reuse[0] = value != 0,
            CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC => record.reuse[1] = value != 0,
            CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => record.reuse[2] = value != 0,
            CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => record.threshold = value,
            CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH if value == 0 => {
                record.reserved_high = arena.held(Holder::Pool(record.key)).mapped;
            }
            CU_MEMPOOL_ATTR_USED_MEM_HIGH if value == 0 => record.used_high = self.used,
            CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
            | CU_MEMPOOL_ATTR_USED_MEM_CURRENT
            | CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH
            | CU_MEMPOOL_ATTR_USED_MEM_HIGH => return Err(CuError::INVALID_VALUE.into()),
        }
        Ok(())
    }
}

fn attribute(number: u32) -> Result<Attribute> {
    use Attribute::*;
    let known = [
        CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
        CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
        CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
        CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
        CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
        CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
        CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
        CU_MEMPOOL_ATTR_USED_MEM_HIGH,
    ];
    let found = known.into_iter().find(|each| *each as u32 == number);
    found.ok_or_else(|| {
        Failure::new(CuError::INVALID_VALUE, format!("memory pools have no attribute {number}"))
    })
}

/// What a message that names no pool is told.
pub(super) fn unknown(key: PoolKey) -> Failure {
    Failure::new(CuError::INVALID_VALUE, format!("there is no {}", key.describe()))
}

/// A message's name for a pool: the device, where it says, and which of its pools.
#[must_use]
pub fn named(pool: wire::Pool) -> (Option<usize>, PoolKey) {
    match pool {
        wire::Pool::Default(Device(device)) => (Some(device as usize), PoolKey::Default),
        wire::Pool::Created(id) => (None, PoolKey::Created(id)),
    }
}
