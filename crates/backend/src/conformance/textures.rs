use super::arrays::{PLAIN, desc, get, put};
use super::rig::{Rig, params};
use crate::{Backend, RawArray, RawTexture, StreamArg};
use wire::{ArrayDesc, Resource, ResourceView, Sampling};

/// Kernels that read textures and surfaces where they are told to.
const TEXTURES: &str = include_str!("ptx/textures.ptx");

const U8: u32 = 1;
const S16: u32 = 9;
const HALF: u32 = 16;
const FLOAT: u32 = 32;

/// `CU_RES_VIEW_FORMAT_FLOAT_1X32`.
const FLOAT_1X32: u32 = 22;

/// `CUaddress_mode`.
const WRAP: u32 = 0;
const CLAMP: u32 = 1;
const MIRROR: u32 = 2;
const BORDER: u32 = 3;

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// Spots of up to three coordinates, and a layer.
fn spots<const N: usize>(list: [[f32; 3]; N]) -> Vec<[u32; 4]> {
    list.map(|[x, y, z]| [x.to_bits(), y.to_bits(), z.to_bits(), 0]).to_vec()
}

/// What a kernel reads at each spot.
fn read(rig: &Rig<'_>, kernel: &str, object: u64, spots: &[[u32; 4]]) -> Vec<[u32; 4]> {
    let function = rig.kernel(TEXTURES, kernel);
    let (from, to) = (rig.at(1 << 20), rig.at((1 << 20) + 65536));
    rig.put(from, spots.as_flattened());
    rig.launch(function, spots.len() as u32, StreamArg::Legacy, &params(&[object, from, to], &[]));
    rig.get(to, spots.len() * 4).chunks(4).map(|read| [read[0], read[1], read[2], read[3]]).collect()
}

/// The first channel of each, as a number.
fn first(read: Vec<[u32; 4]>) -> Vec<f32> {
    read.into_iter().map(|[x, ..]| f32::from_bits(x)).collect()
}

fn all(read: Vec<[u32; 4]>) -> Vec<[f32; 4]> {
    read.into_iter().map(|texel| texel.map(f32::from_bits)).collect()
}

fn array(rig: &Rig<'_>, desc: &ArrayDesc, words: &[u32]) -> RawArray {
    let array = rig.backend.array_create(rig.ctx, desc).unwrap();
    put(rig, array, desc, words);
    array
}

fn texture(rig: &Rig<'_>, array: RawArray, sampling: Sampling) -> u64 {
    let texture = RawTexture { resource: Resource::Array(array), sampling, view: None };
    rig.backend.texture_create(rig.ctx, &texture).unwrap()
}

/// 4 × 2 texels: 0 to 3 above, 10 to 13 below.
fn small(rig: &Rig<'_>) -> RawArray {
    let values = [0.0, 1.0, 2.0, 3.0, 10.0, 11.0, 12.0, 13.0];
    array(rig, &desc([4, 2, 0], FLOAT, 1, ArrayDesc::GATHER), &bits(&values))
}

pub(super) fn points_are_the_texel_they_lie_in(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let texture = texture(&rig, small(&rig), PLAIN);
    let at = spots([[0.5, 0.5, 0.0], [3.75, 1.25, 0.0], [2.0, 0.0, 0.0], [-9.0, 1.5, 0.0], [9.0, 9.0, 0.0]]);
    assert_eq!(first(read(&rig, "point", texture, &at)), [0.0, 13.0, 2.0, 10.0, 13.0]);
}

pub(super) fn axes_go_on_as_asked(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let small = small(&rig);
    let at = spots([-0.375, -0.125, 0.125, 1.125, 1.375].map(|x| [x, 0.25, 0.0]));
    for (mode, expected) in [
        (WRAP, [2.0, 3.0, 0.0, 0.0, 1.0]),
        (CLAMP, [0.0, 0.0, 0.0, 3.0, 3.0]),
        (MIRROR, [1.0, 0.0, 0.0, 3.0, 2.0]),
        (BORDER, [7.0, 7.0, 0.0, 7.0, 7.0]),
    ] {
        let sampling =
            Sampling { address: [mode; 3], flags: Sampling::NORMALIZED, border: [7.0; 4], ..PLAIN };
        assert_eq!(first(read(&rig, "point", texture(&rig, small, sampling), &at)), expected, "mode {mode}");
    }
}

