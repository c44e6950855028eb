//! Waits of which the device itself tells the end.
#![allow(clippy::unwrap_used)]

use crate::common::{App, BASIC, CTX, HELLO, Pinned, Thread, encoded, wait_until};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use transport::RingIndex;
use wire::*;

/// A word of the session's file, where `docs/wire-protocol.md` says.
fn word(session: &File, offset: usize) -> u64 {
    let mut word = [0; 8];
    session.read_exact_at(&mut word, offset as u64).unwrap();
    u64::from_le_bytes(word)
}

fn session_file(app: &App) -> File {
    File::open(app.dir.path().join("session")).unwrap()
}

/// What the fence of a thread's ring holds.
fn fence(app: &App, thread: &Thread) -> u64 {
    word(&session_file(app), 24576 + 128 * thread.ring.index().get())
}

/// Waits until the server has had a message of the ring in hand for a while.
fn await_wait(session: &File, ring: RingIndex) {
    let at = (64 << 10) + ring.get() * (2 << 20);
    let mut since = Instant::now();
    wait_until(|| {
        if word(session, at) == word(session, at + 128) {
            since = Instant::now();
        }
        since.elapsed() > Duration::from_millis(150)
    });
}

/// Waits for a stream as the shim does; tells whether the server has answered, or what failed.
fn try_await<M: Message<Reply = ()>>(thread: &mut Thread, message: M) -> Result<bool, CuError> {
    let mut reply = Vec::new();
    let replied = thread.ring.call_or_fence(M::OPCODE, &[&encoded(&message)], &mut reply);
    let replied = replied.map_err(|_| CuError::DEVICE_UNAVAILABLE)?;
    if replied {
        Reply::<()>::decode(&mut Decoder::new(&reply)).unwrap().result.map_err(|(code, _)| code)?;
    }
    Ok(replied)
}

fn await_work(thread: &mut Thread, message: impl Message<Reply = ()>) -> bool {
    try_await(thread, message).unwrap()
}

/// A stream that waits until word `index` of pinned memory is 1.
fn hold(thread: &mut Thread, stream: Stream, address: u64, index: u64) {
    let word = Word { address: address + 4 * index, value: 1, wide: false };
    let operations = vec![MemoryOperation::Wait { word, until: Until::Equal }];
    thread.send(MemoryOperations { ctx: CTX, stream, operations });
}

/// Lets streams go on that are held, one after the other, when the thread is waiting.
fn let_go(app: &App, thread: &Thread, ours: Pinned, words: &'static [usize]) -> JoinHandle<Pinned> {
    let (session, ring) = (session_file(app), thread.ring.index());
    std::thread::spawn(move || {
        for word in words {
            await_wait(&session, ring);
            ours.word(*word).store(1, Ordering::Release);
        }
        ours
    })
}

fn synchronize(stream: Stream) -> StreamSynchronize {
    StreamSynchronize { ctx: CTX, stream }
}

#[test]
fn the_device_tells_that_a_stream_is_done() {
    let (mut app, mut thread) = App::with_context();
    let module = app.load(&mut thread, 2, BASIC);
    let add = thread.function(module, 3, "add_one");
    let memory = thread.alloc(64);
    thread.put(memory, &[0; 4]);
    let (mut ours, address) = app.pinned(&mut thread, PinnedId(900), 4096);
    let [one, two] = thread.streams([4, 5]).map(Stream::Created);
    thread.synchronize().unwrap();
    let mut last = fence(&app, &thread);
    let words: [&[usize]; 6] = [&[0], &[1], &[2], &[3], &[4], &[5]];
    for (round, words) in words.into_iter().enumerate() {
        // The legacy stream has nothing to be in order with here.
        let stream = if round < 4 { one } else { Stream::Legacy };
        hold(&mut thread, stream, address, round as u64);
        thread.launch(add, stream, 1, &[memory], &[1]);
        let letting = let_go(&app, &thread, ours, words);
        if round % 2 == 0 {
            await_work(&mut thread, synchronize(stream));
        } else {
            await_work(&mut thread, ContextSynchronize { ctx: CTX });
        }
        // Whether or not the server has answered yet, the next calls find their own answers.
        assert_eq!(thread.call(StreamQuery { ctx: CTX, stream }), Ok(true));
        assert_eq!(thread.get(memory, 1), [round as u32 + 1]);
        ours = letting.join().unwrap();
        let told = fence(&app, &thread);
        assert!(told > last, "round {round}: {told} after {last}");
        last = told;
    }
    // Nothing to wait for, and two streams to wait for: the server answers.
    assert!(await_work(&mut thread, ContextSynchronize { ctx: CTX }));
    for (stream, index) in [(one, 10), (two, 11)] {
        hold(&mut thread, stream, address, index);
    }
    let letting = let_go(&app, &thread, ours, &[10, 11]);
    assert!(await_work(&mut thread, ContextSynchronize { ctx: CTX }));
    letting.join().unwrap();
    assert_eq!(fence(&app, &thread), last);
}

