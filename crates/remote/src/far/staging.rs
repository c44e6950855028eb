//! Buffers that contents of memory pass through, registered with the device so that it reads and writes them at full speed.

use crate::area::Area;
use crate::frame::{BULK_WINDOW, INLINE_MAX, PIECE};
use crate::lanes::Piece;
use crate::lock;
use backend::{Backend, Range, Result};
use std::sync::{Arc, Mutex};
use wire::CuError;

/// What is registered at a time.
const SLAB: usize = 8 << 20;

#[derive(Default)]
struct State {
    slabs: Vec<Area>,
    /// Offsets of free buffers, for whole pieces and for small ones.
    large: Vec<usize>,
    small: Vec<usize>,
    /// Buffers that hold what the client has sent, bytes.
    received: u64,
    sent: u64,
}

/// All buffers of a session.
pub(super) struct Staging {
    backend: Arc<dyn Backend>,
    state: Mutex<State>,
}

/// A buffer, until it is dropped.
pub(super) struct Buffer {
    address: usize,
    bytes: usize,
    large: bool,
    of: Arc<Staging>,
}

impl Staging {
    pub(super) fn new(backend: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self { backend, state: Mutex::default() })
    }

    /// A buffer for at most a piece.
    pub(super) fn get(self: &Arc<Self>, bytes: usize) -> Result<Buffer> {
        let large = bytes > INLINE_MAX;
        if bytes > PIECE {
            return Err(CuError::INVALID_VALUE);
        }
        let mut state = lock(&self.state);
        if large && state.large.is_empty() || !large && state.small.is_empty() && state.large.is_empty() {
            // What the client may have under way in both directions, and a little for what is small.
            if state.slabs.len() * SLAB > 3 * BULK_WINDOW as usize {
                return Err(CuError::OUT_OF_MEMORY);
            }
            let slab = Area::new(SLAB).map_err(|_| CuError::OUT_OF_MEMORY)?;
            self.backend.register_host(Range { base: slab.address(), bytes: SLAB as u64 })?;
            state.large.extend((0..SLAB).step_by(PIECE).map(|offset| slab.address() as usize + offset));
            state.slabs.push(slab);
        }
        if !large && state.small.is_empty() {
            let piece = state.large.pop().ok_or(CuError::OUT_OF_MEMORY)?;
            state.small.extend((0..PIECE).step_by(INLINE_MAX).map(|offset| piece + offset));
        }
        let free = if large { state.large.pop() } else { state.small.pop() };
        let address = free.ok_or(CuError::OUT_OF_MEMORY)?;
        Ok(Buffer { address, bytes, large, of: Arc::clone(self) })
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
        if self.large { state.large.push(self.address) } else { state.small.push(self.address) }
    }
}
