//! A grid in execution.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::exec::{Block, BlockState, Fault, Launch};

/// Instructions of a warp that a block executes before another's turn: less than a millisecond.
const SLICE: i64 = 1 << 16;

#[derive(Default)]
struct State {
    /// The next block that has not started.
    next: u64,
    /// Blocks that have used their slice.
    suspended: VecDeque<Block>,
    /// Blocks that are with a thread.
    running: usize,
    /// Memory of blocks that are done, for the next ones.
    spare: Vec<Block>,
    fault: Option<Fault>,
}

/// A grid in execution.
pub struct Grid {
    launch: Launch,
    /// Most blocks that have begun and not ended.
    resident: usize,
    state: Mutex<State>,
    changed: Condvar,
}

impl Grid {
    /// A grid of which nothing has run yet.
    pub fn new(launch: Launch, resident: usize) -> Self {
        Self { launch, resident: resident.max(1), state: Mutex::default(), changed: Condvar::new() }
    }

    /// Whether more than one thread could work on it.
    pub fn is_parallel(&self) -> bool {
        self.launch.blocks() > 1
    }

    /// Runs one block for a slice. `false` when there is none to run now.
    pub fn step(&self) -> bool {
        let mut state = self.lock();
        let Some((mut block, fresh)) = self.take(&mut state) else { return false };
        state.running += 1;
        drop(state);
        let started = match fresh {
            Some(number) => block.start(&self.launch, number),
            None => Ok(()),
        };
        let outcome = started.and_then(|()| block.run(&self.launch, SLICE));
        let mut state = self.lock();
        state.running -= 1;
        match outcome {
            Ok(BlockState::Done) => state.spare.push(block),
            Ok(BlockState::Running) => state.suspended.push_back(block),
            Err(fault) => {
                state.fault.get_or_insert(fault);
            }
        }
        if state.fault.is_some() {
            state.suspended.clear();
            state.next = self.launch.blocks();
        }
        drop(state);
        self.changed.notify_all();
        true
    }

    /// A block to run: one that has not begun, as long as there is room, else the one that has waited longest.
    fn take(&self, state: &mut State) -> Option<(Block, Option<u64>)> {
        if state.next < self.launch.blocks() && state.suspended.len() + state.running < self.resident {
            let number = state.next;
            state.next += 1;
            return Some((state.spare.pop().unwrap_or_default(), Some(number)));
        }
        state.suspended.pop_front().map(|block| (block, None))
    }

    /// Works on the grid until it is done.
    ///
    /// # Errors
    /// The first execution error.
    pub fn finish(&self) -> Result<(), Fault> {
        loop {
            while self.step() {}
            let mut state = self.lock();
            if state.running == 0 && state.suspended.is_empty() && state.next >= self.launch.blocks() {
                return state.fault.take().map_or(Ok(()), Err);
            }
            if state.running > 0 && state.suspended.is_empty() {
                drop(self.changed.wait(state).unwrap_or_else(PoisonError::into_inner));
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
