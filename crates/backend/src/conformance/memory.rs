use super::rig::{BASIC, Rig, Shared, params};
use crate::{BLOCK_GRANULARITY, Backend, Range, StreamArg};

pub(super) fn blocks_hold_what_is_written(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let words: Vec<u32> = (0..1000).collect();
    let last = rig.at(rig.memory.bytes - 4000);
    rig.put(rig.at(0), &words);
    rig.put(last, &words);
    assert_eq!(rig.get(rig.at(0), 1000), words);
    assert_eq!(rig.get(last, 1000), words);
}

pub(super) fn blocks_lie_side_by_side(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let next = Range { base: rig.memory.end(), bytes: 3 * BLOCK_GRANULARITY };
    let block = backend.map_block(0, next).unwrap();
    let words = [1, 2, 3, 4];
    rig.put(next.base, &words[2..]);
    rig.put(next.base - 8, &words[..2]);
    // A kernel does not see the border.
    let add = rig.kernel(BASIC, "add_one");
    rig.launch(add, 32, StreamArg::Legacy, &params(&[next.base - 8], &[4]));
    assert_eq!(rig.get(next.base - 8, 2), [2, 3]);
    assert_eq!(rig.get(next.base, 2), [4, 5]);
    backend.unmap_block(block).unwrap();
    // The same addresses can be used again.
    let block = backend.map_block(0, next).unwrap();
    rig.put(next.base, &words);
    assert_eq!(rig.get(next.base, 4), words);
    backend.unmap_block(block).unwrap();
}

pub(super) fn a_range_is_reserved_once(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    assert!(backend.reserve(rig.memory).is_err());
    assert!(backend.map_block(0, rig.memory).is_err(), "the range has a block already");
    let misaligned = Range { base: rig.memory.end() + 4096, bytes: BLOCK_GRANULARITY };
    assert!(backend.map_block(0, misaligned).is_err());
}

pub(super) fn memory_is_counted(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let (free, total) = backend.memory_info(rig.ctx).unwrap();
    assert!(free <= total && total > 0);
    let bytes = 32 * BLOCK_GRANULARITY;
    let block = backend.map_block(0, Range { base: rig.memory.end(), bytes }).unwrap();
    let (less, same) = backend.memory_info(rig.ctx).unwrap();
    assert_eq!(total, same);
    // Other programs may use the device too.
    assert!(less < free, "{less} of {free} bytes free with {bytes} more in use");
    backend.unmap_block(block).unwrap();
}

pub(super) fn host_memory_is_shared(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let shared = Shared::new(backend);
    shared.set(0, 41);
    let add = rig.kernel(BASIC, "add_one");
    rig.launch(add, 1, StreamArg::Legacy, &params(&[shared.address(0)], &[1]));
    rig.wait(StreamArg::Legacy);
    backend.context_synchronize(rig.ctx).unwrap();
    assert_eq!(shared.get(0), 42);
    // It is the same in a context made later.
    let later = Rig::new(backend);
    later.backend.copy(later.ctx, StreamArg::Legacy, later.at(0), shared.address(0), 4).unwrap();
    assert_eq!(later.get(later.at(0), 1), [42]);
}
