//! Single steps of the keeper.

use crate::support::{
    Kept, Model, Shadow, Stream, file_on, in_another_process, keep, keep_for, memory, tmpfs,
};
use shadow::{Access, Device, Error, Keeper, PAGE, Range, Scope, Step};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn range(shadow: &Shadow, pages: usize) -> Range {
    Range { base: shadow.address(), bytes: (pages * PAGE) as u64 }
}

#[test]
fn both_sides_write_a_page_at_the_same_time() {
    let model = Model::new();
    let (keeper, shadows) = keep(&model, &[3], 1, memory);
    let (shadow, base) = (&shadows[0], shadows[0].address());
    let stream = Stream::new(&model);
    let end = launch(&keeper, &stream, base);
    shadow.write(10, b"thread");
    drop(end);
    stream.wait();
    keeper.settle().unwrap();
    assert_eq!(model.load(base, 16), b"new\0\0\0\0\0\0\0thread");
    assert_eq!(shadow.read(0, 16), b"new\0\0\0\0\0\0\0thread");
}

/// Where processor and device have memory in turn, neither undoes what the other does to the same bytes.
#[test]
fn who_touches_what_is_exclusive_waits_for_the_end_of_work() {
    let model = Model::new();
    let (keeper, shadows) =
        keep_for(&model, &[3], Kept { access: Access::Exclusive, ..Kept::default() }, memory);
    let (shadow, base) = (&shadows[0], shadows[0].address());
    shadow.write(0, b"old");
    let stream = Stream::new(&model);
    let end = launch(&keeper, &stream, base);
    std::thread::scope(|scope| {
        let (read, is_read) = channel();
        scope.spawn(move || {
            read.send(shadow.read(0, 3)).unwrap();
            shadow.write(1, b"o");
        });
        assert!(is_read.recv_timeout(Duration::from_millis(300)).is_err(), "work is in flight");
        drop(end);
        assert_eq!(is_read.recv().unwrap(), b"new");
    });
    // Nobody has asked for the end of work.
    assert_eq!(shadow.read(0, 3), b"now");
    let end = launch(&keeper, &stream, base);
    assert_eq!(model.load(base, 3), b"now");
    // What a stream waits for cannot wait for it.
    let own = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
    model.awaited_thread.store(own, Ordering::SeqCst);
    assert_eq!(shadow.read(0, 3), b"now");
    drop(end);
    stream.wait();
    keeper.settle().unwrap();
    assert_eq!(shadow.read(0, 3), b"new");
}

/// A model whose `nth` step of a kind is held: it is told that it is there, and waits until it is told to go on, or nobody can tell it. What the threads
/// that serve faults list by themselves, now and then, is not counted.
fn held(at: Step, nth: usize) -> (Arc<Model>, Receiver<()>, Sender<()>) {
    let ((there, is_there), (go, goes)) = (channel(), channel());
    let (count, goes) = (AtomicUsize::new(0), Mutex::new(goes));
    let model = Model::hooked(move |step| {
        let is_by_itself = step == Step::Listed && std::thread::current().name() == Some("shadow");
        if step == at && !is_by_itself && count.fetch_add(1, Ordering::SeqCst) == nth {
            there.send(()).unwrap();
            let _ = goes.lock().unwrap().recv();
        }
    });
    (model, is_there, go)
}

/// A kernel that writes `new` at an address when it is told to end.
fn launch(keeper: &Keeper, stream: &Stream, address: u64) -> Sender<()> {
    submit(keeper, stream, address, Scope::All)
}

/// The same, of which no more is known than that it reaches so much.
fn submit(keeper: &Keeper, stream: &Stream, address: u64, scope: Scope<'_>) -> Sender<()> {
    let (end, ends) = channel();
    let _reach = keeper.reach(scope).unwrap();
    stream.submit(move |device| {
        let _ = ends.recv();
        device.store(address, b"new");
    });
    end
}

/// The page is fetched while a kernel runs, and comes to be when that has ended and somebody is being told.
#[test]
fn a_page_that_comes_late_is_not_stale() {
    let (model, fetched, go) = held(Step::Fetched, 0);
    let (keeper, shadows) = keep(&model, &[1], 1, memory);
    let (shadow, stream) = (&shadows[0], Stream::new(&model));
    let end = launch(&keeper, &stream, shadow.address());
    std::thread::scope(|scope| {
        scope.spawn(|| shadow.read(0, 3));
        fetched.recv().unwrap();
        drop(end);
        stream.wait();
        let settled = scope.spawn(|| keeper.settle().unwrap());
        std::thread::sleep(Duration::from_millis(20));
        assert!(!settled.is_finished(), "a page is on its way");
        drop(go);
    });
    assert_eq!(shadow.read(0, 3), b"new");
}

/// The page comes, and the kernel ends, while somebody else's settling is under way that is too early for either.
#[test]
fn a_page_that_comes_behind_a_settling_is_not_stale() {
    // The first list is the launch's.
    let (model, listed, go) = held(Step::Listed, 1);
    let (keeper, shadows) = keep(&model, &[1], 1, memory);
    let (shadow, stream) = (&shadows[0], Stream::new(&model));
    let end = launch(&keeper, &stream, shadow.address());
    std::thread::scope(|scope| {
        scope.spawn(|| keeper.settle().unwrap());
        listed.recv().unwrap();
        assert_eq!(shadow.read(0, 3), [0; 3]);
        drop(end);
        stream.wait();
        drop(go);
    });
    keeper.settle().unwrap();
    assert_eq!(shadow.read(0, 3), b"new");
}

