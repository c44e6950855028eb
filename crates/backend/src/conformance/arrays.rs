use super::rig::Rig;
use crate::{Backend, BoxSide, CopyBox, Pitched, RawArray, RawTexture, StreamArg};
use wire::{ArrayDesc, CuError, Resource, Sampling};

/// `CU_AD_FORMAT_UNSIGNED_INT32`, `_FLOAT`, `_UNSIGNED_INT8`.
const U32: u32 = 3;
const FLOAT: u32 = 32;
const U8: u32 = 1;

pub(super) fn desc(sizes: [u64; 3], format: u32, channels: u32, flags: u32) -> ArrayDesc {
    ArrayDesc { width: sizes[0], height: sizes[1], depth: sizes[2], format, channels, flags }
}

fn packed(address: u64, width: u64, height: u64) -> BoxSide {
    BoxSide::Memory(Pitched { address, pitch: width, rows: height })
}

/// Copies a box; what is copied to plain memory is there.
fn copy(rig: &Rig<'_>, dst: BoxSide, src: BoxSide, [width, height, depth]: [u64; 3]) {
    let copy = CopyBox { dst, src, width, height, depth };
    rig.backend.copy_box(rig.ctx, StreamArg::Legacy, &copy).unwrap();
    rig.backend.context_synchronize(rig.ctx).unwrap();
}

/// Fills all of an array from packed words.
pub(super) fn put(rig: &Rig<'_>, array: RawArray, desc: &ArrayDesc, words: &[u32]) {
    let shape = desc.shape().unwrap();
    assert_eq!(size_of_val(words) as u64, shape.bytes());
    let src = packed(words.as_ptr() as u64, shape.row, shape.rows);
    copy(rig, BoxSide::Array(array, [0; 3]), src, [shape.row, shape.rows, shape.slices]);
}

/// All of an array, packed.
pub(super) fn get(rig: &Rig<'_>, array: RawArray, desc: &ArrayDesc) -> Vec<u32> {
    let shape = desc.shape().unwrap();
    let mut words = vec![0u32; shape.bytes() as usize / 4];
    let dst = packed(words.as_mut_ptr() as u64, shape.row, shape.rows);
    copy(rig, dst, BoxSide::Array(array, [0; 3]), [shape.row, shape.rows, shape.slices]);
    words
}

pub(super) fn arrays_hold_boxes(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let desc = desc([8, 4, 3], U32, 1, 0);
    let array = backend.array_create(rig.ctx, &desc).unwrap();
    let words: Vec<u32> = (0..96).collect();
    put(&rig, array, &desc, &words);
    assert_eq!(get(&rig, array, &desc), words);
    // A box of 3 × 2 × 2 words to device memory with gaps, and from there to another place of another array.
    let extent = [12, 2, 2];
    let gaps = BoxSide::Memory(Pitched { address: rig.at(4096), pitch: 64, rows: 5 });
    copy(&rig, gaps, BoxSide::Array(array, [8, 1, 1]), extent);
    let word = |x: u64, y: u64, z: u64| (z * 32 + y * 8 + x) as u32;
    assert_eq!(rig.get(rig.at(4096 + 64), 3), [word(2, 2, 1), word(3, 2, 1), word(4, 2, 1)]);
    assert_eq!(rig.get(rig.at(4096 + 5 * 64), 3), [word(2, 1, 2), word(3, 1, 2), word(4, 1, 2)]);
    let other = backend.array_create(rig.ctx, &desc).unwrap();
    put(&rig, other, &desc, &[7; 96]);
    copy(&rig, BoxSide::Array(other, [20, 2, 0]), gaps, extent);
    copy(&rig, BoxSide::Array(other, [0, 0, 2]), BoxSide::Array(array, [16, 3, 0]), [16, 1, 1]);
    let mut expected = vec![7; 96];
    for (x, y, z) in (0..2).flat_map(|z| (0..2).flat_map(move |y| (0..3).map(move |x| (x, y, z)))) {
        expected[word(5 + x, 2 + y, z) as usize] = word(2 + x, 1 + y, 1 + z);
    }
    for x in 0..4 {
        expected[word(x, 0, 2) as usize] = word(4 + x, 3, 0);
    }
    assert_eq!(get(&rig, other, &desc), expected);
    backend.array_destroy(rig.ctx, array).unwrap();
    backend.array_destroy(rig.ctx, other).unwrap();
}

