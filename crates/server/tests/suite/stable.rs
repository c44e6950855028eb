//! An image of a real job, taken long ago: every later Dormouse reads it, and makes its session go on. It was taken once, by `dormouse
//! checkpoint --stop`, of the guest `driver_api` on the software device (`guests/driver_api.cu`), and is never written again; it lacks the two
//! files of Dormouse's own that make up most of such an image (`crates/store/examples/slim.rs`, `lib/libcuda.so.1` and `.host/init`).
//! With the versions of a session's state came images of more guests, which have objects of more sorts, without their host halves.
#![allow(clippy::unwrap_used)]

use crate::common::{self, App, Images, LONG, Thread};
use server::state::SessionState;
use std::path::Path;
use store::{Diff, Image, Store, find_object, object_name};
use wire::*;

/// The guest's one session, its context, and its module `beta.ptx`.
const SESSION: u32 = 1;
const CTX: ContextId = ContextId(3);
const BETA: ModuleId = ModuleId(5);
/// How many words the module's global has, and how many rounds a step.
const STATE: u32 = 1 << 12;
const WORK: u32 = 24;
/// The last step that the guest had launched.
const STEP: u32 = 196;
/// The guest's two allocations lie one behind the other, in one object: where, and their bytes.
const MEMORY: u64 = 0x2000_0000_0000;
const SIZES: [u32; 2] = [96 * 512, 96 * 96 * 4];

fn golden() -> (Store, Image) {
    let store = Store::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1")).unwrap();
    let image = store.open_foreign_image(&store.find("golden").unwrap().id).unwrap();
    (store, image)
}

/// `guest::mix` of `guests/guest.cuh`.
fn mix(mut hash: u32, value: u32) -> u32 {
    hash ^= value.wrapping_mul(0x9e37_79b1);
    hash ^= hash >> 16;
    hash = hash.wrapping_mul(0x85eb_ca6b);
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(0xc2b2_ae35);
    hash ^ hash >> 16
}

/// What `beta_advance` makes of the module's global.
fn advance(state: &mut [u32], key: u32, step: u32) {
    for (word, value) in state.iter_mut().zip(step..) {
        *word = (value..value + WORK).fold(word.wrapping_add(key), mix);
    }
}

