//! Threads that move parts of memory side by side: one core copies, and has pages made and mapped, more slowly than a program reads.

use crate::PAGE;
use crate::Result;
use crate::window::HUGE;
use rayon::prelude::*;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::available_parallelism;

/// More threads than this gain nothing: the device's copies take turns.
const MOST: usize = 4;

/// As many threads as there are cores for, up to [`MOST`].
pub(crate) struct Crew {
    pool: rayon::ThreadPool,
    /// Whether they help.
    ready: Arc<AtomicBool>,
}

impl Crew {
    /// `begun` is called in each thread, first, and says whether it is one that helps.
    ///
    /// # Errors
    /// When no thread can be had.
    pub(crate) fn new(begun: impl Fn() -> bool + Send + Sync + 'static) -> io::Result<Self> {
        let ready = Arc::new(AtomicBool::new(false));
        let helps = Arc::clone(&ready);
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(available_parallelism().map_or(1, usize::from).min(MOST))
            .thread_name(|number| format!("shadow-{number}"))
            .start_handler(move |_| {
                if begun() {
                    helps.store(true, Ordering::Relaxed);
                }
            });
        Ok(Self { pool: pool.build().map_err(io::Error::other)?, ready })
    }

    /// Does something with each of these runs of pages, side by side if they are more than a huge one: less is done before help has come. What is done
    /// must not wait for whoever may wait in here.
    ///
    /// # Errors
    /// One of those that there were; the others may have been done or not.
    pub(crate) fn each(
        &self,
        runs: &[Range<usize>],
        work: impl Fn(&Range<usize>) -> Result<()> + Sync + Send,
    ) -> Result<()> {
        let is_much = runs.iter().map(Range::len).sum::<usize>() > HUGE / PAGE;
        if is_much && self.pool.current_num_threads() > 1 && self.ready.load(Ordering::Relaxed) {
            self.pool.install(|| runs.par_iter().try_for_each(work))
        } else {
            runs.iter().try_for_each(work)
        }
    }
}
