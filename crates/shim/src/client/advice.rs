//! What a program has said of managed memory (`cuMemAdvise`, `cuMemPrefetchAsync`): hints, kept because it may ask for them.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Hints are for whole pages.
const PAGE: u64 = 4096;

/// Where memory is to be: a `CUmemLocation`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Home {
    /// Nobody has said.
    #[default]
    Nowhere,
    /// On the device with this ordinal.
    Device(u32),
    /// On the host.
    Host,
    /// On this NUMA node of the host.
    Numa(u32),
}

/// What has been said of a page.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Advice {
    /// It is mostly read.
    pub read_mostly: bool,
    /// Where it should be.
    pub preferred: Home,
    /// Where it was prefetched to last.
    pub prefetched: Home,
    /// Who should have it mapped.
    pub accessed_by: BTreeSet<Home>,
}

/// What has been said of the pages of an allocation.
#[derive(Debug)]
pub struct Advised {
    /// From each offset on to the next one's; never empty.
    parts: BTreeMap<u64, Advice>,
}

impl Default for Advised {
    fn default() -> Self {
        Self { parts: BTreeMap::from([(0, Advice::default())]) }
    }
}

impl Advised {
    /// Changes what is said of the pages that hold these bytes of the allocation.
    pub fn change(&mut self, bytes: Range<u64>, change: impl Fn(&mut Advice)) {
        let pages = pages(bytes);
        self.split(pages.start);
        self.split(pages.end);
        self.parts.range_mut(pages).for_each(|(_, advice)| change(advice));
    }

    /// What is said of those pages, each different thing at least once.
    pub fn of(&self, bytes: Range<u64>) -> impl Iterator<Item = &Advice> {
        let pages = pages(bytes);
        let first = self.parts.range(..=pages.start).next_back();
        let rest = self.parts.range(pages.start + 1..pages.end);
        first.into_iter().chain(rest).map(|(_, advice)| advice)
    }

    /// Has a part begin there.
    fn split(&mut self, at: u64) {
        let before = self.parts.range(..=at).next_back();
        let advice = before.map(|(_, advice)| advice.clone()).unwrap_or_default();
        self.parts.entry(at).or_insert(advice);
    }
}

/// Whole pages around bytes of which there is at least one.
fn pages(bytes: Range<u64>) -> Range<u64> {
    bytes.start / PAGE * PAGE..bytes.end.next_multiple_of(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pages_keep_what_was_said_last(said in prop::collection::vec((0u64..64, 1u64..64, 0u32..5), 0..40)) {
            let mut advised = Advised::default();
            let mut model = vec![Home::Nowhere; 128];
            for (first, count, device) in said {
                // Not on a border of pages: whole pages are meant all the same.
                let bytes = first * PAGE + 17..(first + count) * PAGE - 17;
                advised.change(bytes, |advice| advice.preferred = Home::Device(device));
                model[first as usize..(first + count) as usize].fill(Home::Device(device));
            }
            for (page, home) in model.iter().enumerate() {
                let at = page as u64 * PAGE;
                let found: Vec<_> = advised.of(at + 5..at + 6).map(|advice| advice.preferred).collect();
                prop_assert_eq!(&found[..], &[*home]);
            }
            let all: BTreeSet<_> = advised.of(0..128 * PAGE).map(|advice| advice.preferred).collect();
            prop_assert_eq!(all, model.into_iter().collect::<BTreeSet<_>>());
        }
    }
}
