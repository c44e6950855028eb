//! Memory pools: what a stream may use at once, what others have to wait for, what is counted, and what comes back.
#![allow(clippy::unwrap_used)]

use crate::common::{App, BASIC, CTX, Images, LONG, Thread};
use std::sync::atomic::Ordering;
use wire::*;

const USUAL: Pool = Pool::Default(Device(0));
/// `CU_MEMPOOL_ATTR_*`.
const OPPORTUNISTIC: u32 = 2;
const THRESHOLD: u32 = 4;
const RESERVED: u32 = 5;
const RESERVED_HIGH: u32 = 6;
const USED: u32 = 7;
const USED_HIGH: u32 = 8;

fn on(stream: StreamId) -> Stream {
    Stream::Created(stream)
}

fn alloc(thread: &mut Thread, pool: Pool, stream: Stream, bytes: u64) -> u64 {
    thread.call(MemAllocAsync { ctx: CTX, stream, pool, bytes }).unwrap()
}

fn free(thread: &mut Thread, stream: Stream, address: u64) {
    thread.send(MemFreeAsync { ctx: CTX, stream, address });
}

fn get(thread: &mut Thread, pool: Pool, attribute: u32) -> u64 {
    thread.call(PoolGetAttribute { pool, attribute }).unwrap()
}

fn set(thread: &mut Thread, pool: Pool, attribute: u32, value: u64) -> Result<(), CuError> {
    thread.call(PoolSetAttribute { pool, attribute, value })
}

fn create(thread: &mut Thread, id: u32, max_bytes: u64) -> Pool {
    let pool = PoolId(id);
    thread.call(PoolCreate { pool, device: Device(0), max_bytes }).unwrap();
    Pool::Created(pool)
}

#[test]
fn a_stream_has_what_it_freed_at_once_and_others_when_it_is_complete() {
    let (mut app, mut thread) = App::with_context();
    let (ours, flags) = app.pinned(&mut thread, PinnedId(900), 4096);
    let module = app.load(&mut thread, 2, BASIC);
    let wait_for = thread.function(module, 3, "wait_for");
    let [one, two] = thread.streams([4, 5]);
    let (small, large) =
        (alloc(&mut thread, USUAL, on(one), 5000), alloc(&mut thread, USUAL, on(one), 4 << 20));
    thread.launch(wait_for, on(one), 1, &[flags, flags + 4], &[]);
    free(&mut thread, on(one), small);
    free(&mut thread, on(one), large);
    // The freeing stream is held up, and yet has its own places again, whole or in pieces.
    let again = alloc(&mut thread, USUAL, on(one), 4 << 20);
    assert_eq!(again, large);
    let piece = alloc(&mut thread, USUAL, on(one), 1000);
    assert_eq!(piece, small);
    let rest = alloc(&mut thread, USUAL, on(one), 4000);
    assert_eq!(rest, small + 1024);
    free(&mut thread, on(one), piece);
    free(&mut thread, on(one), rest);
    free(&mut thread, on(one), again);
    // Another stream must not have them before.
    let (other, much) =
        (alloc(&mut thread, USUAL, on(two), 1000), alloc(&mut thread, USUAL, on(two), 4 << 20));
    assert!(other != small && other != rest && much != large);
    free(&mut thread, on(two), much);
    ours.word(0).store(1, Ordering::Release);
    thread.call(StreamSynchronize { ctx: CTX, stream: on(one) }).unwrap();
    let now = alloc(&mut thread, USUAL, on(two), 5000);
    assert_eq!(now, small);
}

