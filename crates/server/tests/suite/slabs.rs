//! Small pinned allocations: pieces of files that they share.
#![allow(clippy::unwrap_used)]

use crate::common::{App, BASIC, CTX, Images, LONG, Pinned, SESSION, Thread, slab_file};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use wire::*;

const PAGE: u64 = 4096;
/// Pages of the first slab.
const FIRST: u32 = 512;

/// Allocates a page for each number.
fn pages(thread: &mut Thread, numbers: impl Iterator<Item = u32>) -> Vec<PinnedPlace> {
    numbers.map(|number| thread.pin(number, PAGE).unwrap()).collect()
}

/// Frees each number; the slabs that the application is told to unmap.
fn free(thread: &mut Thread, numbers: impl Iterator<Item = u32>) -> Vec<u64> {
    let told = numbers.map(|number| thread.call(PinnedFree { pinned: PinnedId(number) }).unwrap());
    told.filter(|slab| *slab != 0).collect()
}

fn bases(places: &[PinnedPlace]) -> Vec<u64> {
    let all: BTreeSet<u64> = places.iter().map(|place| place.slab.unwrap().0).collect();
    all.into_iter().collect()
}

#[test]
fn small_allocations_share_a_file_and_no_page() {
    let (app, mut thread) = App::with_context();
    let sizes = [1, PAGE, PAGE + 1, 512, 1 << 20];
    let places: Vec<_> = (10..).zip(sizes).map(|(id, bytes)| thread.pin(id, bytes).unwrap()).collect();
    assert_eq!(bases(&places).len(), 1);
    let mut addresses: Vec<_> = places.iter().map(|place| place.address).zip(sizes).collect();
    addresses.sort_unstable();
    assert!(addresses.iter().all(|(address, _)| address.is_multiple_of(PAGE)));
    let apart = |pair: &[(u64, u64)]| pair[0].0 + pair[0].1.next_multiple_of(PAGE) <= pair[1].0;
    assert!(addresses.windows(2).all(apart), "{addresses:x?}");
    let large = thread.pin(20, (1 << 20) + 1).unwrap();
    assert!(large.slab.is_none() && app.dir.path().join("pinned-20").exists());
    assert!(!app.dir.path().join("pinned-10").exists());
}

#[test]
fn an_empty_slab_goes_when_the_application_has_unmapped_it_but_for_one() {
    let (app, mut thread) = App::with_context();
    let file = |base| slab_file(app.dir.path(), base);
    let places = pages(&mut thread, 10..10 + 2 * FIRST);
    let [first, second] = bases(&places)[..] else { panic!("{places:?}") };
    assert_eq!(free(&mut thread, 10 + FIRST..10 + 2 * FIRST), [0; 0], "one is kept");
    let gone = thread.call(SlabFree { slab: second });
    assert_eq!(gone, Err(CuError::INVALID_VALUE), "nobody was told to unmap it");
    assert_eq!(free(&mut thread, 10..10 + FIRST), [second]);
    // Nothing comes out of it, and nothing else lies there.
    let others = pages(&mut thread, 5000..5000 + FIRST + 1);
    let third = *bases(&others).last().unwrap();
    assert!(bases(&others) == [first, third] && third > second);
    assert!(file(second).exists(), "the application may have it mapped");
    assert_eq!(thread.call(SlabFree { slab: second }), Ok(0));
    assert!(!file(second).exists());
    assert_eq!(thread.call(SlabFree { slab: second }), Err(CuError::INVALID_VALUE));
    assert_eq!(thread.pin(4, 2 << 20).unwrap().address, second, "its addresses are had again");
}

#[test]
fn a_slab_that_leaves_waits_for_its_work() {
    let (mut app, mut thread) = App::with_context();
    let (ours, flags) = app.pinned(&mut thread, PinnedId(900), 2 << 20);
    let places = pages(&mut thread, 1000..1000 + 2 * FIRST);
    let [_, second] = bases(&places)[..] else { panic!("{places:?}") };
    let address = places.iter().find(|place| place.slab.unwrap().0 == second).unwrap().address;
    let module = app.load(&mut thread, 2, BASIC);
    let wait_for = thread.function(module, 3, "wait_for");
    let add = thread.function(module, 4, "add_one");
    let [stream] = thread.streams([5]).map(Stream::Created);
    thread.launch(wait_for, stream, 1, &[flags, flags + 4], &[]);
    thread.launch(add, stream, 1, &[address], &[1]);
    let told = free(&mut thread, 1000..1000 + 2 * FIRST);
    assert_eq!(told, [second]);
    assert_eq!(thread.call(SlabFree { slab: second }), Ok(0));
    let file = slab_file(app.dir.path(), second);
    assert!(file.exists(), "the kernel will write there");
    ours.word(0).store(1, Ordering::Release);
    thread.call(StreamSynchronize { ctx: CTX, stream }).unwrap();
    crate::common::wait_until(|| !file.exists());
}

