//! Allocations by one thread and by many.

use std::collections::BTreeMap;

use crate::KERNELS;
use crate::device::{Gpu, params};
use proptest::prelude::*;

const PAGE: u64 = 4096;
const BLOCK: u32 = 64;

/// What threads hold, one each, and what the heap is then.
struct Threads {
    gpu: Gpu,
    pages: u64,
    /// Address and bytes.
    held: Vec<Option<(u64, u64)>>,
    bytes: u64,
    frees: u64,
    memory: u64,
}

impl Threads {
    fn new(count: usize, pages: u64) -> Self {
        let mut gpu = Gpu::new(KERNELS, pages * PAGE);
        let [bytes, frees, memory] = [(); 3].map(|()| gpu.with(&vec![0u64; count]));
        Self { gpu, pages, held: vec![None; count], bytes, frees, memory }
    }

    fn grid(&self) -> u32 {
        (self.held.len() as u32).div_ceil(BLOCK)
    }

    /// Has each thread give back what it has, where that is wanted, and allocate so many bytes, where it then has none.
    fn exchange(&mut self, wanted: &[(bool, u64)]) {
        let frees: Vec<_> = wanted.iter().map(|(free, _)| *free).collect();
        for (held, _) in self.held.iter_mut().zip(&frees).filter(|(_, free)| **free) {
            *held = None;
        }
        let sizes =
            wanted.iter().zip(&self.held).map(|((_, bytes), held)| if held.is_none() { *bytes } else { 0 });
        let sizes: Vec<u64> = sizes.collect();
        self.gpu.put(self.bytes, &sizes);
        self.gpu.put(self.frees, &frees.iter().map(|free| u32::from(*free)).collect::<Vec<_>>());
        let count = self.held.len();
        let given = params(&[self.bytes, self.frees, self.memory], &[count as u32]);
        self.gpu.run("exchange", self.grid(), BLOCK, &given).unwrap();
        let addresses: Vec<u64> = self.gpu.get(self.memory, count);
        for ((held, bytes), address) in self.held.iter_mut().zip(&sizes).zip(addresses) {
            if *bytes > 0 {
                *held = Some((address, *bytes)).filter(|_| address != 0);
            }
        }
        self.check();
    }

    /// Allocations lie in the heap, are aligned, and have nothing in common.
    fn check(&self) {
        let mut live: Vec<_> = self.held.iter().flatten().copied().collect();
        live.sort_unstable();
        for (address, bytes) in &live {
            assert!(
                address.is_multiple_of(16) && self.gpu.heap.contains(*address, *bytes),
                "{address:#x}+{bytes}"
            );
        }
        for pair in live.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:x?}");
        }
    }

    /// Whether there is room for so many bytes, by what is live.
    fn has_room(&self, bytes: u64) -> bool {
        let first = (self.gpu.heap.base + 1024 + self.pages * 4).next_multiple_of(32);
        let first = (first + self.pages * 32).next_multiple_of(PAGE);
        // What is in each page: the size of its slots, 0 for a larger allocation; and how many of them.
        let mut pages: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for (address, bytes) in self.held.iter().flatten() {
            let page = (address - first) / PAGE;
            let slot = slot(*bytes);
            for page in page..page + bytes.div_ceil(PAGE) {
                let entry = pages.entry(page).or_insert((slot, 0));
                assert_eq!(entry.0, slot, "a page has slots of one size");
                entry.1 += 1;
            }
        }
        let wanted = slot(bytes);
        let run = bytes.div_ceil(PAGE);
        let free =
            |first: u64| (first..first + run).all(|page| page < self.pages && !pages.contains_key(&page));
        (wanted > 0 && pages.values().any(|(slot, count)| *slot == wanted && *count < PAGE / slot))
            || (0..self.pages).any(free)
    }
}

/// Bytes of the slots for allocations of so many bytes.
fn slot(bytes: u64) -> u64 {
    let sizes = (4..=11).flat_map(|log| [2u64 << (log - 1), 3 << (log - 1)]);
    sizes.filter(|size| size % 16 == 0 && *size <= 2048).find(|size| *size >= bytes).unwrap_or(0)
}

#[test]
fn threads_have_memory_of_their_own_and_others_give_it_back() {
    let count = 2000;
    let mut threads = Threads::new(count, 4096);
    let wanted: Vec<_> = (0..count as u64).map(|i| (false, 1 + i * i % 5000)).collect();
    threads.exchange(&wanted);
    assert!(threads.held.iter().all(Option::is_some));
    let given = params(&[threads.memory], &[count as u32, 7]);
    threads.gpu.run("give_back", threads.grid(), BLOCK, &given).unwrap();
    threads.held.fill(None);
    threads.gpu.put(threads.memory, &vec![0u64; count]);
    let mut all = vec![(false, 0); count];
    all[0].1 = 4096 * PAGE;
    threads.exchange(&all);
    assert!(threads.held[0].is_some(), "what was given back is one piece again");
}

#[test]
fn a_heap_is_filled_to_its_last_slot() {
    for (bytes, in_page) in [(16, 256), (33, 85), (1024, 4), (2048, 2), (4096, 1)] {
        let (pages, more) = (8, 50);
        let room = pages * in_page;
        let mut threads = Threads::new((room + more) as usize, pages);
        threads.exchange(&vec![(false, bytes); (room + more) as usize]);
        assert_eq!(threads.held.iter().flatten().count() as u64, room, "{bytes}");
        let first = threads.held.iter().position(Option::is_some).unwrap();
        let mut again = vec![(false, 0); (room + more) as usize];
        again[first] = (true, bytes);
        let before = threads.held[first];
        threads.exchange(&again);
        assert_eq!(threads.held[first], before, "the only place that is free");
    }
}

