//! Work that several threads do together.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// More threads than this the memory has no use for.
const THREADS: usize = 8;

/// Does all of these, several at a time; the first error is answered when all that had begun are over.
pub(super) fn each<T: Sync>(all: &[T], work: impl Fn(&T) -> io::Result<()> + Sync) -> io::Result<()> {
    let next = AtomicUsize::new(0);
    let one = || {
        while let Some(each) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = work(each) {
                next.store(all.len(), Ordering::Relaxed);
                return Err(error);
            }
        }
        Ok(())
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS).min(all.len());
    thread::scope(|scope| {
        // Where there may be no more threads, those that there are do it.
        let begin = |_| thread::Builder::new().spawn_scoped(scope, one).ok();
        let others: Vec<_> = (1..threads).filter_map(begin).collect();
        let done = one();
        let joined = others.into_iter().map(|other| other.join().unwrap_or(Err(io::ErrorKind::Other.into())));
        joined.fold(done, Result::and)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_first_error_ends_the_work() {
        let all: Vec<usize> = (0..1000).collect();
        let done = AtomicUsize::new(0);
        each(&all, |_| {
            done.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
        .unwrap();
        assert_eq!(done.into_inner(), 1000);
        let failed = each(&all, |n| if *n == 500 { Err(io::ErrorKind::NotFound.into()) } else { Ok(()) });
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
