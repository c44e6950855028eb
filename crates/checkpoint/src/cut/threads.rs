//! How many threads hash and compress what a job has, in all processes that write it.

use std::num::NonZeroUsize;
use std::thread::available_parallelism;

/// With more, what a process reads and writes sets the pace.
const MOST: usize = 8;

/// What of a `limit` on all `writers` each has: the servers of a job's sessions, and the supervisor if it writes, too. Where there is none, a job that runs on keeps half of the
/// processors that the supervisor may use, as far as there is one for each writer.
pub(crate) fn of_each(limit: Option<NonZeroUsize>, writers: usize, stands_still: bool) -> usize {
    let processors = available_parallelism().map_or(1, NonZeroUsize::get);
    divided(limit.map_or_else(|| wanted(processors, stands_still), NonZeroUsize::get), writers)
}

fn wanted(processors: usize, stands_still: bool) -> usize {
    if stands_still { processors } else { processors / 2 }
}

fn divided(threads: usize, writers: usize) -> usize {
    (threads / writers.max(1)).clamp(1, MOST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_divided_among_those_who_write() {
        let of_each = |limit, writers| of_each(NonZeroUsize::new(limit), writers, false);
        assert_eq!(of_each(12, 2), 6);
        assert_eq!(of_each(12, 4), 3);
        assert_eq!(of_each(100, 2), MOST, "more are of no use");
        assert_eq!(of_each(2, 8), 1, "each has one");
    }

    #[test]
    fn a_job_that_runs_on_keeps_half_of_the_processors() {
        let each = |processors, writers, stands_still| divided(wanted(processors, stands_still), writers);
        assert_eq!([each(16, 2, false), each(16, 2, true), each(16, 1, true)], [4, 8, 8]);
        assert_eq!([each(32, 9, false), each(32, 9, true)], [1, 3]);
        assert_eq!([each(1, 2, false), each(2, 1, true)], [1, 2]);
    }
}