pub(super) fn texels_are_mixed(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let linear = Sampling { filter: Sampling::LINEAR, ..PLAIN };
    let small = small(&rig);
    let at = spots([[0.5, 0.5, 0.0], [1.0, 0.5, 0.0], [2.75, 1.0, 0.0], [0.0, 0.0, 0.0], [3.75, 1.5, 0.0]]);
    let mixed = first(read(&rig, "point", texture(&rig, small, linear), &at));
    assert_eq!(mixed, [0.0, 0.5, 7.25, 0.0, 13.0]);
    let gathered = all(read(&rig, "gather", texture(&rig, small, linear), &spots([[2.0, 1.0, 0.0]])));
    assert_eq!(gathered, [[11.0, 12.0, 2.0, 1.0]]);
    let cube: Vec<f32> = (0..8).map(|texel| texel as f32 * 8.0).collect();
    let cube = array(&rig, &desc([2, 2, 2], FLOAT, 1, 0), &bits(&cube));
    let at = spots([[1.0, 1.0, 1.0], [0.5, 0.5, 1.5], [0.75, 0.5, 0.5]]);
    assert_eq!(first(read(&rig, "solid", texture(&rig, cube, linear), &at)), [28.0, 32.0, 2.0]);
}

pub(super) fn channels_are_told_as_asked(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let bytes = array(&rig, &desc([2, 1, 0], U8, 4, 0), &[0xff00_3300, 0x0102_0380]);
    let at = spots([[0.5, 0.5, 0.0], [1.5, 0.5, 0.0]]);
    let fractions = all(read(&rig, "point", texture(&rig, bytes, PLAIN), &at));
    assert_eq!(fractions[0], [0.0, 0.2, 0.0, 1.0]);
    let whole = Sampling { flags: Sampling::AS_INTEGER, ..PLAIN };
    let numbers = read(&rig, "integer", texture(&rig, bytes, whole), &at);
    assert_eq!(numbers, [[0, 0x33, 0, 0xff], [0x80, 3, 2, 1]]);
    let shorts = array(&rig, &desc([2, 1, 0], S16, 2, 0), &[0x8001_7fff, 0xffff_0000]);
    let fractions = all(read(&rig, "point", texture(&rig, shorts, PLAIN), &at));
    assert_eq!([fractions[0][0], fractions[0][1], fractions[1][0]], [1.0, -1.0, 0.0]);
    let numbers = read(&rig, "integer", texture(&rig, shorts, whole), &at);
    assert_eq!([numbers[0][1], numbers[1][1]], [0xffff_8001, 0xffff_ffff]);
    let halves = array(&rig, &desc([2, 1, 0], HALF, 2, 0), &[0x3c00_c000, 0x3800_0000]);
    let halves = all(read(&rig, "point", texture(&rig, halves, PLAIN), &at));
    assert_eq!([halves[0][0], halves[0][1], halves[1][1]], [-2.0, 1.0, 0.5]);
}

pub(super) fn memory_is_read_as_a_texture(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let values: Vec<f32> = (0..1024).map(|value| value as f32).collect();
    rig.put(rig.at(0), &bits(&values));
    let create = |resource| {
        backend.texture_create(rig.ctx, &RawTexture { resource, sampling: PLAIN, view: None }).unwrap()
    };
    let line = create(Resource::Linear { address: rig.at(512), format: FLOAT, channels: 1, bytes: 256 });
    let at = [0u32, 1, 63].map(|x| [x, 0, 0, 0]);
    assert_eq!(first(read(&rig, "fetch", line, &at)), [128.0, 129.0, 191.0]);
    let rows = Resource::Pitch2D {
        address: rig.at(0),
        format: FLOAT,
        channels: 1,
        width: 10,
        height: 4,
        pitch: 512,
    };
    let at = spots([[0.5, 0.5, 0.0], [9.5, 2.5, 0.0], [20.0, 20.0, 0.0]]);
    assert_eq!(first(read(&rig, "point", create(rows), &at)), [0.0, 265.0, 393.0]);
}

