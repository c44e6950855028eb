//! Copies of device memory: the application goes on while they are written, and is not in their way, nor they in its.
#![allow(clippy::unwrap_used)]

use crate::common::{ANYWHERE, App, BASIC, Begun, CTX, Images, LONG, SESSION, Thread, restored};
use image::{DeviceOrdinal, MemoryKind, ObjectKind, SessionId};
use server::capture::{CopyBudget, CopyRoom, DeviceSet, Kept, Reads};
use wire::*;

const MIB: u64 = 1 << 20;

/// The words at the ends of memory, and over the border of two chunks.
fn places(address: u64, bytes: u64) -> [u64; 3] {
    [address, address + 2 * MIB - 8, address + bytes - 16]
}

fn fill(thread: &mut Thread, address: u64, bytes: u64, seed: u32) {
    for (number, place) in (0..).zip(places(address, bytes)) {
        thread.put(place, &[1, 2, 3, 4].map(|word| word + 100 * number + seed));
    }
    thread.synchronize().unwrap();
}

fn check(thread: &mut Thread, address: u64, bytes: u64, seed: u32) {
    for (number, place) in (0..).zip(places(address, bytes)) {
        assert_eq!(thread.get(place, 4), [1, 2, 3, 4].map(|word| word + 100 * number + seed), "{place:#x}");
    }
}

/// A capture with copies; the gate is closed.
fn begin(app: &App, images: &Images) -> Begun {
    let room = app.session.room_for_copies(ANYWHERE, &mut |_| Ok(()));
    app.session.close_gate(LONG).unwrap();
    images.begin(&app.session, room)
}

fn free(thread: &mut Thread) -> u64 {
    thread.call(MemInfo { ctx: CTX }).unwrap().0
}

#[test]
fn what_happens_behind_the_cut_is_in_no_image() {
    let (roomy, tight) = (1 << 30, 16 * MIB);
    let bytes = 12 * MIB;
    let on_host = Kept { on_host: bytes, ..Kept::default() };
    let written = Kept { written: bytes, ..Kept::default() };
    let mixed = Kept { on_device: 2 * MIB, on_host: 4 * MIB, written: 6 * MIB, ..Kept::default() };
    for (memory, budget, expected) in [
        (roomy, Some(ANYWHERE), Kept { on_device: bytes, ..Kept::default() }),
        (tight, Some(ANYWHERE), Kept { on_device: 2 * MIB, on_host: bytes - 2 * MIB, ..Kept::default() }),
        (roomy, Some(CopyBudget { on_devices: DeviceSet::NONE, ..ANYWHERE }), on_host),
        (tight, Some(CopyBudget { on_host: 4 * MIB, ..ANYWHERE }), mixed),
        (roomy, None, written),
    ] {
        let (app, mut thread) = App::with_memory(memory);
        let images = Images::new();
        let address = thread.alloc(bytes);
        fill(&mut thread, address, bytes, 0);
        let room =
            budget.map_or_else(CopyRoom::none, |budget| app.session.room_for_copies(budget, &mut |_| Ok(())));
        app.session.close_gate(LONG).unwrap();
        let begun = images.begin(&app.session, room);
        assert_eq!(begun.taken.kept, expected);
        app.session.open_gate();
        fill(&mut thread, address, bytes, 1000);
        let (id, _) = begun.publish(&mut |_| Ok(()));
        check(&mut thread, address, bytes, 1000);
        let (app, mut thread) = restored(app, thread, &images, &id);
        check(&mut thread, address, bytes, 0);
        let _ = app.kill();
    }
}

