//! Green contexts: sets of multiprocessors, streams in them, events about all streams of a context, and what comes back.
#![allow(clippy::unwrap_used)]

use crate::common::{App, BASIC, CTX, Images, LONG, SESSION, Thread};
use wire::*;

const HALF: SmSplit = SmSplit { groups: 2, minimum: 8, flags: 0 };
const GREEN: GreenId = GreenId(20);
const STREAM: StreamId = StreamId(21);
const EVENT: EventId = EventId(22);

fn half(part: u32) -> SmSet {
    vec![SmStep { split: HALF, taken: vec![part] }]
}

fn create(thread: &mut Thread, green: GreenId, of: SmSet) -> Result<(), CuError> {
    thread.call(GreenCreate { ctx: CTX, green, of })
}

/// An error of pipelined work, told once.
fn told(app: &App, thread: &mut Thread) -> Option<CuError> {
    thread.synchronize().unwrap();
    app.client.control().take_error()
}

#[test]
fn sets_are_counted_and_split() {
    let (_app, mut thread) = App::with_context();
    let device = Device(0);
    let all = thread.call(SmResource { device, of: vec![] }).unwrap();
    let (groups, rest) = thread.call(SmResourceSplit { device, of: vec![], split: HALF }).unwrap();
    assert_eq!(groups, [SmCount { count: all.count / 2, ..all }; 2]);
    assert_eq!(rest.count, 0);
    assert_eq!(thread.call(SmResource { device, of: half(1) }), Ok(groups[1]));
    let both = vec![SmStep { split: HALF, taken: vec![0, 1] }];
    assert_eq!(thread.call(SmResource { device, of: both }).unwrap().count, all.count);
    let wrong = [
        half(2),
        half(SM_REMAINDER),
        vec![SmStep { split: HALF, taken: vec![] }],
        vec![SmStep { split: HALF, taken: vec![1, 1] }],
        vec![half(0).remove(0); SM_STEPS_MAX + 1],
    ];
    for of in wrong {
        let asked = create(&mut thread, GREEN, of.clone());
        assert_eq!(asked, Err(CuError::INVALID_RESOURCE_CONFIGURATION), "{of:?}");
    }
    let split = SmSplit { groups: SM_GROUPS_MAX + 1, ..HALF };
    assert_eq!(thread.call(SmResourceSplit { device, of: vec![], split }), Err(CuError::INVALID_VALUE));
}

#[test]
fn a_green_context_ends_with_its_streams() {
    let (mut app, mut thread) = App::with_context();
    let module = app.load(&mut thread, 2, BASIC);
    let add = thread.function(module, 3, "add_one");
    let memory = thread.call(MemAlloc { ctx: CTX, bytes: 4096 }).unwrap();
    thread.put(memory, &[1, 2]);
    create(&mut thread, GREEN, half(0)).unwrap();
    assert_eq!(create(&mut thread, GREEN, half(1)), Err(CuError::INVALID_HANDLE));
    thread.send(GreenStreamCreate { green: GREEN, stream: STREAM, priority: 0 });
    // Its default stream has its number.
    for stream in [STREAM, StreamId(GREEN.0)] {
        thread.launch(add, Stream::Created(stream), 32, &[memory], &[2]);
        thread.call(StreamSynchronize { ctx: CTX, stream: Stream::Created(stream) }).unwrap();
    }
    assert_eq!(thread.get(memory, 2), [3, 4]);
    thread.send(GreenStreamCreate { green: GREEN, stream: STREAM, priority: 0 });
    assert_eq!(told(&app, &mut thread), Some(CuError::INVALID_HANDLE), "the number is taken");
    thread.call(GreenDestroy { green: GREEN }).unwrap();
    assert_eq!(thread.call(GreenDestroy { green: GREEN }), Err(CuError::INVALID_CONTEXT));
    let query = thread.call(StreamQuery { ctx: CTX, stream: Stream::Created(STREAM) });
    assert_eq!(query, Err(CuError::INVALID_HANDLE));

    let own = ContextId(40);
    thread.call(ContextCreate { ctx: own, device: Device(0), flags: 0, primary: false }).unwrap();
    let asked = thread.call(GreenCreate { ctx: own, green: GREEN, of: half(0) });
    assert_eq!(asked, Err(CuError::INVALID_CONTEXT), "green contexts are of primary ones");
    create(&mut thread, GREEN, half(1)).unwrap();
    thread.call(ContextDestroy { ctx: CTX }).unwrap();
    assert_eq!(thread.call(GreenDestroy { green: GREEN }), Err(CuError::INVALID_CONTEXT));
}

#[test]
fn they_come_back_with_their_streams() {
    let (mut app, mut thread) = App::with_context();
    let images = Images::new();
    let module = app.load(&mut thread, 2, BASIC);
    let add = thread.function(module, 3, "add_one");
    let memory = thread.call(MemAlloc { ctx: CTX, bytes: 4096 }).unwrap();
    thread.put(memory, &[1]);
    create(&mut thread, GREEN, half(1)).unwrap();
    thread.send(GreenStreamCreate { green: GREEN, stream: STREAM, priority: -1 });
    thread.send(EventCreate { ctx: CTX, event: EVENT, flags: 2 });
    let turn = |thread: &mut Thread| {
        thread.launch(add, Stream::Created(STREAM), 1, &[memory], &[1]);
        // The primary context's streams wait for all of the green one's.
        thread.send(ContextRecordEvent { ctx: CTX, green: Some(GREEN), event: EVENT });
        thread.send(ContextWaitEvent { ctx: CTX, green: None, event: EVENT });
        thread.launch(add, Stream::Legacy, 1, &[memory], &[1]);
        thread.send(ContextRecordEvent { ctx: CTX, green: None, event: EVENT });
        thread.send(ContextWaitEvent { ctx: CTX, green: Some(GREEN), event: EVENT });
        thread.launch(add, Stream::Created(StreamId(GREEN.0)), 1, &[memory], &[1]);
        thread.call(ContextSynchronize { ctx: CTX }).unwrap();
    };
    turn(&mut thread);
    assert_eq!(thread.get(memory, 1), [4]);

    app.session.close_gate(LONG).unwrap();
    assert_eq!(app.session.refusals(), Vec::<String>::new());
    app.session.cut().unwrap();
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
    turn(&mut thread);
    assert_eq!(thread.get(memory, 1), [7]);
    assert_eq!(app.client.control().take_error(), None);
    thread.call(GreenDestroy { green: GREEN }).unwrap();
}
