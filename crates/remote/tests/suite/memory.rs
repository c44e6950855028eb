//! Memory that both ends see.

use super::common::{Program, over_tcp};
use backend::{Backend, CopyBox, MemoryOperation, Pitched, Range, StreamArg, Until, Word};
use libtest_mimic::{Failed, Trial};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub fn trials() -> Vec<Trial> {
    vec![
        Trial::test("memory::large_copies_arrive_whole", large_copies_arrive_whole),
        Trial::test(
            "memory::registered_memory_is_copied_where_it_lies",
            registered_memory_is_copied_where_it_lies,
        ),
        Trial::test("memory::what_has_been_copied_may_be_changed", what_has_been_copied_may_be_changed),
        Trial::test("memory::large_boxes_arrive_whole", large_boxes_arrive_whole),
        Trial::test(
            "memory::kernels_follow_addresses_that_were_copied",
            kernels_follow_addresses_that_were_copied,
        ),
        Trial::test(
            "memory::kernels_follow_addresses_across_transfers",
            kernels_follow_addresses_across_transfers,
        ),
        Trial::test(
            "memory::kernels_follow_addresses_in_memory_of_both_ends",
            kernels_follow_addresses_in_memory_of_both_ends,
        ),
        Trial::test(
            "memory::words_are_written_when_the_stream_is_there",
            words_are_written_when_the_stream_is_there,
        ),
        Trial::test(
            "memory::a_region_may_go_while_it_gets_its_mirror",
            a_region_may_go_while_it_gets_its_mirror,
        ),
        Trial::test("memory::a_large_region_changes_as_a_whole", a_large_region_changes_as_a_whole),
        Trial::test("memory::no_query_is_behind_another", no_query_is_behind_another),
        Trial::test("memory::many_threads_copy_at_once", many_threads_copy_at_once),
        Trial::test("memory::reserved_addresses_are_taken_here_too", reserved_addresses_are_taken_here_too),
        Trial::test(
            "memory::copies_see_what_the_host_wrote_before_them",
            copies_see_what_the_host_wrote_before_them,
        ),
        Trial::test(
            "memory::copies_read_what_a_host_function_has_written",
            copies_read_what_a_host_function_has_written,
        ),
        Trial::test("memory::operations_of_a_batch_are_in_order", operations_of_a_batch_are_in_order),
    ]
}

/// Pages of the host's, registered.
struct Pages<'a>(&'a dyn Backend, Range);

impl<'a> Pages<'a> {
    fn new(backend: &'a dyn Backend, bytes: u64) -> Self {
        // Where the far end has nothing: a mirror lies at the same address.
        static NEXT: AtomicU64 = AtomicU64::new(0x5100_0000_0000);
        let bytes = bytes.next_multiple_of(4096);
        let wanted = NEXT.fetch_add(bytes, Ordering::Relaxed);
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a mapping that replaces none.
        let base = unsafe { mmap_anonymous(wanted as *mut _, bytes as usize, rights, flags) }.unwrap() as u64;
        let range = Range { base, bytes };
        backend.register_host(range).unwrap();
        Self(backend, range)
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        assert!((at * 4) < self.1.bytes as usize);
        // SAFETY: a word of the pages, which live as long as `self`.
        unsafe { &*((self.1.base as usize + at * 4) as *const AtomicU32) }
    }
}

impl Drop for Pages<'_> {
    fn drop(&mut self) {
        let _ = self.0.unregister_host(self.1);
        // SAFETY: its own mapping, which no work uses any more.
        let _ = unsafe { munmap(self.1.base as *mut _, self.1.bytes as usize) };
    }
}

fn pattern(words: usize) -> Vec<u32> {
    (0..words as u32).map(|at| at.wrapping_mul(2_654_435_761)).collect()
}

fn large_copies_arrive_whole() -> Result<(), Failed> {
    let (_far, backend) = over_tcp();
    let program = Program::new(&backend)?;
    // Below and above what travels with the call, pieces, transfers, and what is under way at a time.
    for words in [1, 4096, 4097, 131_072, 131_073, 9_000_001, 40_000_000] {
        let sent = pattern(words);
        let bytes = (words * 4) as u64;
        program.copy(program.at(4), sent.as_ptr() as u64, bytes)?;
        let mut back = vec![0u32; words];
        program.copy(back.as_mut_ptr() as u64, program.at(4), bytes)?;
        assert!(sent == back, "{words} words");
    }
    Ok(())
}

