#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;

const RANGE: Range = Range { base: 0x2000_0000_0000, bytes: 1 << 32 };

fn allocate(arena: &mut Arena, bytes: u64) -> Allocation {
    let plan = arena.plan(Holder::Plain, bytes).unwrap();
    arena.commit(plan, ContextId(1))
}

#[test]
fn a_freed_place_is_taken_until_it_is_reclaimed() {
    let mut arena = Arena::new(RANGE);
    let first = allocate(&mut arena, 100);
    let freed = arena.free(first.range.base).unwrap();
    let second = allocate(&mut arena, 100);
    assert_ne!(first.range.base, second.range.base);
    arena.reclaim(freed);
    assert_eq!(allocate(&mut arena, 100).range.base, first.range.base);
}

#[test]
fn only_the_first_address_of_a_live_allocation_frees_it() {
    let mut arena = Arena::new(RANGE);
    let allocation = allocate(&mut arena, 4096);
    assert!(arena.free(allocation.range.base + 512).is_none());
    assert!(arena.free(allocation.range.base).is_some());
    assert!(arena.free(allocation.range.base).is_none());
}

#[test]
fn a_large_block_is_reused_and_dropped_above_the_limit() {
    let mut arena = Arena::new(RANGE);
    let large = allocate(&mut arena, 64 << 20);
    let freed = arena.free(large.range.base).unwrap();
    arena.reclaim(freed);
    assert!(arena.trim(RETAIN, u64::MAX).is_empty());
    assert!(
        arena.plan(Holder::Plain, 60 << 20).unwrap().block_to_map().is_none(),
        "an eighth of waste is accepted"
    );
    assert!(
        arena.plan(Holder::Plain, 32 << 20).unwrap().block_to_map().is_some(),
        "half of a block is not wasted"
    );
    assert_eq!(arena.trim(0, u64::MAX), [Range { base: large.range.base, bytes: 64 << 20 }]);
    assert_eq!(arena.empty_bytes(), 0);
}

#[test]
fn what_was_empty_a_moment_ago_stays() {
    let mut arena = Arena::new(RANGE);
    let both = [allocate(&mut arena, 64 << 20), allocate(&mut arena, 64 << 20)];
    let free = |arena: &mut Arena, which: usize| {
        let freed = arena.free(both[which].range.base).unwrap();
        arena.reclaim(freed);
    };
    free(&mut arena, 1);
    let since = arena.clock();
    free(&mut arena, 0);
    assert_eq!(arena.trim(0, since), [Range { base: both[1].range.base, bytes: 64 << 20 }]);
    assert_eq!(arena.empty_bytes(), 64 << 20);
    assert!(arena.plan(Holder::Plain, 64 << 20).unwrap().block_to_map().is_none());
}

#[test]
fn sizes_that_cannot_be_had_are_refused() {
    let arena = Arena::new(RANGE);
    for bytes in [0, RANGE.bytes + 1, u64::MAX, u64::MAX - 511] {
        assert!(arena.plan(Holder::Plain, bytes).is_none(), "{bytes:#x}");
    }
}

#[test]
fn a_recorded_arena_that_cannot_be_is_refused() {
    let block = Range { base: RANGE.base, bytes: 2 << 20 };
    let allocation =
        |base, bytes| Allocation { range: Range { base, bytes }, ctx: ContextId(1), holder: Holder::Plain };
    let of = |range, shared| BlockState { range, shared, holder: Holder::Plain };
    let bad_blocks = [
        vec![of(Range { base: RANGE.base + 512, bytes: 2 << 20 }, true)],
        vec![of(block, true), of(block, false)],
        vec![of(Range { base: RANGE.end(), bytes: 2 << 20 }, true)],
        vec![of(Range { base: RANGE.base, bytes: 0 }, true)],
    ];
    for blocks in bad_blocks {
        let state = ArenaState { blocks, allocations: vec![] };
        assert!(matches!(Arena::from_state(RANGE, &state), Err(StateError::Block(..))));
    }
    let bad_allocations = [
        vec![allocation(RANGE.base, 4 << 20)],
        vec![allocation(RANGE.base + 1, 1)],
        vec![allocation(RANGE.base, 1024), allocation(RANGE.base + 512, 512)],
        vec![allocation(RANGE.base, u64::MAX)],
        vec![allocation(RANGE.base, 0)],
    ];
    for allocations in bad_allocations {
        let state = ArenaState { blocks: vec![of(block, true)], allocations };
        assert!(matches!(Arena::from_state(RANGE, &state), Err(StateError::Allocation(..))));
    }
}

