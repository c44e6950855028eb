//! Letting the tasks of a restored job go, all at once.
//!
//! CRIU detaches from one thread after another, and gives up (killing the job) when one has died meanwhile: a task that runs on
//! and ends its process or kills another while CRIU is still detaching would take the job with it. So CRIU gets a processor on which
//! nothing else runs before it is done, and the job's threads are confined to that one for so long.

use std::collections::HashMap;
use std::mem;

use crate::job::Job;
use crate::tasks::Task;

/// The job's threads, confined to one processor.
#[derive(Debug)]
pub(super) struct HeldBack {
    /// What each thread had before.
    before: HashMap<i32, Mask>,
    only: Mask,
}

/// A set of processors, enough for 8192.
type Mask = Vec<u64>;
const WORDS: usize = 128;

impl HeldBack {
    /// Confines `tasks`, all stopped, to the processor that CRIU now has for itself. Without the privilege (CAP_SYS_NICE) they stay
    /// as they are.
    pub(super) fn behind(criu: u32, tasks: &[Task]) -> Self {
        let mut held = Self { before: HashMap::new(), only: vec![0; WORDS] };
        let Ok(criu) = i32::try_from(criu) else { return held };
        let Some(processor) = affinity(criu).and_then(|mask| first_of(&mask)) else { return held };
        held.only[processor / 64] = 1 << (processor % 64);
        if confine(criu, &held.only) && run_first(criu) {
            for &thread in tasks.iter().flat_map(|task| &task.threads) {
                if let Some(mask) = affinity(thread)
                    && confine(thread, &held.only)
                {
                    held.before.insert(thread, mask);
                }
            }
        }
        held
    }

    /// Gives the threads of `job`, which run now, their processors back: those that it had, and those that they have started since.
    pub(super) fn release(self, job: &Job) {
        for (thread, mask) in &self.before {
            confine(*thread, mask);
        }
        // What the freed ones start is free; what the confined ones had started by then is found sooner or later.
        while self.release_heirs(&job.tasks()) {}
    }

    /// Whether there was a thread that had inherited its confinement.
    fn release_heirs(&self, tasks: &[Task]) -> bool {
        let mut any = false;
        for task in tasks {
            let family = self.before.get(&task.outer.0).or_else(|| self.before.values().next());
            let Some(family) = family.filter(|mask| **mask != self.only) else { continue };
            for &thread in task.threads.iter().filter(|thread| !self.before.contains_key(thread)) {
                any |= affinity(thread).as_ref() == Some(&self.only) && confine(thread, family);
            }
        }
        any
    }
}

fn affinity(thread: i32) -> Option<Mask> {
    let mut mask = vec![0u64; WORDS];
    let size = mem::size_of_val(&mask[..]);
    // SAFETY: the mask is ours and as long as said.
    let got = unsafe { libc::syscall(libc::SYS_sched_getaffinity, thread, size, mask.as_mut_ptr()) };
    (got > 0).then_some(mask)
}

fn confine(thread: i32, mask: &[u64]) -> bool {
    // SAFETY: the mask outlives the call and is as long as said.
    unsafe { libc::sched_setaffinity(thread, mem::size_of_val(mask), mask.as_ptr().cast()) == 0 }
}

/// Before every ordinary task on its processor.
fn run_first(process: i32) -> bool {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: the structure outlives the call.
    unsafe { libc::sched_setscheduler(process, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &lowest) == 0 }
}

fn first_of(mask: &[u64]) -> Option<usize> {
    let word = mask.iter().position(|w| *w != 0)?;
    Some(word * 64 + mask[word].trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_processor_of_a_mask() {
        assert_eq!(first_of(&[0, 0]), None);
        assert_eq!(first_of(&[0b1000, 1]), Some(3));
        assert_eq!(first_of(&[0, 0b10]), Some(65));
    }

    #[test]
    fn an_affinity_is_read_and_set() {
        let mine = affinity(0);
        assert!(mine.as_ref().is_some_and(|mask| first_of(mask).is_some() && confine(0, mask)));
    }
}
