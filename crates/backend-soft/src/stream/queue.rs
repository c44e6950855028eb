//! One stream.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use wire::CuError;

use super::Work;

/// Work and what it waits for.
pub struct Item {
    /// What to wait for.
    pub after: Vec<Ticket>,
    /// What to do.
    pub work: Work,
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    submitted: u64,
    has_thread: bool,
    ended: bool,
}

/// A stream.
pub struct Stream {
    /// Whether it is ordered with the legacy stream.
    pub blocking: bool,
    queue: Mutex<Queue>,
    arrived: Condvar,
    done: AtomicU64,
    done_lock: Mutex<()>,
    progressed: Condvar,
}

/// A point in a stream.
#[derive(Clone)]
pub struct Ticket {
    stream: Arc<Stream>,
    number: u64,
}

impl Ticket {
    /// Whether the stream has got there.
    pub fn is_done(&self) -> bool {
        self.stream.done.load(Ordering::Acquire) >= self.number
    }

    /// Waits until it has.
    pub fn wait(&self) {
        if self.is_done() {
            return;
        }
        let mut guard = self.stream.done_lock.lock().unwrap_or_else(PoisonError::into_inner);
        while !self.is_done() {
            guard = self.stream.progressed.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Stream {
    /// An idle stream.
    pub fn new(blocking: bool) -> Arc<Self> {
        Arc::new(Self {
            blocking,
            queue: Mutex::default(),
            arrived: Condvar::new(),
            done: AtomicU64::new(0),
            done_lock: Mutex::default(),
            progressed: Condvar::new(),
        })
    }

    /// Its end as of now.
    pub fn tail(self: &Arc<Self>) -> Ticket {
        Ticket { stream: self.clone(), number: self.lock().submitted }
    }

    /// Appends work; `run` executes each piece, on the stream's thread, which is made at the first.
    ///
    /// # Errors
    /// When the thread cannot be had; nothing is then appended.
    pub fn submit(
        self: &Arc<Self>,
        item: Item,
        run: impl Fn(Work) + Send + 'static,
    ) -> Result<Ticket, CuError> {
        let mut queue = self.lock();
        if !queue.has_thread {
            let stream = self.clone();
            let spawned =
                std::thread::Builder::new().name("soft-stream".into()).spawn(move || stream.work(run));
            spawned.map_err(|error| {
                tracing::error!("a stream's thread: {error}");
                CuError::OPERATING_SYSTEM
            })?;
            queue.has_thread = true;
        }
        queue.items.push_back(item);
        queue.submitted += 1;
        let number = queue.submitted;
        drop(queue);
        self.arrived.notify_one();
        Ok(Ticket { stream: self.clone(), number })
    }

    /// Lets the thread end when the work is done. Nothing is submitted afterwards.
    pub fn end(&self) {
        self.lock().ended = true;
        self.arrived.notify_one();
    }

    fn work(&self, run: impl Fn(Work)) {
        let mut queue = self.lock();
        loop {
            let Some(item) = queue.items.pop_front() else {
                if queue.ended {
                    return;
                }
                queue = self.arrived.wait(queue).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(queue);
            item.after.iter().for_each(Ticket::wait);
            run(item.work);
            drop(item.after);
            {
                let _guard = self.done_lock.lock().unwrap_or_else(PoisonError::into_inner);
                self.done.fetch_add(1, Ordering::Release);
            }
            self.progressed.notify_all();
            queue = self.lock();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