#[test]
fn memory_that_is_short_is_waited_for_in_the_stream() {
    let (mut app, mut thread) = App::with_context();
    let (ours, flags) = app.pinned(&mut thread, PinnedId(900), 4096);
    let module = app.load(&mut thread, 2, BASIC);
    let wait_for = thread.function(module, 3, "wait_for");
    let [one, two] = thread.streams([4, 5]);
    let (_, total) = thread.call(MemInfo { ctx: CTX }).unwrap();
    let most = total / 4 * 3;
    let first = alloc(&mut thread, USUAL, on(one), most);
    thread.launch(wait_for, on(one), 1, &[flags, flags + 4], &[]);
    free(&mut thread, on(one), first);
    // It does not fit twice: the second stream gets the place, and waits for the first to have come to the free.
    assert_eq!(alloc(&mut thread, USUAL, on(two), most), first);
    let word =
        Fill { ctx: CTX, stream: on(two), dst: first, pitch: 0, element: 4, value: 7, width: 1, height: 1 };
    thread.send(word);
    assert_eq!(thread.call(StreamQuery { ctx: CTX, stream: on(two) }), Ok(false));
    ours.word(0).store(1, Ordering::Release);
    thread.call(StreamSynchronize { ctx: CTX, stream: on(two) }).unwrap();
    assert_eq!(ours.word(1).load(Ordering::Acquire), 1);
    assert_eq!(thread.get(first, 1), [7]);
    let too_much = MemAllocAsync { ctx: CTX, stream: on(two), pool: USUAL, bytes: most };
    assert_eq!(thread.call(too_much), Err(CuError::OUT_OF_MEMORY));
}

#[test]
fn what_a_stream_cannot_wait_for_is_not_lost() {
    let (mut app, mut thread) = App::with_context();
    let (ours, flags) = app.pinned(&mut thread, PinnedId(900), 4096);
    let module = app.load(&mut thread, 2, BASIC);
    let wait_for = thread.function(module, 3, "wait_for");
    let other = ContextId(50);
    thread.call(ContextCreate { ctx: other, device: Device(0), flags: 0, primary: false }).unwrap();
    let upload = app.upload(BASIC);
    let module = ModuleId(51);
    thread.call(ModuleLoad { ctx: other, module, upload, options: vec![], managed: 0 }).unwrap();
    let store = thread.function(module, 52, "store");
    let [one] = thread.streams([4]);
    let (_, total) = thread.call(MemInfo { ctx: CTX }).unwrap();
    let most = total / 4 * 3;
    let first = alloc(&mut thread, USUAL, on(one), most);
    thread.launch(wait_for, on(one), 1, &[flags, flags + 4], &[]);
    free(&mut thread, on(one), first);
    // The other context fails: its stream can wait for nothing, and so cannot have the place.
    let params = Bytes([&8u64.to_le_bytes()[..], &1u32.to_le_bytes()].concat());
    let (stream, grid, block) = (Stream::Legacy, [1; 3], [1; 3]);
    thread.send(Launch {
        ctx: other,
        stream,
        callee: store,
        grid,
        block,
        shared: 0,
        attributes: vec![],
        params,
    });
    assert_eq!(thread.call(StreamSynchronize { ctx: other, stream }), Err(CuError::ILLEGAL_ADDRESS));
    let refused = thread.call(MemAllocAsync { ctx: other, stream, pool: USUAL, bytes: most });
    assert_eq!(refused, Err(CuError::ILLEGAL_ADDRESS));
    assert_eq!(get(&mut thread, USUAL, USED), 0);
    ours.word(0).store(1, Ordering::Release);
    thread.call(StreamSynchronize { ctx: CTX, stream: on(one) }).unwrap();
    assert_eq!(alloc(&mut thread, USUAL, on(one), most), first);
}

