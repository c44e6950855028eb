//! What tests of restores fill: memory of the software device.

use crate::buffers::BufferPool;
use crate::objects::{Context, ContextRecord, Making, Placement, Placer};
use crate::transfer::{OwnStream, Readers};
use backend::{Backend, Range};
use image::CHUNK_SIZE;
use std::sync::Arc;
use wire::ContextId;

/// A device with a context, and a stream in it.
pub(super) struct Rig {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) pool: Arc<BufferPool>,
    pub(super) stream: OwnStream,
}

impl Rig {
    pub(super) fn new() -> Self {
        let backend: Arc<dyn Backend> = Arc::new(backend_soft::SoftBackend::default());
        let (placer, pool) = (Placer::new(Arc::clone(&backend), 0), BufferPool::new(&backend));
        let placement = Placement::default();
        let record = ContextRecord { id: ContextId(1), device: 0, flags: 0, primary: false, placement };
        let ctx = Context::make(&placer, record, Making::New).unwrap();
        let stream = OwnStream::of(&ctx).unwrap();
        Self { backend, pool, stream }
    }

    /// Memory of the device's that has nothing in it.
    pub(super) fn memory(&self, bytes: usize) -> Range {
        let range = Range { base: 0x2000_0000_0000, bytes: bytes.next_multiple_of(CHUNK_SIZE) as u64 };
        self.backend.reserve(range).unwrap();
        self.backend.map_block(0, range).unwrap();
        range
    }

    /// What is there.
    pub(super) fn read(&self, range: Range) -> Vec<u8> {
        Readers::new(&self.pool).of(self.stream.context()).unwrap().read(range).unwrap()
    }
}

/// Bytes that cannot be compressed; those of each number are others.
pub(super) fn noise(number: u64, len: usize) -> Vec<u8> {
    let mut state = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 56) as u8
    };
    std::iter::repeat_with(&mut next).take(len).collect()
}
