//! How many threads hash and compress what a job has, in all processes that write it.

use std::num::NonZeroUsize;
use std::thread::available_parallelism;

/// With more, what a process reads and writes sets the pace.
const MOST: usize = 8;

/// What of a `limit` on all of them each has who writes: the servers of so many sessions, and the supervisor. Where there is none, a job that runs on keeps half of the
/// machine's processors for itself.
pub(crate) fn of_each(limit: Option<NonZeroUsize>, sessions: usize, stands_still: bool) -> usize {
    let processors = || available_parallelism().map_or(1, NonZeroUsize::get);
    let wanted =
        limit.map_or_else(|| if stands_still { processors() } else { processors() / 2 }, NonZeroUsize::get);
    (wanted / (sessions + 1)).clamp(1, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_divided_among_those_who_write() {
        let of_each = |limit, sessions| super::of_each(NonZeroUsize::new(limit), sessions, false);
        assert_eq!(of_each(12, 1), 6);
        assert_eq!(of_each(12, 3), 3);
        assert_eq!(of_each(100, 1), MOST, "more are of no use");
        assert_eq!(of_each(2, 7), 1, "each has one");
    }

    #[test]
    fn a_job_that_runs_on_keeps_half_of_the_processors() {
        let processors = available_parallelism().map_or(1, NonZeroUsize::get);
        for sessions in 0..2 * processors {
            let [runs, stands] = [false, true].map(|stands_still| of_each(None, sessions, stands_still));
            let writers = sessions + 1;
            assert!(runs == 1 || runs * writers <= processors / 2, "{runs} each of {writers}");
            assert!(stands == 1 || stands * writers <= processors, "{stands} each of {writers}");
            assert!(runs <= stands);
        }
    }
}
