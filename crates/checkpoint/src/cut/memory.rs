//! How much memory those take who write what a job has: the servers of its sessions, and the supervisor.

use crate::error::{Failure, Kind};
use store::WriteOptions;

/// What they take where nobody says how much they may, and for each of them no less than the second; bytes.
const MEMORY: u64 = 256 << 20;
const LITTLE: u64 = 48 << 20;
/// What each takes beside that, whatever store it is: what a server registers with the driver, and what CRIU has; bytes.
const BESIDE: u64 = 16 << 20;

/// What there is for them, and for the program, bytes.
#[derive(Clone, Copy)]
pub(crate) struct Left {
    /// Without anything being swapped out or slowed down.
    available: u64,
    /// Before the kernel kills somebody, if that is known.
    before_kills: Option<u64>,
}

impl Left {
    /// At this moment.
    pub fn now() -> Self {
        Self { available: host::memory::available(), before_kills: host::memory::before_kills() }
    }
}

/// What of a `limit` on all of them each takes, bytes; where there is none they take [`MEMORY`] or more. They take no more than half of what is available, as
/// long as that is enough, and nothing where the kernel would have to kill somebody: that would be whoever has most of it, the program. What a writer takes for what it
/// is `sending` to a store comes on top.
///
/// # Errors
/// [`Kind::Usage`] where the limit is too low, [`Kind::Failed`] where too little is left.
pub(crate) fn of_each(limit: Option<u64>, sessions: usize, sending: u64, left: Left) -> Result<u64, Failure> {
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
    let beside = writers * (BESIDE + sending);
    if let Some(left) = left.before_kills.filter(|left| *left < least + beside) {
        let message = format!(
            "{} MiB of memory are left on this machine, or by the limit of the supervisor's control group, and to write what the job has takes \
             {} MiB at least; it runs on. Raise the limit, or try again when there is more",
            left >> 20,
            mib(least + beside)
        );
        return Err(Failure::new(Kind::Failed, message));
    }
    let free = left.available.saturating_sub(beside);
    Ok(wanted.min((free / 2).max(least)) / writers)
}

/// What those of so many sessions take all together, where each takes so much and what it is `sending`, and what is to be left then: copies of processes are not made
/// where they would have to make room at once. Bytes.
pub(crate) fn beside_copies(each: u64, sessions: usize, sending: u64) -> u64 {
    (sessions as u64 + 1) * (each + BESIDE + sending) + host::memory::SHORT
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const LEAST: u64 = WriteOptions::LEAST_MEMORY;
    const MUCH: Left = Left { available: 1 << 40, before_kills: None };

    fn of_each(limit: Option<u64>, sessions: usize, left: Left) -> Result<u64, Failure> {
        super::of_each(limit, sessions, 0, left)
    }

    fn left(bytes: u64) -> Left {
        Left { available: bytes, before_kills: Some(bytes) }
    }

    #[test]
    fn it_is_divided_among_those_who_write() {
        assert_eq!(of_each(Some(256 << 20), 1, MUCH).unwrap(), 128 << 20);
        assert_eq!(of_each(None, 1, left(1 << 40)).unwrap(), MEMORY / 2);
        assert_eq!(of_each(None, 1000, MUCH).unwrap(), LITTLE, "that is no reason to fail");
        assert_eq!(of_each(Some(3 * LEAST), 2, MUCH).unwrap(), LEAST);
        for (limit, sessions) in [(40 << 20, 1), (3 * LEAST - 1, 2)] {
            let failure = of_each(Some(limit), sessions, MUCH).unwrap_err();
            assert!(
                failure.kind == Kind::Usage && failure.message.contains("--memory-limit is"),
                "{failure}"
            );
        }
    }

    #[test]
    fn what_is_sent_to_a_bucket_counts() {
        let sending = store::Location::parse("s3://bucket".as_ref()).unwrap().taken_by_writers();
        assert!(sending > 0);
        let enough = LEAST + BESIDE + sending;
        assert_eq!(super::of_each(None, 0, sending, left(enough)).unwrap(), LEAST);
        assert!(super::of_each(None, 0, sending, left(enough - 1)).is_err());
        assert_eq!(beside_copies(LEAST, 0, sending) - beside_copies(LEAST, 0, 0), sending);
    }

    #[test]
    fn it_is_no_more_than_is_left() {
        for (limit, sessions) in [(None, 0), (None, 1), (Some(1 << 40), 1), (None, 200)] {
            let writers = sessions as u64 + 1;
            let enough = writers * (BESIDE + LEAST);
            assert_eq!(of_each(limit, sessions, left(enough)).unwrap(), LEAST);
            let more = of_each(limit, sessions, left(enough + writers * LEAST + 2 * writers)).unwrap();
            assert_eq!(more, LEAST + 1, "half of what is left");
            let swapping = Left { available: 0, before_kills: Some(enough) };
            assert_eq!(of_each(limit, sessions, swapping).unwrap(), LEAST);
            let failure = of_each(limit, sessions, left(enough - 1)).unwrap_err();
            let is_named = failure.message.contains("MiB of memory are left");
            assert!(failure.kind == Kind::Failed && is_named, "{failure}");
        }
    }
}
