//! Buffers through which shadow pages cross the bus. From and to memory that is not registered the device library copies a third as fast, and one
//! copy at a time.

use crate::buffers::{BufferPool, Buffers};
use crate::lock;
use image::CHUNK_SIZE;
use shadow::DeviceError;
use std::sync::{Arc, Mutex};
use wire::CuError;

/// Shorter copies are not worth a second one.
const FROM: usize = 64 << 10;
/// As many as threads use one at a time, mostly.
const COUNT: usize = 8;

/// Buffers of a chunk each, which nobody uses.
pub(super) struct Staging {
    pool: Arc<BufferPool>,
    idle: Mutex<Vec<Buffers>>,
}

impl Staging {
    /// With no buffer yet.
    pub(super) fn new(pool: &Arc<BufferPool>) -> Self {
        Self { pool: Arc::clone(pool), idle: Mutex::default() }
    }

    /// Makes the buffers, where they are of use. Not when they are needed: to register one may have to wait for work that waits for whoever needs it.
    pub(super) fn fill(&self) {
        if self.pool.backend().runs_on_cores() {
            return;
        }
        let made: Result<Vec<_>, _> = (0..COUNT).map(|_| self.pool.take(1)).collect();
        match made {
            Ok(made) => *lock(&self.idle) = made,
            Err(error) => tracing::info!("no buffers for managed memory: {error}"),
        }
    }

    /// A buffer for a copy of so many bytes; `None` where one is of no use, or there is none.
    pub(super) fn take(&self, bytes: usize) -> Option<Buffers> {
        if (FROM..=CHUNK_SIZE).contains(&bytes) { lock(&self.idle).pop() } else { None }
    }

    /// Takes back one behind such a copy.
    pub(super) fn put(&self, buffer: Buffers, copied: &Result<(), DeviceError>) {
        match copied {
            // It may be under way still: nobody gets that buffer any more.
            Err(error) if error.is::<CuError>() => {
                tracing::warn!(%error, left = lock(&self.idle).len(), "a buffer for managed memory is lost");
                std::mem::forget(buffer);
            }
            _ => lock(&self.idle).push(buffer),
        }
    }
}
