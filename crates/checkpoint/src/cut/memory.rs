//! How much memory those take who write what a job has: the servers of its sessions, and the supervisor.

use crate::error::{Failure, Kind};
use store::WriteOptions;

/// What they take where nobody says how much they may, and for each of them no less than the second; bytes.
const MEMORY: u64 = 256 << 20;
const LITTLE: u64 = 48 << 20;
/// What each takes beside that: what a server registers with the driver, and what CRIU has; bytes.
const BESIDE: u64 = 16 << 20;

/// What of a `limit` on all of them each takes, bytes; where there is none they take [`MEMORY`] or more. Of what is `left`, if that is known, they take no more
/// than half, as long as that is enough: where memory runs out the kernel ends whoever has most of it, which is the program.
///
/// # Errors
/// [`Kind::Usage`] where the limit is too low, [`Kind::Failed`] where too little is left.
pub(crate) fn of_each(limit: Option<u64>, sessions: usize, left: Option<u64>) -> Result<u64, Failure> {
    let writers = sessions as u64 + 1;
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    let least = writers * WriteOptions::LEAST_MEMORY;
    let wanted = limit.unwrap_or(MEMORY.max(writers * LITTLE));
    if wanted < least {
        let message = format!(
            "--memory-limit is {} MiB, and {} MiB is the least for {writers} who write: one for each GPU session, and the supervisor",
            wanted >> 20,
            mib(least)
        );
        return Err(Failure::new(Kind::Usage, message));
    }
    let Some(left) = left else { return Ok(wanted / writers) };
    let free = left.saturating_sub(writers * BESIDE);
    if free < least {
        let message = format!(
            "{} MiB of memory are left on this machine, or by the limit of the job's control group, and to write what it has takes {} MiB \
             at least; the job runs on. Raise the limit, or try again when there is more",
            left >> 20,
            mib(least + writers * BESIDE)
        );
        return Err(Failure::new(Kind::Failed, message));
    }
    Ok(wanted.min((free / 2).max(least)) / writers)
}

/// What those of so many sessions take all together, where each takes so much, and what is to be left then: copies of processes are not made
/// where they would have to make room at once. Bytes.
pub(crate) fn beside_copies(each: u64, sessions: usize) -> u64 {
    (sessions as u64 + 1) * (each + BESIDE) + host::memory::SHORT
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const LEAST: u64 = WriteOptions::LEAST_MEMORY;

    #[test]
    fn it_is_divided_among_those_who_write() {
        assert_eq!(of_each(Some(256 << 20), 1, None).unwrap(), 128 << 20);
        assert_eq!(of_each(None, 1, Some(1 << 40)).unwrap(), MEMORY / 2);
        assert_eq!(of_each(None, 1000, None).unwrap(), LITTLE, "that is no reason to fail");
        assert_eq!(of_each(Some(3 * LEAST), 2, None).unwrap(), LEAST);
        for (limit, sessions) in [(40 << 20, 1), (3 * LEAST - 1, 2)] {
            let failure = of_each(Some(limit), sessions, None).unwrap_err();
            assert!(
                failure.kind == Kind::Usage && failure.message.contains("--memory-limit is"),
                "{failure}"
            );
        }
    }

    #[test]
    fn it_is_no_more_than_is_left() {
        for (limit, sessions) in [(None, 0), (None, 1), (Some(1 << 40), 1), (None, 200)] {
            let writers = sessions as u64 + 1;
            let enough = writers * (BESIDE + LEAST);
            assert_eq!(of_each(limit, sessions, Some(enough)).unwrap(), LEAST);
            let more = of_each(limit, sessions, Some(enough + writers * LEAST + 2 * writers)).unwrap();
            assert_eq!(more, LEAST + 1, "half of what is left");
            let failure = of_each(limit, sessions, Some(enough - 1)).unwrap_err();
            let is_named = failure.message.contains("MiB of memory are left");
            assert!(failure.kind == Kind::Failed && is_named, "{failure}");
        }
    }
}
