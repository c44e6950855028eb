//! Filling device memory from an image, by several threads, while the program may run already. A device knows no page faults: whoever may reach memory waits
//! here until it is filled, and has it filled first.

use super::proof::Checks;
use super::worker::Worker;
use crate::buffers::BufferPool;
use crate::lock;
use crate::transfer::{OwnStream, TransferError};
use backend::Range;
use image::Extent;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use store::ReadError;
use thiserror::Error;

/// How often whoever waits looks whether its session has ended.
const LOOK: Duration = Duration::from_millis(100);

/// Why memory is not filled, and never will be.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum FillError {
    /// The image cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The device does not take it.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// There is no thread to be had, or it has ended.
    #[error("a thread that fills device memory: {0}")]
    Thread(#[from] io::Error),
}

/// A piece of memory, and what it is to hold.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// The memory.
    pub(super) range: Range,
    /// In which stream of the plan it is written.
    pub(super) stream: usize,
    /// Number of the object in the image.
    pub(super) object: usize,
    /// Where in it.
    pub(super) offset: u64,
    /// The bytes.
    pub(super) extent: Extent,
}

/// What is to be filled, of which no two parts overlap.
pub(super) struct Plan {
    pub(super) image: store::Image,
    pub(super) buffers: Arc<BufferPool>,
    pub(super) streams: Vec<OwnStream>,
    pub(super) parts: Vec<Part>,
    /// Where chunks are checked.
    pub(super) checks: Checks,
}

/// How far it is.
#[derive(Clone, Debug)]
pub struct Progress {
    /// Bytes that are filled.
    pub done: u64,
    /// Of how many.
    pub total: u64,
    /// Why the rest never will be.
    pub failure: Option<Arc<FillError>>,
}

/// Memory that is being filled.
#[derive(Debug)]
pub struct Filling {
    /// Whether everything is filled: all that is looked at from then on.
    over: AtomicBool,
    queue: Mutex<Queue>,
    /// Told when something is filled, or nothing more will be.
    changed: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// A defect of ours must not leave anybody waiting for memory.
struct EndOnPanic(Arc<Filling>);

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(FillError::Thread(io::Error::other("it panicked")));
        }
    }
}

#[derive(Debug, Default)]
struct Queue {
    /// What nobody has begun, by address.
    waiting: BTreeMap<u64, Part>,
    /// What is begun: address and bytes.
    under_way: BTreeMap<u64, u64>,
    /// What somebody waits for and nobody may have begun.
    wanted: VecDeque<Range>,
    /// How many wait.
    waiters: usize,
    done: u64,
    total: u64,
    failure: Option<Arc<FillError>>,
    /// What is not filled now never will be.
    stopped: bool,
}

impl Filling {
    /// Begins it, on threads of its own, which hold the image as long as they need it.
    pub(super) fn begin(plan: Plan) -> Arc<Self> {
        let threads = plan.image.threads().min(plan.parts.len());
        let checks = plan.checks;
        let (worker, parts) = Worker::of(plan);
        let (worker, filling) = (Arc::new(worker), Arc::new(Self::of(parts)));
        let mut working = lock(&filling.threads);
        for _ in 0..threads {
            let (end, worker) = (EndOnPanic(Arc::clone(&filling)), Arc::clone(&worker));
            let spawned = std::thread::Builder::new().name("filling".into()).spawn(move || {
                if let Err(error) = worker.work(&end.0) {
                    end.0.fail(error);
                }
            });
            match spawned {
                Ok(thread) => working.push(thread),
                // One is enough.
                Err(error) if working.is_empty() => filling.fail(error.into()),
                Err(error) => tracing::debug!(%error, "fewer threads fill memory"),
            }
        }
        if checks == Checks::OnDevice && !working.is_empty() {
            let of = Arc::clone(&filling);
            let spawned =
                std::thread::Builder::new().name("hasher".into()).spawn(move || worker.compile(&of));
            match spawned {
                Ok(thread) => working.push(thread),
                Err(error) => tracing::debug!(%error, "the processor checks all chunks"),
            }
        }
        drop(working);
        filling
    }

