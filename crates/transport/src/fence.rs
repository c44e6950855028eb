//! Fences: a word for each ring that the device writes, in order with its work, so that the application's thread sees it done without the
//! server in between.

use crate::sync::{AtomicU64, Ordering};

/// The fence of a ring: the number of the last round trip whose work the device has told of.
#[derive(Clone, Copy)]
pub struct Fence<'a>(&'a AtomicU64);

impl<'a> Fence<'a> {
    pub(crate) fn new(word: &'a AtomicU64) -> Self {
        Self(word)
    }

    /// Where the device writes it in this process.
    #[must_use]
    pub fn address(self) -> u64 {
        (&raw const *self.0) as u64
    }

    /// Whether the device has told that the work of round trip `number` is done. The application could have written it too.
    #[must_use]
    pub fn is_at(self, number: u64) -> bool {
        self.0.load(Ordering::Acquire) == number
    }
}
