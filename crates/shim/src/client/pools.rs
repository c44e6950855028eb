//! Memory pools, as the client knows them.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use wire::{Device, PoolId};

use super::registry::Object;

/// A memory pool.
pub struct Pool {
    /// The application's handle of it.
    pub id: PoolId,
    /// Its device.
    pub device: Device,
    /// Whether it is the device's default pool.
    pub default: bool,
    /// Whether it is destroyed.
    pub gone: AtomicBool,
}

impl Pool {
    /// What the server calls it.
    pub fn name(&self) -> wire::Pool {
        if self.default { wire::Pool::Default(self.device) } else { wire::Pool::Created(self.id) }
    }
}

impl Object for Pool {
    fn is_alive(&self) -> bool {
        !self.gone.load(Ordering::Acquire)
    }
}

/// Which pools a device allocates from.
pub struct DevicePools {
    /// The default pool.
    pub default: PoolId,
    /// The current one's id.
    current: AtomicU32,
}

impl DevicePools {
    /// The default pool is the current one.
    pub fn new(default: PoolId) -> Self {
        Self { default, current: AtomicU32::new(default.0) }
    }

    /// The pool that `cuMemAllocAsync` uses.
    pub fn current(&self) -> PoolId {
        PoolId(self.current.load(Ordering::Acquire))
    }

    /// Makes a pool the current one.
    pub fn set_current(&self, pool: PoolId) {
        self.current.store(pool.0, Ordering::Release);
    }

    /// A pool is destroyed: if it was the current one, the default pool takes its place.
    pub fn forget(&self, pool: PoolId) {
        let _ = self.current.compare_exchange(pool.0, self.default.0, Ordering::AcqRel, Ordering::Relaxed);
    }
}
