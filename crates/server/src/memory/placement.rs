//! Which managed regions lie on their device, and which beside it in the host's memory: what is known of their use, and what follows from it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Where a managed region lies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Home {
    /// On its device.
    Device,
    /// In the host's memory: the device reaches it over the bus.
    Host,
}

/// What changes places, by the addresses at which the regions begin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Exchange {
    /// Go to the host, in this order.
    pub(super) go: Vec<u64>,
    /// Comes to the device then.
    pub(super) comes: u64,
}

/// The regions of one device. A region comes to the device when work has named it twice since the regions were named last that go for it. So where
/// all are used in turn, and there is not room for all, none moves: each would be gone when it is its turn again.
#[derive(Debug, Default)]
pub(super) struct Placement {
    regions: BTreeMap<u64, Known>,
    /// How many of them are not on the device.
    beside: usize,
    /// Counts work.
    clock: u64,
    /// When to look next, and how long to wait after that if nothing is found.
    next: u64,
    pause: u64,
}

#[derive(Clone, Copy, Debug)]
struct Known {
    bytes: u64,
    home: Home,
    /// When work named it last, and when the time before that: 0 for never.
    last: u64,
    before: u64,
}

/// The longest wait between two looks, in pieces of work.
const LONGEST: u64 = 64;

impl Placement {
    /// A region has been made.
    pub(super) fn add(&mut self, base: u64, bytes: u64, home: Home) {
        self.regions.insert(base, Known { bytes, home, last: 0, before: 0 });
        self.beside += usize::from(home == Home::Host);
    }

    /// It is gone, if there was one: there may be room for another.
    pub(super) fn remove(&mut self, base: u64) -> bool {
        let Some(known) = self.regions.remove(&base) else { return false };
        self.beside -= usize::from(known.home == Home::Host);
        (self.next, self.pause) = (0, 0);
        true
    }

    /// It has moved.
    pub(super) fn moved(&mut self, base: u64, home: Home) {
        if let Some(known) = self.regions.get_mut(&base) {
            let before = std::mem::replace(&mut known.home, home);
            self.beside += usize::from(home == Home::Host);
            self.beside -= usize::from(before == Home::Host);
        }
    }

    /// It could not come: not so soon again.
    pub(super) fn stays(&mut self, base: u64) {
        if let Some(known) = self.regions.get_mut(&base) {
            (known.before, known.last) = (0, 0);
        }
        self.pause = LONGEST;
        self.next = self.clock + LONGEST;
    }

    /// Whether any is not on the device: only then it matters which are used.
    pub(super) fn is_short(&self) -> bool {
        self.beside > 0
    }

    /// Work begins that names these addresses, among others that are none's.
    pub(super) fn used(&mut self, addresses: impl Iterator<Item = u64>) {
        self.clock += 1;
        for address in addresses {
            let Some((&base, known)) = self.regions.range_mut(..=address).next_back() else { continue };
            if address - base < known.bytes && known.last < self.clock {
                (known.before, known.last) = (known.last, self.clock);
            }
        }
    }

    /// The program says where it wants the region around an address. On the device it counts as just used, on the host as never.
    pub(super) fn wanted(&mut self, address: u64, home: Home) {
        let Some((&base, known)) = self.regions.range_mut(..=address).next_back() else { return };
        if address - base < known.bytes {
            self.clock += 1;
            let when = if home == Home::Device { self.clock } else { 0 };
            (known.before, known.last) = (when, when);
            self.next = 0;
        }
    }

    /// Whether it may be time for an exchange.
    pub(super) fn is_due(&self) -> bool {
        self.clock >= self.next
            && self.regions.values().any(|known| known.home == Home::Host && known.before > 0)
    }

    /// What is to change places, with so many bytes free on the device.
    pub(super) fn exchange(&mut self, free: u64) -> Option<Exchange> {
        let mut coming: Vec<_> =
            self.regions.iter().filter(|(_, known)| known.home == Home::Host && known.before > 0).collect();
        coming.sort_by_key(|(_, known)| std::cmp::Reverse(known.before));
        let found = coming.into_iter().find_map(|(&comes, known)| {
            let go = self.idle_since(known.before, known.bytes.saturating_sub(free))?;
            Some(Exchange { go, comes })
        });
        self.pause = if found.is_some() { 0 } else { (self.pause * 2).clamp(1, LONGEST) };
        self.next = self.clock + self.pause;
        found
    }