#[test]
fn contexts_share_slabs_and_take_only_their_own_along() {
    let (app, mut thread) = App::with_context();
    let other = ContextId(2);
    thread.call(ContextCreate { ctx: other, device: Device(0), flags: 0, primary: false }).unwrap();
    let (ours, _) = app.pinned(&mut thread, PinnedId(10), PAGE);
    let theirs = PinnedAlloc { ctx: other, pinned: PinnedId(11), bytes: PAGE, flags: 4 };
    let place = thread.call(theirs).unwrap();
    let words = Pinned::at(app.dir.path(), PinnedId(11), place);
    ours.word(3).store(7, Ordering::Release);
    words.word(3).store(8, Ordering::Release);
    thread.call(ContextDestroy { ctx: other }).unwrap();
    assert_eq!(thread.call(PinnedFree { pinned: PinnedId(11) }), Err(CuError::INVALID_VALUE));
    assert_eq!((ours.word(3).load(Ordering::Acquire), words.word(3).load(Ordering::Acquire)), (7, 0));
    assert_eq!(thread.pin(12, PAGE).unwrap(), place);
}

#[test]
fn what_a_context_leaves_empty_is_asked_for() {
    let (app, mut thread) = App::with_context();
    let other = ContextId(2);
    thread.call(ContextCreate { ctx: other, device: Device(0), flags: 0, primary: false }).unwrap();
    for number in 10..10 + 4 * FIRST {
        thread.call(PinnedAlloc { ctx: other, pinned: PinnedId(number), bytes: PAGE, flags: 0 }).unwrap();
    }
    thread.call(ContextDestroy { ctx: other }).unwrap();
    let (mut slab, mut left) = (thread.call(SlabFree { slab: 0 }).unwrap(), 0);
    while slab != 0 {
        let file = slab_file(app.dir.path(), slab);
        assert!(file.exists());
        slab = thread.call(SlabFree { slab }).unwrap();
        assert!(!file.exists());
        left += 1;
    }
    assert_eq!(left, 2, "of slabs of 2, 2 and 4 MiB one is kept");
}

#[test]
fn slabs_come_back_with_what_lies_in_them() {
    let (app, mut thread) = App::with_context();
    let images = Images::new();
    let places = pages(&mut thread, 1000..1000 + 2 * FIRST);
    let [first, second] = bases(&places)[..] else { panic!("{places:?}") };
    let word = |app: &App, number: usize| {
        Pinned::at(app.dir.path(), PinnedId(0), places[number]).word(1).load(Ordering::Acquire)
    };
    let (kept, freed) = (5, 6);
    for number in [kept, freed] {
        let words = Pinned::at(app.dir.path(), PinnedId(0), places[number]);
        words.word(1).store(number as u32, Ordering::Release);
    }
    // One slab is kept, and one leaves: the application was told, and has not said yet that it is unmapped.
    let third = thread.pin(3000, PAGE).unwrap().slab.unwrap().0;
    assert_eq!(free(&mut thread, 1000 + FIRST..1000 + 2 * FIRST), [0; 0]);
    assert_eq!(free(&mut thread, std::iter::once(3000)), [third]);
    free(&mut thread, std::iter::once(1000 + freed as u32));

    app.session.close_gate(LONG).unwrap();
    assert_eq!(app.session.refusals(), Vec::<String>::new());
    let (id, _) = images.capture(&app.session);
    drop(thread);
    let (dir, addresses) = app.kill();
    let app = App::restore(dir, addresses, SESSION, &images.store.open_image(&id).unwrap());
    let mut thread = app.thread();
    assert_eq!((word(&app, kept), word(&app, freed)), (kept as u32, 0));
    let device = thread.alloc(4);
    let copy = |src| CopyWait { ctx: CTX, stream: Stream::Legacy, dst: device, src, bytes: 4 };
    thread.call(copy(places[kept].address + 4)).unwrap();
    assert_eq!(thread.get(device, 1), [kept as u32]);
    assert_eq!(thread.call(copy(places[freed].address)), Err(CuError::INVALID_VALUE), "it is nobody's");
    assert_eq!(thread.pin(4000, PAGE).unwrap(), places[freed], "the best place");
    assert_eq!(thread.pin(4001, PAGE).unwrap().slab.unwrap().0, second, "what was kept is used");
    assert!(slab_file(app.dir.path(), third).exists());
    assert_eq!(thread.call(SlabFree { slab: third }), Ok(0));
    assert!(!slab_file(app.dir.path(), third).exists());
    assert!(slab_file(app.dir.path(), first).exists());
}
