//! Buffers that contents of memory pass through, registered with the device so that it reads and writes them at full speed.

use crate::area::Area;
use crate::frame::{BULK_WINDOW, INLINE_MAX, PIECE};
use crate::lanes::Piece;
use crate::lock;
use backend::{Backend, Range, Result};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};
use wire::CuError;

/// What is registered at a time.
const SLAB: usize = 8 << 20;
/// What buffers have: each is a part of one of the next size. Most copies that come with their call are short.
const SIZES: [usize; 4] = [16 << 10, INLINE_MAX, PIECE, SLAB];
/// Which of them is for a piece.
const WHOLE: usize = 2;
/// How long whoever needs a buffer waits for others to be free, when there may be no more. Work that has them gets done, and the client takes what it has asked for.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Default)]
struct State {
    slabs: Vec<Area>,
    /// Addresses of free buffers of each size.
    free: [Vec<usize>; SIZES.len()],
    /// How many buffers for whole pieces have been divided: so many that what is under way in bulk finds its own in any case.
    divided: usize,
    /// Somebody has waited in vain, and no buffer is free since.
    exhausted: bool,
    /// Buffers that hold what the client has sent, bytes.
    received: u64,
    sent: u64,
}

/// All buffers of a session.
pub(super) struct Staging {
    backend: Arc<dyn Backend>,
    state: Mutex<State>,
    /// Told when a buffer is free again.
    freed: Condvar,
}

/// A buffer, until it is dropped.
pub(super) struct Buffer {
    address: usize,
    bytes: usize,
    /// Which of the sizes it has.
    size: usize,
    of: Arc<Staging>,
}

impl State {
    /// Whether there may be more small buffers.
    fn divides(&self) -> bool {
        self.divided * PIECE < BULK_WINDOW as usize
    }

    /// A free buffer, if need be a part of a larger one.
    fn take(&mut self, size: usize) -> Option<usize> {
        if let Some(free) = self.free.get_mut(size)?.pop() {
            return Some(free);
        }
        if size + 1 == WHOLE && !self.divides() {
            return None;
        }
        let whole = self.take(size + 1)?;
        self.divided += usize::from(size + 1 == WHOLE);
        self.free[size].extend((0..SIZES[size + 1]).step_by(SIZES[size]).map(|offset| whole + offset));
        self.free[size].pop()
    }
}

impl Staging {
    pub(super) fn new(backend: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self { backend, state: Mutex::default(), freed: Condvar::new() })
    }

    /// A buffer for at most a piece; when there are as many as there can be, one that others have let go of.
    pub(super) fn get(self: &Arc<Self>, bytes: usize) -> Result<Buffer> {
        let size = SIZES[..SIZES.len() - 1].iter().position(|most| bytes <= *most);
        let size = size.ok_or(CuError::INVALID_VALUE)?;
        let mut state = lock(&self.state);
        let begun = Instant::now();
        let address = loop {
            if let Some(free) = state.take(size) {
                break free;
            }
            // What the client may have under way in both directions, and a little for what is small.
            let may_be_more = size == WHOLE || state.divides();
            if may_be_more && state.slabs.len() * SLAB <= 3 * BULK_WINDOW as usize {
                let slab = Area::new(SLAB).map_err(|_| CuError::OUT_OF_MEMORY)?;
                self.backend.register_host(Range { base: slab.address(), bytes: SLAB as u64 })?;
                state.free[SIZES.len() - 1].push(slab.address() as usize);
                state.slabs.push(slab);
                continue;
            }
            let left = PATIENCE.checked_sub(begun.elapsed()).filter(|_| !state.exhausted);
            let Some(left) = left else {
                state.exhausted = true;
                return Err(CuError::OUT_OF_MEMORY);
            };
            state = self.freed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        };
        Ok(Buffer { address, bytes, size, of: Arc::clone(self) })
    }

    /// Counts a piece that the client has sent; `false` when it has sent more than it may.
    pub(super) fn receive(&self) -> bool {
        let mut state = lock(&self.state);
        state.received += PIECE as u64;
        state.received - state.sent <= BULK_WINDOW
    }

    /// Counts pieces whose buffers are free again.
    pub(super) fn used(&self, pieces: u64) {
        lock(&self.state).sent += pieces * PIECE as u64;
    }

    /// Bytes that the client may send again, since the beginning.
    pub(super) fn acked(&self) -> u64 {
        lock(&self.state).sent
    }

    /// Makes it ordinary memory again, which goes with the last buffer: a thread may still be reading into one.
    pub(super) fn unregister(&self) {
        for slab in &lock(&self.state).slabs {
            let _ = self.backend.unregister_host(Range { base: slab.address(), bytes: SLAB as u64 });
        }
    }
}

impl Buffer {
    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    pub(super) fn address(&self) -> u64 {
        self.address as u64
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        let at = std::ptr::with_exposed_provenance_mut::<u8>(self.address);
        // SAFETY: a part of a slab that nobody else has; slabs outlive the session's buffers.
        unsafe { std::slice::from_raw_parts_mut(at, self.bytes) }
    }
}

impl Piece for Buffer {
    fn bytes(&self) -> &[u8] {
        let at = std::ptr::with_exposed_provenance::<u8>(self.address);
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(at, self.bytes) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut state = lock(&self.of.state);
        state.free[self.size].push(self.address);
        state.exhausted = false;
        drop(state);
        self.of.freed.notify_all();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn who_finds_all_buffers_taken_waits_for_one() {
        let staging = Staging::new(Arc::new(backend_soft::SoftBackend::default()));
        let many = 3 * BULK_WINDOW as usize / PIECE + SLAB / PIECE;
        let mut taken: Vec<_> = (0..many).map(|_| staging.get(PIECE).unwrap()).collect();
        let addresses: std::collections::BTreeSet<_> = taken.iter().map(Buffer::address).collect();
        assert_eq!(addresses.len(), many, "each is another one");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| staging.get(100).unwrap().address());
            std::thread::sleep(Duration::from_millis(50));
            assert!(!waiting.is_finished());
            let last = taken.pop().unwrap();
            let address = last.address();
            drop(last);
            assert!((address..address + PIECE as u64).contains(&waiting.join().unwrap()), "a part of it");
        });
        assert!(staging.get(PIECE + 1).is_err());
        // What a piece was divided into serves small copies from then on.
        let small: Vec<_> = (0..PIECE / SIZES[0]).map(|_| staging.get(SIZES[0]).unwrap()).collect();
        assert_eq!(small.len(), PIECE / SIZES[0]);
    }
}