    /// Who goes first to the host, if so many bytes of the device are wanted and that many can be had.
    pub(super) fn first_to_go(&self, bytes: u64) -> Option<u64> {
        self.idle_since(u64::MAX, bytes)?.first().copied()
    }

    /// Regions on the device, of so many bytes at least, that no work has named since; those first that were named longest ago.
    fn idle_since(&self, when: u64, bytes: u64) -> Option<Vec<u64>> {
        let idle = self.regions.iter().filter(|(_, known)| known.home == Home::Device && known.last < when);
        let mut idle: Vec<_> = idle.collect();
        idle.sort_by_key(|(base, known)| (known.last, **base));
        let (mut found, mut go) = (0u64, Vec::new());
        for (&base, known) in idle {
            if found >= bytes {
                break;
            }
            found = found.saturating_add(known.bytes);
            go.push(base);
        }
        (found >= bytes).then_some(go)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Four regions of 10 bytes on the device, one of 10 beside it.
    fn placement() -> Placement {
        let mut placement = Placement::default();
        (0..5).for_each(|at| placement.add(at * 10, 10, if at < 4 { Home::Device } else { Home::Host }));
        placement
    }

    /// Carries out what is due, and answers what came.
    fn settle(placement: &mut Placement, free: u64) -> Option<Exchange> {
        let exchange = placement.is_due().then(|| placement.exchange(free)).flatten()?;
        exchange.go.iter().for_each(|base| placement.moved(*base, Home::Host));
        placement.moved(exchange.comes, Home::Device);
        Some(exchange)
    }

    #[test]
    fn what_is_used_twice_takes_the_place_of_what_is_not() {
        let mut placement = placement();
        placement.used([5, 15, 25].into_iter());
        placement.used([49].into_iter());
        assert_eq!(settle(&mut placement, 0), None, "once may be never again");
        placement.used([5, 40].into_iter());
        assert_eq!(settle(&mut placement, 0), Some(Exchange { go: vec![30], comes: 40 }));
        assert!(placement.is_short());
        assert_eq!(settle(&mut placement, 0), None);
    }

    #[test]
    fn who_are_used_in_turn_stay_where_they_are() {
        let mut placement = placement();
        for turn in 0..1000 {
            placement.used([turn % 5 * 10].into_iter());
            // Until each has had its turn some have not been used at all.
            assert!(turn < 10 || settle(&mut placement, 0).is_none(), "in turn {turn}");
        }
    }

    #[test]
    fn another_phase_brings_others() {
        let mut placement = placement();
        (0..100).for_each(|_| placement.used([0, 10, 20, 30].into_iter()));
        (0..2).for_each(|_| placement.used([40].into_iter()));
        assert_eq!(settle(&mut placement, 0), Some(Exchange { go: vec![0], comes: 40 }));
    }

    #[test]
    fn what_the_program_says_counts() {
        let mut placement = placement();
        (0..5).for_each(|_| placement.used([0, 10, 20, 30].into_iter()));
        placement.wanted(25, Home::Host);
        placement.wanted(40, Home::Device);
        assert_eq!(settle(&mut placement, 0), Some(Exchange { go: vec![20], comes: 40 }));
        placement.wanted(99, Home::Device);
        assert_eq!(placement.first_to_go(1), Some(0));
    }

    #[test]
    fn room_is_used_before_anybody_goes() {
        let mut placement = placement();
        (0..2).for_each(|_| placement.used([0, 10, 20, 30, 40].into_iter()));
        assert_eq!(settle(&mut placement, 9), None);
        placement.wanted(40, Home::Device);
        assert_eq!(settle(&mut placement, 10), Some(Exchange { go: vec![], comes: 40 }));
        assert!(!placement.is_short());
    }

    #[test]
    fn who_could_not_come_is_not_tried_at_once_and_room_is_noticed() {
        let mut placement = placement();
        (0..2).for_each(|_| placement.used([40].into_iter()));
        assert!(placement.is_due());
        placement.stays(40);
        (0..LONGEST - 1).for_each(|_| placement.used([40].into_iter()));
        assert!(!placement.is_due());
        assert!(placement.remove(0) && !placement.remove(0));
        assert!(placement.is_due());
        assert_eq!(placement.exchange(10), Some(Exchange { go: vec![], comes: 40 }));
    }

    #[test]
    fn who_goes_for_an_allocation_was_idle_longest_and_nobody_goes_in_vain() {
        let mut placement = placement();
        placement.used([0, 20, 30].into_iter());
        assert_eq!(placement.first_to_go(20), Some(10));
        assert_eq!(placement.first_to_go(41), None);
    }
}
