//! Arrays, textures and surfaces: copies, and what a restart brings back.
#![allow(clippy::unwrap_used)]

use crate::common::{App, BASIC, CTX, Images, LONG, Pinned, SESSION, Thread, rehearse, rehearse_on};
use backend_soft::{Options, SoftBackend};
use server::objects::{TexelKey, TexelKind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use wire::*;

const FLOAT: u32 = 32;
const TEXTURES: &str = include_str!("../../../backend/src/conformance/ptx/textures.ptx");

fn desc(sizes: [u64; 3], flags: u32) -> ArrayDesc {
    ArrayDesc { width: sizes[0], height: sizes[1], depth: sizes[2], format: FLOAT, channels: 1, flags }
}

fn sampling() -> Sampling {
    Sampling {
        address: [1; 3],
        filter: 0,
        flags: 0,
        max_anisotropy: 0,
        mipmap_filter: 0,
        level_bias: 0.0,
        min_level: 0.0,
        max_level: 9.0,
        border: [0.0; 4],
    }
}

/// A thread with a page of pinned memory that arrays are filled from and read into.
struct Rig {
    thread: Thread,
    page: Pinned,
    address: u64,
}

const PAGE: PinnedId = PinnedId(900);

impl Rig {
    fn new(app: &App, mut thread: Thread) -> Self {
        let (page, address) = app.pinned(&mut thread, PAGE, 4096);
        Self { thread, page, address }
    }

    fn copy(&mut self, dst: CopySide, src: CopySide, shape: ArrayShape) {
        let ArrayShape { row: width, rows: height, slices: depth, .. } = shape;
        self.thread.send(CopyBox { ctx: CTX, stream: Stream::Legacy, dst, src, width, height, depth });
        self.thread.call(StreamSynchronize { ctx: CTX, stream: Stream::Legacy }).unwrap();
    }

    fn page(&self, shape: ArrayShape) -> CopySide {
        CopySide::Memory(Pitched { address: self.address, pitch: shape.row, rows: shape.rows })
    }

    fn put(&mut self, array: ArrayId, desc: &ArrayDesc, seed: u32) {
        let shape = desc.shape().unwrap();
        for word in 0..shape.bytes() as usize / 4 {
            self.page.word(word).store(seed + word as u32, Ordering::Release);
        }
        self.copy(CopySide::Array(array, [0; 3]), self.page(shape), shape);
    }

    fn holds(&mut self, array: ArrayId, desc: &ArrayDesc, seed: u32) {
        let shape = desc.shape().unwrap();
        (0..1024).for_each(|word| self.page.word(word).store(0, Ordering::Release));
        self.copy(self.page(shape), CopySide::Array(array, [0; 3]), shape);
        for word in 0..shape.bytes() as usize / 4 {
            assert_eq!(
                self.page.word(word).load(Ordering::Acquire),
                seed + word as u32,
                "word {word} of {array:?}"
            );
        }
    }

    fn texture(&mut self, resource: Resource) -> u64 {
        let texture = TextureDesc { resource, sampling: sampling(), view: None };
        self.thread.call(TextureCreate { ctx: CTX, texture }).unwrap()
    }

    fn create(&mut self, array: u32, desc: ArrayDesc) -> ArrayId {
        let array = ArrayId(array);
        self.thread.call(ArrayCreate { ctx: CTX, array, desc }).unwrap();
        array
    }
}

#[test]
fn arrays_and_objects_come_back_as_they_were() {
    let (mut app, thread) = App::with_context();
    let images = Images::new();
    let mut rig = Rig::new(&app, thread);
    let (flat, solid, layers) =
        (desc([7, 5, 0], ArrayDesc::SURFACE), desc([4, 3, 2], 0), desc([6, 0, 3], ArrayDesc::LAYERED));
    let first = rig.create(10, flat);
    let second = rig.create(11, solid);
    let third = rig.create(12, layers);
    let (mipmap, pyramid) = (MipmapId(20), desc([8, 8, 0], 0));
    rig.thread.call(MipmapCreate { ctx: CTX, mipmap, desc: pyramid, levels: 3 }).unwrap();
    let mut contents = vec![(first, flat, 100), (second, solid, 200), (third, layers, 300)];
    for (level, seed) in [(1, 400), (0, 600), (2, 700)] {
        let array = ArrayId(21 + level);
        rig.thread.call(MipmapLevel { mipmap, level, array }).unwrap();
        contents.push((array, pyramid.level(level), seed));
    }
    for &(array, desc, seed) in &contents {
        rig.put(array, &desc, seed);
    }
    // Values that are not in the order of the objects' making, and one whose array the program has let go of.
    let values: Vec<_> = (0..3).map(|_| rig.texture(Resource::Array(first))).collect();
    rig.thread.send(TextureDestroy { ctx: CTX, texture: values[0] });
    let orphan = rig.create(13, solid);
    rig.put(orphan, &solid, 500);
    let kept = rig.texture(Resource::Array(orphan));
    rig.thread.send(ArrayDestroy { array: orphan });
    let mipmapped = rig.texture(Resource::Mipmap(mipmap));
    let surface = rig.thread.call(SurfaceCreate { ctx: CTX, array: first }).unwrap();
    let memory = rig.thread.alloc(4096);
    // Beyond its allocation, as a driver allows.
    let linear = rig.texture(Resource::Linear { address: memory, format: FLOAT, channels: 1, bytes: 8192 });
    rig.thread.send(TextureDestroy { ctx: CTX, texture: values[1] });
    assert!(kept == values[0] && kept < values[2], "the device gives values again: {kept} {values:?}");
    let module = app.load(&mut rig.thread, 30, TEXTURES);
    let point = rig.thread.function(module, 31, "point");
    let [spots, out] = [rig.thread.alloc(64), rig.thread.alloc(64)];
    let centre = |x: f32, y: f32| [x + 0.5, y + 0.5, 0.0, 0.0].map(f32::to_bits);
    rig.thread.put(spots, &[centre(2.0, 3.0), centre(6.0, 4.0), centre(0.0, 1.0)].concat());
    let sampled = |rig: &mut Rig, texture: u64| {
        rig.thread.launch(point, Stream::Legacy, 3, &[texture, spots, out], &[]);
        rig.thread.get(out, 12).chunks(4).map(|spot| spot[0]).collect::<Vec<_>>()
    };
    // What the kernel reads are the rows' words.
    let [of_first, of_pyramid] =
        [(100, 7), (600, 8)].map(|(seed, row)| [2 + 3 * row, 6 + 4 * row, row].map(|word| seed + word));
    let seen = [sampled(&mut rig, values[2]), sampled(&mut rig, mipmapped)];
    assert_eq!(seen, [of_first, of_pyramid]);

    app.session.close_gate(LONG).unwrap();
    assert_eq!(app.session.refusals(), Vec::<String>::new());
    let (id, state) = images.capture(&app.session);
    let address = rig.address;
    drop(rig);
    let (dir, addresses) = app.kill();
    rehearse(&state).unwrap();

    let image = images.store.open_image(&id).unwrap();
    let app = App::restore(dir, addresses, SESSION, &image);
    // The first piece of its slab.
    let place = PinnedPlace { address, slab: Some((address, 0)) };
    let mut rig = Rig { thread: app.thread(), page: Pinned::at(app.dir.path(), PAGE, place), address };
    for (array, desc, seed) in contents {
        rig.holds(array, &desc, seed);
    }
    assert_eq!([sampled(&mut rig, values[2]), sampled(&mut rig, mipmapped)], [of_first, of_pyramid]);
    let texel = |value| TexelKey { ctx: CTX, kind: TexelKind::Texture, value };
    let mut known: Vec<_> =
        app.session.cut().unwrap().state.textures.texels.iter().map(|texel| texel.record.key()).collect();
    known.sort_unstable();
    let mut expected: Vec<_> = [kept, values[2], mipmapped, linear].into_iter().map(texel).collect();
    expected.push(TexelKey { kind: TexelKind::Surface, ..texel(surface) });
    expected.sort_unstable();
    assert_eq!(known, expected);
    // The array whose texture has outlived it has no handle.
    let gone = CopySide::Array(orphan, [0; 3]);
    let shape = solid.shape().unwrap();
    let copy = CopyBox {
        ctx: CTX,
        stream: Stream::Legacy,
        dst: rig.page(shape),
        src: gone,
        width: 16,
        height: 1,
        depth: 1,
    };
    rig.thread.send(copy);
    rig.thread.call(StreamSynchronize { ctx: CTX, stream: Stream::Legacy }).unwrap();
    assert_eq!(app.client.control().take_error(), Some(CuError::INVALID_HANDLE));
    // What was in use is free again when it is destroyed, and nothing else is in use.
    assert_eq!(rig.texture(Resource::Array(first)), values[1]);
    rig.thread.send(TextureDestroy { ctx: CTX, texture: kept });
    assert_eq!(rig.texture(Resource::Array(first)), kept);
}

#[test]
fn attributes_of_streams_come_back() {
    let (app, mut thread) = App::with_context();
    let images = Images::new();
    let [stream] = thread.streams([5]);
    let streams = [Stream::Created(stream), Stream::Legacy];
    for (stream, first) in streams.into_iter().zip(1..) {
        let mut value = [0; 64];
        value[0] = first;
        let attribute = StreamSetAttribute { ctx: CTX, stream, attribute: 3, value: LaunchValue(value) };
        thread.call(attribute).unwrap();
    }
    app.session.close_gate(LONG).unwrap();
    let (id, _) = images.capture(&app.session);
    drop(thread);
    let (dir, addresses) = app.kill();
    let app = App::restore(dir, addresses, SESSION, &images.store.open_image(&id).unwrap());
    let mut thread = app.thread();
    let told = streams
        .map(|stream| thread.call(StreamGetAttribute { ctx: CTX, stream, attribute: 3 }).unwrap().0[0]);
    assert_eq!(told, [1, 2]);
    let unknown = StreamGetAttribute { ctx: CTX, stream: Stream::Legacy, attribute: 99 };
    assert_eq!(thread.call(unknown), Err(CuError::INVALID_VALUE));
}

#[test]
fn a_texture_of_freed_memory_refuses_the_checkpoint() {
    let (app, thread) = App::with_context();
    let mut rig = Rig::new(&app, thread);
    let memory = rig.thread.alloc(4096);
    let value = rig.texture(Resource::Linear { address: memory, format: FLOAT, channels: 1, bytes: 4096 });
    rig.thread.send(MemFree { address: memory });
    rig.thread.call(StreamSynchronize { ctx: CTX, stream: Stream::Legacy }).unwrap();
    app.session.close_gate(LONG).unwrap();
    let refusals = app.session.refusals();
    assert_eq!(refusals.len(), 1, "{refusals:?}");
    assert!(refusals[0].contains(&format!("texture object {value:#x}")) && refusals[0].contains("freed"));
    app.session.open_gate();
    rig.thread.send(TextureDestroy { ctx: CTX, texture: value });
    let page = Resource::Linear { address: rig.address, format: FLOAT, channels: 1, bytes: 4096 };
    rig.texture(page);
    app.session.close_gate(LONG).unwrap();
    let refusals = app.session.refusals();
    assert!(refusals.len() == 1 && refusals[0].contains("is the host's"), "{refusals:?}");
}

#[test]
fn copies_stay_inside_of_arrays() {
    let (app, thread) = App::with_context();
    let mut rig = Rig::new(&app, thread);
    let array = rig.create(10, desc([7, 5, 0], 0));
    let mut refused = |at: [u64; 3], [width, height, depth]: [u64; 3]| {
        let (dst, src) = (
            CopySide::Array(array, at),
            CopySide::Memory(Pitched { address: rig.address, pitch: 512, rows: 8 }),
        );
        rig.thread.send(CopyBox { ctx: CTX, stream: Stream::Legacy, dst, src, width, height, depth });
        rig.thread.call(StreamSynchronize { ctx: CTX, stream: Stream::Legacy }).unwrap();
        app.client.control().take_error()
    };
    assert_eq!(refused([0; 3], [28, 5, 1]), None);
    for (at, extent) in [
        ([4, 0, 0], [28, 1, 1]),
        ([0, 5, 0], [4, 1, 1]),
        ([0, 0, 1], [4, 1, 1]),
        ([2, 0, 0], [4, 1, 1]),
        ([u64::MAX - 3, 0, 0], [4, 1, 1]),
        ([0, u64::MAX, 0], [4, 2, 1]),
    ] {
        assert_eq!(refused(at, extent), Some(CuError::INVALID_VALUE), "{extent:?} at {at:?}");
    }
}

#[test]
fn freed_memory_makes_room() {
    const MIB: u64 = 1 << 20;
    /// 40 MiB.
    const LARGE: ArrayDesc =
        ArrayDesc { width: 1024, height: 10 << 10, depth: 0, format: FLOAT, channels: 1, flags: 0 };
    type Make = fn(&mut Thread) -> Result<(), CuError>;
    type Destroy = fn(&mut Thread);
    let (mut app, thread) = App::with_memory(64 * MIB);
    let mut rig = Rig::new(&app, thread);
    let ways: [(Make, Destroy); 3] = [
        (
            |thread| thread.call(ArrayCreate { ctx: CTX, array: ArrayId(10), desc: LARGE }),
            |thread| thread.send(ArrayDestroy { array: ArrayId(10) }),
        ),
        (
            |thread| thread.call(MipmapCreate { ctx: CTX, mipmap: MipmapId(11), desc: LARGE, levels: 1 }),
            |thread| thread.send(MipmapDestroy { mipmap: MipmapId(11) }),
        ),
        (
            |thread| {
                let physical = PhysicalId(12);
                thread.call(PhysicalCreate {
                    physical,
                    device: Device(0),
                    bytes: 40 * MIB,
                    handle_types: 0,
                    compressible: false,
                })
            },
            |thread| thread.call(PhysicalRelease { physical: PhysicalId(12) }).unwrap(),
        ),
    ];
    let module = app.load(&mut rig.thread, 2, BASIC);
    let wait_for = rig.thread.function(module, 3, "wait_for");
    for (round, (make, destroy)) in (1..).zip(ways) {
        let full = rig.thread.alloc(48 * MIB);
        assert_eq!(make(&mut rig.thread), Err(CuError::OUT_OF_MEMORY));
        rig.thread.send(MemFree { address: full });
        make(&mut rig.thread).unwrap();
        destroy(&mut rig.thread);
        // What a kernel may still use is waited for.
        let full = rig.thread.alloc(48 * MIB);
        rig.page.word(0).store(0, Ordering::Release);
        rig.thread.launch(wait_for, Stream::Legacy, 1, &[rig.address, rig.address + 4], &[]);
        rig.thread.send(MemFree { address: full });
        // Whoever comes next sees that it is freed.
        assert_eq!(rig.thread.call(StreamQuery { ctx: CTX, stream: Stream::Legacy }), Ok(false));
        let mut other = app.thread();
        std::thread::scope(|scope| {
            let made = scope.spawn(move || make(&mut other));
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert!(!made.is_finished(), "round {round}: there is no room yet");
            rig.page.word(0).store(1, Ordering::Release);
            made.join().unwrap().unwrap();
        });
        destroy(&mut rig.thread);
    }
}

#[test]
fn a_rehearsal_without_room_for_what_textures_read_is_told_so() {
    let (app, thread) = App::with_context();
    let images = Images::new();
    let mut rig = Rig::new(&app, thread);
    let memory = rig.thread.alloc(8 << 20);
    rig.texture(Resource::Linear { address: memory, format: FLOAT, channels: 1, bytes: 8 << 20 });
    app.session.close_gate(LONG).unwrap();
    let (_, state) = images.capture(&app.session);
    drop(rig);
    let _files = app.kill();
    rehearse(&state).unwrap();
    let small = SoftBackend::new(Options { memory: 4 << 20, ..Options::default() });
    let error = rehearse_on(Arc::new(small), &state).unwrap_err();
    assert!(error.is_out_of_memory(), "{error}");
}

#[test]
fn values_come_back_where_contexts_share_them() {
    let (app, thread) = App::with_context();
    let images = Images::new();
    let mut rig = Rig::new(&app, thread);
    let other = ContextId(50);
    rig.thread.call(ContextCreate { ctx: other, device: Device(0), flags: 0, primary: false }).unwrap();
    let array = |rig: &mut Rig, ctx, id| {
        let array = ArrayId(id);
        rig.thread.call(ArrayCreate { ctx, array, desc: desc([8, 8, 0], ArrayDesc::SURFACE) }).unwrap();
        array
    };
    let (here, there) = (array(&mut rig, CTX, 10), array(&mut rig, other, 11));
    let surface = |rig: &mut Rig, ctx, array| rig.thread.call(SurfaceCreate { ctx, array }).unwrap();
    // The value of the first is one of this context's again, after one of the other's with a later value.
    let first = surface(&mut rig, CTX, here);
    let second = surface(&mut rig, other, there);
    rig.thread.send(SurfaceDestroy { ctx: CTX, surface: first });
    let third = surface(&mut rig, CTX, here);
    assert_eq!((first, first == second), (third, false), "the device has one table for all contexts");
    app.session.close_gate(LONG).unwrap();
    let (id, state) = images.capture(&app.session);
    drop(rig);
    let (dir, addresses) = app.kill();
    rehearse(&state).unwrap();
    let app = App::restore(dir, addresses, SESSION, &images.store.open_image(&id).unwrap());
    let texels = app.session.cut().unwrap().state.textures.texels;
    let mut keys: Vec<_> = texels.iter().map(|texel| (texel.record.ctx, texel.record.value)).collect();
    keys.sort_unstable();
    assert_eq!(keys, [(CTX, third), (other, second)]);
}

/// An array ends when the program says so, whatever textures there are of it; what they are called is taken all the same.
#[test]
fn objects_do_not_keep_arrays() {
    const MIB: u64 = 1 << 20;
    let (app, thread) = App::with_memory(64 * MIB);
    let images = Images::new();
    let mut rig = Rig::new(&app, thread);
    let free = |rig: &mut Rig| rig.thread.call(MemInfo { ctx: CTX }).unwrap().0;
    // 4 MiB.
    let large = desc([1024, 1024, 0], ArrayDesc::SURFACE);
    let before = free(&mut rig);
    let mut values = Vec::new();
    for _ in 0..24 {
        let array = rig.create(10, large);
        values.push(rig.texture(Resource::Array(array)));
        rig.thread.call(SurfaceCreate { ctx: CTX, array }).unwrap();
        rig.thread.send(ArrayDestroy { array });
        let (mipmap, array) = (MipmapId(11), ArrayId(12));
        rig.thread.call(MipmapCreate { ctx: CTX, mipmap, desc: large, levels: 3 }).unwrap();
        rig.thread.call(MipmapLevel { mipmap, level: 1, array }).unwrap();
        values.push(rig.texture(Resource::Mipmap(mipmap)));
        rig.thread.call(SurfaceCreate { ctx: CTX, array }).unwrap();
        rig.thread.send(MipmapDestroy { mipmap });
    }
    rig.thread.synchronize().unwrap();
    assert_eq!(free(&mut rig), before);
    // Another array of the same name is not the one that they were made over.
    rig.create(10, desc([8, 8, 0], ArrayDesc::SURFACE));
    app.session.close_gate(LONG).unwrap();
    assert_eq!(app.session.refusals(), Vec::<String>::new());
    let told = app.session.cut().unwrap();
    assert_eq!(told.bytes(), 8 * 8 * 4);
    let keys = |told: server::capture::Cut| {
        let texels = told.state.textures.texels;
        texels.into_iter().map(|texel| (texel.record.key(), texel.lost)).collect::<Vec<_>>()
    };
    let told = keys(told);
    assert!(told.len() == 96 && told.iter().all(|(_, lost)| lost.is_some()), "{told:?}");
    let (id, state) = images.capture(&app.session);
    drop(rig);
    let (dir, addresses) = app.kill();
    rehearse(&state).unwrap();
    let app = App::restore(dir, addresses, SESSION, &images.store.open_image(&id).unwrap());
    assert_eq!(keys(app.session.cut().unwrap()), told);
    let mut thread = app.thread();
    let (free, total) = thread.call(MemInfo { ctx: CTX }).unwrap();
    assert!(total - free < MIB, "what stood in for the arrays is gone: {free} of {total}");
    thread.send(TextureDestroy { ctx: CTX, texture: values[7] });
    let texture = TextureDesc { resource: Resource::Array(ArrayId(10)), sampling: sampling(), view: None };
    assert_eq!(thread.call(TextureCreate { ctx: CTX, texture }), Ok(values[7]));
}