pub(super) fn arrays_of_every_shape_hold_all_they_should(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let shapes = [
        desc([100, 0, 0], FLOAT, 1, 0),
        desc([100, 0, 0], FLOAT, 4, ArrayDesc::SURFACE),
        desc([33, 7, 0], U8, 4, 0),
        desc([16, 7, 0], FLOAT, 2, ArrayDesc::GATHER),
        desc([16, 8, 5], U32, 1, ArrayDesc::SURFACE),
        desc([20, 0, 6], FLOAT, 1, ArrayDesc::LAYERED),
        desc([20, 3, 6], FLOAT, 1, ArrayDesc::LAYERED | ArrayDesc::SURFACE),
        desc([8, 8, 6], FLOAT, 4, ArrayDesc::CUBEMAP),
        desc([8, 8, 12], FLOAT, 1, ArrayDesc::CUBEMAP | ArrayDesc::LAYERED),
    ];
    for desc in shapes {
        let array = backend.array_create(rig.ctx, &desc).unwrap_or_else(|error| panic!("{desc:?}: {error}"));
        let words: Vec<u32> =
            (0..desc.shape().unwrap().bytes() as u32 / 4).map(|word| word * 3 + 1).collect();
        put(&rig, array, &desc, &words);
        assert_eq!(get(&rig, array, &desc), words, "{desc:?}");
        backend.array_destroy(rig.ctx, array).unwrap();
    }
}

pub(super) fn levels_are_arrays(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let desc = desc([16, 8, 0], U32, 1, 0);
    let mipmap = backend.mipmap_create(rig.ctx, &desc, 4).unwrap();
    let levels: Vec<_> = (0..4).map(|level| backend.mipmap_level(rig.ctx, mipmap, level).unwrap()).collect();
    for (level, array) in (0..).zip(&levels) {
        let desc = desc.level(level);
        let words = vec![level * 1000 + 1; desc.shape().unwrap().bytes() as usize / 4];
        put(&rig, *array, &desc, &words);
    }
    for (level, array) in (0..).zip(&levels) {
        let desc = desc.level(level);
        assert!(get(&rig, *array, &desc).iter().all(|word| *word == level * 1000 + 1), "level {level}");
    }
    assert_eq!((desc.level(3).width, desc.level(3).height), (2, 1));
    assert!(backend.mipmap_level(rig.ctx, mipmap, 4).is_err(), "there is no fifth level");
    backend.mipmap_destroy(rig.ctx, mipmap).unwrap();
}

/// Reads elements as they are, with whole numbers for coordinates.
pub(super) const PLAIN: Sampling = Sampling {
    address: [1; 3],
    filter: 0,
    flags: 0,
    max_anisotropy: 0,
    mipmap_filter: 0,
    level_bias: 0.0,
    min_level: 0.0,
    max_level: 0.0,
    border: [0.0; 4],
};

pub(super) fn objects_have_values(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let desc = desc([8, 4, 0], FLOAT, 1, ArrayDesc::SURFACE);
    let array = backend.array_create(rig.ctx, &desc).unwrap();
    let texture = RawTexture { resource: Resource::Array(array), sampling: PLAIN, view: None };
    let values: Vec<_> = (0..3).map(|_| backend.texture_create(rig.ctx, &texture).unwrap()).collect();
    assert!(values[0] != values[1] && values[1] != values[2] && values[0] != values[2], "{values:?}");
    let surface = backend.surface_create(rig.ctx, array).unwrap();
    let linear = Resource::Linear { address: rig.at(0), format: FLOAT, channels: 1, bytes: 4096 };
    let linear = backend.texture_create(rig.ctx, &RawTexture { resource: linear, ..texture }).unwrap();
    let rows =
        Resource::Pitch2D { address: rig.at(0), format: U8, channels: 4, width: 8, height: 4, pitch: 512 };
    let rows = backend.texture_create(rig.ctx, &RawTexture { resource: rows, ..texture }).unwrap();
    for value in values.into_iter().chain([linear, rows]) {
        backend.texture_destroy(rig.ctx, value).unwrap();
    }
    backend.surface_destroy(rig.ctx, surface).unwrap();
    backend.array_destroy(rig.ctx, array).unwrap();
}

pub(super) fn wrong_arrays_are_told(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let create = |desc: ArrayDesc| backend.array_create(rig.ctx, &desc);
    assert_eq!(create(desc([1 << 30, 0, 0], U32, 1, 0)), Err(CuError::INVALID_VALUE), "too wide");
    assert_eq!(create(desc([16, 1 << 20, 4], U32, 1, 0)), Err(CuError::INVALID_VALUE), "too high");
}
