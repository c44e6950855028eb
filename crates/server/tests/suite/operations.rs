//! Stream memory operations: their order, what is refused, and who is named when one waits for ever.
#![allow(clippy::unwrap_used)]

use crate::common::{App, BASIC, CTX, LONG};
use std::sync::atomic::Ordering;
use std::time::Duration;
use wire::*;

fn word(address: u64, value: u64) -> Word {
    Word { address, value, wide: false }
}

fn operations(stream: Stream, operations: Vec<MemoryOperation>) -> MemoryOperations {
    MemoryOperations { ctx: CTX, stream, operations }
}

fn write(word: Word) -> MemoryOperation {
    MemoryOperation::Write { word }
}

#[test]
fn one_stream_lets_another_go_on() {
    let (mut app, mut thread) = App::with_context();
    let module = app.load(&mut thread, 2, BASIC);
    let add = thread.function(module, 3, "add_one");
    let memory = thread.alloc(64);
    thread.put(memory, &[0; 4]);
    thread.synchronize().unwrap();
    let [one, two] = thread.streams([4, 5]).map(Stream::Created);
    let gate = MemoryOperation::Wait { word: word(memory + 4, 3), until: Until::Reached };
    thread.send(operations(one, vec![gate, write(word(memory, 10))]));
    thread.launch(add, one, 1, &[memory], &[1]);
    assert_eq!(thread.call(StreamQuery { ctx: CTX, stream: one }), Ok(false));
    thread.send(operations(two, vec![write(word(memory + 4, 2)), write(word(memory + 4, 4))]));
    thread.call(StreamSynchronize { ctx: CTX, stream: one }).unwrap();
    assert_eq!(thread.get(memory, 2), [11, 4]);
}

#[test]
fn the_gate_names_the_word_that_a_stream_waits_for() {
    let (app, mut thread) = App::with_context();
    let (ours, address) = app.pinned(&mut thread, PinnedId(900), 4096);
    let [stream] = thread.streams([4]);
    let until = |value| MemoryOperation::Wait { word: word(address + 8, value), until: Until::Equal };
    thread.send(operations(Stream::Created(stream), vec![until(7)]));
    thread.send(operations(Stream::Created(stream), vec![until(8)]));
    thread.call(StreamQuery { ctx: CTX, stream: Stream::Created(stream) }).unwrap();
    let named = |value: u32| {
        let holders = app.session.close_gate(Duration::from_millis(200)).unwrap_err();
        let words = [format!("{:#x}", stream.handle()), format!("{:#x} to be {value}", address + 8)];
        assert!(holders.iter().any(|each| words.iter().all(|word| each.contains(word))), "{holders:?}");
    };
    named(7);
    ours.word(2).store(7, Ordering::Release);
    // The first is over, the second is not.
    crate::common::wait_until(|| {
        app.session.close_gate(Duration::from_millis(50)).unwrap_err().concat().contains("be 8")
    });
    named(8);
    ours.word(2).store(8, Ordering::Release);
    app.session.close_gate(LONG).unwrap();
    app.session.open_gate();
}

#[test]
fn every_wait_of_a_batch_is_named() {
    let (app, mut thread) = App::with_context();
    let (ours, address) = app.pinned(&mut thread, PinnedId(900), 4096);
    let [stream] = thread.streams([4]);
    let until = |at, value| MemoryOperation::Wait { word: word(address + at, value), until: Until::Equal };
    thread.send(operations(Stream::Created(stream), vec![until(8, 7), until(16, 9)]));
    assert_eq!(thread.call(StreamQuery { ctx: CTX, stream: Stream::Created(stream) }), Ok(false));
    let holders = app.session.close_gate(Duration::from_millis(100)).unwrap_err().concat();
    for wait in [format!("{:#x} to be 7", address + 8), format!("{:#x} to be 9", address + 16)] {
        assert!(holders.contains(&wait), "{holders}");
    }
    ours.word(2).store(7, Ordering::Release);
    ours.word(4).store(9, Ordering::Release);
    app.session.close_gate(LONG).unwrap();
}

#[test]
fn what_writes_the_word_passes_the_gate() {
    let (app, mut thread) = App::with_context();
    let (ours, address) = app.pinned(&mut thread, PinnedId(900), 4096);
    let [one, two] = thread.streams([4, 5]).map(Stream::Created);
    let running = std::sync::atomic::AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // At any time the gate is likely to fall between a wait and what ends it.
            for round in 1.. {
                let gate = MemoryOperation::Wait { word: word(address, round), until: Until::Reached };
                thread.send(operations(one, vec![gate]));
                std::thread::sleep(Duration::from_micros(500));
                thread.send(operations(two, vec![write(word(address, round))]));
                if !running.load(Ordering::Acquire) {
                    return;
                }
            }
        });
        crate::common::wait_until(|| ours.word(0).load(Ordering::Acquire) > 0);
        for _ in 0..20 {
            app.session.close_gate(LONG).unwrap();
            app.session.open_gate();
            // So that messages are taken in between.
            std::thread::sleep(Duration::from_micros(700));
        }
        running.store(false, Ordering::Release);
    });
}

#[test]
fn what_writes_the_word_passes_the_gate_while_a_thread_synchronises() {
    let (app, mut thread) = App::with_context();
    let (_ours, address) = app.pinned(&mut thread, PinnedId(900), 4096);
    let [one, two] = thread.streams([4, 5]).map(Stream::Created);
    let mut waiting = app.thread();
    for round in 1..10 {
        let gate = MemoryOperation::Wait { word: word(address, round), until: Until::Reached };
        thread.send(operations(one, vec![gate]));
        assert_eq!(thread.call(StreamQuery { ctx: CTX, stream: one }), Ok(false));
        std::thread::scope(|scope| {
            scope.spawn(|| waiting.call(StreamSynchronize { ctx: CTX, stream: one }).unwrap());
            // So that the synchronisation is in hand when the gate closes, and the write comes behind it.
            std::thread::sleep(Duration::from_millis(10));
            let closing = scope.spawn(|| app.session.close_gate(LONG));
            std::thread::sleep(Duration::from_millis(3));
            thread.send(operations(two, vec![write(word(address, round))]));
            assert_eq!(closing.join().unwrap(), Ok(()));
            app.session.open_gate();
        });
    }
}

#[test]
fn words_outside_of_the_programs_memory_are_refused() {
    let (app, mut thread) = App::with_context();
    let memory = thread.alloc(64);
    let secret = Box::new(7u32);
    let wide = Word { address: memory + 60, value: 1, wide: true };
    for bad in [word(std::ptr::from_ref(&*secret) as u64, 1), word(memory + 2, 1), word(memory + 64, 1), wide]
    {
        thread.send(operations(Stream::Legacy, vec![write(bad)]));
        thread.synchronize().unwrap();
        assert_eq!(app.client.control().take_error(), Some(CuError::INVALID_VALUE), "{bad:?}");
    }
    assert_eq!(*secret, 7);
}
