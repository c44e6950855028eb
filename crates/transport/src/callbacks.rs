//! The callback ring: the server tells which host callback is due, the client runs it and says so. In order, one at a time.

use crate::layout::{CALLBACKS, CallbacksShared};
use crate::map::SessionMap;
use crate::sync::Ordering;
use crate::{Result, TransportError};
use std::sync::Arc;
use std::time::Duration;

/// A callback that is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Callback {
    /// Its id.
    pub id: u32,
    /// The `CUresult` of the stream, for those that are told.
    pub status: u32,
}

fn used(shared: &CallbacksShared) -> Result<(u64, u64)> {
    let (head, tail) = (shared.head.0.load(Ordering::Acquire), shared.tail.0.load(Ordering::Acquire));
    match tail.checked_sub(head) {
        Some(count) if count <= CALLBACKS as u64 => Ok((head, tail)),
        _ => Err(TransportError::Corrupt { ring: u16::MAX, what: "callback count", value: tail }),
    }
}

/// The client's end; one thread uses it.
pub struct CallbackReceiver(pub(crate) Arc<SessionMap>);

impl CallbackReceiver {
    fn shared(&self) -> &CallbacksShared {
        &self.0.control().callbacks.0
    }

    /// This thread runs the callbacks.
    pub fn run_here(&self) {
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        self.shared().thread.0.store(thread, Ordering::Release);
    }

    /// The next callback that is due, waiting for it up to `timeout`. It stays the next one until it is acknowledged.
    ///
    /// # Errors
    /// When the server wrote something impossible.
    pub fn next(&self, timeout: Duration) -> Result<Option<Callback>> {
        let shared = self.shared();
        let ready = || shared.tail.0.load(Ordering::Acquire) != shared.head.0.load(Ordering::Relaxed);
        if !ready() {
            shared.client.0.park(timeout, ready);
        }
        let (head, tail) = used(shared)?;
        if head == tail {
            return Ok(None);
        }
        let word = shared.entries.0[(head % CALLBACKS as u64) as usize].load(Ordering::Relaxed);
        Ok(Some(Callback { id: word as u32, status: (word >> 32) as u32 }))
    }

    /// The callback in hand has run.
    pub fn acknowledge(&self) {
        let shared = self.shared();
        shared.head.0.fetch_add(1, Ordering::AcqRel);
        shared.server.0.unpark();
    }
}

/// The server's end. Publishing is serialised by the caller.
pub struct CallbackSender(pub(crate) Arc<SessionMap>);

impl CallbackSender {
    fn shared(&self) -> &CallbacksShared {
        &self.0.control().callbacks.0
    }

    /// Publishes a callback that is due and tells its number; `None` while [`CALLBACKS`] are under way.
    ///
    /// # Errors
    /// When the client wrote something impossible.
    pub fn publish(&mut self, callback: Callback) -> Result<Option<u64>> {
        let shared = self.shared();
        let (head, tail) = used(shared)?;
        if tail - head == CALLBACKS as u64 {
            return Ok(None);
        }
        let word = u64::from(callback.id) | u64::from(callback.status) << 32;
        shared.entries.0[(tail % CALLBACKS as u64) as usize].store(word, Ordering::Relaxed);
        shared.tail.0.store(tail + 1, Ordering::Release);
        shared.client.0.unpark();
        Ok(Some(tail))
    }

    /// How many callbacks have been acknowledged: those with smaller numbers have run.
    #[must_use]
    pub fn acknowledged(&self) -> u64 {
        self.shared().head.0.load(Ordering::Acquire)
    }

    /// The number, in its own namespace, of the application's thread that runs them.
    #[must_use]
    pub fn thread(&self) -> Option<u32> {
        Some(self.shared().thread.0.load(Ordering::Acquire)).filter(|thread| *thread != 0)
    }

    /// How many callbacks have been published.
    #[must_use]
    pub fn published(&self) -> u64 {
        self.shared().tail.0.load(Ordering::Acquire)
    }

    /// Waits until more than `seen` have been acknowledged, or until `timeout` has passed; tells how many.
    #[must_use]
    pub fn wait_acknowledged(&self, seen: u64, timeout: Duration) -> u64 {
        let shared = self.shared();
        let more = || shared.head.0.load(Ordering::Acquire) > seen;
        if !more() {
            shared.server.0.park(timeout, more);
        }
        self.acknowledged()
    }

    /// Another handle on the same ring, to wait with.
    #[must_use]
    pub fn waiter(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}