/// A server's slots: filled again as soon as what they held has left, however far the device is.
fn what_has_been_copied_may_be_changed() -> Result<(), Failed> {
    let (_far, backend) = over_tcp();
    let program = Program::new(&backend)?;
    let bytes = 1 << 20;
    let pages = Pages::new(&backend, bytes);
    assert!(backend.tells_of_copies(pages.1));
    let wait = || {
        while !backend.has_copied(program.ctx, pages.1)? {
            std::thread::yield_now();
        }
        Ok::<_, Failed>(())
    };
    for round in 0..30u32 {
        pages.word(7).store(round, Ordering::Relaxed);
        program.copy(program.at(u64::from(round) * bytes), pages.1.base, bytes)?;
        wait()?;
    }
    for round in 0..30u32 {
        program.copy(pages.1.base, program.at(u64::from(round) * bytes), bytes)?;
        wait()?;
        assert_eq!(pages.word(7).load(Ordering::Relaxed), round);
    }
    // What has a mirror is copied there: its stream tells.
    program.follow(pages.1.base)?;
    assert!(!backend.tells_of_copies(pages.1));
    Ok(())
}

fn registered_memory_is_copied_where_it_lies() -> Result<(), Failed> {
    let (_far, backend) = over_tcp();
    let program = Program::new(&backend)?;
    let bytes = 3_000_000u64;
    let (one, two) = (Pages::new(&backend, bytes), Pages::new(&backend, bytes));
    for round in 0..5u32 {
        for at in (0..750_000).step_by(1000) {
            one.word(at).store(at as u32 + round, Ordering::Relaxed);
        }
        // There, back into other memory, from that there again, and back: in order without any wait between.
        program.copy(program.at(0), one.1.base, bytes)?;
        program.copy(two.1.base, program.at(0), bytes)?;
        program.copy(program.at(4 << 20), two.1.base, bytes)?;
        program.copy(one.1.base, program.at(4 << 20), bytes)?;
        program.wait()?;
        for at in (0..750_000).step_by(1000) {
            assert_eq!(two.word(at).load(Ordering::Relaxed), at as u32 + round);
            assert_eq!(one.word(at).load(Ordering::Relaxed), at as u32 + round);
        }
    }
    Ok(())
}

fn large_boxes_arrive_whole() -> Result<(), Failed> {
    let (_far, backend) = over_tcp();
    let program = Program::new(&backend)?;
    // Rows of words out of wider ones; one box has rows longer than a piece.
    for (width, pitch, height, depth) in
        [(100, 120, 33, 3), (5000, 5008, 40, 2), (1 << 20, (1 << 20) + 64, 3, 2)]
    {
        let rows = height + 1;
        let sent = pattern((pitch / 4 * rows * depth) as usize);
        let mut back = vec![0u32; sent.len()];
        let side = |address| backend::BoxSide::Memory(Pitched { address, pitch, rows });
        let copy = |dst, src| CopyBox { dst: side(dst), src: side(src), width, height, depth };
        let there = copy(program.at(0), sent.as_ptr() as u64);
        backend::Textures::copy_box(&backend, program.ctx, StreamArg::Legacy, &there)?;
        let here = copy(back.as_mut_ptr() as u64, program.at(0));
        backend::Textures::copy_box(&backend, program.ctx, StreamArg::Legacy, &here)?;
        backend.context_synchronize(program.ctx)?;
        for (at, (sent, back)) in sent.iter().zip(&back).enumerate() {
            let (row, column) = (at as u64 / (pitch / 4), at as u64 % (pitch / 4));
            let inside = row % rows < height && column * 4 < width;
            assert_eq!(*back, if inside { *sent } else { 0 }, "row {row}, column {column}");
        }
    }
    Ok(())
}

