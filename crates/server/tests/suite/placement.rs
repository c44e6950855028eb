//! Managed regions beside the device: who lies where, who moves, and that nothing is lost on the way.
#![allow(clippy::unwrap_used)]

use crate::common::{App, BASIC, CTX, Images, SESSION, Thread};
use server::sharing::Giver;
use wire::*;

const MIB: u64 = 1 << 20;
/// A region, of which a device of 64 MiB has room for three.
const REGION: u64 = 20 * MIB;

fn region(thread: &mut Thread, id: u32) -> u64 {
    let address = thread.call(ManagedAlloc { ctx: CTX, managed: PinnedId(id), bytes: REGION }).unwrap();
    thread.put(address, &[id, id + 1]);
    thread.put(address + REGION - 4, &[id + 2]);
    address
}

/// So many regions, of which the first three lie on the device.
fn regions<const N: usize>() -> (App, Thread, [u64; N]) {
    let (app, mut thread) = App::with_shadows(64 * MIB);
    let regions = std::array::from_fn(|at| region(&mut thread, at as u32 * 10));
    thread.synchronize().unwrap();
    (app, thread, regions)
}

/// Each region holds what it did.
fn check(thread: &mut Thread, regions: &[u64]) {
    for (at, region) in regions.iter().enumerate() {
        let id = at as u32 * 10;
        assert_eq!(
            (thread.get(*region, 2), thread.get(region + REGION - 4, 1)),
            (vec![id, id + 1], vec![id + 2])
        );
    }
}

fn free(thread: &mut Thread) -> u64 {
    thread.call(MemInfo { ctx: CTX }).unwrap().0
}

fn end(app: App, thread: Thread) {
    assert_eq!(app.client.control().take_error(), None);
    drop(thread);
    let _ = app.kill();
}

#[test]
fn what_has_no_room_lies_beside_the_device_and_comes_when_it_is_used() {
    let (mut app, mut thread, regions) = regions::<4>();
    let module = app.load(&mut thread, 2, BASIC);
    let copy = thread.function(module, 3, "copy");
    let before = free(&mut thread);
    assert!(before < REGION);
    // Nobody has to go: the room of the first is there, if somebody looks.
    thread.send(MemFree { address: regions[0] });
    for _ in 0..2 {
        thread.launch(copy, Stream::Legacy, 1, &[regions[3] + 8, regions[3]], &[]);
    }
    thread.synchronize().unwrap();
    assert_eq!(free(&mut thread), before, "it has come");
    assert_eq!(thread.get(regions[3], 4)[..3], [30, 31, 30]);
    end(app, thread);
}

#[test]
fn regions_make_way_for_allocations_and_for_others() {
    let (mut app, mut thread, regions) = regions::<4>();
    let module = app.load(&mut thread, 2, BASIC);
    let add = thread.function(module, 3, "add_one");
    let before = free(&mut thread);
    for region in [regions[0], regions[2]] {
        thread.launch(add, Stream::Legacy, 1, &[region + 64], &[1]);
    }
    // Nobody has used the second.
    let allocation = thread.alloc(REGION);
    thread.put(allocation, &[7]);
    check(&mut thread, &regions);
    assert_eq!(free(&mut thread), before);
    thread.send(MemFree { address: allocation });
    assert!(free(&mut thread) >= REGION);
    thread.send(ManagedHint { address: regions[1] + 5, device: Some(Device(0)) });
    thread.synchronize().unwrap();
    assert_eq!(free(&mut thread), before, "it is back");
    // Who is wanted elsewhere makes room for who is wanted here.
    thread.send(ManagedHint { address: regions[2], device: None });
    thread.send(ManagedHint { address: regions[3], device: Some(Device(0)) });
    thread.synchronize().unwrap();
    check(&mut thread, &regions);
    assert_eq!(free(&mut thread), before);
    // Nobody goes in vain.
    assert_eq!(thread.call(MemAlloc { ctx: CTX, bytes: 65 * MIB }), Err(CuError::OUT_OF_MEMORY));
    let all = thread.alloc(60 * MIB);
    thread.put(all, &[7]);
    check(&mut thread, &regions);
    end(app, thread);
}

