//! Where processor and device have memory in turn, threads and kernels add to the same words at the same time, and no addition is lost.

use crate::interleavings::{Random, config};
use crate::support::{Kept, Model, Stream, keep_for, memory};
use proptest::prelude::*;
use shadow::{Access, PAGE, Range, Scope};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

/// Words that are added to in each region.
const WORDS: usize = 8;
const ROUNDS: usize = 12;

fn check(seed: u64, regions: &[usize], (threads, servers): (usize, usize), pause: u64) {
    let mut random = Random(seed);
    let model = Model::delayed(seed, pause);
    let kept = Kept { threads: servers, access: Access::Exclusive, ..Kept::default() };
    let (keeper, shadows) = keep_for(&model, regions, kept, memory);
    // A word of each in different places, some in one page.
    let words: Vec<(usize, usize)> = (0..regions.len() * WORDS)
        .map(|word| (word % regions.len(), random.below(regions[word % regions.len()] * PAGE / 8) * 8))
        .collect();
    let added: Arc<Vec<AtomicU64>> = Arc::new(words.iter().map(|_| AtomicU64::new(0)).collect());
    let (stream, begin) = (Stream::new(&model), Barrier::new(threads + 1));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (mut random, words, added) = (Random(random.next()), &words, &added);
            let (shadows, begin) = (&shadows, &begin);
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    begin.wait();
                    for _ in 0..random.below(40) {
                        let word = random.below(words.len());
                        let (region, at) = words[word];
                        shadows[region].word(at).fetch_add(1, Ordering::SeqCst);
                        added[word].fetch_add(1, Ordering::SeqCst);
                        crate::support::pause(random.next(), pause);
                    }
                }
            });
        }
        for _ in 0..ROUNDS {
            begin.wait();
            for _ in 0..random.below(6) {
                let word = random.below(words.len());
                let (region, at) = words[word];
                let address = shadows[region].address() + at as u64;
                let (added, drawn) = (added.clone(), random.next());
                let named = [Range { base: address, bytes: 8 }];
                let reach = keeper.reach(if drawn % 3 == 0 { Scope::All } else { Scope::Ranges(&named) });
                stream.submit(move |device| {
                    let now = u64::from_le_bytes(device.load(address, 8).try_into().unwrap());
                    crate::support::pause(drawn, pause);
                    device.store(address, &(now + 1).to_le_bytes());
                    added[word].fetch_add(1, Ordering::SeqCst);
                });
                drop(reach.unwrap());
            }
            if random.below(2) == 0 {
                stream.wait();
                keeper.settle().unwrap();
            }
        }
    });
    stream.wait();
    keeper.settle().unwrap();
    for (word, (region, at)) in words.iter().enumerate() {
        // Several may have the same place.
        let here = words.iter().zip(added.iter()).filter(|(place, _)| *place == &(*region, *at));
        let expected: u64 = here.map(|(_, added)| added.load(Ordering::SeqCst)).sum();
        assert_eq!(shadows[*region].word(*at).load(Ordering::SeqCst), expected, "word {word}");
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn what_both_sides_add_is_all_there(
        seed in any::<u64>(),
        regions in prop::collection::vec(1..100usize, 1..4),
        threads in 1..4usize,
        servers in 1..4usize,
        pause in prop_oneof![Just(0u64), Just(20), Just(300)],
    ) {
        check(seed, &regions, (threads, servers), pause);
    }
}