fn kernels_follow_addresses_that_were_copied() -> Result<(), Failed> {
    let (_far, backend) = over_tcp();
    let program = Program::new(&backend)?;
    let pages = Pages::new(&backend, 8192);
    let pointer = [pages.1.base + 4 * 1500];
    program.copy(program.at(64), pointer.as_ptr() as u64, 8)?;
    for round in 1..4 {
        pages.word(1500).store(round * 10, Ordering::Relaxed);
        pages.word(1501).store(round, Ordering::Relaxed);
        // It adds 1 to what the pointer at that address points to.
        program.follow(program.at(64))?;
        program.wait()?;
        assert_eq!(pages.word(1500).load(Ordering::Relaxed), round * 10 + 1);
        assert_eq!(pages.word(1501).load(Ordering::Relaxed), round);
    }
    Ok(())
}

/// A copy that begins within a word is transfers that do not.
fn kernels_follow_addresses_across_transfers() -> Result<(), Failed> {
    let (_far, backend) = over_tcp();
    let program = Program::new(&backend)?;
    let pages = Pages::new(&backend, 4096);
    let words = (32 << 20) / 4;
    let mut sent = vec![0u32; words + 100];
    sent[words - 1] = pages.1.base as u32;
    sent[words] = (pages.1.base >> 32) as u32;
    program.copy(program.at(4), sent.as_ptr() as u64, sent.len() as u64 * 4)?;
    pages.word(0).store(7, Ordering::Relaxed);
    program.follow(program.at(32 << 20))?;
    program.wait()?;
    assert_eq!(pages.word(0).load(Ordering::Relaxed), 8);
    // Of a box a row is longer than a piece.
    let other = Pages::new(&backend, 4096);
    let words = (512 << 10) / 4;
    sent[words - 1] = other.1.base as u32;
    sent[words] = (other.1.base >> 32) as u32;
    let width = words as u64 * 4 + 400;
    let side = |address| backend::BoxSide::Memory(Pitched { address, pitch: width, rows: 1 });
    let (dst, src) = (side(program.at(4)), side(sent.as_ptr() as u64));
    let copy = CopyBox { dst, src, width, height: 1, depth: 1 };
    backend::Textures::copy_box(&backend, program.ctx, StreamArg::Legacy, &copy)?;
    program.follow(program.at(512 << 10))?;
    program.wait()?;
    assert_eq!(other.word(0).load(Ordering::Relaxed), 1);
    Ok(())
}

fn kernels_follow_addresses_in_memory_of_both_ends() -> Result<(), Failed> {
    let (_far, backend) = over_tcp();
    let program = Program::new(&backend)?;
    let table = Pages::new(&backend, 8192);
    let [first, second] = [(); 2].map(|()| Pages::new(&backend, 4096));
    let points_to = |pages: &Pages<'_>| {
        for (at, half) in [pages.1.base as u32, (pages.1.base >> 32) as u32].into_iter().enumerate() {
            table.word(40 + at).store(half, Ordering::Relaxed);
        }
    };
    let follows = |pages: &Pages<'_>, round: u32| {
        pages.word(0).store(round, Ordering::Relaxed);
        program.follow(table.1.base + 160)?;
        program.wait()?;
        assert_eq!(pages.word(0).load(Ordering::Relaxed), round + 1);
        Ok::<(), Failed>(())
    };
    points_to(&first);
    follows(&first, 10)?;
    // The table has its mirror already.
    points_to(&second);
    follows(&second, 20)?;
    // What is registered anew has no mirror, and the table does not change.
    backend.unregister_host(second.1)?;
    backend.register_host(second.1)?;
    follows(&second, 30)
}

fn words_are_written_when_the_stream_is_there() -> Result<(), Failed> {
    let (_far, backend) = over_tcp();
    let program = Program::new(&backend)?;
    let pages = Pages::new(&backend, 4096);
    for round in 1..100u32 {
        program.store(round)?;
        let word = Word { address: pages.1.base + 8, value: round.into(), wide: false };
        let operations = [MemoryOperation::Write { word }];
        backend.memory_operations(program.ctx, StreamArg::Legacy, &operations)?;
        let begun = Instant::now();
        while pages.word(2).load(Ordering::Acquire) != round {
            assert!(begun.elapsed() < Duration::from_secs(10), "the word of round {round} is not written");
        }
    }
    Ok(())
}

