//! Addresses at which an application had memory of its own that it has registered: a restart needs them in the server too, where the
//! kernel may have put something else.

use backend::Range;
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::c_void;

/// Addresses that nothing else of this process gets, until they are released.
#[derive(Debug, Default)]
pub struct Claims(Vec<Range>);

impl Claims {
    /// Claims them all, or none: the range that cannot be had is the error.
    ///
    /// # Errors
    /// The first range in which this process has something.
    pub fn of(ranges: impl IntoIterator<Item = Range>) -> Result<Self, Range> {
        let mut claims = Self::default();
        for range in ranges {
            // SAFETY: `FIXED_NOREPLACE` takes only addresses that nothing uses.
            let got = unsafe {
                rustix::mm::mmap_anonymous(
                    range.base as *mut c_void,
                    range.bytes as usize,
                    ProtFlags::empty(),
                    MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE,
                )
            };
            if got.is_err() {
                return Err(range);
            }
            claims.0.push(range);
        }
        Ok(claims)
    }

    /// Lets go of one of them; whether it was one.
    pub fn release(&mut self, range: Range) -> bool {
        let Some(at) = self.0.iter().position(|claimed| *claimed == range) else { return false };
        unclaim(self.0.swap_remove(at));
        true
    }
}

impl Drop for Claims {
    fn drop(&mut self) {
        self.0.drain(..).for_each(unclaim);
    }
}

fn unclaim(range: Range) {
    // SAFETY: mapped by `Claims::of`, and nobody has an address in it.
    let _ = unsafe { rustix::mm::munmap(range.base as *mut c_void, range.bytes as usize) };
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_claimed_once() {
        let range = |at: u64| Range { base: 0x6e00_0000_0000 + (at << 21), bytes: 2 << 20 };
        let mut first = Claims::of([range(0), range(2)]).unwrap();
        assert_eq!(Claims::of([range(1), range(2)]).unwrap_err(), range(2));
        assert!(!first.release(range(1)) && first.release(range(2)) && !first.release(range(2)));
        let second = Claims::of([range(1), range(2)]).unwrap();
        assert_eq!(Claims::of([range(0)]).unwrap_err(), range(0));
        drop((first, second));
        Claims::of([range(0), range(1), range(2)]).unwrap();
    }
}
