//! Waits of which the device itself tells the end.

use crate::common::{App, BASIC, CTX, HELLO, Pinned, Thread, wait_until};
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::time::Duration;
use wire::*;

/// What the fence of a thread's ring holds, read where `docs/wire-protocol.md` says.
fn fence(app: &App, thread: &Thread) -> u64 {
    let file = std::fs::File::open(app.dir.path().join("session")).unwrap();
    let mut word = [0; 8];
    file.read_exact_at(&mut word, 24576 + 128 * thread.ring.index().get() as u64).unwrap();
    u64::from_le_bytes(word)
}

/// Waits for a stream as the shim does; tells whether the server has answered.
fn await_work(thread: &mut Thread, message: impl Message<Reply = ()>) -> bool {
    fn call<M: Message<Reply = ()>>(thread: &mut Thread, message: &M) -> bool {
        let (mut body, mut reply) = (Vec::new(), Vec::new());
        message.encode(&mut Encoder::new(&mut body));
        let replied = thread.ring.call_or_fence(M::OPCODE, &[&body], &mut reply).unwrap();
        if replied {
            Reply::<()>::decode(&mut Decoder::new(&reply)).unwrap().result.unwrap();
        }
        replied
    }
    call(thread, &message)
}

/// A stream that waits until word `index` of pinned memory is 1.
fn hold(thread: &mut Thread, stream: Stream, address: u64, index: u64) {
    let word = Word { address: address + 4 * index, value: 1, wide: false };
    let operations = vec![MemoryOperation::Wait { word, until: Until::Equal }];
    thread.send(MemoryOperations { ctx: CTX, stream, operations });
}

/// Lets a stream go on that is held, once somebody waits for it.
fn let_go(ours: Pinned, index: usize) -> std::thread::JoinHandle<Pinned> {
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        ours.word(index).store(1, Ordering::Release);
        ours
    })
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
    for index in 0..6 {
        hold(&mut thread, one, address, index);
        thread.launch(add, one, 1, &[memory], &[1]);
        let letting = let_go(ours, index as usize);
        if index % 2 == 0 {
            await_work(&mut thread, StreamSynchronize { ctx: CTX, stream: one });
        } else {
            await_work(&mut thread, ContextSynchronize { ctx: CTX });
        }
        ours = letting.join().unwrap();
        let told = fence(&app, &thread);
        assert!(told > last, "round {index}: {told} after {last}");
        last = told;
        // Whether or not the server has answered yet, the next calls find their own answers.
        assert_eq!(thread.get(memory, 1), [index as u32 + 1]);
        assert_eq!(thread.call(StreamQuery { ctx: CTX, stream: one }), Ok(true));
    }
    // Nothing to wait for, and two streams to wait for: the server answers.
    assert!(await_work(&mut thread, ContextSynchronize { ctx: CTX }));
    for (stream, index) in [(one, 10), (two, 11)] {
        hold(&mut thread, stream, address, index);
    }
    let letting = let_go(ours, 10);
    let letting = std::thread::spawn(move || let_go(letting.join().unwrap(), 11).join().unwrap());
    assert!(await_work(&mut thread, ContextSynchronize { ctx: CTX }));
    letting.join().unwrap();
    assert_eq!(fence(&app, &thread), last);
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
    let letting = let_go(ours, 0);
    thread.call(StreamSynchronize { ctx: CTX, stream: one }).unwrap();
    letting.join().unwrap();
    assert_eq!(fence(&app, &thread), before);
    assert!(!thread.output.is_empty());
}

/// An answer that nobody reads takes nothing with it that somebody should.
#[test]
fn a_thread_that_saw_the_fence_hears_of_errors_later() {
    let (mut app, mut thread) = App::with_context();
    let (ours, address) = app.pinned(&mut thread, PinnedId(900), 4096);
    let module = app.load(&mut thread, 2, BASIC);
    let wild = thread.function(module, 3, "wild");
    let [one] = thread.streams([4]).map(Stream::Created);
    thread.synchronize().unwrap();
    hold(&mut thread, one, address, 0);
    let letting = let_go(ours, 0);
    await_work(&mut thread, StreamSynchronize { ctx: CTX, stream: one });
    letting.join().unwrap();
    // The device does not get past a kernel that faults: the server answers, with the error.
    let before = fence(&app, &thread);
    thread.launch(wild, one, 1, &[], &[]);
    let failed = thread.call(StreamSynchronize { ctx: CTX, stream: one });
    assert_eq!((failed, fence(&app, &thread)), (Err(CuError::ILLEGAL_ADDRESS), before));
    wait_until(|| app.client.control().error().is_some());
}