/// What a copy in flight does not name costs nothing meanwhile, and what it names is in step with it.
#[test]
fn work_reaches_what_it_names() {
    let model = Model::new();
    let (keeper, shadows) = keep(&model, &[2, 2], 1, memory);
    let stream = Stream::new(&model);
    let [named, other] = [0, 1].map(|index| (&shadows[index], shadows[index].address()));
    let moved = |what: &dyn Fn()| {
        let before = model.transfers.load(Ordering::Relaxed);
        what();
        model.transfers.load(Ordering::Relaxed) - before
    };
    other.0.write(9, b"early");
    named.0.write(9, b"early");
    let end = submit(&keeper, &stream, named.1, Scope::Ranges(&[range(named.0, 1)]));
    assert_eq!([named, other].map(|(_, base)| model.load(base + 9, 5)), [*b"early", [0; 5]]);
    let touch = || {
        other.0.write(0, &other.0.read(9, 5));
        named.0.write(20, b"late");
        keeper.settle().unwrap();
    };
    assert_eq!(moved(&touch), 2, "one page to and fro");
    assert_eq!(moved(&touch), 1, "nothing differs from its twin");
    let nothing = Range { base: 0x1000, bytes: 4096 };
    assert_eq!(moved(&|| drop(keeper.reach(Scope::Ranges(&[nothing])).unwrap())), 0);
    drop(end);
    stream.wait();
    keeper.settle().unwrap();
    assert_eq!(named.0.read(0, 24), b"new\0\0\0\0\0\0early\0\0\0\0\0\0late");
    assert_eq!(moved(&|| keeper.settle().unwrap()), 0);
    // Neither was written with a twin, nor stays so when all may be reached.
    named.0.write(0, b"x");
    drop(keeper.reach(Scope::All).unwrap());
    assert_eq!(model.load(other.1, 14), b"early\0\0\0\0early");
    assert_eq!(model.load(named.1, 3), b"xew");
}

/// What is written while work is in flight has a second copy in the process that keeps, until so many have one that they are written back.
#[test]
fn twins_do_not_take_all_memory() {
    const PAGES: usize = 7800;
    // Nothing is written back because time passes.
    let (go, held) = channel::<()>();
    let held = Mutex::new(held);
    let model = Model::hooked(move |step| {
        if step == Step::Looked {
            let _ = held.lock().unwrap().recv();
        }
    });
    let (keeper, shadows) = keep(&model, &[PAGES; 5], 2, memory);
    let stream = Stream::new(&model);
    let end = launch(&keeper, &stream, shadows[0].address());
    for shadow in &shadows {
        (0..PAGES).for_each(|page| shadow.write(page * PAGE + 100, b"late"));
    }
    let is_written = |shadow: &&Shadow| model.load(shadow.address() + 100, 4) == b"late";
    let written = shadows.iter().filter(is_written).count();
    assert!(written >= 4, "{written} regions are written back, and 128 MiB are all but one of them");
    drop((go, end));
    stream.wait();
    keeper.settle().unwrap();
    assert_eq!(model.load(shadows[0].address(), 3), b"new");
    for shadow in &shadows {
        assert!((0..PAGES).step_by(50).all(|page| shadow.read(page * PAGE + 100, 4) == b"late"));
    }
}

/// The page comes, to be written, between the announcement of work and its naming of the region.
#[test]
fn what_is_written_while_work_is_announced_is_not_lost() {
    let (model, announced, go) = held(Step::Announced, 0);
    let (keeper, shadows) = keep(&model, &[1], 1, memory);
    let (shadow, stream) = (&shadows[0], Stream::new(&model));
    std::thread::scope(|scope| {
        let end =
            scope.spawn(|| submit(&keeper, &stream, shadow.address(), Scope::Ranges(&[range(shadow, 1)])));
        announced.recv().unwrap();
        shadow.write(8, b"thread");
        drop(go);
        let end = end.join().unwrap();
        assert_eq!(model.load(shadow.address() + 8, 6), b"thread");
        drop(end);
    });
    stream.wait();
    keeper.settle().unwrap();
    assert_eq!(shadow.read(0, 14), b"new\0\0\0\0\0thread");
}

/// Work that names a region is announced while it is being found out that the work before it is complete.
#[test]
fn work_that_comes_behind_a_settling_is_not_taken_for_complete() {
    let (model, looked, go) = held(Step::Looked, 0);
    let (keeper, shadows) = keep(&model, &[1], 1, memory);
    let (shadow, stream) = (&shadows[0], Stream::new(&model));
    let base = shadow.address();
    drop(submit(&keeper, &stream, base + 100, Scope::All));
    stream.wait();
    let end = std::thread::scope(|scope| {
        scope.spawn(|| keeper.settle().unwrap());
        looked.recv().unwrap();
        let end = submit(&keeper, &stream, base, Scope::Ranges(&[range(shadow, 1)]));
        drop(go);
        end
    });
    shadow.write(8, b"thread");
    drop(end);
    stream.wait();
    keeper.settle().unwrap();
    assert_eq!(shadow.read(0, 14), b"new\0\0\0\0\0thread");
    assert_eq!(model.load(base, 14), b"new\0\0\0\0\0thread");
}

/// A kernel that is told of a region that was made behind its launch, before which there was no keeper: nobody has announced it.
#[test]
fn what_a_kernel_writes_that_is_older_than_the_region_is_seen() {
    let model = Model::new();
    let (keeper, none) = keep(&model, &[], 1, memory);
    assert!(none.is_empty());
    let stream = Stream::new(&model);
    let (tell, told) = channel();
    stream.submit(move |device| device.store(told.recv().unwrap(), b"kernel"));
    let shadow = Shadow::new(memory(PAGE), PAGE);
    model.add(range(&shadow, 1));
    keeper.add(range(&shadow, 1), shadow.file()).unwrap();
    shadow.write(0, b"thread");
    tell.send(shadow.address() + 8).unwrap();
    stream.wait();
    keeper.settle().unwrap();
    assert_eq!(shadow.read(0, 14), b"thread\0\0kernel");
    shadow.write(1, b"H");
    drop(keeper.reach(Scope::All).unwrap());
    assert_eq!(model.load(shadow.address(), 14), b"tHread\0\0kernel");
}

