#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;

const SLAB: u64 = 2 << 20;

/// A slab at the next address that has had none.
fn add(slabs: &mut Slabs, next: &mut u64) -> Range {
    let range = Range { base: *next, bytes: slabs.next_bytes() };
    *next = range.end();
    slabs.add(range);
    range
}

#[test]
fn slabs_grow_with_what_there_is() {
    let (mut slabs, mut next) = (Slabs::default(), 0x5000_0000_0000);
    let sizes: Vec<u64> = (0..6).map(|_| add(&mut slabs, &mut next).bytes / SLAB).collect();
    assert_eq!(sizes, [1, 1, 2, 4, 4, 4]);
}

#[test]
fn small_allocations_are_whole_pages_of_a_slab() {
    let pieces = [0, 1, PAGE, PAGE + 1, PIECE_MAX, PIECE_MAX + 1].map(piece_bytes);
    assert_eq!(pieces, [None, Some(PAGE), Some(PAGE), Some(2 * PAGE), Some(PIECE_MAX), None]);
}

#[test]
fn pieces_of_neighbouring_slabs_do_not_become_one() {
    let (mut slabs, mut next) = (Slabs::default(), 0x5000_0000_0000);
    let both = [add(&mut slabs, &mut next), add(&mut slabs, &mut next)];
    for range in both {
        assert!(slabs.take_at(range));
    }
    for range in both {
        slabs.free(range.base);
        assert_eq!(slabs.give_back(range), None);
    }
    assert_eq!(slabs.take(2 * SLAB), None);
    assert_eq!(slabs.take(SLAB), Some(both[0].base));
}

#[test]
fn a_slab_leaves_in_steps() {
    let (mut slabs, mut next) = (Slabs::default(), 0x5000_0000_0000);
    let [kept, range] = [add(&mut slabs, &mut next), add(&mut slabs, &mut next)];
    let piece = Range { base: range.base + PAGE, bytes: PAGE };
    assert!(slabs.take_at(piece));
    assert_eq!(slabs.spare(), None, "one is kept");
    slabs.free(piece.base);
    assert_eq!(slabs.leave(range.base), Err(()), "nobody was told to");
    assert_eq!(slabs.spare(), Some(range.base));
    assert_eq!(slabs.spare(), None);
    let leaving: Vec<bool> = slabs.records().map(|record| record.leaving).collect();
    assert_eq!(leaving, [false, true]);
    assert!(!slabs.take_at(Range { base: range.base, bytes: PAGE }), "nothing comes out of it");
    assert_eq!(slabs.leave(range.base), Ok(None), "work may touch the piece");
    assert_eq!(slabs.leave(range.base), Err(()));
    assert_eq!(slabs.around(piece.base), Some(range));
    assert_eq!(slabs.give_back(piece), Some(range));
    assert_eq!(slabs.around(piece.base), None);
    assert_eq!(slabs.take(SLAB), Some(kept.base));
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Page {
    Free,
    Live,
    Freed,
}

/// What the application and the device do.
#[derive(Clone, Debug)]
enum Step {
    Allocate(u64),
    /// One of the live pieces.
    Free(prop::sample::Index),
    /// The work is over that used one of the freed pieces.
    Over(prop::sample::Index),
    /// The application has unmapped what leaves.
    Unmapped,
    /// The session goes on from an image, on an idle device.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1..=PIECE_MAX / PAGE).prop_map(Step::Allocate),
        6 => (1..8u64).prop_map(Step::Allocate),
        9 => any::<prop::sample::Index>().prop_map(Step::Free),
        9 => any::<prop::sample::Index>().prop_map(Step::Over),
        2 => Just(Step::Unmapped),
        1 => Just(Step::Restart),
    ]
}

/// The slabs by their pages.
#[derive(Default)]
struct Model {
    slabs: BTreeMap<u64, (Vec<Page>, Stage)>,
    live: Vec<Range>,
    freed: Vec<Range>,
}

impl Model {
    fn pages(&mut self, piece: Range) -> &mut [Page] {
        let (base, (pages, _)) = self.slabs.range_mut(..=piece.base).next_back().unwrap();
        let first = ((piece.base - base) / PAGE) as usize;
        &mut pages[first..first + (piece.bytes / PAGE) as usize]
    }

    /// Marks the pages of a piece; all of them were `before`.
    fn turn(&mut self, piece: Range, before: Page, after: Page) {
        let pages = self.pages(piece);
        assert!(pages.iter().all(|page| *page == before), "{piece} was not {before:?}");
        pages.fill(after);
    }

