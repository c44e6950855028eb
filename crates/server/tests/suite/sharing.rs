//! Memory and events that sessions share, with a neighbour played by the test.
#![allow(clippy::unwrap_used)]

use crate::common::neighbour::{BYTES, Neighbour, words};
use crate::common::{App, CTX, Images, LONG, SESSION, wait_until};
use server::sharing::{Gift, Refusal};
use std::fs::File;
use wire::*;

const SHARE: ShareId = ShareId([9; 16]);

fn is_gone(gift: &Result<Gift, Refusal>) -> bool {
    matches!(gift, Err(refusal) if refusal.code == CuError::INVALID_HANDLE.code())
}

#[test]
fn an_allocation_is_given_as_long_as_it_lives() {
    let (neighbour, sharing) = Neighbour::new(&[], true);
    let (app, mut thread) = App::with_others(sharing);
    let (first, second) = (thread.alloc(100), thread.alloc(1000));
    thread.put(second, &[1, 2, 3]);
    thread.synchronize().unwrap();
    let claim = thread.call(IpcGetMem { address: second + 40 }).unwrap();
    assert_eq!(thread.call(IpcGetMem { address: second }), Ok(claim), "as often as one likes");
    let other = thread.call(IpcGetMem { address: first }).unwrap();
    assert_eq!((other.share, other.bytes, claim.bytes), (claim.share, 100, 1000), "both lie in one block");
    assert_eq!(neighbour.held(), [claim.share]);

    let (gift, file) = neighbour.ask(claim.share, Some(claim));
    assert!(matches!(gift, Ok(Gift::Memory { device: 0, .. })), "{gift:?}");
    let file = File::from(file.unwrap());
    assert_eq!(words(&file, claim.offset, 3), [1, 2, 3]);
    thread.put(second, &[4]);
    thread.synchronize().unwrap();
    assert_eq!(words(&file, claim.offset, 3), [4, 2, 3]);
    for wrong in [Claim { number: claim.number + 7, ..claim }, Claim { bytes: 2000, ..claim }] {
        assert!(is_gone(&neighbour.ask(claim.share, Some(wrong)).0));
    }

    // What lies there later is another allocation.
    thread.send(MemFree { address: second });
    assert!(thread.call(IpcGetMem { address: second }).is_err());
    assert_eq!(thread.alloc(1000), second);
    assert!(is_gone(&neighbour.ask(claim.share, Some(claim)).0));
    let fresh = thread.call(IpcGetMem { address: second }).unwrap();
    assert_ne!(fresh, claim);
    assert!(neighbour.ask(fresh.share, Some(fresh)).0.is_ok());
    let own = thread.call(IpcOpenMem { ctx: CTX, claim: fresh });
    assert_eq!(own, Err(CuError::INVALID_CONTEXT), "a process does not open what is its own");

    // After a restart the names are the same.
    app.session.close_gate(LONG).unwrap();
    assert!(app.session.refusals().is_empty());
    let images = Images::new();
    let (id, state) = images.capture(&app.session);
    let (dir, held) = app.kill();
    neighbour.end();
    crate::common::rehearse(&state).unwrap();
    let (neighbour, sharing) = Neighbour::new(&[], true);
    let app = App::restore_with(dir, held, SESSION, &images.store.open_image(&id).unwrap(), sharing);
    wait_until(|| neighbour.held() == [claim.share]);
    let (gift, file) = neighbour.ask(fresh.share, Some(fresh));
    assert!(gift.is_ok() && file.is_some(), "{gift:?}");
    let _ = app.kill();
}

/// What finds no room is tried once more for each rehearsal that has ended since it was tried, which may have had that room.
#[test]
fn room_that_a_rehearsal_has_had_is_looked_for() {
    let (neighbour, sharing) = Neighbour::new(&[], true);
    let (app, mut thread) = App::with_others_and_memory(sharing, 64 << 20);
    let mut asks_for_too_much = || {
        let before = neighbour.without_room();
        let too_much = thread.call(MemAlloc { ctx: CTX, bytes: 128 << 20 });
        assert_eq!(too_much, Err(CuError::OUT_OF_MEMORY));
        neighbour.without_room() - before
    };
    assert_eq!(asks_for_too_much(), 1);
    neighbour.has_rehearsed();
    assert_eq!([asks_for_too_much(), asks_for_too_much()], [2, 1]);
    neighbour.has_rehearsed();
    neighbour.has_rehearsed();
    assert_eq!([asks_for_too_much(), asks_for_too_much()], [2, 1]);
    let _ = app.kill();
    neighbour.end();
}