/// Memory can be divided between copies and the store, an array cannot.
#[test]
fn an_array_for_which_there_is_half_the_room_comes_back_whole() {
    let (app, mut thread) = App::with_memory(1 << 30);
    let images = Images::new();
    let (bytes, array) = (6 * MIB, ArrayId(70));
    let address = thread.alloc(bytes);
    let desc = ArrayDesc { width: 1024, height: bytes / 4096, depth: 0, format: 32, channels: 1, flags: 0 };
    thread.call(ArrayCreate { ctx: CTX, array, desc }).unwrap();
    let shape = desc.shape().unwrap();
    let copy = |thread: &mut Thread, dst, src| {
        let (width, height, depth) = (shape.row, shape.rows, 1);
        thread.send(CopyBox { ctx: CTX, stream: Stream::Legacy, dst, src, width, height, depth });
        thread.synchronize().unwrap();
    };
    let memory = CopySide::Memory(Pitched { address, pitch: shape.row, rows: shape.rows });
    fill(&mut thread, address, bytes, 7);
    copy(&mut thread, CopySide::Array(array, [0; 3]), memory);
    fill(&mut thread, address, bytes, 0);
    // The memory goes there, and a part of the array would.
    let budget = CopyBudget { on_devices: DeviceSet::NONE, on_host: bytes + 3 * MIB };
    let room = app.session.room_for_copies(budget, &mut |_| Ok(()));
    app.session.close_gate(LONG).unwrap();
    let begun = images.begin(&app.session, room);
    assert_eq!((begun.taken.kept.on_host, begun.taken.kept.written), (bytes, bytes));
    app.session.open_gate();
    let (id, _) = begun.publish(&mut |_| Ok(()));
    let (app, mut thread) = restored(app, thread, &images, &id);
    check(&mut thread, address, bytes, 0);
    copy(&mut thread, memory, CopySide::Array(array, [0; 3]));
    check(&mut thread, address, bytes, 7);
    let _ = app.kill();
}

/// What changes while copies are made is copied again, wherever it was taken to be, and the next checkpoint knows that it has changed.
#[test]
fn what_is_written_meanwhile_is_in_the_image() {
    let late = Kept { unchanged: 4 * MIB, ..Kept::default() };
    let wheres = [
        (Some(DeviceSet::ALL), (4 * MIB, false), Kept { on_device: 4 * MIB, on_host: 4 * MIB, ..late }),
        (Some(DeviceSet::ALL), (4 * MIB, true), Kept { on_device: 8 * MIB, ..late }),
        (Some(DeviceSet::NONE), (4 * MIB, false), Kept { on_host: 8 * MIB, ..late }),
        // What is written at once is not late.
        (None, (0, false), Kept { written: 8 * MIB, ..late }),
    ];
    for (on_devices, late, expected) in wheres {
        let (app, mut thread) = App::with_memory(1 << 30);
        let images = Images::new();
        let chunk = |address: u64, number: u64| address + number * 2 * MIB;
        let address = thread.alloc(12 * MIB);
        for number in 0..3 {
            thread.put(chunk(address, number), &[1, number as u32]);
        }
        thread.synchronize().unwrap();
        app.session.close_gate(LONG).unwrap();
        images.capture_again(&app.session);
        app.session.open_gate();
        thread.put(chunk(address, 0), &[2]);
        thread.put(chunk(address, 5) + 8, &[2]);
        thread.synchronize().unwrap();

        let room = on_devices.map_or_else(CopyRoom::none, |on_devices| {
            let budget = CopyBudget { on_devices, on_host: 12 * MIB };
            app.session.room_for_copies(budget, &mut |_| Ok(()))
        });
        app.session.close_gate(LONG).unwrap();
        let change = || {
            app.session.open_gate();
            // Copied, in the store, zeros, and the last of it.
            for number in [0, 1, 3, 5] {
                thread.put(chunk(address, number) + 4, &[7, number as u32]);
            }
            thread.synchronize().unwrap();
            app.session.close_gate(LONG).unwrap();
            let part = |number| backend::Range { base: chunk(address, number) + 4, bytes: 8 };
            vec![part(5), part(0), part(1), part(3), backend::Range { base: address - 4096, bytes: 4096 }]
        };
        let begun = images.begin_beside(&app.session, room, change, late);
        assert_eq!(begun.taken.kept, expected);
        app.session.open_gate();
        for number in 0..6 {
            thread.put(chunk(address, number), &[9; 4]);
        }
        thread.synchronize().unwrap();
        let (id, _) = begun.publish_of(Some(&app.session), &mut |_| Ok(()));
        // As it was when it was hashed, and not as it is in the image.
        for number in 0..6 {
            thread.put(chunk(address, number), &[0; 4]);
        }
        thread.put(chunk(address, 1), &[1, 1]);
        thread.synchronize().unwrap();
        app.session.close_gate(LONG).unwrap();
        let ((after, _), _) = images.capture_again(&app.session);
        let words = |thread: &mut Thread| -> Vec<_> {
            (0..6).map(|number| thread.get(chunk(address, number), 4)).collect()
        };
        let (app, mut thread) = restored(app, thread, &images, &id);
        let expected =
            [[2, 7, 0, 0], [1, 7, 1, 0], [1, 2, 0, 0], [0, 7, 3, 0], [0; 4], [0, 7, 5, 0]].map(Vec::from);
        assert_eq!(words(&mut thread), expected);
        let (app, mut thread) = restored(app, thread, &images, &after);
        assert_eq!(words(&mut thread), [[0; 4], [1, 1, 0, 0], [0; 4], [0; 4], [0; 4], [0; 4]].map(Vec::from));
        let _ = app.kill();
    }
}

