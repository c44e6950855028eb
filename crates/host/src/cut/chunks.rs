//! Where a file of pages is cut into chunks, so that memory that stays the same is in the same chunks at the next checkpoint, wherever else some has
//! come or gone: by the pages' addresses, and not by where they lie in the file.

use std::ops::Range;

/// The longest chunk, and the addresses that one is of: `image::CHUNK_SIZE`.
pub(super) const WINDOW: u64 = 2 << 20;
/// A window with as many bytes as this is a chunk of its own.
const OWN: u64 = 256 << 10;
/// Of others, which are put together, one in so many begins a chunk.
const TOGETHER: u64 = 16;

/// How long the chunks are of pages with these addresses, which are in order.
pub(super) fn chunks(runs: impl Iterator<Item = Range<u64>>) -> Vec<u64> {
    let mut chunks: Vec<u64> = Vec::new();
    let mut is_own = true;
    for (window, bytes) in windows(runs) {
        let begins = is_own || bytes >= OWN || is_first(window);
        match chunks.last_mut() {
            Some(last) if !begins && *last + bytes <= WINDOW => *last += bytes,
            _ => chunks.push(bytes),
        }
        is_own = bytes >= OWN;
    }
    chunks
}

/// How many bytes are in each window that has some.
fn windows(runs: impl Iterator<Item = Range<u64>>) -> Vec<(u64, u64)> {
    let mut windows: Vec<(u64, u64)> = Vec::new();
    for run in runs {
        let mut at = run.start;
        while at < run.end {
            let window = at / WINDOW;
            let end = run.end.min((window + 1).saturating_mul(WINDOW));
            match windows.last_mut() {
                Some((last, bytes)) if *last == window => *bytes += end - at,
                _ => windows.push((window, end - at)),
            }
            at = end;
        }
    }
    windows
}

/// Decided by the window alone, so that it is the same whatever lies before.
fn is_first(window: u64) -> bool {
    window.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 & (TOGETHER - 1) == 0
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    const PAGE: u64 = 4096;

    /// Runs of pages, in order and apart.
    fn runs() -> impl Strategy<Value = Vec<Range<u64>>> {
        prop::collection::vec((1u64..2000, 1u64..1500), 1..60).prop_map(|gaps| {
            let mut at = 0x7f00_0000_0000;
            let run = |(gap, pages): (u64, u64)| {
                let start = at + gap * PAGE;
                at = start + pages * PAGE;
                start..at
            };
            gaps.into_iter().map(run).collect()
        })
    }

    /// The pages of each chunk.
    fn divided(runs: &[Range<u64>]) -> Vec<Vec<u64>> {
        let mut pages = runs.iter().flat_map(|run| (run.start..run.end).step_by(PAGE as usize));
        let lengths = chunks(runs.iter().cloned());
        lengths.iter().map(|bytes| pages.by_ref().take((bytes / PAGE) as usize).collect()).collect()
    }

    proptest! {
        #[test]
        fn all_is_in_chunks_of_the_right_length(runs in runs()) {
            let lengths = chunks(runs.iter().cloned());
            prop_assert!(lengths.iter().all(|bytes| (PAGE..=WINDOW).contains(bytes) && bytes % PAGE == 0));
            let all: u64 = runs.iter().map(|run| run.end - run.start).sum();
            prop_assert_eq!(lengths.iter().sum::<u64>(), all);
        }

        #[test]
        fn what_comes_somewhere_changes_little_elsewhere(runs in runs(), place in 0..60usize) {
            let before: HashSet<_> = divided(&runs).into_iter().collect();
            let mut more = runs;
            let place = place % more.len();
            let start = if place == 0 { 0x7e00_0000_0000 } else { more[place - 1].end };
            more.insert(place, start..start + PAGE);
            let new = divided(&more).into_iter().filter(|pages| !before.contains(pages));
            let bytes = new.map(|pages| pages.len() as u64 * PAGE).sum::<u64>();
            // The chunk that it is in, and the one from which it has pushed something.
            prop_assert!(bytes <= 2 * WINDOW, "{bytes}");
        }
    }

    #[test]
    fn a_window_of_its_own_is_a_chunk_and_small_ones_are_put_together() {
        let window = |number: u64, bytes| number * WINDOW..number * WINDOW + bytes;
        let small: Vec<u64> = (1u64..).filter(|number| !is_first(*number)).take(3).collect();
        let runs =
            [window(small[0], PAGE), window(small[1], PAGE), window(small[2], OWN), window(90, WINDOW)];
        assert_eq!(chunks(runs.into_iter()), [2 * PAGE, OWN, WINDOW]);
        let across = 5 * WINDOW - 300 * PAGE..6 * WINDOW + 100 * PAGE;
        assert_eq!(chunks([across].into_iter()), [300 * PAGE, WINDOW, 100 * PAGE]);
    }
}
