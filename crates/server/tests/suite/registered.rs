//! Memory that an application registers: the server has it where the application has it.
#![allow(clippy::unwrap_used)]

use crate::common::{App, CTX, Images, LONG, Pinned, SESSION};
use server::memory::Claims;
use server::restore::{Prepared, RestoreError};
use server::sharing::Sharing;
use wire::*;

/// Where the application has its memory, and how many bytes: not whole pages, and nothing of this process is there.
const AT: u64 = 0x6f23_4567_8ff0;
const BYTES: u64 = 5000;
const ID: PinnedId = PinnedId(31);

fn register(pinned: PinnedId, address: u64, bytes: u64) -> HostRegister {
    HostRegister { ctx: CTX, pinned, address, bytes, flags: 3 }
}

#[test]
fn what_is_registered_is_where_it_was() {
    let (app, mut thread) = App::with_context();
    thread.call(register(ID, AT, BYTES)).unwrap();
    // Its pages begin 0xff0 bytes before it.
    let pages = Pinned::open(app.dir.path(), ID);
    let first = 0xff0 / 4;
    pages.word(first).store(7, std::sync::atomic::Ordering::Release);
    assert_eq!(thread.get(AT, 1), [7]);
    thread.put(AT + BYTES - 4, &[9]);
    thread.synchronize().unwrap();
    let last = first + BYTES as usize / 4 - 1;
    assert_eq!(pages.word(last).load(std::sync::atomic::Ordering::Acquire), 9);
    // Not a byte more is memory of the program.
    let device = thread.alloc(16);
    for outside in [AT - 4, AT + BYTES] {
        assert!(
            thread
                .call(CopyWait { ctx: CTX, stream: Stream::Legacy, dst: device, src: outside, bytes: 4 })
                .is_err()
        );
    }

    app.session.close_gate(LONG).unwrap();
    let images = Images::new();
    let (id, state) = images.capture(&app.session);
    let (dir, held) = app.kill();
    drop(thread);
    crate::common::rehearse(&state).unwrap();
    let image = images.store.open_image(&id).unwrap();
    let app = App::restore_with(dir, held, SESSION, &image, Sharing::alone());
    let mut thread = app.thread();
    assert_eq!((thread.get(AT, 1), thread.get(AT + BYTES - 4, 1)), (vec![7], vec![9]));
    thread.call(HostUnregister {}).unwrap();
    thread.call(PinnedFree { pinned: ID }).unwrap();
    assert!(!app.dir.path().join("pinned-31").exists());
    thread.call(register(ID, AT, BYTES)).unwrap();
    let _ = app.kill();
}

#[test]
fn what_makes_no_sense_is_refused() {
    let (app, mut thread) = App::with_context();
    let own = Box::new(0u64);
    let own = &raw const *own as u64;
    for (address, bytes, code) in [
        (own, 8, CuError::MAP_FAILED),
        (0x2000_0000_0000, 8, CuError::INVALID_VALUE),
        (0x5000_0000_0000, 4096, CuError::INVALID_VALUE),
        (0x1fff_ffff_ffff, 2, CuError::INVALID_VALUE),
        (0, 4096, CuError::INVALID_VALUE),
        (AT, 0, CuError::INVALID_VALUE),
        (AT, u64::MAX, CuError::INVALID_VALUE),
        (u64::MAX - 10, 10, CuError::INVALID_VALUE),
    ] {
        assert_eq!(thread.call(register(ID, address, bytes)), Err(code), "{address:#x}+{bytes:#x}");
        assert!(!app.dir.path().join("pinned-31").exists(), "{address:#x}");
    }
    thread.call(register(ID, AT, BYTES)).unwrap();
    assert_eq!(thread.call(register(ID, 2 * AT, 8)), Err(CuError::INVALID_HANDLE), "a number is given once");
    let other = PinnedId(32);
    assert_eq!(thread.call(register(other, AT + BYTES, 8)), Err(CuError::MAP_FAILED), "on a page of it");
    let _ = app.kill();
}

/// A server begins again when it learns that.
#[test]
fn addresses_that_are_taken_are_told_before_anything_is_made() {
    let (app, mut thread) = App::with_context();
    thread.call(register(ID, AT, BYTES)).unwrap();
    app.session.close_gate(LONG).unwrap();
    let images = Images::new();
    let (id, _) = images.capture(&app.session);
    let (_dir, _held) = app.kill();
    let pages = backend::Range { base: AT & !0xfff, bytes: 0x3000 };
    let claims = Claims::of([pages]).unwrap();
    let image = images.store.open_image(&id).unwrap();
    let taken = Prepared::of(&image, SESSION).err().unwrap();
    assert!(matches!(taken, RestoreError::Addresses(range) if range == pages), "{taken}");
    drop(claims);
    Prepared::of(&image, SESSION).unwrap();
}