#[test]
fn what_is_opened_is_counted() {
    let (neighbour, sharing) = Neighbour::new(&[(SHARE, &[7, 8, 9])], true);
    let (app, mut thread) = App::with_others(sharing);
    let claim = Claim { share: SHARE, offset: 0, bytes: 512, number: 1 };
    let address = thread.call(IpcOpenMem { ctx: CTX, claim }).unwrap();
    assert_eq!(neighbour.held(), [SHARE], "whoever is told of it can get it from this session");
    assert_eq!(thread.get(address, 3), [7, 8, 9]);
    assert_eq!(thread.call(IpcOpenMem { ctx: CTX, claim }), Ok(address));
    let behind = Claim { offset: 1024, number: 2, ..claim };
    assert_eq!(thread.call(IpcOpenMem { ctx: CTX, claim: behind }), Ok(address + 1024), "in the same block");
    for (wrong, code) in [
        (Claim { offset: BYTES, ..claim }, CuError::INVALID_VALUE),
        (Claim { share: ShareId([1; 16]), ..claim }, CuError::INVALID_HANDLE),
    ] {
        assert_eq!(thread.call(IpcOpenMem { ctx: CTX, claim: wrong }), Err(code), "{wrong:?}");
    }
    thread.put(address + 1024, &[5]);
    thread.synchronize().unwrap();
    assert_eq!(neighbour.words(SHARE, 257)[256], 5);
    assert_eq!(thread.call(IpcCloseMem { address }), Ok(false));
    assert_eq!(thread.call(IpcCloseMem { address }), Ok(true));
    assert_eq!(thread.call(IpcCloseMem { address }), Err(CuError::INVALID_VALUE));
    assert_eq!(thread.get(address + 1024, 1), [5], "the block is there as long as anything of it is open");
    assert_eq!(thread.call(IpcCloseMem { address: address + 1024 }), Ok(true));
    wait_until(|| neighbour.held().is_empty());
    let _ = app.kill();
}

#[test]
fn what_several_contexts_have_open_lives_as_long_as_any_of_them() {
    let (neighbour, sharing) = Neighbour::new(&[(SHARE, &[7, 8, 9])], true);
    let (app, mut thread) = App::with_others(sharing);
    let other = ContextId(50);
    let make = ContextCreate { ctx: other, device: Device(0), flags: 0, primary: false };
    thread.call(make).unwrap();
    let claim = Claim { share: SHARE, offset: 0, bytes: 512, number: 1 };
    let address = thread.call(IpcOpenMem { ctx: other, claim }).unwrap();
    for ctx in [other, CTX] {
        assert_eq!(thread.call(IpcOpenMem { ctx, claim }), Ok(address));
    }
    thread.call(ContextDestroy { ctx: other }).unwrap();
    assert_eq!(thread.get(address, 3), [7, 8, 9]);
    // Its owner has allocated anew at the same place, of which this process has not heard when it closes the former.
    let fresh = Claim { bytes: 1024, number: 2, ..claim };
    assert_eq!(thread.call(IpcOpenMem { ctx: CTX, claim: fresh }), Ok(address));
    assert_eq!(thread.call(IpcCloseMem { address }), Ok(false));
    assert_eq!(thread.get(address + 1000, 1), [0], "the fresh one is open");
    assert_eq!(thread.call(IpcCloseMem { address }), Ok(true));
    assert_eq!(thread.call(IpcCloseMem { address }), Err(CuError::INVALID_VALUE));
    wait_until(|| neighbour.held().is_empty());
    let _ = app.kill();
}

/// What another session owns is not in this one's part of the image: it comes from there.
#[test]
fn what_others_own_is_theirs_to_bring_back() {
    let (neighbour, sharing) = Neighbour::new(&[(SHARE, &[7, 8, 9])], false);
    let (app, mut thread) = App::with_others(sharing);
    let claim = Claim { share: SHARE, offset: 0, bytes: 512, number: 1 };
    let address = thread.call(IpcOpenMem { ctx: CTX, claim }).unwrap();
    thread.synchronize().unwrap();
    app.session.close_gate(LONG).unwrap();
    let images = Images::new();
    let (id, _) = images.capture(&app.session);
    let (dir, held) = app.kill();
    drop(thread);
    neighbour.end();
    let (neighbour, sharing) = Neighbour::new(&[(SHARE, &[70, 80, 90])], false);
    let app = App::restore_with(dir, held, SESSION, &images.store.open_image(&id).unwrap(), sharing);
    let mut thread = app.thread();
    assert_eq!(thread.get(address, 3), [70, 80, 90]);
    wait_until(|| neighbour.held() == [SHARE]);
    assert_eq!(thread.call(IpcCloseMem { address }), Ok(true));
    let _ = app.kill();
}