/// All threads that serve faults are about to map pages when a mapping is moved: nobody is left to hear of that, and the kernel lets nobody map any. The process is ended by name,
/// and does not wait for ever; so it is another one.
#[test]
fn a_mapping_that_is_moved_while_all_threads_map_pages() {
    const CHILD: &str = "SHADOW_TEST_MOVES";
    if std::env::var_os(CHILD).is_some() {
        let fetched = Arc::new(AtomicUsize::new(0));
        let (moves, seen) = (Arc::new(AtomicUsize::new(0)), Arc::clone(&fetched));
        let begun = Arc::clone(&moves);
        let model = Model::hooked(move |step| {
            if step == Step::Fetched {
                seen.fetch_add(1, Ordering::SeqCst);
                while begun.load(Ordering::SeqCst) == 0 {
                    std::thread::yield_now();
                }
                // By now the move waits to be heard.
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        let (_keeper, shadows) = keep(&model, &[1, 1, 1], 2, memory);
        std::thread::scope(|scope| {
            scope.spawn(|| shadows[0].read(0, 1));
            scope.spawn(|| shadows[1].read(0, 1));
            while fetched.load(Ordering::SeqCst) < 2 {
                std::thread::yield_now();
            }
            moves.store(1, Ordering::SeqCst);
            shadows[2].move_away();
        });
        return;
    }
    let test = "keeping::a_mapping_that_is_moved_while_all_threads_map_pages";
    let (ended, said) = in_another_process(test, CHILD, "");
    assert!(!ended.success() && said.contains("with mremap, from "), "{said}");
}

/// That is what coherent memory is for; but each comes to see what the other has written.
#[test]
fn a_kernel_and_a_thread_that_wait_for_each_other_go_on() {
    let model = Model::new();
    let (keeper, shadows) = keep(&model, &[1], 1, memory);
    let (shadow, base, stream) = (&shadows[0], shadows[0].address(), Stream::new(&model));
    let reach = keeper.reach(Scope::All).unwrap();
    stream.submit(move |device| {
        while device.load(base, 1) == [0] {
            std::thread::yield_now();
        }
        device.store(base + 1, b"x");
    });
    drop(reach);
    shadow.write(0, b"x");
    while shadow.read(1, 1) == [0] {
        std::thread::yield_now();
    }
}

/// A thread that waits in managed memory for a kernel is told of, once; one that works there meanwhile is not.
#[test]
fn who_waits_for_a_kernel_in_vain_is_told_of() {
    let model = Model::new();
    let (keeper, shadows) = keep(&model, &[3], 2, memory);
    let (shadow, stream) = (&shadows[0], Stream::new(&model));
    let wait = |works: bool| {
        let end = launch(&keeper, &stream, shadow.address());
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_millis(1500) {
            assert_eq!(shadow.read(PAGE, 1), [0]);
            if works {
                shadow.write(2 * PAGE, b"x");
            }
        }
        drop(end);
        stream.wait();
        keeper.settle().unwrap();
        model.awaited.lock().unwrap().len()
    };
    assert_eq!(wait(true), 0);
    assert_eq!(wait(false), 1);
    assert_eq!(model.awaited.lock().unwrap()[0], shadow.address() + PAGE as u64);
    assert_eq!(wait(false), 1, "once");
}

#[test]
fn few_transfers_move_many_pages() {
    let model = Model::new();
    let (keeper, shadows) = keep(&model, &[4096, 16], 1, memory);
    let moved = |what: &mut dyn FnMut()| {
        let before = model.transfers.load(Ordering::Relaxed);
        what();
        model.transfers.load(Ordering::Relaxed) - before
    };
    let large = range(&shadows[0], 4096).bytes as usize;
    // A copy may begin at either end, and touch the other first.
    let read = moved(&mut || drop(shadows[0].read(0, large)));
    assert!((11..14).contains(&read), "64, 128, … pages at a time, 512 in one: {read}");
    drop(keeper.reach(Scope::All).unwrap());
    keeper.settle().unwrap();
    let written = moved(&mut || shadows[0].write(0, &vec![7; large]));
    assert!((17..20).contains(&written), "1, 2, 4, … at a time: {written}");
    assert_eq!(moved(&mut || keeper.write_back().unwrap()), 8, "2 MiB at a time");
    assert_eq!(moved(&mut || shadows[1].write(9 * PAGE, b"x")), 1, "a small region moves whole");
    assert_eq!(moved(&mut || drop(shadows[1].read(0, 16 * PAGE))), 0);
    assert_eq!(moved(&mut || keeper.write_back().unwrap()), 1);
    assert_eq!(moved(&mut || keeper.write_back().unwrap()), 0);
}

/// Pages that come back after each kernel stay, in step with the device, until they are wanted no more.
#[test]
fn pages_that_go_to_and_fro_are_kept_in_step() {
    let model = Model::new();
    let (keeper, shadows) = keep(&model, &[2, 1000], 2, memory);
    let stream = Stream::new(&model);
    for (shadow, pages) in shadows.iter().zip([2, 5]) {
        let base = shadow.address();
        let mut transfers = [0; 100];
        for (round, moved) in (1..).zip(&mut transfers) {
            let before = model.transfers.load(Ordering::Relaxed);
            let reach = keeper.reach(Scope::All).unwrap();
            let bytes = pages * PAGE;
            stream.submit(move |device| {
                let seen = device.load(base, bytes);
                assert!(seen.iter().all(|byte| *byte == round - 1), "what was written before");
                device.store(base, &vec![100 + round; bytes]);
            });
            drop(reach);
            stream.wait();
            keeper.settle().unwrap();
            assert!(shadow.read(0, bytes).iter().all(|byte| *byte == 100 + round), "what the kernel wrote");
            shadow.write(0, &vec![round; bytes]);
            *moved = model.transfers.load(Ordering::Relaxed) - before;
        }
        assert!(transfers[50..].iter().filter(|moved| **moved == 2).count() > 40, "{transfers:?}");
        let idle = || {
            let before = model.transfers.load(Ordering::Relaxed);
            drop(keeper.reach(Scope::All).unwrap());
            keeper.settle().unwrap();
            model.transfers.load(Ordering::Relaxed) - before
        };
        let moved: usize = (0..500).map(|_| idle()).sum();
        assert!(moved < 200 && idle() == 0, "nobody wants them any more: {moved}");
    }
}

/// Work in flight ends, and its result is seen, although the pages were there all the time.
#[test]
fn kept_pages_are_written_while_a_kernel_runs() {
    let model = Model::new();
    let (keeper, shadows) = keep(&model, &[2], 2, memory);
    let (shadow, base, stream) = (&shadows[0], shadows[0].address(), Stream::new(&model));
    for round in 0..40_u8 {
        let end = {
            let (end, ends) = channel::<()>();
            let _reach = keeper.reach(Scope::All).unwrap();
            stream.submit(move |device| {
                let _ = ends.recv();
                device.store(base, &[round; 8]);
            });
            end
        };
        shadow.write(16, &[round + 1; 8]);
        drop(end);
        stream.wait();
        keeper.settle().unwrap();
        assert_eq!(model.load(base, 24), [[round; 8], [0; 8], [round + 1; 8]].concat());
        assert_eq!(shadow.read(0, 24), [[round; 8], [0; 8], [round + 1; 8]].concat());
    }
}

#[test]
fn a_program_may_split_a_mapping() {
    use rustix::mm::{MprotectFlags, mprotect};
    let model = Model::new();
    let (keeper, shadows) = keep(&model, &[8, 200], 2, memory);
    for (shadow, pages) in shadows.iter().zip([8, 200]) {
        model.store(shadow.address(), &vec![5; pages * PAGE]);
        let part = (shadow.address() + 3 * PAGE as u64) as *mut std::ffi::c_void;
        // SAFETY: a page that nobody touches until it may be written again.
        unsafe { mprotect(part, PAGE, MprotectFlags::READ) }.unwrap();
        assert_eq!(shadow.read(0, pages * PAGE), vec![5; pages * PAGE]);
        keeper.write_back().unwrap();
        shadow.write(2 * PAGE, &[6; PAGE]);
        shadow.write(4 * PAGE, &[6; PAGE]);
        // SAFETY: as above.
        unsafe { mprotect(part, PAGE, MprotectFlags::READ | MprotectFlags::WRITE) }.unwrap();
        shadow.write(3 * PAGE, &[6; PAGE]);
        keeper.write_back().unwrap();
        assert_eq!(model.load(shadow.address() + 2 * PAGE as u64, 3 * PAGE), [6; 3 * PAGE]);
    }
}

/// Direct I/O has its pages pinned, and goes on writing them while all is written ahead of a checkpoint: they have to be the same ones afterwards.
#[test]
fn what_is_written_into_pinned_pages_is_not_lost() {
    // The first fault is that of the pages to be pinned, the second that of what is written there.
    let (model, pinned, go) = held(Step::Heard, 1);
    let (keeper, shadows) = keep(&model, &[3, 1], 1, memory);
    let (to, from) = (&shadows[0], &shadows[1]);
    model.store(from.address(), b"late");
    let mut expected = vec![1; 3 * PAGE];
    to.write(0, &expected);
    std::thread::scope(|scope| {
        let call = scope.spawn(|| to.write_pinned(PAGE + 5, from, 4));
        pinned.recv().unwrap();
        keeper.write_ahead().unwrap();
        assert_eq!(model.load(to.address(), 3 * PAGE), expected);
        drop(go);
        assert_eq!(call.join().unwrap(), 4);
    });
    expected[PAGE + 5..PAGE + 9].copy_from_slice(b"late");
    assert!(to.read(0, 3 * PAGE) == expected, "as the processor sees it");
    keeper.write_back().unwrap();
    assert!(model.load(to.address(), 3 * PAGE) == expected, "as the device sees it");
}

/// What is written ahead is written once more where it is different by then, and nothing else is.
#[test]
fn what_is_written_ahead_may_be_written_again() {
    let model = Model::new();
    let (keeper, shadows) = keep(&model, &[4096, 2], 1, memory);
    let (large, small) = (&shadows[0], &shadows[1]);
    let transfers = || model.transfers.load(Ordering::Relaxed);
    for turn in 0..2 {
        let mut expected = contents(4096, turn);
        large.write(0, &expected);
        let before = transfers();
        keeper.write_ahead().unwrap();
        assert_eq!(transfers() - before, 8, "2 MiB at a time");
        assert!(model.load(large.address(), expected.len()) == expected);
        for at in [9 * PAGE, 3000 * PAGE + 7] {
            expected[at] ^= 0xff;
            large.write(at, &expected[at..=at]);
        }
        let before = transfers();
        keeper.write_back().unwrap();
        assert_eq!(transfers() - before, 8 + 2, "all is looked at, and two pages are written");
        assert!(model.load(large.address(), expected.len()) == expected);
        assert!(large.read(0, expected.len()) == expected);
    }
    // What has a twin may become as that again.
    let stream = Stream::new(&model);
    let end = launch(&keeper, &stream, small.address());
    small.write(PAGE, b"x");
    keeper.write_ahead().unwrap();
    small.write(PAGE, b"\0");
    drop(end);
    stream.wait();
    keeper.write_back().unwrap();
    assert_eq!(model.load(small.address(), 2 * PAGE), [b"new".as_slice(), &[0; 2 * PAGE - 3]].concat());
}

/// What so many pages hold, different each turn.
fn contents(pages: usize, turn: usize) -> Vec<u8> {
    let word = |index: usize| (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15 ^ turn as u64);
    (0..pages * PAGE / 8).flat_map(|index| word(index).to_le_bytes()).collect()
}

fn bytes_of(pages: std::ops::Range<usize>) -> std::ops::Range<usize> {
    pages.start * PAGE..pages.end * PAGE
}

/// A walk of which a part finds no room is gone on with in smaller steps; backwards too.
#[test]
fn what_is_moved_side_by_side_may_find_no_room() {
    const PAGES: usize = 6000;
    for room in [700, 3000] {
        let small = tmpfs(room * PAGE);
        let model = Model::new();
        let (keeper, shadows) = keep(&model, &[PAGES], 2, |bytes| file_on(&small, "a", bytes));
        let shadow = &shadows[0];
        let (read, written) = (contents(PAGES, 1), contents(PAGES, 2));
        model.store(shadow.address(), &read);
        for at in (0..PAGES).step_by(50) {
            let bytes = bytes_of(at..at + 50);
            assert!(shadow.read(bytes.start, bytes.len()) == read[bytes], "room {room}, page {at}");
        }
        (0..PAGES).step_by(50).for_each(|at| shadow.write(at * PAGE, &written[bytes_of(at..at + 50)]));
        for at in (0..PAGES).rev() {
            let bytes = bytes_of(at..at + 1);
            assert!(shadow.read(bytes.start, PAGE) == written[bytes], "room {room}, page {at}, backwards");
        }
        keeper.write_back().unwrap();
        assert!(model.load(shadow.address(), PAGES * PAGE) == written, "room {room}");
    }
}

/// What could not be written back, since the device failed in the middle of it, is not lost, and is written later.
#[test]
fn one_of_several_transfers_may_fail() {
    const PAGES: usize = 4096;
    let model = Model::new();
    let (keeper, shadows) = keep(&model, &[PAGES], 2, memory);
    let shadow = &shadows[0];
    for turn in 0..3 {
        let mut written = contents(PAGES, turn);
        shadow.write(0, &written);
        model.failing.store(model.transfers.load(Ordering::Relaxed) + 2, Ordering::Relaxed);
        assert!(keeper.write_back().is_err());
        assert!(keeper.reach(Scope::All).is_err());
        model.failing.store(0, Ordering::Relaxed);
        for at in (5..PAGES * PAGE).step_by(3 * PAGE) {
            written[at] ^= 0xff;
            shadow.write(at, &written[at..=at]);
        }
        assert!(shadow.read(0, PAGES * PAGE) == written);
        drop(keeper.reach(Scope::All).unwrap());
        assert!(model.load(shadow.address(), PAGES * PAGE) == written, "turn {turn}");
        keeper.settle().unwrap();
        assert!(shadow.read(0, PAGES * PAGE) == written);
    }
}

/// As much as is moved side by side, both ways, in mappings that the program has split too.
#[test]
fn who_walks_through_much_sees_all_of_it() {
    use rustix::mm::{MprotectFlags, mprotect};
    const PAGES: usize = 9000;
    let model = Model::new();
    let (keeper, shadows) = keep(&model, &[PAGES], 1, memory);
    let (shadow, stream) = (&shadows[0], Stream::new(&model));
    let contents = |turn: usize| contents(PAGES, turn);
    for turn in 0..4 {
        if turn == 2 {
            let part = (shadow.address() + 3000 * PAGE as u64) as *mut std::ffi::c_void;
            // SAFETY: it may be read and written as before.
            unsafe { mprotect(part, PAGE, MprotectFlags::READ | MprotectFlags::WRITE | MprotectFlags::EXEC) }
                .unwrap();
        }
        let (address, kernel) = (shadow.address(), contents(turn));
        let reach = keeper.reach(Scope::All).unwrap();
        stream.submit(move |device| device.store(address, &kernel));
        drop(reach);
        stream.wait();
        keeper.settle().unwrap();
        let expected = contents(turn);
        for at in (0..PAGES).step_by(100) {
            let bytes = at * PAGE..(at + 100) * PAGE;
            assert!(shadow.read(bytes.start, bytes.len()) == expected[bytes], "turn {turn}, page {at}");
        }
        let written = contents(turn + 100);
        for at in (0..PAGES).step_by(100) {
            shadow.write(at * PAGE, &written[at * PAGE..(at + 100) * PAGE]);
        }
        keeper.write_back().unwrap();
        assert!(model.load(address, PAGES * PAGE) == written, "turn {turn}, the device");
    }
}

/// CRIU does so, to see whether a mapped file is a program.
#[test]
fn who_reads_the_file_makes_no_pages() {
    let model = Model::new();
    let (keeper, shadows) = keep(&model, &[8, 200], 1, memory);
    for (shadow, pages) in shadows.iter().zip([8, 200]) {
        model.store(shadow.address(), &vec![5; pages * PAGE]);
        shadow.read(PAGE, 1);
        keeper.write_back().unwrap();
        let other = Shadow::new(shadow.file(), pages * PAGE);
        assert_eq!(other.read(0, pages * PAGE), vec![0; pages * PAGE]);
        assert_eq!(shadow.read(0, pages * PAGE), vec![5; pages * PAGE]);
        shadow.write(PAGE, &[6; PAGE]);
        assert_eq!(shadow.read(0, pages * PAGE)[PAGE..3 * PAGE], [[6; PAGE], [5; PAGE]].concat());
        keeper.write_back().unwrap();
        assert_eq!(
            model.load(shadow.address(), pages * PAGE)[PAGE..3 * PAGE],
            [[6; PAGE], [5; PAGE]].concat()
        );
    }
}

#[test]
fn a_program_may_unmap_what_it_has_written() {
    let model = Model::new();
    let (keeper, shadows) = keep(&model, &[8, 200], 1, memory);
    for (shadow, pages) in shadows.iter().zip([8, 200]) {
        shadow.write(0, &vec![7; pages * PAGE]);
        shadow.advise_dont_need();
        assert_eq!(shadow.read(0, pages * PAGE), vec![7; pages * PAGE]);
        keeper.write_back().unwrap();
        shadow.read(0, pages * PAGE);
        shadow.advise_dont_need();
        shadow.write(PAGE, b"x");
        keeper.write_back().unwrap();
        assert_eq!(model.load(shadow.address(), 2 * PAGE)[PAGE - 1..PAGE + 2], *b"\x07x\x07");
    }
}

#[test]
fn shadows_make_room_for_each_other() {
    let small = tmpfs(64 * PAGE);
    let mut count = 0;
    let file = |bytes: usize| {
        count += 1;
        file_on(&small, &count.to_string(), bytes)
    };
    let model = Model::new();
    let (keeper, shadows) = keep(&model, &[50, 50, 300], 2, file);
    for round in 1..4 {
        for (shadow, pages) in shadows.iter().zip([50, 50, 300]) {
            shadow.write(0, &vec![round; pages * PAGE]);
        }
        for (shadow, pages) in shadows.iter().zip([50, 50, 300]) {
            assert_eq!(shadow.read(0, pages * PAGE), vec![round; pages * PAGE]);
        }
    }
    keeper.write_back().unwrap();
    assert_eq!(model.load(shadows[2].address(), 300 * PAGE), vec![3; 300 * PAGE]);
}

#[test]
fn only_regions_are_kept() {
    let model = Model::new();
    let (keeper, shadows) = keep(&model, &[4], 1, memory);
    let other = Shadow::new(memory(4 * PAGE), 4 * PAGE);
    let refused = |range: Range| matches!(keeper.add(range, other.file()), Err(Error::NoRegion(_)));
    let Range { base, bytes } = range(&shadows[0], 4);
    assert!(refused(Range { base: base + PAGE as u64, bytes: PAGE as u64 }), "taken");
    assert!(refused(Range { base: base - PAGE as u64, bytes: 2 * PAGE as u64 }), "taken in part");
    assert!(refused(Range { base: other.address(), bytes: 0 }));
    assert!(refused(Range { base: other.address() + 8, bytes }), "no pages");
    assert!(refused(Range { base: u64::MAX - 4095, bytes }), "no addresses");
    let nothing = Range { base: PAGE as u64, bytes };
    assert!(matches!(keeper.add(nothing, other.file()), Err(Error::Kernel { .. })), "nothing is mapped");
    assert!(matches!(keeper.remove(base + PAGE as u64), Err(Error::NoRegion(_))));
    keeper.remove(base).unwrap();
    assert!(matches!(keeper.remove(base), Err(Error::NoRegion(_))));
    keeper.add(range(&shadows[0], 4), shadows[0].file()).unwrap();
    model.store(base, b"again");
    assert_eq!(shadows[0].read(0, 5), b"again");
}

/// A model, and how many faults have been heard.
fn counted() -> (Arc<Model>, Arc<AtomicUsize>) {
    let heard = Arc::new(AtomicUsize::new(0));
    let count = heard.clone();
    let model = Model::hooked(move |step| {
        if step == Step::Heard {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    (model, heard)
}

/// Two pieces of work, one behind the other: pages that come after them come too late to stay.
fn two_works(keeper: &Keeper) {
    for _ in 0..2 {
        drop(keeper.reach(Scope::All).unwrap());
        keeper.settle().unwrap();
    }
}

/// Most of what the program reads it writes next: it is given to be written at once, so that nobody hears of that; until it does so no more.
#[test]
fn what_is_written_behind_being_read_is_given_at_once() {
    const PAGES: usize = 500;
    let (model, heard) = counted();
    let (keeper, shadows) = keep(&model, &[PAGES], 1, memory);
    let shadow = &shadows[0];
    let cycle = |written: usize| {
        two_works(&keeper);
        let before = heard.load(Ordering::Relaxed);
        for page in 0..PAGES {
            shadow.read(page * PAGE, 1);
        }
        for page in 0..written {
            shadow.write(page * PAGE, b"x");
        }
        heard.load(Ordering::Relaxed) - before
    };
    let (read_only, both) = (cycle(0), cycle(PAGES));
    assert!(both > read_only, "{both} {read_only}");
    let later: Vec<_> = (0..20).map(|_| cycle(PAGES)).collect();
    let looks = later.iter().filter(|faults| **faults > read_only).count();
    assert!(looks < 6, "{later:?}");
    let written: Vec<_> = (0..40).map(|_| cycle(1)).collect();
    assert_eq!(written[30..], [read_only + 1; 10], "{written:?}");
}

/// Where a sample shows whether pages are still written, all that is written in it and beside it gets to the device.
#[test]
fn what_is_written_in_a_sample_and_beside_it_is_not_lost() {
    const PAGES: usize = 2100;
    let (model, heard) = counted();
    let (keeper, shadows) = keep(&model, &[PAGES], 1, memory);
    let (shadow, base) = (&shadows[0], shadows[0].address());
    let mut faults = Vec::new();
    for round in 1..=24_u8 {
        two_works(&keeper);
        let before = heard.load(Ordering::Relaxed);
        for page in 0..PAGES {
            assert_eq!(shadow.read(page * PAGE, 1), [round - 1], "page {page}");
            shadow.write(page * PAGE, &[round]);
        }
        faults.push(heard.load(Ordering::Relaxed) - before);
        drop(keeper.reach(Scope::All).unwrap());
        let lost = (0..PAGES).find(|page| model.load(base + (page * PAGE) as u64, 1) != [round]);
        assert_eq!(lost, None, "in round {round}");
        keeper.settle().unwrap();
    }
    // None, a sample of 64 pages or two, and all: in that order they cost more.
    let (least, most) = (faults.iter().min(), faults[0]);
    assert!(faults[2..].iter().all(|each| *each < most), "{faults:?}");
    assert!(faults[2..].iter().filter(|each| Some(*each) > least).count() > 1, "{faults:?}");
}

/// Many pages that are all written each time are made anew when work is complete, by themselves or when one of them is touched; unless there is no room, or work is in flight.
#[test]
fn what_is_all_written_each_time_comes_back_by_itself() {
    const PAGES: usize = 700;
    let (model, heard) = counted();
    let (keeper, shadows) = keep(&model, &[PAGES], 1, memory);
    let (shadow, base) = (&shadows[0], shadows[0].address());
    let (mut silent, mut once) = (0, 0);
    for round in 0..80_u8 {
        drop(keeper.reach(Scope::All).unwrap());
        for page in [0, 300, PAGES - 1] {
            let at = base + (page * PAGE) as u64;
            assert_eq!(model.load(at + 8, 1), [if round == 0 { 0 } else { round - 1 }], "page {page}");
            model.store(at, &[round]);
        }
        let transfers = model.transfers.load(Ordering::Relaxed);
        keeper.settle().unwrap();
        let waits = round % 2 == 0;
        let until = Instant::now() + Duration::from_millis(200);
        while waits && model.transfers.load(Ordering::Relaxed) < transfers + 2 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        // They have been read, and are mapped then.
        std::thread::sleep(Duration::from_millis(if waits { 5 } else { 0 }));
        let before = heard.load(Ordering::Relaxed);
        for page in 0..PAGES {
            let marked = [0, 300, PAGES - 1].contains(&page);
            assert_eq!(shadow.read(page * PAGE, 1), [if marked { round } else { 0 }], "page {page}");
            shadow.write(page * PAGE + 8, &[round]);
        }
        let faults = heard.load(Ordering::Relaxed) - before;
        silent += usize::from(waits && faults == 0);
        once += usize::from(!waits && faults <= 2);
    }
    assert!(silent > 20 && once > 20, "{silent} {once}");
    // What comes back is dropped again before anybody else may reach it.
    let stream = Stream::new(&model);
    let end = launch(&keeper, &stream, base);
    shadow.write(10, b"thread");
    drop(end);
    stream.wait();
    keeper.settle().unwrap();
    assert_eq!(shadow.read(0, 3), b"new");
    assert_eq!(model.load(base + 10, 6), b"thread");
}

/// A region whose pages come back; whoever makes them waits, with some of them made and not there yet, until it is told to go on.
fn coming_back(pages: usize) -> (Arc<Model>, (Keeper, Vec<Shadow>), Sender<()>) {
    let ((there, is_there), (go, goes)) = (channel(), channel());
    let goes = Mutex::new(goes);
    let model = Model::hooked(move |step| {
        if step == Step::Fetched && std::thread::current().name() == Some("shadow-returns") {
            let _ = there.send(());
            let _ = goes.lock().unwrap().recv();
        }
    });
    let (keeper, shadows) = keep(&model, &[pages], 1, memory);
    for round in 0..40_u8 {
        drop(keeper.reach(Scope::All).unwrap());
        keeper.settle().unwrap();
        if is_there.recv_timeout(Duration::from_millis(100)).is_ok() {
            return (model, (keeper, shadows), go);
        }
        (0..pages).for_each(|page| shadows[0].write(page * PAGE, &[round + 1]));
    }
    panic!("nothing comes back");
}

#[test]
fn a_checkpoint_and_an_end_wait_for_what_comes_back_and_for_no_more() {
    const PAGES: usize = 2500;
    let (model, (keeper, shadows), go) = coming_back(PAGES);
    let last = model.load(shadows[0].address(), 1);
    std::thread::scope(|scope| {
        let (done, is_done) = channel();
        let keeper = &keeper;
        scope.spawn(move || {
            keeper.write_ahead().unwrap();
            done.send(()).unwrap();
        });
        assert!(is_done.recv_timeout(Duration::from_millis(100)).is_err(), "it is being made");
        go.send(()).unwrap();
        is_done.recv().unwrap();
    });
    keeper.write_back().unwrap();
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(model.returned.load(Ordering::Relaxed), 1, "8 MiB of it, and the rest is given up");
    assert_eq!(shadows[0].read((PAGES - 1) * PAGE, 1), last);

    let (_model, (keeper, shadows), go) = coming_back(PAGES);
    std::thread::scope(|scope| {
        let ended = scope.spawn(move || drop(keeper));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!ended.is_finished());
        go.send(()).unwrap();
    });
    drop(shadows);
}

#[test]
fn a_region_that_comes_back_may_be_freed() {
    let (model, (keeper, shadows), go) = coming_back(700);
    let base = shadows[0].address();
    std::thread::scope(|scope| {
        let keeper = &keeper;
        scope.spawn(move || keeper.remove(base).unwrap());
        go.send(()).unwrap();
    });
    assert!(keeper.remove(base).is_err());
    drop((keeper, model));
}

/// Some cycles of a kernel that adds one to each byte, and of a thread that does the same, each of which takes at least so long as long as the region is not coherent.
fn cycles(model: &Arc<Model>, keeper: &Keeper, shadow: &Shadow, bytes: usize, turns: u8, at_least: Duration) {
    let stream = Stream::new(model);
    for _ in 0..turns {
        let before = shadow.read(0, 1)[0];
        let base = shadow.address();
        {
            let _reach = keeper.reach(Scope::All).unwrap();
            stream.submit(move |device| {
                let mut all = device.load(base, bytes);
                all.iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
                device.store(base, &all);
            });
        }
        stream.wait();
        keeper.settle().unwrap();
        if keeper.is_change_due() {
            keeper.change().unwrap();
        }
        if model.coherent() == 0 {
            std::thread::sleep(at_least);
        }
        let all = shadow.read(0, bytes);
        assert!(all.iter().all(|byte| *byte == before.wrapping_add(1)));
        shadow.write(0, &vec![before.wrapping_add(2); bytes]);
    }
}

#[test]
fn what_is_faster_coherent_becomes_so_and_is_separated_again() {
    const PAGES: usize = 2;
    let model = Model::new();
    let (keeper, shadows) = keep(&model, &[PAGES], 1, memory);
    let (shadow, base, bytes) = (&shadows[0], shadows[0].address(), PAGES * PAGE);
    // On a busy machine a trial may say otherwise; there is another one after a while.
    for _ in 0..20 {
        cycles(&model, &keeper, shadow, bytes, 60, Duration::from_millis(60));
        if model.coherent() == 1 {
            break;
        }
    }
    assert_eq!(model.coherent(), 1, "both sides reach the same");
    let transfers = model.transfers.load(Ordering::Relaxed);
    model.store(base + 5, b"device");
    assert_eq!(shadow.read(5, 6), b"device", "at any moment");
    shadow.write(100, b"thread");
    assert_eq!(model.load(base + 100, 6), b"thread");
    shadow.advise_dont_need();
    assert_eq!(shadow.read_by_call(5, 6), b"device");
    shadow.write_by_call(200, b"call");
    assert_eq!(model.load(base + 200, 4), b"call");
    assert_eq!(model.transfers.load(Ordering::Relaxed), transfers, "nothing moves");
    keeper.separate().unwrap();
    assert_eq!(model.coherent(), 0);
    assert_eq!(model.load(base + 5, 1), [0xee], "nothing has moved yet");
    drop(keeper.reach(Scope::All).unwrap());
    for (at, written) in [(5, &b"device"[..]), (100, b"thread"), (200, b"call")] {
        assert_eq!(model.load(base + at, written.len()), written, "before any work");
        assert_eq!(shadow.read(at as usize, written.len()), written);
    }
}

#[test]
fn what_is_not_faster_coherent_is_left_as_it_is() {
    const PAGES: usize = 16;
    let model = Model::new();
    model.slow_when_coherent.store(true, Ordering::Relaxed);
    let (keeper, shadows) = keep(&model, &[PAGES], 1, memory);
    cycles(&model, &keeper, &shadows[0], PAGES * PAGE, 80, Duration::ZERO);
    assert_eq!((model.cohered.load(Ordering::Relaxed), model.coherent()), (1, 0), "it was tried once");
}

#[test]
fn a_region_that_is_coherent_may_be_freed() {
    let model = Model::new();
    let (keeper, shadows) = keep(&model, &[4, 4], 1, memory);
    let shadow = &shadows[0];
    shadow.write(0, b"something");
    assert!(keeper.cohere(shadow.address()).unwrap());
    assert!(!keeper.cohere(shadow.address()).unwrap(), "it is already");
    assert!(keeper.cohere(shadows[1].address()).unwrap());
    keeper.remove(shadow.address()).unwrap();
    assert_eq!(model.coherent(), 1, "the other one");
    assert!(keeper.cohere(shadow.address()).is_err());
}

/// The device fails where it is to have memory of its own there again: the region goes all the same, and the next one at its addresses is another.
#[test]
fn a_region_that_cannot_be_separated_may_be_freed() {
    let model = Model::new();
    let (keeper, shadows) = keep(&model, &[4], 1, memory);
    let (shadow, base) = (&shadows[0], shadows[0].address());
    assert!(keeper.cohere(base).unwrap());
    model.fails_at.store(1, Ordering::SeqCst);
    assert!(keeper.remove(base).is_err());
    assert!(keeper.coherent().is_empty());
    model.fails_at.store(0, Ordering::SeqCst);
    model.separate(range(shadow, 4)).unwrap();
    keeper.add(range(shadow, 4), shadow.file()).unwrap();
    assert!(keeper.cohere(base).unwrap());
    keeper.separate_one(base).unwrap();
    assert_eq!(model.coherent(), 0);
}

#[test]
fn what_finds_no_room_or_is_in_use_does_not_become_coherent() {
    let small = tmpfs(20 * PAGE);
    let model = Model::new();
    let (keeper, shadows) = keep(&model, &[30], 1, |bytes| file_on(&small, "a", bytes));
    let (shadow, stream) = (&shadows[0], Stream::new(&model));
    shadow.write(0, b"something");
    assert!(!keeper.cohere(shadow.address()).unwrap(), "there is no room for all of it");
    assert_eq!(shadow.read(0, 9), b"something");
    let end = launch(&keeper, &stream, shadow.address());
    assert!(!keeper.cohere(shadow.address()).unwrap(), "a kernel may write it");
    drop(end);
    stream.wait();
    keeper.settle().unwrap();
    assert_eq!(shadow.read(0, 9), b"newething");
    let large = tmpfs(100 << 20);
    let (keeper, shadows) = keep(&model, &[5000], 1, |bytes| file_on(&large, "a", bytes));
    assert!(!keeper.cohere(shadows[0].address()).unwrap(), "it is too large");
}
