//! Device memory that is left out of images, because the program says that it need not be saved.
#![allow(clippy::unwrap_used)]

use crate::common::{App, CTX, Images, LONG, Thread, restored};
use image::ImageId;
use server::capture::{CopyRoom, Kept, Reads};
use wire::*;

const MIB: u64 = 1 << 20;
const CHUNK: u64 = 2 * MIB;

fn tell(thread: &mut Thread, address: u64, bytes: u64, exclude: bool) -> Result<(), CuError> {
    thread.call(Exclude { address, bytes, exclude })
}

/// A word at the beginning of each chunk, and one at its end.
fn fill(thread: &mut Thread, address: u64, bytes: u64, seed: u32) {
    for at in (0..bytes).step_by(CHUNK as usize) {
        thread.put(address + at, &[seed + (at / CHUNK) as u32]);
        thread.put(address + (at + CHUNK).min(bytes) - 4, &[seed + 1000 + (at / CHUNK) as u32]);
    }
    thread.synchronize().unwrap();
}

/// Which of these words are what they were: for each chunk its first and its last.
fn kept(thread: &mut Thread, address: u64, bytes: u64, seed: u32) -> Vec<(bool, bool)> {
    let chunk = |at: u64| {
        let (first, last) = (seed + (at / CHUNK) as u32, seed + 1000 + (at / CHUNK) as u32);
        let ends = (address + at, address + (at + CHUNK).min(bytes) - 4);
        (thread.get(ends.0, 1) == [first], thread.get(ends.1, 1) == [last])
    };
    (0..bytes).step_by(CHUNK as usize).map(chunk).collect()
}

fn take(app: &App, images: &Images) -> (ImageId, Kept) {
    app.session.close_gate(LONG).unwrap();
    let ((id, _), kept) = images.capture_again(&app.session);
    app.session.open_gate();
    assert!(images.store.verify(&id, &mut |_| {}).unwrap().ok);
    (id, kept)
}

const WHOLE: (bool, bool) = (true, true);
const GONE: (bool, bool) = (false, false);

#[test]
fn what_is_excluded_is_neither_read_nor_stored_and_all_else_comes_back() {
    let (app, mut thread) = App::with_memory(1 << 30);
    let images = Images::new();
    let bytes = 12 * MIB;
    let [whole, part, none] = [(); 3].map(|()| thread.alloc(bytes));
    for (seed, address) in [(1, whole), (100, part), (200, none)] {
        fill(&mut thread, address, bytes, seed);
    }
    tell(&mut thread, whole, bytes, true).unwrap();
    // From the middle of the second chunk to the middle of the fifth, in two ranges that overlap.
    tell(&mut thread, part + 3 * MIB, 4 * MIB, true).unwrap();
    tell(&mut thread, part + 5 * MIB, 4 * MIB, true).unwrap();
    let (id, how) = take(&app, &images);
    assert_eq!((how.excluded, how.on_device), (bytes + 2 * CHUNK, 4 * CHUNK + 6 * CHUNK));
    assert_eq!(how.total(), 3 * bytes);
    for (seed, address) in [(1, whole), (100, part), (200, none)] {
        assert_eq!(kept(&mut thread, address, bytes, seed), [WHOLE; 6], "the run that goes on has it all");
    }
    let (app, mut thread) = restored(app, thread, &images, &id);
    assert_eq!(thread.get(whole, 4), [0; 4]);
    assert_eq!(kept(&mut thread, whole, bytes, 1), [GONE; 6]);
    let edges = [WHOLE, (true, false), GONE, GONE, (false, true), WHOLE];
    assert_eq!(kept(&mut thread, part, bytes, 100), edges);
    assert_eq!(kept(&mut thread, none, bytes, 200), [WHOLE; 6]);
    // It is still excluded.
    fill(&mut thread, whole, bytes, 1);
    fill(&mut thread, part, bytes, 100);
    let (id, how) = take(&app, &images);
    assert_eq!(how.excluded, bytes + 2 * CHUNK);
    let (app, mut thread) = restored(app, thread, &images, &id);
    assert_eq!(kept(&mut thread, whole, bytes, 1), [GONE; 6]);
    assert_eq!(kept(&mut thread, part, bytes, 100), edges);
    let _ = app.kill();
}

