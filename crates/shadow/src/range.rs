//! Addresses.

use std::fmt;

/// Bytes in a page.
pub const PAGE: usize = 4096;

/// Some addresses of managed memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    /// The first.
    pub base: u64,
    /// How many.
    pub bytes: u64,
}

impl Range {
    /// The first address behind it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.base.saturating_add(self.bytes)
    }

    /// Whether both have an address in common.
    #[must_use]
    pub fn meets(&self, other: &Self) -> bool {
        self.base < other.end() && other.base < self.end()
    }
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}+{:#x}", self.base, self.bytes)
    }
}
