//! Modules: from an image to variables in device memory and functions ready to run.

mod kernel;
mod layout;
mod select;

pub use kernel::{Kernel, KernelParam};
pub use select::Selected;

use std::collections::HashMap;
use std::sync::Arc;

use crate::exec::Image;
use crate::lower::{Env, LowerError, lower};
use crate::memory::{Memory, MemoryError};
use layout::Layout;

/// Compute capability of the device, major times ten plus minor.
pub const COMPUTE_CAPABILITY: u32 = 90;

/// Why a module was not loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ModuleError {
    /// The image is damaged.
    #[error(transparent)]
    Image(#[from] fatbin::ImageError),
    /// Its PTX cannot be decompressed.
    #[error(transparent)]
    Decompress(#[from] fatbin::DecompressError),
    /// There is no PTX in it that the device can run.
    #[error(
        "the software device runs PTX, but the program holds {0}: build it with \
         -gencode arch=compute_90,code=compute_90"
    )]
    NoPtx(fatbin::Architectures),
    /// Its PTX is wrong.
    #[error(transparent)]
    Parse(#[from] ptx::ParseError),
    /// The device cannot carry out an instruction.
    #[error(transparent)]
    Lower(#[from] LowerError),
    /// Something is refused for what it is.
    #[error("{0}")]
    Refused(String),
    /// Its variables do not fit.
    #[error("module variables: {0}")]
    Memory(#[from] MemoryError),
}

/// A loaded module.
#[derive(Debug)]
pub struct Module {
    /// Its functions.
    pub image: Arc<Image>,
    /// Its kernels, by name.
    pub kernels: HashMap<String, Arc<Kernel>>,
    /// Its variables: address and size, by name.
    pub variables: HashMap<String, (u64, u64)>,
    /// Whether its kernels may allocate memory.
    pub uses_heap: bool,
    /// Where its variables lie: base and size; `None` when it has none.
    pub placed: Option<(u64, u64)>,
}

impl Module {
    /// Loads the PTX that `select` found, with its variables at `at` or wherever there is room, and those in managed memory where
    /// `managed` says.
    ///
    /// # Errors
    /// When its PTX is wrong or needs what the device has not; nothing is then left behind.
    pub fn load(
        selected: &Selected,
        memory: &Memory,
        device: usize,
        managed: &[(&str, u64)],
        at: impl FnOnce(u64) -> Option<u64>,
    ) -> Result<Self, ModuleError> {
        let tree = ptx::parse(&selected.text)?;
        let layout = Layout::new(&tree, managed)?;
        let size = layout.bytes().next_multiple_of(layout::GRANULARITY);
        let placed = if size > 0 { Some((memory.map_module(device, at(size), size)?, size)) } else { None };
        let loaded = Self::build(selected, &tree, &layout, placed);
        if let (Err(_), Some((base, _))) = (&loaded, placed) {
            memory.unmap_module(base)?;
        }
        loaded
    }

    fn build(
        selected: &Selected,
        tree: &ptx::ast::Module,
        layout: &Layout<'_>,
        placed: Option<(u64, u64)>,
    ) -> Result<Self, ModuleError> {
        let base = placed.map_or(0, |(base, _)| base);
        let env: Env<'_> = layout.env(tree, base);
        let mut functions = Vec::new();
        for function in tree.definitions() {
            if let Some(body) = &function.body {
                functions.push(lower(&env, function, body)?);
            }
        }
        layout.initialise(base, &env)?;
        let mut kernels = HashMap::new();
        for (index, function) in tree.definitions().enumerate() {
            if function.kind == ptx::ast::FunctionKind::Entry {
                let kernel = Kernel::new(tree, function, index, &functions, layout, selected)?;
                kernels.insert(function.name.to_string(), Arc::new(kernel));
            }
        }
        let image = Arc::new(Image { functions });
        let uses_heap = image.uses_heap();
        Ok(Self { image, kernels, variables: layout.variables(base), uses_heap, placed })
    }
}