#[test]
fn pieces_are_given_and_had() {
    let (neighbour, sharing) = Neighbour::new(&[(SHARE, &[1])], true);
    let (app, mut thread) = App::with_others(sharing);
    let own = PhysicalId(5);
    let make = PhysicalCreate {
        physical: own,
        device: Device(0),
        bytes: 2 << 20,
        handle_types: 1,
        compressible: false,
    };
    thread.call(make).unwrap();
    let share = thread.call(PhysicalExport { physical: own }).unwrap();
    assert_eq!(thread.call(PhysicalExport { physical: own }), Ok(share));
    assert!(matches!(neighbour.ask(share, None), (Ok(Gift::Memory { bytes: 0x20_0000, .. }), Some(_))));
    // One's own is one more handle of it.
    assert_eq!(thread.call(PhysicalImport { physical: PhysicalId(6), share }), Ok(own));
    assert_eq!(thread.call(PhysicalRelease { physical: own }), Ok(()));
    assert!(neighbour.ask(share, None).0.is_ok());
    assert_eq!(thread.call(PhysicalRelease { physical: own }), Ok(()));
    assert!(is_gone(&neighbour.ask(share, None).0));
    let theirs = thread.call(PhysicalImport { physical: PhysicalId(7), share: SHARE }).unwrap();
    assert_eq!(neighbour.held(), [SHARE]);
    assert_eq!(thread.call(PhysicalProperties { physical: theirs }), Ok((Device(0), (1, false))));
    assert_eq!(thread.call(PhysicalRelease { physical: theirs }), Ok(()));
    wait_until(|| neighbour.held().is_empty());
    let _ = app.kill();
}

#[test]
fn events_are_given_if_they_were_made_for_that() {
    let (neighbour, sharing) = Neighbour::new(&[(SHARE, &[])], true);
    let (app, mut thread) = App::with_others(sharing);
    let [plain] = thread.events([5]);
    assert_eq!(thread.call(IpcGetEvent { event: plain }), Err(CuError::INVALID_VALUE));
    let event = EventId(6);
    thread.send(EventCreate { ctx: CTX, event, flags: 6 });
    let share = thread.call(IpcGetEvent { event }).unwrap();
    let record = EventRecordNow { ctx: CTX, stream: Stream::Legacy, event, flags: 0 };
    thread.call(record).unwrap();
    thread.call(EventSynchronize { event }).unwrap();
    let (gift, file) = neighbour.ask(share, None);
    assert!(matches!(gift, Ok(Gift::Event { .. })) && file.is_some());
    let open = |share| IpcOpenEvent { ctx: CTX, event: EventId(7), share };
    assert_eq!(thread.call(open(share)), Err(CuError::INVALID_CONTEXT), "its own");
    assert_eq!(thread.call(open(SHARE)), Err(CuError::INVALID_VALUE), "memory is no event");
    wait_until(|| neighbour.held() == [share]);
    thread.send(EventDestroy { event });
    wait_until(|| neighbour.held().is_empty());
    assert!(is_gone(&neighbour.ask(share, None).0));
    let _ = app.kill();
}

/// Each time an event is opened it has another handle, and is one event, also after the process that made it has ended.
#[test]
fn an_event_is_opened_as_often_as_one_likes() {
    let (maker, sharing) = Neighbour::new(&[], true);
    let (owner, mut thread) = App::with_others(sharing);
    thread.send(EventCreate { ctx: CTX, event: EventId(6), flags: 6 });
    let share = thread.call(IpcGetEvent { event: EventId(6) }).unwrap();
    let (_, file) = maker.ask(share, None);
    let _ = owner.kill();
    drop(thread);

    let (neighbour, sharing) = Neighbour::new(&[], true);
    neighbour.pass_event(share, file.unwrap());
    let (app, mut thread) = App::with_others(sharing);
    let events = [EventId(7), EventId(8)];
    for event in events {
        thread.call(IpcOpenEvent { ctx: CTX, event, share }).unwrap();
    }
    assert_eq!(neighbour.held(), [share]);
    thread.call(EventRecordNow { ctx: CTX, stream: Stream::Legacy, event: events[0], flags: 0 }).unwrap();
    thread.call(EventSynchronize { event: events[1] }).unwrap();
    app.session.close_gate(LONG).unwrap();
    let images = Images::new();
    let (id, state) = images.capture(&app.session);
    let (dir, held) = app.kill();
    drop(thread);
    neighbour.end();
    crate::common::rehearse(&state).unwrap();
    let (neighbour, sharing) = Neighbour::new(&[], true);
    let app = App::restore_with(dir, held, SESSION, &images.store.open_image(&id).unwrap(), sharing);
    let mut thread = app.thread();
    wait_until(|| neighbour.held() == [share]);
    thread.send(EventDestroy { event: events[0] });
    thread.call(EventRecordNow { ctx: CTX, stream: Stream::Legacy, event: events[1], flags: 0 }).unwrap();
    thread.call(IpcOpenEvent { ctx: CTX, event: events[0], share }).unwrap();
    thread.call(EventSynchronize { event: events[0] }).unwrap();
    assert_eq!(neighbour.held(), [share], "it is one");
    for event in events {
        thread.send(EventDestroy { event });
    }
    wait_until(|| neighbour.held().is_empty());
    let _ = app.kill();
}

/// Whoever waits for another session does not wait for ever.
#[test]
fn a_broker_that_is_gone_is_an_error() {
    let (neighbour, sharing) = Neighbour::new(&[(SHARE, &[1])], true);
    let (app, mut thread) = App::with_others(sharing);
    neighbour.end();
    let claim = Claim { share: SHARE, offset: 0, bytes: 512, number: 1 };
    assert_eq!(thread.call(IpcOpenMem { ctx: CTX, claim }), Err(CuError::DEVICE_UNAVAILABLE));
    let _ = app.kill();
}