#[test]
fn nothing_and_too_much_are_no_memory() {
    let mut threads = Threads::new(3, 4);
    threads.exchange(&[(true, 4 * PAGE + 1), (true, u64::MAX), (true, 1 << 40)]);
    assert_eq!(threads.held, [None; 3]);
    threads.exchange(&[(true, 4 * PAGE), (true, 0), (true, 0)]);
    assert!(threads.held[0].is_some());
}

#[test]
fn aligned_memory_is_aligned_and_given_back_as_any() {
    let (pages, count) = (600, 30);
    let mut threads = Threads::new(count, pages);
    for align in (0..14).map(|log| 1u32 << log) {
        for bytes in [1, 100, 1030, 5000] {
            let given = params(&[threads.memory], &[bytes, align]);
            threads.gpu.run("aligned", 1, count as u32, &given).unwrap();
            let mut addresses: Vec<u64> = threads.gpu.get(threads.memory, count);
            addresses.sort_unstable();
            assert!(addresses.iter().all(|address| address.is_multiple_of(align.max(16).into())), "{align}");
            assert!(addresses.windows(2).all(|pair| pair[0] > 0 && pair[0] + u64::from(bytes) <= pair[1]));
            let given = params(&[threads.memory], &[count as u32, 3]);
            threads.gpu.run("give_back", 1, BLOCK, &given).unwrap();
        }
    }
    threads.gpu.put(threads.memory, &vec![0u64; count]);
    let mut all = vec![(false, 0); count];
    all[0].1 = pages * PAGE;
    threads.exchange(&all);
    assert!(threads.held[0].is_some());
}

#[test]
fn what_was_not_allocated_ends_the_kernel() {
    for wrong in [8, 16, 4096, 1 << 40] {
        let mut threads = Threads::new(1, 4);
        threads.exchange(&[(false, 100)]);
        let (address, _) = threads.held[0].unwrap();
        threads.gpu.put(threads.memory, &[address + wrong]);
        let given = params(&[threads.memory], &[1, 0]);
        assert!(threads.gpu.run("give_back", 1, 1, &given).is_err(), "{wrong}");
    }
    let mut threads = Threads::new(1, 4);
    threads.exchange(&[(false, 100)]);
    let given = params(&[threads.memory], &[1, 0]);
    threads.gpu.run("give_back", 1, 1, &given).unwrap();
    assert!(threads.gpu.run("give_back", 1, 1, &given).is_err(), "twice");
}

/// Threads that allocate and give back all the time: how often there was no memory.
fn churn(pages: u64, (grid, rounds): (u32, u32), sizes: [u32; 2], held: u32) -> u32 {
    let mut gpu = Gpu::new(KERNELS, pages * PAGE);
    let counts = gpu.with(&[0u32; 2]);
    let mut given = params(&[], &[rounds, 77, sizes[0], sizes[1], held, 0]);
    given.extend(params(&[counts, counts + 4], &[]));
    gpu.run("churn", grid, BLOCK, &given).unwrap();
    let counts: Vec<u32> = gpu.get(counts, 2);
    assert_eq!(counts[1], 0, "words that were somebody else's");
    // All is one piece again.
    let memory = gpu.with(&[0u64]);
    let [bytes, frees] = [pages * PAGE, 0].map(|value| gpu.with(&[value]));
    gpu.run("exchange", 1, 1, &params(&[bytes, frees, memory], &[1])).unwrap();
    assert_ne!(gpu.get::<u64>(memory, 1), [0]);
    counts[0]
}

#[test]
fn threads_that_allocate_all_the_time_are_not_in_each_others_way() {
    for (sizes, held) in [([1, 64], 4), ([1, 3000], 4), ([1, 20_000], 2), ([4097, 9000], 4)] {
        assert_eq!(churn(8192, (6, 200), sizes, held), 0, "{sizes:?}");
    }
}

/// With a place for each thread, none finds nothing: whoever looks has none himself.
#[test]
fn there_is_no_memory_only_if_there_is_none() {
    let threads = 4 * BLOCK;
    for (size, in_page) in [(16, 256), (96, 42), (2048, 2), (4096, 1)] {
        let pages = u64::from(threads).div_ceil(in_page);
        assert_eq!(churn(pages, (4, 300), [size, size], 1), 0, "{size}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Who gets nothing from threads that only allocate has found a heap without room, and what one thread does is known in advance.
    #[test]
    fn memory_is_had_as_long_as_there_is_room(
        pages in 1..40u64,
        steps in prop::collection::vec((any::<bool>(), prop::collection::vec((0..4u8, 1..6000u64), 1..80)), 1..12),
    ) {
        let mut threads = Threads::new(80, pages);
        for (small, step) in steps {
            let bytes = |bytes: u64| if small { 1 + bytes % 300 } else { bytes };
            let frees = step.iter().map(|(what, _)| (*what > 1, 0));
            let frees: Vec<_> = frees.chain(std::iter::repeat((false, 0))).take(80).collect();
            threads.exchange(&frees);
            let wanted = step.iter().map(|(what, size)| (false, if *what % 2 == 0 { bytes(*size) } else { 0 }));
            let wanted: Vec<_> = wanted.chain(std::iter::repeat((false, 0))).take(80).collect();
            let had: Vec<_> = threads.held.iter().map(Option::is_some).collect();
            threads.exchange(&wanted);
            for (at, (_, size)) in wanted.iter().enumerate() {
                if *size > 0 && !had[at] && threads.held[at].is_none() {
                    prop_assert!(!threads.has_room(*size), "{size} bytes");
                }
            }
        }
    }
}