pub(super) fn layers_and_faces_are_apart(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let values = |count: u32| bits(&(0..count).map(|value| value as f32).collect::<Vec<_>>());
    let layers = array(&rig, &desc([4, 2, 3], FLOAT, 1, ArrayDesc::LAYERED), &values(24));
    let at =
        [[0, 0], [1, 2], [3, 7]].map(|[x, layer]| [(x as f32 + 0.5).to_bits(), 1.5f32.to_bits(), 0, layer]);
    assert_eq!(first(read(&rig, "layer", texture(&rig, layers, PLAIN), &at)), [4.0, 21.0, 23.0]);
    let lines = array(&rig, &desc([4, 0, 3], FLOAT, 1, ArrayDesc::LAYERED), &values(12));
    assert_eq!(first(read(&rig, "line_layer", texture(&rig, lines, PLAIN), &at)), [0.0, 9.0, 11.0]);
    let cube = array(&rig, &desc([1, 1, 6], FLOAT, 1, ArrayDesc::CUBEMAP), &values(6));
    let normalized = Sampling { flags: Sampling::NORMALIZED, ..PLAIN };
    let at = spots([
        [1.0, 0.2, 0.1],
        [-1.0, 0.2, 0.1],
        [0.1, 1.0, 0.1],
        [0.1, -1.0, 0.1],
        [0.1, 0.1, 1.0],
        [0.1, 0.1, -1.0],
    ]);
    let faces = first(read(&rig, "cube", texture(&rig, cube, normalized), &at));
    assert_eq!(faces, [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
}

pub(super) fn levels_are_chosen(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let desc = desc([4, 4, 0], FLOAT, 1, 0);
    let mipmap = backend.mipmap_create(rig.ctx, &desc, 3).unwrap();
    for level in 0..3 {
        let array = backend.mipmap_level(rig.ctx, mipmap, level).unwrap();
        let desc = desc.level(level);
        let texels = (desc.width * desc.height) as usize;
        put(&rig, array, &desc, &vec![(16.0 * level as f32).to_bits(); texels]);
    }
    let create = |sampling, view| {
        let texture = RawTexture { resource: Resource::Mipmap(mipmap), sampling, view };
        backend.texture_create(rig.ctx, &texture).unwrap()
    };
    let nearest = Sampling { flags: Sampling::NORMALIZED, max_level: 9.0, ..PLAIN };
    let mixed = Sampling { mipmap_filter: Sampling::LINEAR, ..nearest };
    let at = spots([-1.0, 0.0, 0.25, 1.0, 1.5, 9.0].map(|lod| [0.5, 0.5, lod]));
    assert_eq!(first(read(&rig, "level", create(mixed, None), &at)), [0.0, 0.0, 4.0, 16.0, 24.0, 32.0]);
    let at = spots([0.0, 0.25, 0.75, 2.0].map(|lod| [0.5, 0.5, lod]));
    assert_eq!(first(read(&rig, "level", create(nearest, None), &at)), [0.0, 0.0, 16.0, 32.0]);
    let view =
        ResourceView { format: FLOAT_1X32, width: 4, height: 4, depth: 0, levels: (1, 2), layers: (0, 0) };
    assert_eq!(first(read(&rig, "level", create(nearest, Some(view)), &at)), [16.0, 16.0, 32.0, 32.0]);
    backend.mipmap_destroy(rig.ctx, mipmap).unwrap();
}

pub(super) fn surfaces_are_read_and_written(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    let desc = desc([8, 4, 0], FLOAT, 1, ArrayDesc::SURFACE);
    let words: Vec<u32> = (0..32).collect();
    let array = array(&rig, &desc, &words);
    let surface = backend.surface_create(rig.ctx, array).unwrap();
    // Bytes along the row, then rows; pairs of words that begin in pairs.
    let at = [[8, 1, 0, 0], [24, 3, 0, 0], [32, 0, 0, 0], [0, 4, 0, 0]];
    assert_eq!(read(&rig, "load", surface, &at), [[10, 11, 0, 0], [30, 31, 0, 0], [0; 4], [0; 4]]);
    let at = [[4, 1, 0, 0], [400, 9, 0, 0], [-4i32 as u32, 2, 0, 0]];
    let clamped: Vec<u32> = read(&rig, "load_clamped", surface, &at).iter().map(|read| read[0]).collect();
    assert_eq!(clamped, [9, 31, 16]);
    let at = [[4, 0, 100, 0], [28, 3, 131, 0], [32, 0, 7, 0], [0, 4, 7, 0]];
    read(&rig, "store", surface, &at);
    let mut expected = words;
    (expected[1], expected[31]) = (100, 131);
    assert_eq!(get(&rig, array, &desc), expected);
    backend.surface_destroy(rig.ctx, surface).unwrap();
    backend.array_destroy(rig.ctx, array).unwrap();
}

pub(super) fn surfaces_are_read_in_wider_pieces_than_their_elements(backend: &dyn Backend) {
    let rig = Rig::new(backend);
    // Rows that would begin anywhere if nothing were between them.
    let desc = desc([6, 4, 0], U8, 1, ArrayDesc::SURFACE);
    let bytes: Vec<u8> = (0..24).collect();
    let word = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let words: Vec<u32> = (0..6).map(|at| word(at * 4)).collect();
    let array = array(&rig, &desc, &words);
    let surface = backend.surface_create(rig.ctx, array).unwrap();
    let at = [[0, 0, 0, 0], [0, 1, 0, 0], [0, 3, 0, 0]];
    let read: Vec<u32> = read(&rig, "load_clamped", surface, &at).iter().map(|read| read[0]).collect();
    assert_eq!(read, [word(0), word(6), word(18)]);
    assert_eq!(get(&rig, array, &desc), words);
}