    /// The shortest run of free pages in an open slab that is long enough.
    fn shortest(&self, wanted: u64) -> Option<usize> {
        let open = self.slabs.values().filter(|(_, stage)| *stage == Stage::Open);
        let runs = open.flat_map(|(pages, _)| pages.split(|page| *page != Page::Free));
        runs.map(<[Page]>::len).filter(|len| *len as u64 * PAGE >= wanted).min()
    }

    fn idle(&self) -> usize {
        let is_idle =
            |(pages, stage): &&(Vec<Page>, Stage)| *stage == Stage::Open && !pages.contains(&Page::Live);
        self.slabs.values().filter(is_idle).count()
    }

    /// Slabs go when, and only when, the application has them no more and no work touches them.
    fn gone(&mut self, gone: Option<Range>) {
        let over = |(pages, stage): &(Vec<Page>, Stage)| {
            *stage == Stage::Left && pages.iter().all(|page| *page == Page::Free)
        };
        let expected = self.slabs.iter().find(|(_, slab)| over(slab)).map(|(base, _)| *base);
        assert_eq!(gone.map(|range| range.base), expected);
        if let Some(base) = expected {
            self.slabs.remove(&base);
        }
    }
}

proptest! {
    /// Allocations, frees, work that ends late and restarts, against a model page by page.
    #[test]
    fn pieces_are_as_a_model_has_them(steps in prop::collection::vec(step(), 1..300)) {
        let (mut slabs, mut model, mut next) = (Slabs::default(), Model::default(), 0x5000_0000_0000);
        for step in steps {
            match step {
                Step::Allocate(pages) => {
                    let bytes = pages * PAGE;
                    let shortest = model.shortest(bytes);
                    let found = slabs.take(bytes);
                    prop_assert_eq!(found.is_some(), shortest.is_some());
                    let base = found.unwrap_or_else(|| {
                        let range = add(&mut slabs, &mut next);
                        let pages = vec![Page::Free; (range.bytes / PAGE) as usize];
                        model.slabs.insert(range.base, (pages, Stage::Open));
                        slabs.take(bytes).unwrap()
                    });
                    let piece = Range { base, bytes };
                    prop_assert!(slabs.around(base).unwrap().contains(base, bytes));
                    model.turn(piece, Page::Free, Page::Live);
                    model.live.push(piece);
                }
                Step::Free(which) if !model.live.is_empty() => {
                    let piece = model.live.swap_remove(which.index(model.live.len()));
                    slabs.free(piece.base);
                    model.turn(piece, Page::Live, Page::Freed);
                    model.freed.push(piece);
                    let idle = model.idle();
                    let spare = slabs.spare();
                    prop_assert_eq!(spare.is_some(), idle > 1);
                    if let Some(base) = spare {
                        let (pages, stage) = model.slabs.get_mut(&base).unwrap();
                        prop_assert!(*stage == Stage::Open && !pages.contains(&Page::Live));
                        *stage = Stage::Leaving;
                    }
                    prop_assert!(model.idle() < 2);
                }
                Step::Over(which) if !model.freed.is_empty() => {
                    let piece = model.freed.swap_remove(which.index(model.freed.len()));
                    model.turn(piece, Page::Freed, Page::Free);
                    let gone = slabs.give_back(piece);
                    model.gone(gone);
                }
                Step::Unmapped => {
                    let mut leaving = model.slabs.iter_mut().filter(|(_, (_, stage))| *stage == Stage::Leaving);
                    if let Some((base, (_, stage))) = leaving.next() {
                        *stage = Stage::Left;
                        let gone = slabs.leave(*base).unwrap();
                        model.gone(gone);
                    }
                }
                Step::Restart => {
                    for piece in std::mem::take(&mut model.freed) {
                        model.turn(piece, Page::Freed, Page::Free);
                        let gone = slabs.give_back(piece);
                        model.gone(gone);
                    }
                    let mut restored = Slabs::default();
                    slabs.records().for_each(|record| restored.restore(record));
                    for piece in &model.live {
                        prop_assert!(restored.take_at(*piece));
                    }
                    slabs = restored;
                }
                Step::Free(_) | Step::Over(_) => {}
            }
            let records: Vec<_> = slabs.records().map(|record| (record.range.base, record.leaving)).collect();
            let expected: Vec<_> =
                model.slabs.iter().map(|(base, (_, stage))| (*base, *stage != Stage::Open)).collect();
            prop_assert_eq!(records, expected);
        }
    }
}