    pub(super) fn of(parts: Vec<Part>) -> Self {
        let waiting: BTreeMap<_, _> = parts.into_iter().map(|part| (part.range.base, part)).collect();
        let total = waiting.values().map(|part| part.range.bytes).sum();
        let over = AtomicBool::new(waiting.is_empty());
        let queue = Queue { waiting, total, ..Queue::default() };
        Self { over, queue: Mutex::new(queue), changed: Condvar::new(), threads: Mutex::default() }
    }

    /// Whether all is filled.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// How far it is.
    #[must_use]
    pub fn progress(&self) -> Progress {
        lock(&self.queue).progress()
    }

    /// Begins nothing more: nobody needs it.
    pub fn stop(&self) {
        let mut queue = lock(&self.queue);
        queue.stopped |= !queue.waiting.is_empty();
        queue.waiting.clear();
        self.changed.notify_all();
    }

    /// Waits until these ranges are filled, before others; false when the session ends first, as it must where they never will be.
    pub(crate) fn await_ranges(&self, ranges: &[Range], ended: impl Fn() -> bool) -> bool {
        if self.is_over() {
            return true;
        }
        let mut queue = lock(&self.queue);
        queue.wanted.extend(ranges);
        self.wait(queue, |queue| ranges.iter().all(|range| queue.is_filled(*range)), ended)
    }

    /// The same for all there is.
    pub(crate) fn await_all(&self, ended: impl Fn() -> bool) -> bool {
        self.is_over() || self.wait(lock(&self.queue), Queue::is_empty, ended)
    }

    /// Waits for all of it and hears now and then how far it is.
    ///
    /// # Errors
    /// Why it never will be.
    pub(crate) fn finish(&self, mut progress: impl FnMut(Progress)) -> Result<(), Arc<FillError>> {
        loop {
            let queue = lock(&self.queue);
            if let Some(failure) = &queue.failure {
                return Err(Arc::clone(failure));
            }
            let (empty, now) = (queue.is_empty(), queue.progress());
            if !empty {
                drop(self.rest(queue));
            } else {
                drop(queue);
            }
            progress(now);
            if empty {
                // They have let go of all they had.
                for thread in lock(&self.threads).drain(..) {
                    // One that panicked has said so.
                    let _ = thread.join();
                }
                return Ok(());
            }
        }
    }

    fn wait(
        &self,
        mut queue: MutexGuard<'_, Queue>,
        filled: impl Fn(&Queue) -> bool,
        ended: impl Fn() -> bool,
    ) -> bool {
        queue.waiters += 1;
        let filled = loop {
            if queue.failure.is_none() && !queue.stopped && filled(&queue) {
                break true;
            }
            if queue.stopped || ended() {
                break false;
            }
            queue = self.rest(queue);
        };
        queue.waiters -= 1;
        filled
    }

    fn rest<'a>(&self, queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        self.changed.wait_timeout(queue, LOOK).unwrap_or_else(PoisonError::into_inner).0
    }

    /// The next part to fill, and whether somebody waits for something.
    pub(super) fn next(&self) -> Option<(Part, bool)> {
        let mut queue = lock(&self.queue);
        let part = queue.next()?;
        Some((part, queue.waiters > 0))
    }

    /// Learns that this part is filled.
    pub(super) fn filled(&self, range: Range) {
        let mut queue = lock(&self.queue);
        queue.filled(range);
        if queue.is_empty() {
            // Whoever looks at this alone sees memory that is filled.
            self.over.store(queue.done == queue.total, Ordering::Release);
        }
        self.changed.notify_all();
    }

    fn fail(&self, error: FillError) {
        let mut queue = lock(&self.queue);
        queue.failure.get_or_insert(Arc::new(error));
        queue.waiting.clear();
        self.changed.notify_all();
    }
}

impl Queue {
    fn progress(&self) -> Progress {
        Progress { done: self.done, total: self.total, failure: self.failure.clone() }
    }

    /// Whether nothing is left to do.
    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.under_way.is_empty()
    }

    fn is_filled(&self, range: Range) -> bool {
        first_in(&self.waiting, range, |part| part.range.bytes).is_none()
            && first_in(&self.under_way, range, |bytes| *bytes).is_none()
    }

    /// What somebody waits for, or else the first.
    fn next(&mut self) -> Option<Part> {
        let wanted = loop {
            let Some(range) = self.wanted.front() else { break None };
            match first_in(&self.waiting, *range, |part| part.range.bytes) {
                Some(base) => break Some(base),
                None => self.wanted.pop_front(),
            };
        };
        let part = match wanted {
            Some(base) => self.waiting.remove(&base),
            None => self.waiting.pop_first().map(|(_, part)| part),
        }?;
        self.under_way.insert(part.range.base, part.range.bytes);
        Some(part)
    }

    fn filled(&mut self, range: Range) {
        self.under_way.remove(&range.base);
        self.done += range.bytes;
    }
}