#[test]
fn what_a_pool_has_is_counted_and_given_back() {
    let (_app, mut thread) = App::with_context();
    let pool = create(&mut thread, 7, 40 << 20);
    let (free_before, _) = thread.call(MemInfo { ctx: CTX }).unwrap();
    let (a, b) =
        (alloc(&mut thread, pool, Stream::Legacy, 100), alloc(&mut thread, pool, Stream::Legacy, 16 << 20));
    assert_eq!(
        (get(&mut thread, pool, USED), get(&mut thread, pool, RESERVED)),
        (512 + (16 << 20), 18 << 20)
    );
    let over = MemAllocAsync { ctx: CTX, stream: Stream::Legacy, pool, bytes: 30 << 20 };
    assert_eq!(thread.call(over), Err(CuError::OUT_OF_MEMORY), "more than the pool may have");
    free(&mut thread, Stream::Legacy, b);
    assert_eq!((get(&mut thread, pool, USED), get(&mut thread, pool, USED_HIGH)), (512, 512 + (16 << 20)));
    assert_eq!(get(&mut thread, pool, RESERVED), 18 << 20, "held until somebody waits");
    // Kept up to the threshold, which is nothing at first.
    set(&mut thread, pool, THRESHOLD, 18 << 20).unwrap();
    thread.synchronize().unwrap();
    assert_eq!(get(&mut thread, pool, RESERVED), 18 << 20);
    let (free_held, _) = thread.call(MemInfo { ctx: CTX }).unwrap();
    assert_eq!(free_before - free_held, 18 << 20, "what a pool holds is not free");
    set(&mut thread, pool, THRESHOLD, 0).unwrap();
    let again = alloc(&mut thread, pool, Stream::Legacy, 16 << 20);
    assert_eq!(again, b);
    free(&mut thread, Stream::Legacy, again);
    thread.synchronize().unwrap();
    assert_eq!(get(&mut thread, pool, RESERVED), 2 << 20);
    assert_eq!(get(&mut thread, pool, RESERVED_HIGH), 18 << 20);
    set(&mut thread, pool, RESERVED_HIGH, 0).unwrap();
    assert_eq!(get(&mut thread, pool, RESERVED_HIGH), 2 << 20);
    free(&mut thread, Stream::Legacy, a);
    set(&mut thread, pool, THRESHOLD, u64::MAX).unwrap();
    thread.synchronize().unwrap();
    thread.call(PoolTrim { pool, keep: 1 << 20 }).unwrap();
    assert_eq!(get(&mut thread, pool, RESERVED), 2 << 20, "a trim leaves as much as it was told");
    thread.call(PoolTrim { pool, keep: 0 }).unwrap();
    assert_eq!((get(&mut thread, pool, USED), get(&mut thread, pool, RESERVED)), (0, 0));
    for (attribute, value) in [(USED, 0), (RESERVED, 0), (USED_HIGH, 1), (0, 0), (99, 0)] {
        assert_eq!(set(&mut thread, pool, attribute, value), Err(CuError::INVALID_VALUE), "{attribute}");
    }
    let (free_after, _) = thread.call(MemInfo { ctx: CTX }).unwrap();
    assert_eq!(free_before, free_after);
}

#[test]
fn a_destroyed_pool_ends_with_its_last_allocation() {
    let (_app, mut thread) = App::with_context();
    let pool = create(&mut thread, 7, 0);
    let memory = alloc(&mut thread, pool, Stream::Legacy, 1000);
    thread.call(PoolDestroy { pool: PoolId(7) }).unwrap();
    thread.put(memory, &[1, 2, 3]);
    assert_eq!(thread.get(memory, 3), [1, 2, 3]);
    let more = MemAllocAsync { ctx: CTX, stream: Stream::Legacy, pool, bytes: 8 };
    assert_eq!(thread.call(more.clone()), Err(CuError::INVALID_VALUE));
    // Each of the two ways to free takes what the other's counterpart has allocated.
    thread.send(MemFree { address: memory });
    thread.synchronize().unwrap();
    assert_eq!(thread.call(PoolGetAttribute { pool, attribute: USED }), Err(CuError::INVALID_VALUE));
    let plain = thread.alloc(1000);
    free(&mut thread, Stream::Legacy, plain);
    thread.synchronize().unwrap();
    assert_eq!(thread.alloc(1000), plain);
    assert_eq!(thread.call(PoolDestroy { pool: PoolId(7) }), Err(CuError::INVALID_VALUE));
}

