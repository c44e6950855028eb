//! Threads that help with grids of more than one block.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use super::Grid;
use crate::exec::Fault;

#[derive(Default)]
struct Work {
    grids: Vec<Arc<Grid>>,
    ended: bool,
}

#[derive(Default)]
struct Shared {
    work: Mutex<Work>,
    arrived: Condvar,
}

/// A thread for each processor but one: the thread that asks for a grid works too.
pub struct Pool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts the threads.
    pub fn new() -> Self {
        let shared = Arc::new(Shared::default());
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let thread = |index: usize| {
            let shared = shared.clone();
            // Without one of them a grid only takes longer.
            std::thread::Builder::new().name(format!("soft-{index}")).spawn(move || shared.help()).ok()
        };
        let threads = (1..processors).filter_map(thread).collect();
        Self { shared, threads }
    }

    /// Runs a grid to its end.
    ///
    /// # Errors
    /// The first execution error.
    pub fn run(&self, grid: Grid) -> Result<(), Fault> {
        if !grid.is_parallel() || self.threads.is_empty() {
            return grid.finish();
        }
        let grid = Arc::new(grid);
        self.shared.lock().grids.push(grid.clone());
        self.shared.arrived.notify_all();
        let outcome = grid.finish();
        self.shared.lock().grids.retain(|each| !Arc::ptr_eq(each, &grid));
        outcome
    }
}

impl Default for Pool {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.lock().ended = true;
        self.shared.arrived.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing more to say.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn help(&self) {
        let mut turn = 0usize;
        let mut work = self.lock();
        while !work.ended {
            let grids = work.grids.clone();
            drop(work);
            // One slice of each grid in turn, beginning with another each time.
            let mut busy = false;
            for index in 0..grids.len() {
                busy |= grids[(index + turn) % grids.len()].step();
            }
            turn = turn.wrapping_add(1);
            work = self.lock();
            if !busy && !work.ended {
                let unchanged = work.grids.len() == grids.len();
                if unchanged {
                    // Blocks may be suspended again later: look from time to time.
                    let pause = std::time::Duration::from_millis(if grids.is_empty() { 1000 } else { 1 });
                    work = self.arrived.wait_timeout(work, pause).unwrap_or_else(PoisonError::into_inner).0;
                }
            }
        }
    }
}