/// The first of these, none of which overlap, that has a byte of `range`.
fn first_in<T>(all: &BTreeMap<u64, T>, range: Range, bytes: impl Fn(&T) -> u64) -> Option<u64> {
    if range.bytes == 0 {
        return None;
    }
    let before = all.range(..=range.base).next_back();
    let around = before.filter(|(base, each)| range.base - *base < bytes(each));
    let first = around.or_else(|| all.range(range.base..).next())?.0;
    (*first < range.base.saturating_add(range.bytes)).then_some(*first)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn part(base: u64, bytes: u64) -> Part {
        let range = Range { base, bytes };
        Part { range, stream: 0, object: 0, offset: 0, extent: Extent::Zero { len: bytes } }
    }

    fn never() -> bool {
        false
    }

    #[test]
    fn what_is_waited_for_comes_first_and_nothing_else_is_waited_for() {
        let filling = Filling::of((0..10).map(|number| part(number * 100, 100)).collect());
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| filling.await_ranges(&[Range { base: 550, bytes: 100 }], never));
            while lock(&filling.queue).waiters == 0 {
                std::thread::yield_now();
            }
            let order: Vec<u64> = (0..3).map(|_| filling.next().unwrap().0.range.base).collect();
            assert_eq!(order, [500, 600, 0]);
            filling.filled(Range { base: 500, bytes: 100 });
            assert!(!waiting.is_finished());
            filling.filled(Range { base: 600, bytes: 100 });
            assert!(waiting.join().unwrap());
        });
        assert!(!filling.is_over());
        assert!(
            filling.await_ranges(&[Range { base: 599, bytes: 2 }, Range { base: 10_000, bytes: 5 }], never)
        );
        assert!(!filling.await_all(|| true), "the session ends");
        filling.filled(Range { base: 0, bytes: 100 });
        while let Some((part, awaited)) = filling.next() {
            assert!(!awaited);
            filling.filled(part.range);
        }
        assert!(filling.is_over() && filling.await_all(never));
    }

    #[test]
    fn what_was_not_filled_when_it_stopped_never_is() {
        let filling = Filling::of(vec![part(0, 100), part(100, 100)]);
        let (first, _) = filling.next().unwrap();
        filling.stop();
        filling.filled(first.range);
        assert!(!filling.await_all(never) && !filling.is_over());
        assert!(!filling.await_ranges(&[Range { base: 100, bytes: 1 }], never));
    }

    #[test]
    fn who_waits_for_what_never_comes_waits_for_the_end_of_the_session() {
        let filling = Filling::of(vec![part(0, 100), part(100, 100)]);
        let (first, _) = filling.next().unwrap();
        filling.fail(FillError::Thread(io::ErrorKind::OutOfMemory.into()));
        filling.filled(first.range);
        assert!(!filling.is_over() && filling.next().is_none());
        let tries = std::cell::Cell::new(0);
        let ended = || tries.replace(tries.get() + 1) == 1;
        assert!(!filling.await_ranges(&[first.range], ended), "what has come may be of no use");
        assert!(filling.finish(|_| {}).is_err());
        assert!(filling.progress().failure.is_some());
    }

    proptest! {
        /// Against a plain look at every byte.
        #[test]
        fn the_first_that_overlaps(
            parts in proptest::collection::btree_map(0u64..20, 1u64..=10, 0..20),
            base in 0u64..220, bytes in 0u64..60,
        ) {
            let parts: BTreeMap<u64, u64> = parts.into_iter().map(|(slot, bytes)| (slot * 10, bytes)).collect();
            let overlaps = |(at, len): &(&u64, &u64)| (base..base + bytes).any(|byte| (**at..**at + **len).contains(&byte));
            let expected = parts.iter().find(overlaps).map(|(at, _)| *at);
            prop_assert_eq!(first_in(&parts, Range { base, bytes }, |bytes| *bytes), expected);
        }
    }
}
