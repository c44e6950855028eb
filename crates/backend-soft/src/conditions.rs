//! Conditions of graphs: values that kernels set and conditional nodes look at.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// What kernels know conditions by is above this: no address is.
const BASE: u64 = 0xc0de << 48;

/// A condition.
#[derive(Debug, Default)]
pub struct Condition {
    /// What it is at the beginning of each launch; without, whatever it was.
    initial: Option<u32>,
    value: AtomicU32,
}

impl Condition {
    /// What a kernel has set last.
    pub fn get(&self) -> u32 {
        self.value.load(Ordering::Acquire)
    }

    /// Sets it.
    pub fn set(&self, value: u32) {
        self.value.store(value, Ordering::Release);
    }

    /// A launch begins.
    pub fn begin(&self) {
        if let Some(initial) = self.initial {
            self.set(initial);
        }
    }
}

/// The conditions of a device library.
#[derive(Debug, Default)]
pub struct Conditions(RwLock<BTreeMap<u64, Arc<Condition>>>);

impl Conditions {
    /// A new one: it gets the lowest name that is free.
    pub fn add(&self, initial: Option<u32>) -> u64 {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let taken = all.keys().zip(BASE + 1..).take_while(|(taken, free)| **taken == *free).count();
        let handle = BASE + 1 + taken as u64;
        all.insert(handle, Arc::new(Condition { initial, value: AtomicU32::new(0) }));
        handle
    }

    /// The condition of that name.
    pub fn get(&self, handle: u64) -> Option<Arc<Condition>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(&handle).cloned()
    }

    /// Ends one.
    pub fn remove(&self, handle: u64) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(&handle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_name_is_given() {
        let conditions = Conditions::default();
        let [one, two, three] = [None, Some(2), None].map(|initial| conditions.add(initial));
        conditions.remove(two);
        assert!(conditions.get(two).is_none());
        assert_eq!((conditions.add(None), conditions.add(None)), (two, three + 1));
        conditions.remove(one);
        assert_eq!(conditions.add(Some(9)), one);
        let found = conditions.get(one).unwrap_or_default();
        found.begin();
        assert_eq!(found.get(), 9);
    }
}
