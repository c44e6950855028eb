//! Virtual memory of the application's own: what is mapped where, what is refused, and what comes back.
#![allow(clippy::unwrap_used)]

use crate::common::{App, BASIC, CTX, Images, LONG, SESSION, Thread, restored};
use server::capture::CopyRoom;
use wire::*;

const MIB: u64 = 1 << 20;
const READ_WRITE: u32 = 3;
const REFUSED: Result<(), CuError> = Err(CuError::INVALID_VALUE);

fn reserve(thread: &mut Thread, bytes: u64) -> u64 {
    thread.call(AddressReserve { bytes, alignment: 0, wanted: 0 }).unwrap()
}

fn create(thread: &mut Thread, id: u32, bytes: u64) -> PhysicalId {
    let physical = PhysicalId(id);
    thread
        .call(PhysicalCreate { physical, device: Device(0), bytes, handle_types: 1, compressible: true })
        .unwrap();
    physical
}

fn map(thread: &mut Thread, address: u64, bytes: u64, physical: PhysicalId) {
    thread.call(MemMap { address, bytes, physical }).unwrap();
}

fn allow(thread: &mut Thread, address: u64, bytes: u64, access: u32) -> Result<(), CuError> {
    thread.call(MemSetAccess { address, bytes, device: Device(0), access })
}

#[test]
fn one_piece_is_seen_wherever_it_is_mapped() {
    let (mut app, mut thread) = App::with_context();
    let range = reserve(&mut thread, 16 * MIB);
    let (a, b) = (create(&mut thread, 1, 2 * MIB), create(&mut thread, 2, 4 * MIB));
    map(&mut thread, range, 2 * MIB, a);
    map(&mut thread, range + 2 * MIB, 4 * MIB, b);
    map(&mut thread, range + 8 * MIB, 2 * MIB, a);
    thread.put(range, &[1]);
    thread.synchronize().unwrap();
    assert_eq!(app.client.control().take_error(), Some(CuError::INVALID_VALUE), "nobody may use it yet");
    allow(&mut thread, range, 6 * MIB, READ_WRITE).unwrap();
    allow(&mut thread, range + 8 * MIB, 2 * MIB, READ_WRITE).unwrap();
    // Over the border of two mappings, by copies and by a kernel.
    let border = range + 2 * MIB - 8;
    thread.put(border, &[1, 2, 3, 4]);
    let module = app.load(&mut thread, 2, BASIC);
    let add = thread.function(module, 3, "add_one");
    thread.launch(add, Stream::Legacy, 32, &[border], &[4]);
    assert_eq!(thread.get(border, 4), [2, 3, 4, 5]);
    assert_eq!(thread.get(range + 10 * MIB - 8, 2), [2, 3], "the same piece at another address");
    let get = |address| MemGetAccess { address, device: Device(0) };
    assert_eq!(thread.call(get(border)), Ok(READ_WRITE));
    assert_eq!(thread.call(get(range + 6 * MIB)), Err(CuError::INVALID_VALUE));
    // A handle may go before what it has mapped.
    thread.call(PhysicalRelease { physical: a }).unwrap();
    assert_eq!(thread.call(PhysicalRelease { physical: a }), REFUSED);
    assert_eq!(thread.get(border, 1), [2]);
    assert_eq!(thread.call(PhysicalRetain { address: range }), Ok(a));
    assert_eq!(thread.call(PhysicalProperties { physical: a }), Ok((Device(0), (1, false))));
    thread.call(PhysicalRelease { physical: a }).unwrap();
    thread.call(MemUnmap { address: range, bytes: 6 * MIB }).unwrap();
    assert_eq!(thread.get(range + 10 * MIB - 8, 2), [2, 3]);
    thread.call(MemUnmap { address: range + 8 * MIB, bytes: 2 * MIB }).unwrap();
    assert_eq!(
        thread.call(PhysicalProperties { physical: a }).map(drop),
        REFUSED,
        "the last mapping is gone"
    );
    thread.call(PhysicalRelease { physical: b }).unwrap();
    thread.call(AddressFree { address: range, bytes: 16 * MIB }).unwrap();
}

