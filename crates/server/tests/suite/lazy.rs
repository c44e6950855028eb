//! A session that goes on before its memory is filled.
#![allow(clippy::unwrap_used)]

use crate::common::slow::Valve;
use crate::common::{App, BASIC, CTX, Images, LONG, SESSION, Thread, wait_until};
use image::{CHUNK_SIZE, ImageId};
use std::sync::Arc;
use std::time::{Duration, Instant};
use wire::*;

/// What is to be seen not to happen would have happened by then.
const SOON: Duration = Duration::from_millis(200);
/// Chunks of each allocation.
const CHUNKS: u64 = 6;
const BYTES: u64 = CHUNKS * CHUNK_SIZE as u64;

/// Words that no compression makes smaller, so that each chunk is one read.
fn noise(number: u64) -> u32 {
    (number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 29) as u32
}

/// Where the words of noise lie: every one of a first allocation has its number, those of a second follow.
struct Late {
    images: Images,
    first: u64,
    second: u64,
    add: Callee,
    valve: Arc<Valve>,
}

/// A session with two allocations full of noise, restored from a store that gives none of it yet.
fn late() -> (App, Thread, Late) {
    let (mut app, mut thread) = App::with_context();
    let images = Images::new();
    let module = app.load(&mut thread, 2, BASIC);
    let add = thread.function(module, 3, "add_one");
    let [first, second] = [thread.alloc(BYTES), thread.alloc(BYTES)];
    for (base, from) in [(first, 0), (second, BYTES / 4)] {
        for part in 0..BYTES / 4096 {
            let words: Vec<u32> = (0..1024).map(|word| noise(from + part * 1024 + word)).collect();
            thread.put(base + part * 4096, &words);
        }
    }
    thread.synchronize().unwrap();
    app.session.close_gate(LONG).unwrap();
    let (id, _) = images.capture(&app.session);
    let files = app.kill();
    drop(thread);
    let (valve, image) = Valve::before(&images.store.dir(), id);
    let app = App::restore_lazily(files, SESSION, &image, || valve.close());
    let thread = app.thread();
    (app, thread, Late { images, first, second, add, valve })
}

impl Late {
    fn check(&self, thread: &mut Thread) {
        for (base, from) in [(self.first, 0), (self.second, BYTES / 4)] {
            for part in (0..BYTES / 4096).step_by(61) {
                let expected: Vec<u32> = (0..1024).map(|word| noise(from + part * 1024 + word)).collect();
                assert!(thread.get(base + part * 4096, 1024) == expected, "page {part} of {base:#x}");
            }
        }
    }
}

#[test]
fn a_copy_waits_for_what_it_names_and_nothing_else_waits() {
    let (app, mut thread, late) = late();
    // Nothing else waits.
    assert_eq!(thread.call(StreamQuery { ctx: CTX, stream: Stream::Legacy }), Ok(true));
    let fresh = thread.alloc(4096);
    thread.put(fresh, &[7]);
    assert_eq!(thread.get(fresh, 1), [7]);
    let others = std::thread::spawn(move || {
        let ([stream], [event]) = (thread.streams([20]), thread.events([21]));
        thread.call(EventRecordNow { ctx: CTX, stream: Stream::Created(stream), event, flags: 0 }).unwrap();
        thread.send(StreamDestroy { stream });
        thread.pin(22, 4096).unwrap();
        thread.call(PinnedFree { pinned: PinnedId(22) }).unwrap();
        thread
    });
    wait_until(|| others.is_finished());
    let mut thread = others.join().unwrap();
    wait_until(|| late.valve.is_waited_for());
    let last = late.second + BYTES - 4;
    let reading = std::thread::spawn(move || (thread.get(last, 1), thread));
    std::thread::sleep(SOON);
    assert!(!reading.is_finished());
    let began = Instant::now();
    while !reading.is_finished() {
        late.valve.allow(1);
        std::thread::sleep(Duration::from_millis(10));
        assert!(began.elapsed() < LONG);
    }
    let (read, mut thread) = reading.join().unwrap();
    assert_eq!(read, [noise(BYTES / 2 - 1)]);
    late.valve.open();
    late.check(&mut thread);
    wait_until(|| !app.session.is_filling());
}

#[test]
fn a_kernel_waits_for_everything() {
    let (app, mut thread, late) = late();
    thread.launch(late.add, Stream::Legacy, 64, &[late.first], &[64]);
    let waiting = std::thread::spawn(move || {
        thread.synchronize().unwrap();
        thread
    });
    late.valve.allow(CHUNKS);
    std::thread::sleep(SOON);
    assert!(!waiting.is_finished() && app.session.is_filling());
    late.valve.open();
    let mut thread = waiting.join().unwrap();
    assert!(!app.session.is_filling());
    let expected: Vec<u32> = (0..64).map(|word| noise(word).wrapping_add(1)).collect();
    assert_eq!(thread.get(late.first, 64), expected);
    assert_eq!(thread.get(late.first + 256, 1), [noise(64)]);
}

#[test]
fn what_is_freed_and_had_again_is_not_overwritten() {
    let (app, mut thread, late) = late();
    thread.send(MemFree { address: late.first });
    let waiting = std::thread::spawn(move || {
        let again = thread.alloc(BYTES);
        for page in 0..BYTES / 4096 {
            thread.put(again + page * 4096, &[5; 1024]);
        }
        thread.synchronize().unwrap();
        (again, thread)
    });
    std::thread::sleep(SOON);
    late.valve.open();
    let (again, mut thread) = waiting.join().unwrap();
    wait_until(|| !app.session.is_filling());
    assert_eq!(again, late.first, "the test shows something");
    for page in 0..BYTES / 4096 {
        assert_eq!(thread.get(again + page * 4096, 1024), [5; 1024]);
    }
}

#[test]
fn the_image_is_held_until_all_is_filled() {
    let (app, mut thread, late) = late();
    let kept = |images: &[ImageId]| late.images.store.remove(images).unwrap().kept;
    let all: Vec<ImageId> = late.images.store.list().unwrap().images.iter().map(|image| image.id).collect();
    assert!(kept(&all).is_some(), "its chunks go only when nobody needs them");
    late.valve.open();
    late.check(&mut thread);
    wait_until(|| !app.session.is_filling());
    wait_until(|| kept(&[]).is_none());
}

#[test]
fn memory_that_never_comes_is_never_seen() {
    let (app, mut thread, late) = late();
    wait_until(|| late.valve.is_waited_for());
    let address = late.first;
    let reading = std::thread::spawn(move || {
        thread.call(CopyToInline { ctx: CTX, stream: Stream::Legacy, src: address, bytes: 4 })
    });
    late.valve.break_off();
    std::thread::sleep(SOON);
    assert!(!reading.is_finished() && app.session.is_filling());
    let failure = app.session.filling().unwrap().failure.unwrap().to_string();
    assert!(failure.contains("the cable was pulled") && failure.contains("memory at"), "{failure}");
    app.session.end();
    drop(reading);
}
