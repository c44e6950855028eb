//! Places that are freed and that work may still touch, found by what they do for: there may be thousands.

use super::arena::{Freed, Holder, Place};
use std::collections::{BTreeMap, BTreeSet};

/// Places in the order in which they were freed, each with what has to be complete before it is anybody's.
pub(super) struct Pending<M> {
    places: BTreeMap<u64, (M, Freed, Place)>,
    by_size: BTreeSet<(Holder, Place, u64)>,
    next: u64,
    bytes: u64,
}

impl<M> Default for Pending<M> {
    fn default() -> Self {
        Self { places: BTreeMap::new(), by_size: BTreeSet::new(), next: 0, bytes: 0 }
    }
}

impl<M> Pending<M> {
    /// Adds the place that was freed last.
    pub fn push(&mut self, marker: M, freed: Freed, place: Place) {
        self.insert(self.next, marker, freed, place);
        self.next += 1;
    }

    /// Adds what is left of a place, with the number that it had.
    pub fn insert(&mut self, number: u64, marker: M, freed: Freed, place: Place) {
        self.by_size.insert((freed.holder(), place, number));
        self.bytes += freed.bytes();
        self.places.insert(number, (marker, freed, place));
    }

    /// The smallest place of the holder's between `least` and `most`; of two such, the one that was freed first.
    pub fn find(&self, holder: Holder, (least, most): (Place, Place)) -> Option<u64> {
        let mut fitting = self.by_size.range((holder, least, 0)..=(holder, most, u64::MAX));
        fitting.next().map(|(.., number)| *number)
    }

    /// Takes a place out.
    pub fn remove(&mut self, number: u64) -> Option<(M, Freed)> {
        let (marker, freed, place) = self.places.remove(&number)?;
        self.by_size.remove(&(freed.holder(), place, number));
        self.bytes -= freed.bytes();
        Some((marker, freed))
    }

    /// Takes out the place that was freed first, if `over` says that its time has come.
    pub fn pop_if(&mut self, over: impl FnOnce(&M) -> bool) -> Option<Freed> {
        let (number, (marker, ..)) = self.places.first_key_value()?;
        let number = *number;
        if over(marker) { self.remove(number).map(|(_, freed)| freed) } else { None }
    }

    /// Takes out all whose time has come, whatever is before them.
    pub fn take_if(&mut self, over: impl Fn(&M) -> bool) -> Vec<Freed> {
        let numbers: Vec<u64> =
            self.places.iter().filter(|(_, (marker, ..))| over(marker)).map(|(number, _)| *number).collect();
        numbers.into_iter().filter_map(|number| self.remove(number)).map(|(_, freed)| freed).collect()
    }

    /// Bytes of all places.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}