fn read(thread: &mut Thread, src: u64, bytes: u32) -> Vec<u8> {
    thread.call(CopyToInline { ctx: CTX, stream: Stream::Legacy, src, bytes }).unwrap().0
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

#[test]
fn an_old_image_is_read() {
    let (store, image) = golden();
    let id = image.manifest().id;
    let listing = store.list().unwrap();
    assert_eq!((listing.images.len(), listing.damaged.len()), (1, 0));
    for report in [store.verify(&id, &mut |_| {}).unwrap(), store.verify_structure(&id).unwrap()] {
        assert!(report.ok && report.objects == 31, "{report:?}");
    }
    let details = store.inspect(&id).unwrap();
    assert_eq!((details.cwd.as_str(), details.summary.command[0].as_str()), ("/srv/guest", "./driver_api"));
    assert_eq!(details.objects.iter().filter(|object| object.kind == "criu_file").count(), 21);
    assert!(store.diff(&id, &id).unwrap().is_empty());
    let mut record = Vec::new();
    image.copy_to(&find_object(image.manifest(), "record").unwrap().kind, &mut record).unwrap();
    assert!(record.starts_with(b"{\"version\":1,"));
}

#[test]
fn the_session_of_an_old_image_goes_on() {
    let (_, image) = golden();
    let app = App::of_job(&image, SESSION);
    let mut thread = app.thread();
    // Device memory is what the image says, the module's global what the guest had computed.
    let memory = &find_object(image.manifest(), &format!("{MEMORY:#x}")).unwrap().kind;
    let expected = image.read_to_vec(memory, 1 << 20).unwrap();
    let [square, turned] = [(MEMORY, SIZES[0]), (MEMORY + u64::from(SIZES[0]), SIZES[1])];
    let found = [square, turned].map(|(place, bytes)| read(&mut thread, place, bytes)).concat();
    assert!(found == expected, "the memory at {MEMORY:#x} is not that of the image");
    let mut state = vec![0; STATE as usize];
    state[0] = 0xbe7a;
    (1..=STEP).for_each(|step| advance(&mut state, mix(step, WORK), step));
    let mut global = |name: &str| thread.call(ModuleGetGlobal { module: BETA, name: name.into() }).unwrap();
    let (place, key_place) = (global("beta_state"), global("beta_key"));
    assert_eq!((place.1, key_place.1), (u64::from(STATE) * 4, 4));
    assert!(words(&read(&mut thread, place.0, STATE * 4)) == state, "the global is not that of step {STEP}");
    // Its code runs.
    let (step, key) = (STEP + 1, mix(STEP + 1, WORK));
    let (data, stream) = (Bytes(key.to_le_bytes().into()), Stream::Legacy);
    thread.send(CopyFromInline { ctx: CTX, stream, dst: key_place.0, data });
    let function = FunctionId(1 << 30);
    thread.call(ModuleGetFunction { module: BETA, function, name: "beta_advance".into() }).unwrap();
    thread.send(Launch {
        ctx: CTX,
        stream,
        callee: Callee::Function(function),
        grid: [STATE / 256, 1, 1],
        block: [256, 1, 1],
        shared: 0,
        attributes: vec![],
        params: Bytes([step, WORK].into_iter().flat_map(u32::to_le_bytes).collect()),
    });
    advance(&mut state, key, step);
    assert!(words(&read(&mut thread, place.0, STATE * 4)) == state, "the global is not that of step {step}");
    // And it can be captured again, with the number that sessions of this suite have: the memory's chunks are the same.
    let images = Images::new();
    app.session.close_gate(LONG).unwrap();
    let (id, _) = images.capture(&app.session);
    let again = images.store.manifest(&id).unwrap();
    let diff = Diff::of(image.manifest(), &again);
    assert!(diff.shared.chunks > 0 && diff.only_b.chunks > 0, "{diff:?}");
    let name = object_name(memory).replace("s1", &format!("s{}", common::SESSION));
    let [before, after] = [image.object(memory).unwrap(), find_object(&again, &name).unwrap()];
    assert_eq!(before.extents, after.extents);
    let _ = app.kill();
}

/// How many objects of each sort.
fn counts(of: &SessionState) -> [usize; 12] {
    [
        of.streams.len(),
        of.events.len(),
        of.modules.len(),
        of.functions.len(),
        of.libraries.len(),
        of.kernels.len(),
        of.graphs.len(),
        of.slabs.len(),
        of.pinned.len(),
        of.shadows.len(),
        of.stream_attributes.len(),
        of.divided.len(),
    ]
}

/// Of version 11 of the state: what a session has made again is captured as it was in the image.
#[test]
fn the_objects_of_old_images_are_made_again() {
    let store = Store::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v11")).unwrap();
    // Arrays, textures and surfaces; graphs; addresses and pieces of memory; managed memory with shadow pages; a kernel half-way.
    for job in ["textures", "nodes", "vmm", "shadows", "half-way"] {
        let image = store.open_foreign_image(&store.find(job).unwrap().id).unwrap();
        assert!(store.verify(&image.manifest().id, &mut |_| {}).unwrap().ok, "{job}");
        let state = |bytes: &[u8]| SessionState::from_bytes(bytes).unwrap().0;
        let whole =
            image.read_to_vec(&find_object(image.manifest(), "state:s1").unwrap().kind, 8 << 20).unwrap();
        let before = state(&whole);
        let app = App::of_job(&image, SESSION);
        let images = Images::new();
        app.session.close_gate(LONG).unwrap();
        let (id, again) = images.capture(&app.session);
        let after = state(&again);
        let launches = |of: &SessionState| {
            of.half_way
                .iter()
                .map(|each| (each.kernel.clone(), each.code, each.launched.clone()))
                .collect::<Vec<_>>()
        };
        assert_eq!(launches(&before), launches(&after), "{job}");
        assert_eq!(before.half_way.is_empty(), job != "half-way");
        assert_eq!(counts(&before), counts(&after), "{job}");
        // What was still to be done of the others changes their memory before it is captured again.
        if job == "vmm" {
            let again = images.store.manifest(&id).unwrap();
            for object in image
                .manifest()
                .objects
                .iter()
                .filter(|object| object_name(&object.kind).starts_with("device:"))
            {
                let name = object_name(&object.kind).replace("s1", &format!("s{}", common::SESSION));
                assert_eq!(object.extents, find_object(&again, &name).unwrap().extents, "{job}: {name}");
            }
        }
        let _ = app.kill();
    }
}