#[test]
fn pools_come_back_as_they_were() {
    let (app, mut thread) = App::with_context();
    let images = Images::new();
    let pool = create(&mut thread, 7, 100 << 20);
    let doomed = create(&mut thread, 8, 0);
    set(&mut thread, pool, THRESHOLD, 5 << 20).unwrap();
    set(&mut thread, pool, OPPORTUNISTIC, 0).unwrap();
    let [stream] = thread.streams([9]);
    let addresses: Vec<u64> =
        [pool, doomed, USUAL].iter().map(|pool| alloc(&mut thread, *pool, on(stream), 3000)).collect();
    let large = alloc(&mut thread, pool, on(stream), 9 << 20);
    thread.call(PoolDestroy { pool: PoolId(8) }).unwrap();
    for address in addresses.iter().chain([&large]) {
        thread.put(*address, &[*address as u32, 2, 3]);
    }
    let numbers = |thread: &mut Thread| {
        [OPPORTUNISTIC, THRESHOLD, RESERVED, RESERVED_HIGH, USED, USED_HIGH]
            .map(|each| get(thread, pool, each))
    };
    thread.synchronize().unwrap();
    let before = numbers(&mut thread);
    app.session.close_gate(LONG).unwrap();
    assert_eq!(app.session.refusals(), Vec::<String>::new());
    let (id, _) = images.capture(&app.session);
    let (dir, held) = app.kill();
    drop(thread);
    let app = App::restore(dir, held, crate::common::SESSION, &images.store.open_image(&id).unwrap());
    let mut thread = app.thread();
    assert_eq!(numbers(&mut thread), before);
    for address in addresses.iter().chain([&large]) {
        assert_eq!(thread.get(*address, 3), [*address as u32, 2, 3]);
    }
    free(&mut thread, on(stream), addresses[1]);
    thread.synchronize().unwrap();
    let gone = PoolGetAttribute { pool: doomed, attribute: USED };
    assert_eq!(thread.call(gone), Err(CuError::INVALID_VALUE), "a destroyed pool ends after a restart too");
    free(&mut thread, on(stream), large);
    assert_eq!(alloc(&mut thread, pool, on(stream), 9 << 20), large);
}

#[test]
fn thousands_of_freed_places_are_found_as_fast_as_a_few() {
    const COUNT: usize = 10_000;
    let (mut app, mut thread) = App::with_context();
    let (ours, flags) = app.pinned(&mut thread, PinnedId(900), 4096);
    let module = app.load(&mut thread, 2, BASIC);
    let wait_for = thread.function(module, 3, "wait_for");
    let [one] = thread.streams([4]);
    let begun = std::time::Instant::now();
    let sizes = || (0..COUNT).map(|at| 512 * (1 + at as u64 % 7));
    let places: Vec<(u64, u64)> =
        sizes().map(|bytes| (bytes, alloc(&mut thread, USUAL, on(one), bytes))).collect();
    thread.launch(wait_for, on(one), 1, &[flags, flags + 4], &[]);
    for (_, address) in &places {
        free(&mut thread, on(one), *address);
    }
    // The stream is held up, and has all its places again: each the one that does best, the first freed first.
    for (bytes, address) in &places {
        assert_eq!(alloc(&mut thread, USUAL, on(one), *bytes), *address);
    }
    // What is freed for everybody waits for the stream, and nobody looks at all of it each time.
    let plain: Vec<u64> = (0..COUNT).map(|_| thread.alloc(512)).collect();
    for address in &plain {
        thread.send(MemFree { address: *address });
    }
    assert!(!plain.contains(&thread.alloc(512)));
    ours.word(0).store(1, Ordering::Release);
    thread.synchronize().unwrap();
    assert!(plain.contains(&thread.alloc(512)));
    // With a look at each for each, minutes.
    assert!(begun.elapsed() < 3 * LONG, "{:?}", begun.elapsed());
    drop(thread);
    let _ = app.kill();
}
