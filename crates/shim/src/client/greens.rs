//! Sets of multiprocessors that the application has been told of, by number: what it holds of them is bytes it must not look at.

use std::sync::{Mutex, PoisonError};

use wire::{Device, SmSet};

/// All of them, which are few: each is there once, and none ever goes.
#[derive(Default)]
pub struct SmSets(Mutex<Vec<(Device, SmSet)>>);

impl SmSets {
    /// The number of a set: not 0.
    pub fn number(&self, device: Device, set: SmSet) -> u32 {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let set = (device, set);
        let index = all.iter().position(|known| *known == set).unwrap_or_else(|| {
            all.push(set);
            all.len() - 1
        });
        index as u32 + 1
    }

    /// The set with a number.
    pub fn get(&self, number: u32) -> Option<(Device, SmSet)> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(number.checked_sub(1)? as usize).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_one_number() {
        let sets = SmSets::default();
        let (one, other) = (sets.number(Device(0), vec![]), sets.number(Device(1), vec![]));
        assert_ne!(one, other);
        assert_eq!(sets.number(Device(0), vec![]), one);
        assert_eq!(sets.get(other), Some((Device(1), vec![])));
        assert_eq!((sets.get(0), sets.get(3)), (None, None));
    }
}
