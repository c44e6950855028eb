//! Buffers through which shadow pages cross the bus. From and to memory that is not registered the device library copies a third as fast, and one
//! copy at a time.

use crate::lock;
use crate::transfer::Buffers;
use backend::Backend;
use image::CHUNK_SIZE;
use std::sync::{Arc, Mutex};

/// Shorter copies are not worth a second one.
const FROM: usize = 64 << 10;
/// Buffers that are kept: the threads that use one at a time.
const KEPT: usize = 8;

/// Buffers of a chunk each, which nobody uses.
pub(super) struct Staging {
    backend: Arc<dyn Backend>,
    idle: Mutex<Vec<Buffers>>,
}

impl Staging {
    pub(super) fn new(backend: &Arc<dyn Backend>) -> Self {
        Self { backend: Arc::clone(backend), idle: Mutex::default() }
    }

    /// A buffer for a copy of so many bytes; `None` where one is of no use, or cannot be had.
    pub(super) fn take(&self, bytes: usize) -> Option<Buffers> {
        if self.backend.runs_on_cores() || !(FROM..=CHUNK_SIZE).contains(&bytes) {
            return None;
        }
        let idle = lock(&self.idle).pop();
        idle.or_else(|| {
            let made = Buffers::new(&self.backend, 1);
            made.inspect_err(|error| tracing::debug!(%error, "no buffer for shadow pages")).ok()
        })
    }

    /// Takes back one that no copy uses any more.
    pub(super) fn put(&self, buffer: Buffers) {
        let mut idle = lock(&self.idle);
        if idle.len() < KEPT {
            idle.push(buffer);
        }
    }
}