#[test]
fn what_makes_no_sense_is_refused() {
    let (_app, mut thread) = App::with_context();
    let range = reserve(&mut thread, 8 * MIB);
    let piece = create(&mut thread, 1, 4 * MIB);
    map(&mut thread, range, 4 * MIB, piece);
    let mapped = |address, bytes| MemMap { address, bytes, physical: piece };
    for wrong in [
        mapped(range + 2 * MIB, 2 * MIB),
        mapped(range + 8 * MIB, 2 * MIB),
        mapped(range + 4 * MIB, MIB),
        mapped(range + 4 * MIB, 0),
        mapped(range + 4 * MIB, 6 * MIB),
        MemMap { address: range + 4 * MIB, bytes: 2 * MIB, physical: PhysicalId(9) },
    ] {
        assert_eq!(thread.call(wrong.clone()), REFUSED, "{wrong:?}");
    }
    for (address, bytes) in [(range, 2 * MIB), (range, 8 * MIB), (range + 4 * MIB, 2 * MIB), (0, 0)] {
        assert_eq!(thread.call(MemUnmap { address, bytes }), REFUSED, "{address:#x}+{bytes:#x}");
        assert_eq!(allow(&mut thread, address, bytes, READ_WRITE), REFUSED, "{address:#x}+{bytes:#x}");
    }
    assert_eq!(allow(&mut thread, range, 4 * MIB, 2), REFUSED);
    assert_eq!(thread.call(AddressFree { address: range, bytes: 8 * MIB }), REFUSED, "something is mapped");
    thread.call(MemUnmap { address: range, bytes: 4 * MIB }).unwrap();
    assert_eq!(thread.call(AddressFree { address: range, bytes: 4 * MIB }), REFUSED, "not the whole range");
    for (bytes, alignment) in [(0, 0), (MIB, 0), (2 * MIB, 3 * MIB), (u64::MAX << 21, 0)] {
        assert!(thread.call(AddressReserve { bytes, alignment, wanted: 0 }).is_err(), "{bytes:#x}");
    }
    // A wish for an address is granted where it can be.
    let wanted = range + 64 * MIB;
    assert_eq!(thread.call(AddressReserve { bytes: 2 * MIB, alignment: 0, wanted }), Ok(wanted));
    let other = thread.call(AddressReserve { bytes: 2 * MIB, alignment: 1 << 30, wanted }).unwrap();
    assert!(other != wanted && other.is_multiple_of(1 << 30));
}