fn many_threads_copy_at_once() -> Result<(), Failed> {
    let (_far, backend) = over_tcp();
    let program = Program::new(&backend)?;
    std::thread::scope(|scope| {
        for thread in 0..6u64 {
            let (backend, program) = (&backend, &program);
            scope.spawn(move || {
                let stream = StreamArg::Created(backend.stream_create(program.ctx, 1, 0).unwrap());
                for words in [10, 5000, 200_000, 3, 1_000_000] {
                    let sent: Vec<u32> =
                        pattern(words).into_iter().map(|word| word ^ thread as u32).collect();
                    let mut back = vec![0u32; words];
                    let (place, bytes) = (program.at(thread << 23), (words * 4) as u64);
                    backend.copy(program.ctx, stream, place, sent.as_ptr() as u64, bytes).unwrap();
                    backend.copy(program.ctx, stream, back.as_mut_ptr() as u64, place, bytes).unwrap();
                    assert!(sent == back, "thread {thread}, {words} words");
                }
            });
        }
    });
    Ok(())
}

/// Else memory of this process's could lie where the device's does, and copies would take the one for the other.
fn reserved_addresses_are_taken_here_too() -> Result<(), Failed> {
    let (_far, backend) = over_tcp();
    let program = Program::new(&backend)?;
    let map = |address: u64| {
        // SAFETY: a mapping that replaces none.
        unsafe { mmap_anonymous(address as *mut _, 4096, ProtFlags::empty(), MapFlags::PRIVATE) }
    };
    let elsewhere = map(program.at(0))? as u64;
    assert_ne!(elsewhere, program.at(0));
    drop(backend);
    Ok(())
}

fn copies_see_what_the_host_wrote_before_them() -> Result<(), Failed> {
    let (_far, backend) = over_tcp();
    let program = Program::new(&backend)?;
    let pages = Pages::new(&backend, 4096);
    // A kernel that is given an address inside makes it memory of both ends.
    let pointer = [pages.1.base];
    program.copy(program.at(64), pointer.as_ptr() as u64, 8)?;
    program.follow(program.at(64))?;
    for round in 1..200u32 {
        pages.word(100).store(round, Ordering::Relaxed);
        let mut seen = 0u32;
        program.copy((&raw mut seen) as u64, pages.1.base + 400, 4)?;
        assert_eq!(seen, round, "a copy from there");
        // What is copied there is newer than what the host has written.
        pages.word(101).store(round, Ordering::Relaxed);
        let sent = [round + 1000];
        program.copy(pages.1.base + 404, sent.as_ptr() as u64, 4)?;
        program.wait()?;
        assert_eq!(pages.word(101).load(Ordering::Relaxed), round + 1000, "a copy to there");
    }
    Ok(())
}

fn copies_read_what_a_host_function_has_written() -> Result<(), Failed> {
    let (_far, backend) = over_tcp();
    let program = Program::new(&backend)?;
    let bytes = 100_000u64;
    let pages = Pages::new(&backend, bytes);
    for (round, bytes) in (1..40u32).zip([4u64, bytes].into_iter().cycle()) {
        let word = pages.1.base + bytes - 4;
        pages.word((bytes as usize - 4) / 4).store(0, Ordering::Relaxed);
        let write = move |_| {
            std::thread::sleep(Duration::from_millis(3));
            // SAFETY: a word of the pages, which live until the stream is done.
            unsafe { &*(word as *const AtomicU32) }.store(round, Ordering::Release);
        };
        backend.host_function(program.ctx, StreamArg::Legacy, Box::new(write))?;
        program.copy(program.at(0), pages.1.base, bytes)?;
        let mut seen = 0u32;
        program.copy((&raw mut seen) as u64, program.at(bytes - 4), 4)?;
        assert_eq!(seen, round, "{bytes} bytes");
    }
    Ok(())
}