/// Of the second checkpoint on, what is as it was stays where it is, and every image has all of it.
#[test]
fn what_has_not_changed_is_not_read_again() {
    let (app, mut thread) = App::with_memory(1 << 30);
    let images = Images::new();
    let bytes = 12 * MIB + 4096;
    let all = bytes.next_multiple_of(512);
    let [address, other] = [(); 2].map(|()| thread.alloc(bytes));
    for (number, base) in [(1, address), (2, other)] {
        for chunk in 0..6 {
            thread.put(base + chunk * 2 * MIB, &[number, chunk as u32 + 1]);
        }
        thread.synchronize().unwrap();
    }
    let take = |images: &Images| {
        app.session.close_gate(LONG).unwrap();
        let ((id, _), kept) = images.capture_again(&app.session);
        app.session.open_gate();
        (id, kept)
    };
    let (first, kept) = take(&images);
    let tails = 2 * (all - 12 * MIB);
    assert_eq!(kept, Kept { on_device: 24 * MIB, unchanged: tails, ..Kept::default() }, "all but zeros");
    let (_, kept) = take(&images);
    assert_eq!(kept, Kept { unchanged: 2 * all, ..Kept::default() });
    // Unless somebody does not believe it.
    app.session.close_gate(LONG).unwrap();
    let room = app.session.room_for_copies(ANYWHERE, &mut |_| Ok(()));
    let kept = images.begin_reading(&app.session, room, Reads::Saved).taken.kept;
    assert_eq!((kept.on_device, kept.unchanged), (2 * all, 0));
    app.session.open_gate();
    // The last byte of a chunk, and one behind all chunks so far.
    thread.put(address + 4 * MIB - 4, &[77]);
    thread.put(other + 12 * MIB, &[78]);
    thread.synchronize().unwrap();
    let (second, kept) = take(&images);
    assert_eq!((kept.on_device, kept.total()), (2 * MIB + tails / 2, 2 * all));
    let (_, kept) = take(&Images::new());
    assert_eq!(kept.on_device, 24 * MIB + tails / 2, "another store has nothing of it");
    // Another store's chunks are not this one's; it has them itself.
    let (third, kept) = take(&images);
    assert_eq!(kept.unchanged, 2 * all);
    for (id, [changed, behind]) in [(first, [0, 0]), (second, [77, 78]), (third, [77, 78])] {
        assert!(images.store.verify(&id, &mut |_| {}).unwrap().ok);
        let image = images.store.open_image(&id).unwrap();
        let word = |base: u64, at: u64| {
            let (session, device) = (SessionId(SESSION.into()), DeviceOrdinal(0));
            let kind = ObjectKind::DeviceMemory { session, device, memory: MemoryKind::Allocation, base };
            let bytes = image.read_to_vec(&kind, all as usize).unwrap();
            u32::from_le_bytes(bytes[at as usize..][..4].try_into().unwrap())
        };
        assert_eq!([word(address, 4 * MIB - 4), word(other, 12 * MIB)], [changed, behind]);
        assert_eq!([word(address, 6 * MIB + 4), word(other, 10 * MIB + 4)], [4, 6]);
    }
    let _ = app.kill();
}

