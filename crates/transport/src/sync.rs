//! Atomics and waiting. Under `cfg(loom)` the same code runs on loom's atomics, and the futex on a condition variable that
//! behaves like one, so that lost wake-ups are found as deadlocks.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use std::time::Duration;

/// How long a waiter sleeps at most before it looks around again.
pub(crate) const NAP: Duration = Duration::from_millis(100);

/// A futex word on which at most one side sleeps: 1 while it does or is about to.
///
/// The sleeper sets the word and looks once more at what it waits for; the waker publishes and then looks at the word. A
/// sequentially consistent fence between the two steps on both sides means that one of them sees the other.
#[repr(C)]
pub(crate) struct Sleeper {
    word: AtomicU32,
    #[cfg(loom)]
    queue: (loom::sync::Mutex<()>, loom::sync::Condvar),
}

impl Sleeper {
    /// Sleeps unless `ready`, until woken or until `timeout` has passed.
    pub(crate) fn park(&self, timeout: Duration, ready: impl Fn() -> bool) {
        self.word.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !ready() {
            self.futex_wait(timeout);
        }
        self.word.store(0, Ordering::Relaxed);
    }

    /// Wakes whoever sleeps or is about to. Call it after publishing.
    pub(crate) fn unpark(&self) {
        fence(Ordering::SeqCst);
        if self.word.load(Ordering::Relaxed) != 0 {
            self.word.store(0, Ordering::Relaxed);
            self.futex_wake();
        }
    }
}

#[cfg(not(loom))]
impl Sleeper {
    fn futex_wait(&self, timeout: Duration) {
        futex_wait(&self.word, 1, timeout);
    }
    fn futex_wake(&self) {
        futex_wake(&self.word);
    }
}

#[cfg(any(loom, test))]
impl Sleeper {
    pub(crate) fn new() -> Self {
        Self {
            word: AtomicU32::new(0),
            #[cfg(loom)]
            queue: (loom::sync::Mutex::new(()), loom::sync::Condvar::new()),
        }
    }
}

#[cfg(loom)]
impl Sleeper {
    fn futex_wait(&self, _: Duration) {
        let guard = self.queue.0.lock().unwrap();
        if self.word.load(Ordering::Relaxed) == 1 {
            drop(self.queue.1.wait(guard).unwrap());
        }
    }
    fn futex_wake(&self) {
        let _guard = self.queue.0.lock().unwrap();
        self.queue.1.notify_all();
    }
}

/// Sleeps while `word` holds `expected`, until woken or until `timeout` has passed. The word may be shared between
/// processes.
#[cfg(not(loom))]
pub(crate) fn futex_wait(word: &AtomicU32, expected: u32, timeout: Duration) {
    use rustix::thread::futex;
    let timeout = futex::Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // Every way out (woken, changed, interrupted, timed out) is the same to the caller, who looks again.
    let _ = futex::wait(word, futex::Flags::empty(), expected, Some(&timeout));
}

/// Wakes all who sleep on `word`.
#[cfg(not(loom))]
pub(crate) fn futex_wake(word: &AtomicU32) {
    let _ = rustix::thread::futex::wake(word, rustix::thread::futex::Flags::empty(), i32::MAX as u32);
}

/// Spins until `ready`, for as long as spinning is worth it on this machine: what it tells is whether it saw it.
#[cfg(not(loom))]
pub(crate) fn spin(ready: impl Fn() -> bool) -> bool {
    use std::time::Instant;
    let budget = spin_budget();
    let start = Instant::now();
    loop {
        for _ in 0..16 {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.elapsed() >= budget {
            return ready();
        }
    }
}

#[cfg(loom)]
pub(crate) fn spin(ready: impl Fn() -> bool) -> bool {
    ready()
}

/// With few cores the one that is waited for may need the core that spins.
#[cfg(not(loom))]
fn spin_budget() -> Duration {
    static BUDGET: std::sync::OnceLock<Duration> = std::sync::OnceLock::new();
    *BUDGET.get_or_init(|| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Duration::from_micros(match cores {
            0..=1 => 0,
            2..=3 => 2,
            4..=7 => 20,
            _ => 50,
        })
    })
}