/// As for a suspension, behind which the same run goes on.
#[test]
fn what_is_excluded_is_there_where_everything_is_read() {
    let (app, mut thread) = App::with_memory(1 << 30);
    let images = Images::new();
    let bytes = 4 * MIB;
    let address = thread.alloc(bytes);
    fill(&mut thread, address, bytes, 7);
    tell(&mut thread, address, bytes, true).unwrap();
    app.session.close_gate(LONG).unwrap();
    let begun = images.begin_reading(&app.session, CopyRoom::none(), Reads::Everything);
    assert_eq!(begun.taken.kept, Kept { written: bytes, ..Kept::default() });
    let (id, _) = begun.publish(&mut |_| Ok(()));
    let (app, mut thread) = restored(app, thread, &images, &id);
    assert_eq!(kept(&mut thread, address, bytes, 7), [WHOLE; 2]);
    let (_, how) = take(&app, &images);
    assert_eq!(how.excluded, bytes, "it still is");
    let _ = app.kill();
}

#[test]
fn an_included_chunk_is_in_the_next_image_also_where_nothing_has_changed() {
    let (app, mut thread) = App::with_memory(1 << 30);
    let images = Images::new();
    let bytes = 8 * MIB;
    let address = thread.alloc(bytes);
    fill(&mut thread, address, bytes, 7);
    let (_, how) = take(&app, &images);
    assert_eq!(how.on_device, bytes);
    tell(&mut thread, address, 4 * MIB, true).unwrap();
    let (_, how) = take(&app, &images);
    assert_eq!((how.excluded, how.unchanged), (4 * MIB, 4 * MIB));
    tell(&mut thread, address + MIB, 2 * MIB, false).unwrap();
    let (id, how) = take(&app, &images);
    assert_eq!((how.excluded, how.on_device, how.unchanged), (0, 4 * MIB, 4 * MIB));
    let (app, mut thread) = restored(app, thread, &images, &id);
    assert_eq!(kept(&mut thread, address, bytes, 7), [(false, true), (true, false), WHOLE, WHOLE]);
    fill(&mut thread, address, bytes, 7);
    tell(&mut thread, address - 4096, u64::MAX - address, false).unwrap_err();
    tell(&mut thread, address, u64::MAX - address, false).unwrap();
    let (id, how) = take(&app, &images);
    assert_eq!(how.excluded, 0);
    let (app, mut thread) = restored(app, thread, &images, &id);
    assert_eq!(kept(&mut thread, address, bytes, 7), [WHOLE; 4]);
    let _ = app.kill();
}

#[test]
fn memory_that_somebody_else_has_at_the_address_is_saved() {
    let (app, mut thread) = App::with_memory(1 << 30);
    let images = Images::new();
    let bytes = 4 * MIB;
    let pool = Pool::Default(Device(0));
    let stream = Stream::Legacy;
    let plain = thread.alloc(bytes);
    let small = thread.alloc(4096);
    let ordered = thread.call(MemAllocAsync { ctx: CTX, stream, pool, bytes }).unwrap();
    for (address, bytes) in [(plain, bytes), (small, 4096), (ordered, bytes)] {
        tell(&mut thread, address, bytes, true).unwrap();
    }
    thread.send(MemFree { address: plain });
    thread.send(MemFree { address: small });
    thread.send(MemFreeAsync { ctx: CTX, stream, address: ordered });
    assert_eq!(tell(&mut thread, plain, bytes, true), Err(CuError::INVALID_VALUE), "it is freed");
    assert_eq!(thread.alloc(bytes), plain);
    assert_eq!(thread.alloc(4096), small);
    assert_eq!(thread.call(MemAllocAsync { ctx: CTX, stream, pool, bytes }), Ok(ordered));
    for (seed, address) in [(1, plain), (100, ordered)] {
        fill(&mut thread, address, bytes, seed);
    }
    fill(&mut thread, small, 4096, 50);
    let (id, how) = take(&app, &images);
    assert_eq!(how.excluded, 0);
    let (app, mut thread) = restored(app, thread, &images, &id);
    assert_eq!(kept(&mut thread, plain, bytes, 1), [WHOLE; 2]);
    assert_eq!(kept(&mut thread, small, 4096, 50), [WHOLE]);
    assert_eq!(kept(&mut thread, ordered, bytes, 100), [WHOLE; 2]);
    let _ = app.kill();
}

