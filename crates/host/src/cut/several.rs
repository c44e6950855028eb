//! Work that several threads do together.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::thread;

/// More threads than this the memory has no use for.
pub(super) const THREADS: usize = 8;

/// Does something with each of these, in so many threads at `most`, each of which has something of its `own` for it.
///
/// # Errors
/// The first one, when all that had begun are over; no other is begun then.
pub fn by_threads<T, O>(
    most: usize,
    all: impl IntoIterator<Item = T, IntoIter: ExactSizeIterator + Send>,
    own: impl Fn() -> O + Sync,
    each: impl Fn(&mut O, T) -> io::Result<()> + Sync,
) -> io::Result<()> {
    let all = all.into_iter();
    let threads = thread::available_parallelism().map_or(1, usize::from).min(most).min(all.len());
    let left = Mutex::new(Some(all));
    let left = || left.lock().unwrap_or_else(PoisonError::into_inner);
    let next = || left().as_mut()?.next();
    let work = || {
        let mut own = own();
        while let Some(one) = next() {
            each(&mut own, one).inspect_err(|_| *left() = None)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        // Where there may be no more threads, those that there are do it.
        let begin = |_| thread::Builder::new().spawn_scoped(scope, work).ok();
        let others: Vec<_> = (1..threads).filter_map(begin).collect();
        let done = work();
        let panicked = || io::Error::other("a thread panicked");
        let joined = others.into_iter().map(|other| other.join().unwrap_or_else(|_| Err(panicked())));
        joined.fold(done, Result::and)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn all_is_done_and_the_first_error_ends_the_work() {
        let done = AtomicUsize::new(0);
        let count = |(): &mut (), _| {
            done.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        by_threads(3, 0..1000, || (), count).unwrap();
        assert_eq!(done.swap(0, Ordering::Relaxed), 1000);
        let fail = |own: &mut (), n| match n {
            500 => Err(io::ErrorKind::NotFound.into()),
            _ => count(own, n),
        };
        let failed = by_threads(1, 0..1000, || (), fail);
        assert_eq!((failed.unwrap_err().kind(), done.into_inner()), (io::ErrorKind::NotFound, 500));
    }

    /// Who is at work when another fails takes up nothing more.
    #[test]
    fn nobody_goes_on_behind_an_error() {
        let (failed, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = |(): &mut (), n| {
            if n == 0 {
                failed.store(1, Ordering::Relaxed);
                return Err(io::ErrorKind::NotFound.into());
            }
            while failed.load(Ordering::Relaxed) == 0 {
                thread::yield_now();
            }
            thread::sleep(std::time::Duration::from_millis(20));
            done.fetch_add(1, Ordering::Relaxed);
            Ok(())
        };
        by_threads(2, 0..100, || (), work).unwrap_err();
        assert!(done.into_inner() <= 1);
    }
}