/// What a restart has read from the image is not read from the device again.
#[test]
fn the_first_checkpoint_after_a_restart_reads_what_has_changed() {
    let (app, mut thread) = App::with_memory(1 << 30);
    let images = Images::new();
    let bytes = 256 * MIB;
    let [address, small] = [bytes, 4 * MIB].map(|bytes| thread.alloc(bytes));
    for chunk in 0..6 {
        thread.put(address + chunk * 2 * MIB, &[7, chunk as u32]);
    }
    thread.put(small, &[5]);
    thread.synchronize().unwrap();
    let take = |app: &App| {
        app.session.close_gate(LONG).unwrap();
        let ((id, _), kept) = images.capture_again(&app.session);
        app.session.open_gate();
        (id, kept)
    };
    let (first, _) = take(&app);
    let (app, mut thread) = restored(app, thread, &images, &first);
    thread.put(address + 2 * MIB, &[8]);
    thread.synchronize().unwrap();
    let (second, kept) = take(&app);
    assert_eq!((kept.on_device, kept.unchanged), (2 * MIB, bytes + 2 * MIB));
    let (app, mut thread) = restored(app, thread, &images, &second);
    let words = [0, 2, 4].map(|at| thread.get(address + at * MIB, 2));
    assert_eq!(words, [[7, 0], [8, 1], [7, 2]]);
    assert_eq!(thread.get(small, 1), [5]);
    let _ = app.kill();
}

/// The program sees nothing of them, and has all that it would have without.
#[test]
fn copies_give_way_to_what_is_allocated() {
    let (app, mut thread) = App::with_memory(64 * MIB);
    let images = Images::new();
    let bytes = 16 * MIB;
    let address = thread.alloc(bytes);
    fill(&mut thread, address, bytes, 0);
    let before = free(&mut thread);
    let begun = begin(&app, &images);
    assert_eq!(begun.taken.kept.on_device, bytes);
    app.session.open_gate();
    assert_eq!(free(&mut thread), before);
    fill(&mut thread, address, bytes, 1000);
    let mut all = None;
    let (id, _) = begun.publish(&mut |_| {
        // In the middle of it.
        all.get_or_insert_with(|| thread.alloc(before));
        Ok(())
    });
    let all = all.unwrap();
    assert_eq!(free(&mut thread), 0);
    fill(&mut thread, all, before, 2000);
    check(&mut thread, address, bytes, 1000);
    let (_app, mut thread) = restored(app, thread, &images, &id);
    check(&mut thread, address, bytes, 0);
}

