//! Threads that copy between pageable memory and staging slots beside the caller: one thread moves about 10 GB/s, the device
//! takes 55. A page that a program has made inaccessible, to learn of its use by SIGSEGV, faults on the thread that copies it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::callbacks::without_signals;
use super::thread::forbid_calls;

/// More do not make a copy faster (measured on an H200: 10, 19, 39 and 52 GB/s with one, two, four and eight, the caller
/// included).
const MOST: usize = 7;
/// How long an idle thread looks for work before it sleeps: the next piece of a copy comes much sooner.
const SPIN: Duration = Duration::from_micros(100);
/// Looks between two looks at the clock.
const LOOKS: usize = 64;

/// A piece of a copy.
struct Job {
    copy: Box<dyn FnOnce() + Send>,
    done: Arc<AtomicBool>,
}

impl Job {
    fn run(self) {
        let _done = Done(&self.done);
        (self.copy)();
    }
}

/// Whoever waits for a job goes on also when it panics.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

#[derive(Default)]
struct Shared {
    jobs: Mutex<Jobs>,
    more: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<Job>,
    sleepers: usize,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> Option<Job> {
        self.lock().waiting.pop_front()
    }

    /// The next job, waiting for it.
    fn next(&self) -> Job {
        let begun = Instant::now();
        while begun.elapsed() < SPIN {
            for _ in 0..LOOKS {
                std::hint::spin_loop();
            }
            if let Some(job) = self.take() {
                return job;
            }
        }
        let mut jobs = self.lock();
        loop {
            if let Some(job) = jobs.waiting.pop_front() {
                return job;
            }
            jobs.sleepers += 1;
            jobs = self.more.wait(jobs).unwrap_or_else(PoisonError::into_inner);
            jobs.sleepers -= 1;
        }
    }
}

/// The threads, made at the first large copy; none on a machine with one core, where the caller copies alone.
#[derive(Default)]
pub struct Copiers {
    shared: Arc<Shared>,
    started: OnceLock<()>,
}

impl Copiers {
    /// Begins a piece of a copy on any thread.
    pub fn begin(&self, copy: impl FnOnce() + Send + 'static) -> Ticket<'_> {
        self.started.get_or_init(|| self.start(helpers()));
        let done = Arc::new(AtomicBool::new(false));
        let job = Job { copy: Box::new(copy), done: Arc::clone(&done) };
        let mut jobs = self.shared.lock();
        jobs.waiting.push_back(job);
        let asleep = jobs.sleepers > 0;
        drop(jobs);
        if asleep {
            self.shared.more.notify_one();
        }
        Ticket { shared: &self.shared, done }
    }

    fn start(&self, threads: usize) {
        for _ in 0..threads {
            let shared = Arc::clone(&self.shared);
            let work = move || {
                forbid_calls();
                loop {
                    shared.next().run();
                }
            };
            let thread = || std::thread::Builder::new().name("dormouse-copy".to_owned()).spawn(work);
            if without_signals(thread).is_err() {
                // Whoever waits copies by itself.
                return;
            }
        }
    }
}

/// For half of the cores, so that the program's other threads and the server have theirs.
fn helpers() -> usize {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    (cores / 2).min(MOST)
}

/// A piece of a copy that has begun; it is done when this is gone.
pub struct Ticket<'a> {
    shared: &'a Shared,
    done: Arc<AtomicBool>,
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let mut looks = 0;
        while !self.done.load(Ordering::Acquire) {
            match self.shared.take() {
                Some(job) => job.run(),
                None if looks < LOOKS => std::hint::spin_loop(),
                None => std::thread::yield_now(),
            }
            looks += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn everything_begun_is_done_with_and_without_help() {
        for threads in [0, 1, 4] {
            let copiers = Copiers::default();
            copiers.started.get_or_init(|| copiers.start(threads));
            let count = Arc::new(AtomicUsize::new(0));
            for round in 1..=50 {
                let tickets: Vec<_> = (0..20)
                    .map(|_| {
                        let count = Arc::clone(&count);
                        copiers.begin(move || {
                            count.fetch_add(1, Ordering::Relaxed);
                        })
                    })
                    .collect();
                drop(tickets);
                assert_eq!(count.load(Ordering::Relaxed), 20 * round);
                if round % 10 == 0 {
                    // Beyond the spin: they sleep and are woken.
                    std::thread::sleep(2 * SPIN);
                }
            }
        }
    }
}