#[derive(Clone, Debug)]
enum Step {
    Allocate(u64),
    Free(usize),
    Reclaim(usize),
    Trim(u64),
    Restore,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let size = prop_oneof![1..2000u64, 1..SMALL_MAX + 1, SMALL_MAX..(64 << 20)];
    let step = prop_oneof![
        4 => size.prop_map(Step::Allocate),
        2 => any::<usize>().prop_map(Step::Free),
        2 => any::<usize>().prop_map(Step::Reclaim),
        1 => (0..RETAIN).prop_map(Step::Trim),
        1 => Just(Step::Restore),
    ];
    prop::collection::vec(step, 1..120)
}

/// The plain model: what is live, what is freed and not reclaimed, what is mapped.
#[derive(Default)]
struct Model {
    live: Vec<Range>,
    freed: Vec<(Range, Freed)>,
    mapped: Vec<Range>,
}

impl Model {
    fn check(&self, arena: &Arena) {
        let mut taken: Vec<Range> =
            self.live.iter().copied().chain(self.freed.iter().map(|(range, _)| *range)).collect();
        taken.sort_unstable();
        for pair in taken.windows(2) {
            assert!(pair[0].end() <= pair[1].base, "{} overlaps {}", pair[0], pair[1]);
        }
        for range in &taken {
            assert!(range.base.is_multiple_of(ALIGNMENT));
            let inside = |block: &Range| block.contains(range.base, range.bytes);
            assert!(self.mapped.iter().any(inside), "{range} is not mapped");
        }
        let mut mapped = self.mapped.clone();
        mapped.sort_unstable();
        assert_eq!(arena.blocks().collect::<Vec<_>>(), mapped);
        for range in &self.live {
            assert_eq!(arena.find(range.base + range.bytes - 1).unwrap().range, *range);
        }
        for (range, _) in &self.freed {
            assert!(arena.find(range.base).is_none());
        }
    }
}

fn run(steps: &[Step]) -> Vec<Range> {
    let mut arena = Arena::new(RANGE);
    let mut model = Model::default();
    let mut addresses = Vec::new();
    for step in steps {
        match *step {
            Step::Allocate(bytes) => {
                let Some(plan) = arena.plan(Holder::Plain, bytes) else { continue };
                model.mapped.extend(plan.block_to_map());
                let allocation = arena.commit(plan, ContextId(1));
                assert_eq!(allocation.range.bytes, bytes);
                model.live.push(allocation.range);
                addresses.push(allocation.range);
            }
            Step::Free(which) if !model.live.is_empty() => {
                let range = model.live.swap_remove(which % model.live.len());
                model.freed.push((range, arena.free(range.base).unwrap()));
            }
            Step::Reclaim(which) if !model.freed.is_empty() => {
                let (_, freed) = model.freed.swap_remove(which % model.freed.len());
                arena.reclaim(freed);
            }
            Step::Trim(keep) => {
                let gone = arena.trim(keep, u64::MAX);
                model.mapped.retain(|block| !gone.contains(block));
                assert!(arena.empty_bytes() <= keep);
            }
            Step::Restore => {
                for (_, freed) in model.freed.drain(..) {
                    arena.reclaim(freed);
                }
                let state = arena.state();
                arena = Arena::from_state(RANGE, &state).unwrap();
                assert_eq!(arena.state(), state);
                model.mapped = state.blocks.iter().map(|block| block.range).collect();
            }
            Step::Free(_) | Step::Reclaim(_) => {}
        }
        model.check(&arena);
    }
    addresses
}

proptest! {
    #[test]
    fn agrees_with_the_plain_model_and_repeats(steps in steps()) {
        prop_assert_eq!(run(&steps), run(&steps));
    }
}
