//! How many chunks may be under way at a time.

use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Room for chunks.
pub(super) struct Room {
    free: Mutex<usize>,
    changed: Condvar,
}

/// A chunk is under way as long as this lives.
pub(super) struct Ticket(Arc<Room>);

impl Room {
    /// For so many.
    pub(super) fn new(chunks: usize) -> Arc<Self> {
        Arc::new(Self { free: Mutex::new(chunks), changed: Condvar::new() })
    }

    /// How many more may be under way.
    pub(super) fn free(&self) -> usize {
        *self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until another chunk may be under way.
    pub(super) fn ticket(self: &Arc<Self>) -> Ticket {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_while(free, |free| *free == 0);
        *waited.unwrap_or_else(PoisonError::into_inner) -= 1;
        Ticket(Arc::clone(self))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.changed.notify_one();
    }
}
