//! Notices a program that waits, in managed memory, for what a kernel in flight is to write.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// After how many refreshes in vain somebody is told.
const PATIENCE: u32 = 8;

/// Watches one page: that which is read again after each refresh, while no other page is touched, none is written, and no call is made.
#[derive(Debug, Default)]
pub(crate) struct Vigil {
    /// How often all was brought up to date without a call, and how many calls there were.
    refreshes: AtomicU64,
    calls: AtomicU64,
    watched: Mutex<Watched>,
}

#[derive(Debug, Default)]
struct Watched {
    page: u64,
    calls: u64,
    refreshes: u64,
    times: u32,
    has_told: bool,
}

impl Vigil {
    /// All has been brought up to date without a call.
    pub(crate) fn refreshed(&self) {
        self.refreshes.fetch_add(1, Ordering::Relaxed);
    }

    /// The program has made a call.
    pub(crate) fn called(&self) {
        self.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// A page has been touched while work is in flight. Answers, once, whether a thread waits there in vain.
    pub(crate) fn touched(&self, page: u64, reads: bool) -> bool {
        let (refreshes, calls) = (self.refreshes.load(Ordering::Relaxed), self.calls.load(Ordering::Relaxed));
        let mut watched = self.watched.lock().unwrap_or_else(PoisonError::into_inner);
        if !reads || watched.page != page || watched.calls != calls {
            let has_told = watched.has_told;
            *watched = Watched { page: if reads { page } else { 0 }, calls, refreshes, times: 0, has_told };
        } else if watched.refreshes != refreshes {
            (watched.refreshes, watched.times) = (refreshes, watched.times + 1);
        }
        let tells = watched.times >= PATIENCE && !watched.has_told;
        watched.has_told |= tells;
        tells
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After how many refreshes it tells, if something else is done each time.
    fn tells(also: impl Fn(&Vigil)) -> Option<usize> {
        let vigil = Vigil::default();
        (0..100).find(|_| {
            also(&vigil);
            let tells = vigil.touched(7, true) || vigil.touched(7, true);
            vigil.refreshed();
            tells
        })
    }

    #[test]
    fn who_only_reads_one_page_again_and_again_waits() {
        assert_eq!(tells(|_| {}), Some(8));
        assert_eq!(tells(Vigil::called), None);
        assert_eq!(tells(|vigil| assert!(!vigil.touched(8, true))), None);
        assert_eq!(tells(|vigil| assert!(!vigil.touched(7, false))), None);
    }

    #[test]
    fn it_is_told_once() {
        let vigil = Vigil::default();
        let told = (0..50).filter(|_| {
            vigil.refreshed();
            vigil.touched(7, true)
        });
        assert_eq!(told.count(), 1);
    }
}