/// A word that the host waits for before it writes the next one, in one batch.
fn operations_of_a_batch_are_in_order() -> Result<(), Failed> {
    let (_far, backend) = over_tcp();
    let program = Program::new(&backend)?;
    let (one, two) = (Pages::new(&backend, 4096), Pages::new(&backend, 4096));
    // The wait is in the same memory, or in other.
    for (told, awaited) in [(&one, &one), (&two, &one)] {
        for round in 1..20u32 {
            let word = |pages: &Pages<'_>, at: u64| Word {
                address: pages.1.base + 4 * at,
                value: round.into(),
                wide: false,
            };
            let operations = [
                MemoryOperation::Write { word: word(told, 1) },
                MemoryOperation::Wait { word: word(awaited, 2), until: Until::Equal },
            ];
            backend.memory_operations(program.ctx, StreamArg::Legacy, &operations)?;
            backend.stream_query(program.ctx, StreamArg::Legacy)?;
            let begun = Instant::now();
            while told.word(1).load(Ordering::Acquire) != round {
                assert!(
                    begun.elapsed() < Duration::from_secs(10),
                    "the word of round {round} is not written"
                );
            }
            awaited.word(2).store(round, Ordering::Release);
            program.wait()?;
        }
        told.word(1).store(0, Ordering::Release);
        awaited.word(2).store(0, Ordering::Release);
    }
    Ok(())
}

/// Whoever has waited for a stream behind another knows that the other is done.
fn no_query_is_behind_another() -> Result<(), Failed> {
    let (_far, backend) = over_tcp();
    let program = Program::new(&backend)?;
    let create = || backend.stream_create(program.ctx, 1, 0).map(StreamArg::Created);
    let (one, two) = (create()?, create()?);
    let event = backend.event_create(program.ctx, 2)?;
    for round in 0..200u32 {
        let sent = [round];
        backend.copy(program.ctx, one, program.at(0), sent.as_ptr() as u64, 4)?;
        backend.event_record(program.ctx, event, one, 0)?;
        backend.stream_wait_event(program.ctx, two, event, 0)?;
        backend.stream_synchronize(program.ctx, two)?;
        assert!(backend.stream_query(program.ctx, one)?, "round {round}");
    }
    Ok(())
}

/// A region that another thread's copy names comes and goes; nothing of it stays, so that it can have its mirror each time.
fn a_region_may_go_while_it_gets_its_mirror() -> Result<(), Failed> {
    let (_far, backend) = over_tcp();
    let program = Program::new(&backend)?;
    let pages = Pages::new(&backend, 8192);
    let (range, pointer) = (pages.1, [pages.1.base]);
    let over = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while over.load(Ordering::Relaxed) == 0 {
                program.copy(program.at(64), pointer.as_ptr() as u64, 8).unwrap();
                program.wait().unwrap();
            }
        });
        let come_and_go = |round: u64| {
            backend.unregister_host(range)?;
            // A different one at the same address each time.
            let other = Range { bytes: 4096 * (1 + round % 2), ..range };
            backend.register_host(other)?;
            std::thread::sleep(Duration::from_micros(round % 50 * 4));
            backend.unregister_host(other)?;
            backend.register_host(range)
        };
        let gone = (0..1000).try_for_each(come_and_go);
        over.store(1, Ordering::Relaxed);
        gone
    })?;
    for round in 1..4 {
        pages.word(0).store(round * 10, Ordering::Relaxed);
        program.copy(program.at(64), pointer.as_ptr() as u64, 8)?;
        program.follow(program.at(64))?;
        program.wait()?;
        assert_eq!(pages.word(0).load(Ordering::Relaxed), round * 10 + 1);
    }
    Ok(())
}

/// More than may be on its way to the far end at a time, in one go.
fn a_large_region_changes_as_a_whole() -> Result<(), Failed> {
    let (_far, backend) = over_tcp();
    let program = Program::new(&backend)?;
    let bytes = 20 << 20;
    let pages = Pages::new(&backend, bytes);
    for round in 1..4u32 {
        for at in 0..bytes as usize / 4 {
            pages.word(at).store(round.wrapping_mul(0x0101_0101), Ordering::Relaxed);
        }
        let pointer = [pages.1.base + bytes - 4];
        program.copy(program.at(64), pointer.as_ptr() as u64, 8)?;
        program.follow(program.at(64))?;
        program.wait()?;
        let last = pages.word(bytes as usize / 4 - 1).load(Ordering::Relaxed);
        assert_eq!(last, round.wrapping_mul(0x0101_0101) + 1);
    }
    Ok(())
}
