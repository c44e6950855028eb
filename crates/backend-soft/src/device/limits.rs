//! Limits of a context (`cuCtxSetLimit`).

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::sys::CUlimit as L;
use wire::CuError;

/// The limits of one context. Only kept: stacks grow as they must, and output is bounded by the device.
pub struct Limits(Mutex<BTreeMap<u32, u64>>);

impl Default for Limits {
    fn default() -> Self {
        let values = [
            (L::CU_LIMIT_STACK_SIZE, 1 << 10),
            (L::CU_LIMIT_PRINTF_FIFO_SIZE, 1 << 20),
            (L::CU_LIMIT_MALLOC_HEAP_SIZE, 8 << 20),
            (L::CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 2),
            (L::CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT, 2048),
            (L::CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 64),
            (L::CU_LIMIT_PERSISTING_L2_CACHE_SIZE, 0),
        ];
        Self(Mutex::new(values.map(|(limit, value)| (limit as u32, value)).into()))
    }
}

impl Limits {
    /// A limit's value.
    ///
    /// # Errors
    /// When there is no such limit.
    pub fn get(&self, limit: u32) -> Result<u64, CuError> {
        let values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        values.get(&limit).copied().ok_or(CuError::INVALID_VALUE)
    }

    /// Sets it.
    ///
    /// # Errors
    /// When there is no such limit.
    pub fn set(&self, limit: u32, value: u64) -> Result<(), CuError> {
        let mut values = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *values.get_mut(&limit).ok_or(CuError::INVALID_VALUE)? = value;
        Ok(())
    }
}
