use super::rig::{BASIC, Rig, params};
use crate::{Access, BLOCK_GRANULARITY, Backend, Range, StreamArg};
use wire::CuError;

/// `CU_DEVICE_ATTRIBUTE_GENERIC_COMPRESSION_SUPPORTED`.
const COMPRESSES: i32 = 107;

/// Reserved addresses behind a rig's own block.
fn behind(rig: &Rig<'_>, block: u64) -> Range {
    Range { base: rig.memory.end() + block * BLOCK_GRANULARITY, bytes: BLOCK_GRANULARITY }
}

pub(super) fn one_piece_is_mapped_twice(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let piece = backend.physical_create(0, BLOCK_GRANULARITY, false).unwrap().0;
    let (one, two) = (behind(&rig, 0), behind(&rig, 5));
    for range in [one, two] {
        backend.map_physical(piece, range).unwrap();
        backend.set_access(0, range, Access::ReadWrite).unwrap();
    }
    assert!(backend.map_physical(piece, one).is_err(), "something is mapped there");
    // A kernel writes over the border of the rig's block and the piece.
    rig.put(one.base - 8, &[1, 2]);
    rig.put(one.base, &[3, 4]);
    let add = rig.kernel(BASIC, "add_one");
    rig.launch(add, 32, StreamArg::Legacy, &params(&[one.base - 8], &[4]));
    assert_eq!(rig.get(one.base - 8, 4), [2, 3, 4, 5]);
    assert_eq!(rig.get(two.base, 2), [4, 5]);
    // The memory outlives its handle, and a mapping the other.
    backend.physical_release(piece).unwrap();
    backend.unmap_physical(one).unwrap();
    assert_eq!(rig.get(two.base, 2), [4, 5]);
    backend.unmap_physical(two).unwrap();
}

pub(super) fn compressible_pieces_hold_what_is_written(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let (piece, compressible) = backend.physical_create(0, BLOCK_GRANULARITY, true).unwrap();
    assert!(!compressible || backend.devices()[0].attributes.contains(&(COMPRESSES, 1)));
    let place = behind(&rig, 0);
    backend.map_physical(piece, place).unwrap();
    backend.set_access(0, place, Access::ReadWrite).unwrap();
    let add = rig.kernel(BASIC, "add_one");
    let words = vec![7; 1 << 16];
    rig.put(place.base, &words);
    rig.launch(add, 32, StreamArg::Legacy, &params(&[place.base], &[words.len() as u32]));
    assert_eq!(rig.get(place.base, words.len())[..40], [[8; 32].as_slice(), &[7; 8]].concat());
    backend.physical_release(piece).unwrap();
    backend.unmap_physical(place).unwrap();
}

pub(super) fn pieces_keep_what_is_in_them(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let piece = backend.physical_create(0, 2 * BLOCK_GRANULARITY, false).unwrap().0;
    let place = Range { bytes: 2 * BLOCK_GRANULARITY, ..behind(&rig, 0) };
    for round in 1..=3u32 {
        backend.map_physical(piece, place).unwrap();
        backend.set_access(0, place, Access::ReadWrite).unwrap();
        if round > 1 {
            assert_eq!(rig.get(place.end() - 8, 2), [round - 1, 7]);
        }
        rig.put(place.end() - 8, &[round, 7]);
        backend.context_synchronize(rig.ctx).unwrap();
        backend.unmap_physical(place).unwrap();
    }
    backend.physical_release(piece).unwrap();
}

pub(super) fn a_piece_of_the_host_takes_none_of_the_device(backend: &dyn Backend) {
    const BYTES: u64 = 64 * BLOCK_GRANULARITY;
    let rig = Rig::new(backend);
    let place = Range { bytes: BYTES, ..behind(&rig, 0) };
    let (free, _) = backend.memory_info(rig.ctx).unwrap();
    let piece = match backend.physical_create_on_host(0, BYTES) {
        // A driver may have none, and says so: Dormouse's own, inside of a job.
        Err(CuError::NOT_SUPPORTED) => {
            assert_eq!(backend.memory_info(rig.ctx).unwrap().0, free);
            return;
        }
        made => made.unwrap(),
    };
    backend.map_physical(piece, place).unwrap();
    backend.set_access(0, place, Access::ReadWrite).unwrap();
    let (left, _) = backend.memory_info(rig.ctx).unwrap();
    assert!(free.saturating_sub(left) < BYTES, "the device has {left} of {free} bytes left");
    // A kernel writes over the border of the device's memory and the host's; copies read both.
    rig.put(place.base - 8, &[1, 2]);
    rig.put(place.base, &[3, 4]);
    let add = rig.kernel(BASIC, "add_one");
    rig.launch(add, 32, StreamArg::Legacy, &params(&[place.base - 8], &[4]));
    assert_eq!(rig.get(place.base - 8, 4), [2, 3, 4, 5]);
    // It changes places with a piece of the device, and is what it was.
    let other = backend.physical_create(0, BYTES, false).unwrap().0;
    let beside = Range { bytes: BYTES, ..behind(&rig, 100) };
    backend.map_physical(other, beside).unwrap();
    backend.set_access(0, beside, Access::ReadWrite).unwrap();
    backend.copy(rig.ctx, StreamArg::Legacy, beside.base, place.base, BYTES).unwrap();
    backend.context_synchronize(rig.ctx).unwrap();
    for range in [place, beside] {
        backend.unmap_physical(range).unwrap();
    }
    backend.map_physical(other, place).unwrap();
    backend.set_access(0, place, Access::ReadWrite).unwrap();
    assert_eq!(rig.get(place.base, 2), [4, 5]);
    backend.unmap_physical(place).unwrap();
    for piece in [piece, other] {
        backend.physical_release(piece).unwrap();
    }
}

pub(super) fn a_mapped_piece_outlives_every_context(backend: &dyn Backend) {
    let piece = backend.physical_create(0, BLOCK_GRANULARITY, false).unwrap().0;
    let place = {
        let rig = Rig::primary(backend);
        let place = behind(&rig, 0);
        backend.map_physical(piece, place).unwrap();
        backend.set_access(0, place, Access::ReadWrite).unwrap();
        rig.put(place.base, &[1, 2, 3]);
        place
    };
    let other = Rig::new(backend);
    assert_eq!(other.get(place.base, 3), [1, 2, 3]);
    backend.unmap_physical(place).unwrap();
    backend.physical_release(piece).unwrap();
}