#[test]
fn no_more_copies_give_way_than_is_needed() {
    const SLAB: u64 = 64 * MIB;
    let (app, mut thread) = App::with_memory(8 * SLAB);
    let images = Images::new();
    let bytes = 3 * SLAB + 6 * MIB;
    let address = thread.alloc(bytes);
    for place in (0..bytes).step_by(2 << 20) {
        thread.put(address + place, &[1 + place as u32]);
    }
    fill(&mut thread, address, bytes, 0);
    let other = app.session.backend().context_create(0, 0, false).unwrap();
    let unused = || app.session.backend().memory_info(other).unwrap().0;
    let before = unused();
    let begun = begin(&app, &images);
    assert_eq!(begun.taken.kept.on_device, bytes);
    app.session.open_gate();
    assert_eq!(unused(), before - bytes);
    // The last slab is of 6 MiB.
    thread.alloc(unused() + 16 * MIB);
    assert_eq!(unused(), SLAB - 10 * MIB);
    fill(&mut thread, address, bytes, 1000);
    let mut written = 0;
    let (id, _) = begun.publish(&mut |piece| {
        written += piece;
        // A slab is given back when something behind it is read.
        let left = 2u64.saturating_sub((written - 1) / SLAB) * SLAB;
        assert_eq!(unused() + left, 3 * SLAB - 10 * MIB, "{written} bytes are written");
        Ok(())
    });
    assert_eq!(written, bytes);
    assert_eq!(unused(), 3 * SLAB - 10 * MIB);
    let (app, mut thread) = restored(app, thread, &images, &id);
    check(&mut thread, address, bytes, 0);
    let _ = app.kill();
}

#[test]
fn a_piece_of_the_programs_own_is_given_room_too() {
    let (app, mut thread) = App::with_memory(64 * MIB);
    let images = Images::new();
    let address = thread.alloc(16 * MIB);
    fill(&mut thread, address, 16 * MIB, 0);
    let begun = begin(&app, &images);
    app.session.open_gate();
    let piece = PhysicalCreate {
        physical: PhysicalId(1),
        device: Device(0),
        bytes: 48 * MIB,
        handle_types: 1,
        compressible: false,
    };
    thread.call(piece).unwrap();
    let (id, _) = begun.publish(&mut |_| Ok(()));
    let (_app, mut thread) = restored(app, thread, &images, &id);
    check(&mut thread, address, 16 * MIB, 0);
}

/// They are read in a context of the program's.
#[test]
fn copies_outlive_their_context() {
    let (app, mut thread) = App::with_memory(64 * MIB);
    let images = Images::new();
    let address = thread.alloc(8 * MIB);
    fill(&mut thread, address, 8 * MIB, 0);
    let begun = begin(&app, &images);
    app.session.open_gate();
    thread.call(ContextDestroy { ctx: CTX }).unwrap();
    let again = ContextId(9);
    thread.call(ContextCreate { ctx: again, device: Device(0), flags: 0, primary: true }).unwrap();
    let (id, _) = begun.publish(&mut |_| Ok(()));
    let (_app, mut thread) = restored(app, thread, &images, &id);
    check(&mut thread, address, 8 * MIB, 0);
}

/// A device that has failed reads nothing for its process any more.
#[test]
fn copies_are_lost_with_their_device() {
    let (mut app, mut thread) = App::with_memory(64 * MIB);
    let images = Images::new();
    let address = thread.alloc(8 * MIB);
    fill(&mut thread, address, 8 * MIB, 0);
    let module = app.load(&mut thread, 2, BASIC);
    let wild = thread.function(module, 3, "wild");
    thread.synchronize().unwrap();
    let begun = begin(&app, &images);
    app.session.open_gate();
    thread.launch(wild, Stream::Legacy, 1, &[], &[]);
    assert_eq!(thread.synchronize(), Err(CuError::ILLEGAL_ADDRESS));
    let error = begun.write(&mut |_| Ok(())).unwrap_err();
    assert_eq!(error.device_failure(), Some(CuError::ILLEGAL_ADDRESS), "{error}");
    assert!(!error.is_of_the_store());
    let _ = app.kill();
}

#[test]
fn copies_that_nobody_writes_are_gone() {
    let (app, mut thread) = App::with_memory(64 * MIB);
    let images = Images::new();
    let address = thread.alloc(8 * MIB);
    fill(&mut thread, address, 8 * MIB, 0);
    for _ in 0..3 {
        let begun = begin(&app, &images);
        assert_eq!(begun.taken.kept.on_device, 8 * MIB);
        app.session.open_gate();
    }
    let all = free(&mut thread);
    let rest = thread.alloc(all);
    fill(&mut thread, rest, all, 5);
    let _ = app.kill();
}
