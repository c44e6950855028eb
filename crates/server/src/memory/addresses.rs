//! The addresses that an application reserves itself: parts of one window, which is taken from the device library piece by piece.

use crate::failure::{Failure, Result};
use backend::{BLOCK_GRANULARITY, Backend, Range};
use std::collections::{BTreeMap, BTreeSet};
use wire::CuError;

/// What is taken at once: the device library often places small reservations elsewhere than it is asked to. No reservation of the
/// application's lies across the border of two, since the device library knows two.
const PIECE: u64 = 4 << 40;

/// A session's reservations.
pub struct Addresses {
    window: Range,
    /// Where the pieces begin that are taken.
    taken: BTreeSet<u64>,
    reservations: BTreeMap<u64, Range>,
}

fn invalid(what: impl Into<String>) -> Failure {
    Failure::new(CuError::INVALID_VALUE, what)
}

impl Addresses {
    /// None yet; they will lie in `window`.
    pub fn new(window: Range) -> Self {
        Self { window, taken: BTreeSet::new(), reservations: BTreeMap::new() }
    }

    /// As `cuMemAddressReserve`; `wanted` is where, if it can be had.
    ///
    /// # Errors
    /// `INVALID_VALUE`, `OUT_OF_MEMORY` when the window is full, or the backend's.
    pub fn reserve(&mut self, backend: &dyn Backend, bytes: u64, alignment: u64, wanted: u64) -> Result<u64> {
        let alignment = alignment.max(BLOCK_GRANULARITY);
        if bytes == 0 || !bytes.is_multiple_of(BLOCK_GRANULARITY) || !alignment.is_power_of_two() {
            return Err(invalid(format!("{bytes:#x} bytes of addresses, aligned to {alignment:#x}")));
        }
        let wanted = Range { base: wanted, bytes };
        let base = match wanted.base.is_multiple_of(alignment) && self.is_free(wanted) {
            true => Some(wanted.base),
            false => self.gap(bytes, alignment, &[]),
        };
        let range = Range { base: base.ok_or_else(|| self.full(bytes))?, bytes };
        self.insert(backend, range)?;
        Ok(range.base)
    }

    /// Reserves a range that is free.
    ///
    /// # Errors
    /// `INVALID_VALUE` when it is not; the backend's, when it cannot be had.
    pub fn insert(&mut self, backend: &dyn Backend, range: Range) -> Result<()> {
        if !self.is_free(range) {
            return Err(invalid(format!("the addresses {range} overlap others")));
        }
        self.take(backend, range.base)?;
        self.reservations.insert(range.base, range);
        Ok(())
    }

    /// Gives back a whole reservation.
    ///
    /// # Errors
    /// `INVALID_VALUE` when it is none.
    pub fn free(&mut self, range: Range) -> Result<()> {
        if self.reservations.get(&range.base) != Some(&range) {
            return Err(invalid(format!("{range} is no reservation")));
        }
        self.reservations.remove(&range.base);
        Ok(())
    }

    /// Whether a range lies in a reservation.
    #[must_use]
    pub fn holds(&self, range: Range) -> bool {
        let reserved = self.reservations.range(..=range.base).next_back();
        reserved.is_some_and(|(_, found)| found.contains(range.base, range.bytes))
    }

    /// All reservations, in order.
    pub fn all(&self) -> impl Iterator<Item = Range> {
        self.reservations.values().copied()
    }

    /// Addresses for the server itself, which nobody has reserved and which are not among those `lent` before.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` when the window is full, or the backend's.
    pub fn lend(&mut self, backend: &dyn Backend, bytes: u64, lent: &[Range]) -> Result<Range> {
        let base = self.gap(bytes, BLOCK_GRANULARITY, lent).ok_or_else(|| self.full(bytes))?;
        self.take(backend, base)?;
        Ok(Range { base, bytes })
    }

    fn full(&self, bytes: u64) -> Failure {
        let detail = format!("{bytes:#x} bytes of addresses do not fit into {}", self.window);
        Failure::new(CuError::OUT_OF_MEMORY, detail)
    }

    /// The piece of the window in which an address lies.
    fn piece(&self, address: u64) -> Range {
        let base = address - (address - self.window.base) % PIECE;
        Range { base, bytes: PIECE.min(self.window.end() - base) }
    }