#[test]
fn memory_that_the_program_maps_itself_is_excluded_where_it_is_mapped_until_it_is_not() {
    let (app, mut thread) = App::with_memory(1 << 30);
    let images = Images::new();
    let bytes = 4 * MIB;
    let range = thread.call(AddressReserve { bytes: 4 * bytes, alignment: 0, wanted: 0 }).unwrap();
    let map = |thread: &mut Thread, address, physical| {
        thread.call(MemMap { address, bytes, physical }).unwrap();
        thread.call(MemSetAccess { address, bytes, device: Device(0), access: 3 }).unwrap();
    };
    for number in 0..2 {
        let physical = PhysicalId(number + 1);
        let device = Device(0);
        thread
            .call(PhysicalCreate { physical, device, bytes, handle_types: 0, compressible: false })
            .unwrap();
        map(&mut thread, range + u64::from(number) * bytes, physical);
    }
    fill(&mut thread, range, 2 * bytes, 1);
    assert_eq!(tell(&mut thread, range + bytes, 2 * bytes, true), Err(CuError::INVALID_VALUE), "a gap");
    // Over the border of two pieces.
    tell(&mut thread, range + CHUNK, 2 * CHUNK, true).unwrap();
    let (id, how) = take(&app, &images);
    assert_eq!((how.excluded, how.on_device), (2 * CHUNK, 2 * CHUNK));
    let (app, mut thread) = restored(app, thread, &images, &id);
    assert_eq!(kept(&mut thread, range, 2 * bytes, 1), [WHOLE, GONE, GONE, WHOLE]);
    fill(&mut thread, range, 2 * bytes, 1);
    // The second piece moves.
    thread.call(MemUnmap { address: range + bytes, bytes }).unwrap();
    map(&mut thread, range + 3 * bytes, PhysicalId(2));
    let (id, how) = take(&app, &images);
    assert_eq!(how.excluded, CHUNK);
    let (app, mut thread) = restored(app, thread, &images, &id);
    assert_eq!(kept(&mut thread, range, bytes, 1), [WHOLE, GONE]);
    assert_eq!(thread.get(range + 3 * bytes, 1), [3]);
    let _ = app.kill();
}

#[test]
fn what_cannot_be_excluded_is_told() {
    let (app, mut thread) = App::with_shadows(64 * MIB);
    let address = thread.alloc(4 * MIB);
    let other = thread.alloc(4 * MIB);
    for (address, bytes) in [
        (0, 4096),
        (address, 0),
        (address, u64::MAX),
        (u64::MAX - 4, 4096),
        (address, 4 * MIB + 1),
        (address.min(other), 6 * MIB),
        (address - 1, 2),
        (0x5000_0000_0000, 4096),
    ] {
        assert_eq!(tell(&mut thread, address, bytes, true), Err(CuError::INVALID_VALUE), "{address:#x}");
    }
    let managed = thread.call(ManagedAlloc { ctx: CTX, managed: PinnedId(1), bytes: 4 * MIB }).unwrap();
    assert_eq!(tell(&mut thread, managed, 4096, true), Err(CuError::NOT_SUPPORTED));
    let _ = app.kill();
}