#[test]
fn work_under_way_keeps_regions_where_they_are() {
    let (mut app, mut thread, regions) = regions::<4>();
    let (ours, flags) = app.pinned(&mut thread, PinnedId(900), 4096);
    let module = app.load(&mut thread, 2, BASIC);
    let wait_for = thread.function(module, 3, "wait_for");
    let before = free(&mut thread);
    thread.send(MemFree { address: regions[0] });
    thread.launch(wait_for, Stream::Legacy, 1, &[flags, flags + 4], &[]);
    thread.send(ManagedHint { address: regions[3], device: Some(Device(0)) });
    assert_eq!(thread.call(StreamQuery { ctx: CTX, stream: Stream::Legacy }), Ok(false));
    assert!(free(&mut thread) >= REGION, "it has not come");
    ours.word(0).store(1, std::sync::atomic::Ordering::Release);
    thread.synchronize().unwrap();
    assert_eq!(free(&mut thread), before);
    assert_eq!(thread.get(regions[3], 2), [30, 31]);
    end(app, thread);
}

#[test]
fn an_image_knows_who_lies_where() {
    let (app, mut thread, regions) = regions::<4>();
    let images = Images::new();
    let allocation = thread.alloc(REGION);
    thread.put(allocation, &[7]);
    thread.synchronize().unwrap();
    let (image, _, (dir, addresses)) = app.captured(thread, &images);
    let app = App::restore(dir, addresses, SESSION, &image);
    let mut thread = app.thread();
    check(&mut thread, &regions);
    assert_eq!(thread.get(allocation, 1), [7]);
    end(app, thread);
}

#[test]
fn a_smaller_device_has_fewer_regions() {
    let (app, mut thread, regions) = regions::<3>();
    let images = Images::new();
    let allocation = thread.alloc(MIB);
    thread.synchronize().unwrap();
    let (image, _, (dir, addresses)) = app.captured(thread, &images);
    let app = App::restore_on(dir, addresses, SESSION, &image, 30 * MIB);
    let mut thread = app.thread();
    check(&mut thread, &regions);
    assert_eq!(thread.get(allocation, 1).len(), 1);
    assert!(free(&mut thread) < 10 * MIB);
    end(app, thread);
}

#[test]
fn two_allocations_at_once_both_find_room() {
    let (app, mut thread, regions) = regions::<3>();
    let mut other = app.thread();
    let begun = std::time::Instant::now();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| other.alloc(REGION));
        let first = thread.alloc(REGION);
        assert_ne!(first, second.join().unwrap());
    });
    assert!(
        begun.elapsed() < std::time::Duration::from_secs(9),
        "neither has waited for the other to give up"
    );
    check(&mut thread, &regions);
    drop(other);
    end(app, thread);
}

#[test]
fn a_pool_that_may_hold_no_more_drives_nobody_away() {
    let (app, mut thread, regions) = regions::<3>();
    let pool = Pool::Created(PoolId(5));
    thread.call(PoolCreate { pool: PoolId(5), device: Device(0), max_bytes: 2 * MIB }).unwrap();
    let before = free(&mut thread);
    let refused = thread.call(MemAllocAsync { ctx: CTX, stream: Stream::Legacy, pool, bytes: REGION });
    assert_eq!((refused, free(&mut thread)), (Err(CuError::OUT_OF_MEMORY), before));
    check(&mut thread, &regions);
    end(app, thread);
}

/// Nobody waits for a userfaultfd that has come and is none.
#[test]
fn a_region_whose_faults_cannot_be_told_is_refused_at_once() {
    let (app, mut thread) = App::with_shadows(64 * MIB);
    let address = thread.call(ManagedAlloc { ctx: CTX, managed: PinnedId(1), bytes: REGION }).unwrap();
    app.session.take_userfault(tempfile::tempfile().unwrap().into());
    let begun = std::time::Instant::now();
    assert_eq!(thread.call(ManagedKeep { address }), Err(CuError::UNKNOWN));
    assert!(begun.elapsed() < std::time::Duration::from_secs(5));
    end(app, thread);
}
