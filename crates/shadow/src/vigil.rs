//! Notices a program that waits, in managed memory, for what a kernel in flight is to write.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// After how many refreshes in vain somebody is told.
const PATIENCE: u32 = 8;
/// The most threads that are watched: of more all are watched anew.
const THREADS: usize = 1024;

/// Watches one page of each thread: that which it reads again after each refresh, while it touches no other, writes none, and no call is made.
#[derive(Debug, Default)]
pub(crate) struct Vigil {
    /// How often all was brought up to date without a call, and how many calls there were.
    refreshes: AtomicU64,
    calls: AtomicU64,
    watches: Mutex<Watches>,
}

#[derive(Debug, Default)]
struct Watches {
    threads: HashMap<u32, Watched>,
    has_told: bool,
}

#[derive(Debug, Default)]
struct Watched {
    page: u64,
    calls: u64,
    refreshes: u64,
    times: u32,
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

    /// A thread has touched a page while work is in flight. Answers, once, whether one waits there in vain.
    pub(crate) fn touched(&self, thread: u32, page: u64, reads: bool) -> bool {
        let (refreshes, calls) = (self.refreshes.load(Ordering::Relaxed), self.calls.load(Ordering::Relaxed));
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        if watches.has_told {
            return false;
        }
        if watches.threads.len() == THREADS && !watches.threads.contains_key(&thread) {
            watches.threads.clear();
        }
        let watched = watches.threads.entry(thread).or_default();
        if !reads || watched.page != page || watched.calls != calls {
            *watched = Watched { page: if reads { page } else { 0 }, calls, refreshes, times: 0 };
        } else if watched.refreshes != refreshes {
            (watched.refreshes, watched.times) = (refreshes, watched.times + 1);
        }
        let tells = watched.times >= PATIENCE;
        watches.has_told = tells;
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
            let tells = vigil.touched(1, 7, true) || vigil.touched(1, 7, true);
            vigil.refreshed();
            tells
        })
    }

    #[test]
    fn who_only_reads_one_page_again_and_again_waits() {
        assert_eq!(tells(|_| {}), Some(8));
        assert_eq!(tells(Vigil::called), None);
        assert_eq!(tells(|vigil| assert!(!vigil.touched(1, 8, true))), None);
        assert_eq!(tells(|vigil| assert!(!vigil.touched(1, 7, false))), None);
    }

    #[test]
    fn what_others_do_to_pages_is_nothing_to_who_waits() {
        assert_eq!(tells(|vigil| assert!(!vigil.touched(2, 7, false))), Some(8));
        let page = AtomicU64::new(8);
        let reads_on = |vigil: &Vigil| assert!(!vigil.touched(2, page.fetch_add(1, Ordering::Relaxed), true));
        assert_eq!(tells(reads_on), Some(8));
    }

    #[test]
    fn no_more_threads_are_watched_than_that() {
        let vigil = Vigil::default();
        assert!((0..5000).all(|thread| !vigil.touched(thread, 7, true)));
        let watches = vigil.watches.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(watches.threads.len() <= THREADS);
    }

    #[test]
    fn it_is_told_once() {
        let vigil = Vigil::default();
        let told = (0..50).filter(|_| {
            vigil.refreshed();
            vigil.touched(1, 7, true)
        });
        assert_eq!(told.count(), 1);
    }
}
