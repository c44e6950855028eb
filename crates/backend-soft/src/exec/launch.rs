//! What all blocks of a grid share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Function;
use crate::conditions::Conditions;
use crate::memory::{Memory, MemoryError, Workspace};
use crate::printf::Output;
use crate::texture::View;

/// The functions of a loaded module.
#[derive(Debug, Default)]
pub struct Image {
    /// In the order of the text.
    pub functions: Vec<Function>,
}

/// Distance between the addresses of functions.
const FUNCTION_STEP: u64 = 16;

impl Image {
    /// The address of a function: a small number that depends only on the text of the module.
    pub fn address(index: usize) -> u64 {
        (index as u64 + 1) * FUNCTION_STEP
    }

    /// The function that has an address.
    pub fn at(&self, address: u64) -> Option<usize> {
        let index = (address / FUNCTION_STEP).checked_sub(1)? as usize;
        (address.is_multiple_of(FUNCTION_STEP) && index < self.functions.len()).then_some(index)
    }
}

/// A kernel launch, checked.
pub struct Launch {
    /// The code.
    pub image: Arc<Image>,
    /// Index of the kernel.
    pub kernel: usize,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads.
    pub block: [u32; 3],
    /// Shared memory of a block, bytes: what the device keeps, then static, then dynamic.
    pub shared_bytes: u64,
    /// The dynamic part.
    pub dynamic_shared: u32,
    /// The parameter buffer.
    pub params: Vec<u64>,
    /// Device memory.
    pub memory: Arc<Memory>,
    /// Texture and surface objects, as they were at the launch.
    pub objects: Arc<View>,
    /// Where kernels print to.
    pub output: Arc<Output>,
    /// What a cooperative grid's blocks meet at.
    pub workspace: Option<Workspace>,
    /// Conditions that kernels can set.
    pub conditions: Arc<Conditions>,
    /// `%gridid`
    pub id: u64,
    /// `%nsmid`
    pub multiprocessors: u32,
}

static GRIDS: AtomicU64 = AtomicU64::new(1);

/// A `%gridid` that no other grid has.
pub fn grid_id() -> u64 {
    GRIDS.fetch_add(1, Ordering::Relaxed)
}

impl Launch {
    /// The same launch once more.
    ///
    /// # Errors
    /// When there is no memory for a cooperative grid's workspace.
    pub fn again(&self) -> Result<Self, MemoryError> {
        Ok(Self {
            image: self.image.clone(),
            params: self.params.clone(),
            memory: self.memory.clone(),
            objects: self.objects.clone(),
            output: self.output.clone(),
            workspace: self.workspace.as_ref().map(Workspace::another).transpose()?,
            conditions: self.conditions.clone(),
            id: grid_id(),
            ..*self
        })
    }

    /// Threads of a block.
    pub fn threads(&self) -> u32 {
        self.block.iter().product()
    }

    /// Blocks of the grid.
    pub fn blocks(&self) -> u64 {
        self.grid.iter().map(|&n| u64::from(n)).product()
    }

    /// `%ctaid` of the block with that number.
    pub fn block_index(&self, number: u64) -> [u32; 3] {
        let [x, y, _] = self.grid.map(u64::from);
        [(number % x) as u32, (number / x % y) as u32, (number / x / y) as u32]
    }
}