    /// Takes the piece in which an address of the window lies, if it is not.
    fn take(&mut self, backend: &dyn Backend, address: u64) -> Result<()> {
        let piece = self.piece(address);
        if !self.taken.contains(&piece.base) {
            backend.reserve(piece)?;
            self.taken.insert(piece.base);
        }
        Ok(())
    }

    /// Whether a range lies in one piece and in no reservation.
    fn is_free(&self, range: Range) -> bool {
        let before = self.reservations.range(..range.end()).next_back();
        self.window.contains(range.base, range.bytes)
            && self.piece(range.base).contains(range.base, range.bytes)
            && before.is_none_or(|(_, found)| found.end() <= range.base)
    }

    /// The lowest free range, which is not among `lent` either.
    fn gap(&self, bytes: u64, alignment: u64, lent: &[Range]) -> Option<u64> {
        let in_the_way = |range: Range| {
            let reserved = self.reservations.range(..range.end()).next_back().map(|(_, found)| *found);
            let overlaps = |found: &&Range| found.base < range.end() && found.end() > range.base;
            let reserved = reserved.filter(|found| overlaps(&found));
            reserved.or_else(|| lent.iter().find(overlaps).copied()).map(|found| found.end())
        };
        let mut base = self.window.base.checked_next_multiple_of(alignment)?;
        loop {
            if !self.window.contains(base, bytes) || bytes > PIECE {
                return None;
            }
            let piece = self.piece(base);
            let next = match in_the_way(Range { base, bytes }) {
                Some(end) => end,
                None if piece.contains(base, bytes) => return Some(base),
                None => piece.end(),
            };
            base = next.checked_next_multiple_of(alignment)?;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use backend_soft::SoftBackend;

    const BASE: u64 = 0x4000_0000_0000;
    const TIB: u64 = 1 << 40;

    fn addresses(bytes: u64) -> (SoftBackend, Addresses) {
        (SoftBackend::default(), Addresses::new(Range { base: BASE, bytes }))
    }

    #[test]
    fn more_of_the_window_is_taken_as_it_is_needed() {
        let (backend, mut all) = addresses(10 * TIB);
        let mut reserve = |bytes, wanted| all.reserve(&backend, bytes, 0, wanted).map_err(|e| e.code);
        assert_eq!(reserve(3 * TIB, 0), Ok(BASE));
        // It does not fit behind the first, and lies across no border.
        assert_eq!(reserve(2 * TIB, 0), Ok(BASE + 4 * TIB));
        assert_eq!(reserve(TIB, 0), Ok(BASE + 3 * TIB));
        assert_eq!(reserve(2 * TIB, BASE + 8 * TIB), Ok(BASE + 8 * TIB));
        assert_eq!(reserve(2 * TIB, BASE + 8 * TIB), Ok(BASE + 6 * TIB), "that one is taken");
        assert_eq!(reserve(2 << 20, 0), Err(CuError::OUT_OF_MEMORY));
        assert_eq!(all.taken.len(), 3);
        all.free(Range { base: BASE + 6 * TIB, bytes: 2 * TIB }).unwrap();
        assert!(all.free(Range { base: BASE, bytes: TIB }).is_err(), "not the whole reservation");
        let lent = [TIB, TIB / 2].map(|bytes| all.lend(&backend, bytes, &[]).unwrap());
        assert_eq!(lent.map(|range| range.base), [BASE + 6 * TIB; 2]);
        let upper = Range { base: BASE + 7 * TIB, bytes: TIB };
        assert_eq!(all.lend(&backend, TIB / 2, &[upper, lent[1]]).unwrap().base, BASE + 13 * TIB / 2);
        assert!(all.lend(&backend, TIB, &[upper, lent[1]]).is_err());
    }

    #[test]
    fn no_reservation_is_longer_than_a_piece() {
        let (backend, mut all) = addresses(10 * TIB);
        assert!(all.reserve(&backend, 5 * TIB, 0, 0).is_err());
        assert!(all.reserve(&backend, TIB, 0, BASE + 7 * TIB / 2).is_ok_and(|base| base == BASE));
        assert!(all.insert(&backend, Range { base: BASE + 7 * TIB / 2, bytes: TIB }).is_err());
        assert!(all.reserve(&backend, 4 * TIB, 0, 0).is_ok_and(|base| base == BASE + 4 * TIB));
    }
}