#[test]
fn mappings_come_back_as_they_were() {
    let (app, mut thread) = App::with_context();
    let images = Images::new();
    let range = reserve(&mut thread, 1 << 38);
    let (twice, lost, unmapped) =
        (create(&mut thread, 1, 2 * MIB), create(&mut thread, 2, 4 * MIB), create(&mut thread, 3, 2 * MIB));
    for (address, bytes, piece) in
        [(range, 2 * MIB, twice), (range + (1 << 37), 2 * MIB, twice), (range + 2 * MIB, 4 * MIB, lost)]
    {
        map(&mut thread, address, bytes, piece);
        allow(&mut thread, address, bytes, READ_WRITE).unwrap();
    }
    let passing = range + 32 * MIB;
    map(&mut thread, passing, 2 * MIB, unmapped);
    allow(&mut thread, passing, 2 * MIB, READ_WRITE).unwrap();
    thread.put(range, &[1, 2, 3]);
    thread.put(range + 6 * MIB - 12, &[4, 5, 6]);
    thread.put(passing + 4096, &[7, 8, 9]);
    thread.call(MemUnmap { address: passing, bytes: 2 * MIB }).unwrap();
    thread.call(PhysicalRelease { physical: lost }).unwrap();
    thread.synchronize().unwrap();
    let info = thread.call(MemInfo { ctx: CTX }).unwrap();

    app.session.close_gate(LONG).unwrap();
    assert_eq!(app.session.refusals(), Vec::<String>::new());
    assert!(app.session.cut().unwrap().bytes() >= 8 * MIB);
    let (id, state) = images.capture(&app.session);
    let (dir, held) = app.kill();
    drop(thread);
    let rehearsed = {
        let dir = tempfile::tempdir().unwrap();
        let link = transport::ServerSession::create(dir.path()).unwrap();
        server::session::Session::rehearse(crate::common::backend(), link, dir.path().to_owned(), &state)
    };
    rehearsed.unwrap();
    let app = App::restore(dir, held, SESSION, &images.store.open_image(&id).unwrap());
    let mut thread = app.thread();
    assert_eq!(thread.get(range, 3), [1, 2, 3]);
    assert_eq!(thread.get(range + 6 * MIB - 12, 3), [4, 5, 6]);
    assert_eq!(thread.call(MemInfo { ctx: CTX }).unwrap(), info);
    // One piece, still seen at both addresses.
    thread.put(range + (1 << 37), &[11]);
    assert_eq!(thread.get(range, 2), [11, 2]);
    assert_eq!(thread.call(PhysicalRelease { physical: lost }), REFUSED);
    // What was mapped nowhere has kept its contents.
    map(&mut thread, passing, 2 * MIB, unmapped);
    allow(&mut thread, passing, 2 * MIB, READ_WRITE).unwrap();
    assert_eq!(thread.get(passing + 4096, 3), [7, 8, 9]);
    thread.call(MemUnmap { address: range + 2 * MIB, bytes: 4 * MIB }).unwrap();
    let (free, _) = thread.call(MemInfo { ctx: CTX }).unwrap();
    assert_eq!(free, info.0 + 4 * MIB);
}

/// It is read through a mapping of the capture's own, at once as well as by copies.
#[test]
fn a_piece_that_is_mapped_nowhere_is_written_without_copies() {
    let (app, mut thread) = App::with_context();
    let images = Images::new();
    let range = reserve(&mut thread, 4 * MIB);
    let piece = create(&mut thread, 1, 4 * MIB);
    map(&mut thread, range, 4 * MIB, piece);
    allow(&mut thread, range, 4 * MIB, READ_WRITE).unwrap();
    thread.put(range + 2 * MIB - 4, &[1, 2, 3]);
    thread.call(MemUnmap { address: range, bytes: 4 * MIB }).unwrap();
    app.session.close_gate(LONG).unwrap();
    let begun = images.begin(&app.session, CopyRoom::none());
    assert_eq!(begun.taken.kept.written, 4 * MIB);
    let (id, _) = begun.publish(&mut |_| Ok(()));
    let (_app, mut thread) = restored(app, thread, &images, &id);
    map(&mut thread, range, 4 * MIB, piece);
    allow(&mut thread, range, 4 * MIB, READ_WRITE).unwrap();
    assert_eq!(thread.get(range + 2 * MIB - 4, 3), [1, 2, 3]);
}

/// As a program's is that has reset its device, and at its end.
#[test]
fn a_piece_keeps_its_contents_without_a_context() {
    let (app, mut thread) = App::with_context();
    let images = Images::new();
    let range = reserve(&mut thread, 2 * MIB);
    let piece = create(&mut thread, 1, 2 * MIB);
    map(&mut thread, range, 2 * MIB, piece);
    allow(&mut thread, range, 2 * MIB, READ_WRITE).unwrap();
    thread.put(range + 4096, &[1, 2, 3]);
    thread.synchronize().unwrap();
    thread.call(ContextDestroy { ctx: CTX }).unwrap();

    app.session.close_gate(LONG).unwrap();
    assert_eq!(app.session.refusals(), Vec::<String>::new());
    let (id, _) = images.capture(&app.session);
    let (dir, held) = app.kill();
    drop(thread);
    let app = App::restore(dir, held, SESSION, &images.store.open_image(&id).unwrap());
    let mut thread = app.thread();
    // What was made to copy in is gone.
    thread.call(ContextCreate { ctx: CTX, device: Device(0), flags: 0, primary: true }).unwrap();
    assert_eq!(thread.get(range + 4096, 3), [1, 2, 3]);
}