/// An idle application with pinned memory, and a stream that waits for the legacy one, and the other way round.
fn with_blocking() -> (App, Thread, (Pinned, u64), Stream) {
    let (app, mut thread) = App::with_context();
    let pinned = app.pinned(&mut thread, PinnedId(900), 4096);
    thread.send(StreamCreate { ctx: CTX, stream: StreamId(4), flags: 0, priority: 0 });
    thread.synchronize().unwrap();
    (app, thread, pinned, Stream::Created(StreamId(4)))
}

/// The legacy stream is not done before blocking ones are, whether or not it has had work of its own.
#[test]
fn whoever_waits_for_the_legacy_stream_waits_for_blocking_ones() {
    let (app, mut thread, (ours, address), stream) = with_blocking();
    let before = fence(&app, &thread);
    hold(&mut thread, stream, address, 0);
    let letting = let_go(&app, &thread, ours, &[0]);
    await_work(&mut thread, synchronize(Stream::Legacy));
    let ours = letting.join().unwrap();
    assert_eq!(ours.word(0).load(Ordering::Acquire), 1, "it has waited");
    assert_eq!(fence(&app, &thread), before, "a fence in it would hold others up");
}

/// A wait is in order with nothing that comes after it, and so is what tells of its end.
#[test]
fn a_wait_does_not_wait_for_the_legacy_stream_behind_it() {
    let (app, mut thread, (ours, address), stream) = with_blocking();
    let before = fence(&app, &thread);
    hold(&mut thread, stream, address, 0);
    hold(&mut thread, Stream::Legacy, address, 1);
    // The legacy stream is held until this thread has come back.
    let letting = let_go(&app, &thread, ours, &[0]);
    await_work(&mut thread, synchronize(stream));
    let ours = letting.join().unwrap();
    assert_eq!(fence(&app, &thread), before);
    ours.word(1).store(1, Ordering::Release);
    thread.synchronize().unwrap();
}

/// What a kernel has printed comes with the answer, so there must be one.
#[test]
fn the_server_tells_what_was_printed() {
    let (mut app, mut thread) = App::with_context();
    let (ours, address) = app.pinned(&mut thread, PinnedId(900), 4096);
    let module = app.load(&mut thread, 2, HELLO);
    let hello = thread.function(module, 3, "hello");
    let [one] = thread.streams([4]).map(Stream::Created);
    thread.synchronize().unwrap();
    let before = fence(&app, &thread);
    hold(&mut thread, one, address, 0);
    thread.launch(hello, one, 1, &[], &[7]);
    let letting = let_go(&app, &thread, ours, &[0]);
    thread.call(synchronize(one)).unwrap();
    letting.join().unwrap();
    assert_eq!(fence(&app, &thread), before);
    assert!(!thread.output.is_empty());
}

/// What fails is told by the server, as ever.
#[test]
fn the_device_does_not_get_past_a_fault() {
    let (mut app, mut thread) = App::with_context();
    let (ours, address) = app.pinned(&mut thread, PinnedId(900), 4096);
    let module = app.load(&mut thread, 2, BASIC);
    let wild = thread.function(module, 3, "wild");
    let [one] = thread.streams([4]).map(Stream::Created);
    thread.synchronize().unwrap();
    hold(&mut thread, one, address, 0);
    let letting = let_go(&app, &thread, ours, &[0]);
    await_work(&mut thread, synchronize(one));
    letting.join().unwrap();
    let before = fence(&app, &thread);
    thread.launch(wild, one, 1, &[], &[]);
    let failed = thread.call(synchronize(one));
    assert_eq!((failed, fence(&app, &thread)), (Err(CuError::ILLEGAL_ADDRESS), before));
    wait_until(|| app.client.control().error().is_some());
}

/// The session ends while a stream is held and somebody waits for it: nothing is taken away that the device may still write.
#[test]
fn a_session_can_end_in_a_wait() {
    let (app, mut thread) = App::with_context();
    let (ours, address) = app.pinned(&mut thread, PinnedId(900), 4096);
    let [one] = thread.streams([4]).map(Stream::Created);
    thread.synchronize().unwrap();
    hold(&mut thread, one, address, 0);
    let ring = thread.ring.index();
    let waiting = std::thread::spawn(move || try_await(&mut thread, synchronize(one)).is_err());
    await_wait(&session_file(&app), ring);
    app.session.end();
    assert!(waiting.join().unwrap(), "by the server, or by its end");
    // As the device does that is not stopped.
    ours.word(0).store(1, Ordering::Release);
    let _ = app.kill();
}
