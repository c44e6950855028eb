//! How much of each device's memory is given out, where that is less than there is.

use crate::driver::lock;
use backend::Result;
use std::sync::Mutex;
use wire::CuError;

/// A limit, and what of it has been given: blocks of arenas and pieces. What the driver takes for contexts, code and arrays is its own.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Bytes of each device; none where all may be given.
    limit: Option<u64>,
    /// Bytes of each device.
    given: Vec<Mutex<u64>>,
}

impl Budget {
    /// Nothing is given yet.
    pub(crate) fn new(limit: Option<u64>, devices: usize) -> Self {
        Self { limit, given: (0..devices).map(|_| Mutex::default()).collect() }
    }

    /// Gives so many bytes of a device, if `make` can.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` beyond the limit; those of `make`.
    pub(crate) fn give<T>(&self, device: usize, bytes: u64, make: impl FnOnce() -> Result<T>) -> Result<T> {
        let given = self.given.get(device).ok_or(CuError::INVALID_DEVICE)?;
        {
            let mut given = lock(given);
            let after = given.checked_add(bytes).ok_or(CuError::OUT_OF_MEMORY)?;
            if self.limit.is_some_and(|limit| after > limit) {
                return Err(CuError::OUT_OF_MEMORY);
            }
            *given = after;
        }
        make().inspect_err(|_| self.take_back(device, bytes))
    }

    /// They are given back.
    pub(crate) fn take_back(&self, device: usize, bytes: u64) {
        if let Some(given) = self.given.get(device) {
            let mut given = lock(given);
            *given = given.saturating_sub(bytes);
        }
    }

    /// What is free and what there is of a device, if that is what it says itself.
    pub(crate) fn bounded(&self, device: usize, (free, total): (u64, u64)) -> (u64, u64) {
        let Some(limit) = self.limit else { return (free, total) };
        let given = self.given.get(device).map_or(0, |given| *lock(given));
        (free.min(limit.saturating_sub(given)), total.min(limit))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_limit_is_given() {
        let budget = Budget::new(Some(100), 2);
        budget.give(0, 60, || Ok(())).unwrap();
        assert_eq!(budget.bounded(0, (1000, 2000)), (40, 100));
        assert_eq!(budget.bounded(0, (30, 80)), (30, 80), "the device has less");
        assert_eq!(budget.give(0, 41, || Ok(())), Err(CuError::OUT_OF_MEMORY));
        assert_eq!(budget.give(0, 40, || Err::<(), _>(CuError::INVALID_VALUE)), Err(CuError::INVALID_VALUE));
        budget.give(0, 40, || Ok(())).unwrap();
        assert_eq!(budget.bounded(0, (1000, 2000)).0, 0);
        budget.give(1, 100, || Ok(())).unwrap();
        budget.take_back(0, 60);
        assert_eq!(budget.bounded(0, (1000, 2000)).0, 60);
        assert_eq!(budget.give(2, 1, || Ok(())), Err(CuError::INVALID_DEVICE));
        let all = Budget::new(None, 1);
        all.give(0, u64::MAX, || Ok(())).unwrap();
        assert_eq!(all.give(0, 1, || Ok(())), Err(CuError::OUT_OF_MEMORY), "no device has as much");
        assert_eq!(all.bounded(0, (1, 2)), (1, 2));
    }
}
