//! Memory that cooperative grids synchronise in: the driver gives each launch some, and tells it in `%envreg1` and `%envreg2`.

use std::sync::{Arc, Mutex, PoisonError};

use super::{Memory, MemoryError};

/// Words of a workspace: a size and a barrier, and room.
const WORDS: usize = 16;

type Words = Box<[u64; WORDS]>;

/// Workspaces that no launch uses.
pub struct Workspaces {
    memory: Arc<Memory>,
    free: Mutex<Vec<Words>>,
}

/// One launch's workspace.
pub struct Workspace {
    owner: Arc<Workspaces>,
    words: Option<Words>,
}

impl Workspaces {
    /// None yet.
    pub fn new(memory: Arc<Memory>) -> Arc<Self> {
        Arc::new(Self { memory, free: Mutex::default() })
    }

    /// A zeroed workspace. Once made it stays known to kernels as long as the device lives.
    ///
    /// # Errors
    /// When its memory is registered already, which cannot be.
    pub fn take(self: &Arc<Self>) -> Result<Workspace, MemoryError> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let words = match free {
            Some(mut words) => {
                words.fill(0);
                words
            }
            None => {
                let words: Words = Box::new([0; WORDS]);
                self.memory.register(words.as_ptr() as u64, size_of_val(&*words) as u64)?;
                words
            }
        };
        Ok(Workspace { owner: self.clone(), words: Some(words) })
    }
}

impl Workspace {
    /// One for another launch.
    ///
    /// # Errors
    /// As [`Workspaces::take`].
    pub fn another(&self) -> Result<Self, MemoryError> {
        self.owner.take()
    }

    /// Its address, which kernels use.
    pub fn address(&self) -> u64 {
        self.words.as_ref().map_or(0, |words| words.as_ptr() as u64)
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        if let Some(words) = self.words.take() {
            self.owner.free.lock().unwrap_or_else(PoisonError::into_inner).push(words);
        }
    }
}

impl Drop for Workspaces {
    fn drop(&mut self) {
        for words in self.free.get_mut().unwrap_or_else(PoisonError::into_inner) {
            // It was registered when it was made.
            let _ = self.memory.unregister(words.as_ptr() as u64);
        }
    }
}
