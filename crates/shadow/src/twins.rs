//! What was in pages before the application could write them, where the device may write the same ones meanwhile.

use crate::PAGE;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many twins there are, in all regions of a keeper. They lie in the memory of the process that keeps, of which the application's
/// limits know nothing.
#[derive(Clone, Default, Debug)]
pub struct Count(Arc<AtomicUsize>);

impl Count {
    /// The most that are kept: 128 MiB of them.
    pub const MOST: usize = (128 << 20) / PAGE;

    /// How many there are.
    #[must_use]
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// The twins of a region, by their pages.
#[derive(Debug)]
pub struct Twins {
    pages: BTreeMap<usize, Box<[u8]>>,
    all: Count,
}

impl Twins {
    /// None, counted by `all` when there are some.
    pub(crate) fn new(all: &Count) -> Self {
        Self { pages: BTreeMap::new(), all: all.clone() }
    }

    pub(crate) fn keep(&mut self, page: usize, bytes: Box<[u8]>) {
        if self.pages.insert(page, bytes).is_none() {
            self.all.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn of(&self, page: usize) -> Option<&[u8]> {
        self.pages.get(&page).map(Box::as_ref)
    }

    pub(crate) fn forget(&mut self, page: usize) {
        if self.pages.remove(&page).is_some() {
            self.all.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.pages.len()
    }
}

impl Drop for Twins {
    fn drop(&mut self) {
        self.all.0.fetch_sub(self.pages.len(), Ordering::Relaxed);
    }
}
