//! How much room the job's shared memory has. Pinned memory may not take all of it: rings, staging slots and device code on its way to
//! the server need some at any time.

use rustix::fs::StatVfs;

/// What is kept from pinned memory, unless a quarter of the whole is less.
const RESERVE: u64 = 64 << 20;

/// The job's shared memory, or what else a session's files lie on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    left: u64,
    whole: u64,
}

impl From<StatVfs> for Room {
    fn from(all: StatVfs) -> Self {
        let bytes = |blocks: u64| blocks.saturating_mul(all.f_frsize);
        Self { left: bytes(all.f_bavail), whole: bytes(all.f_blocks) }
    }
}

impl Room {
    fn reserve(self) -> u64 {
        RESERVE.min(self.whole / 4)
    }

    /// Whether the reserve is there: pinned memory has left it.
    #[must_use]
    pub fn has_reserve(self) -> bool {
        self.left >= self.reserve()
    }

    /// Whether half of it would be there still without `bytes` bytes, which somebody could do without.
    #[must_use]
    pub fn can_spare(self, bytes: u64) -> bool {
        self.left.checked_sub(bytes).is_some_and(|left| left >= self.reserve() / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_small_where_all_is() {
        let room = |left: u64, whole: u64| Room { left: left << 20, whole: whole << 20 };
        assert!(room(64, 1 << 16).has_reserve() && !room(63, 1 << 16).has_reserve());
        assert!(room(16, 64).has_reserve() && !room(15, 64).has_reserve());
        assert!(room(12, 64).can_spare(4 << 20) && !room(12, 64).can_spare(5 << 20));
        assert!(!room(3, 64).can_spare(4 << 20));
    }
}
