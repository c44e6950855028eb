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

/// Compute capability of the device, major times ten plus minor, if nobody wants another.
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
    /// There is no PTX in it that a device of this compute capability can run.
    #[error(
        "the software device runs PTX, but the program holds {0}: build it with \
         -gencode arch=compute_{1},code=compute_{1}"
    )]
    NoPtx(fatbin::Architectures, u32),
    /// It was linked of what cannot be linked as PTX.
    #[error(transparent)]
    Units(#[from] fatbin::PtxError),
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
    /// Where its variables lie: base and size; `None` when it has none.
    pub placed: Option<(u64, u64)>,
}

/// Where the variables of a module lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spot {
    /// Wherever there is room.
    Anywhere,
    /// Side by side, from here on, where they were.
    At(u64),
    /// Each where it is said, as another device library had laid them out.
    AsNamed,
}

/// Whether code that began on another device goes on here: with addresses of functions in its memory it would call something else.
///
/// # Errors
/// When it takes one.
fn check_portable(tree: &ptx::ast::Module) -> Result<(), ModuleError> {
    match layout::addressed_function(tree) {
        None => Ok(()),
        Some(name) => Err(ModuleError::Refused(format!(
            "the program takes the address of its function {name}, which is another one on another kind of device"
        ))),
    }
}

/// Memory for variables that lie where another device library had put them. It put those of several modules into one page, so pages stay when a module
/// goes.
fn map_pages(
    memory: &Memory,
    device: usize,
    variables: impl Iterator<Item = (u64, u64)>,
) -> Result<(), ModuleError> {
    const PAGE: u64 = layout::GRANULARITY;
    let pages = |(base, bytes): (u64, u64)| base / PAGE..base.saturating_add(bytes).div_ceil(PAGE);
    let extents = memory.extents();
    let mut missing: Vec<u64> =
        variables.flat_map(pages).filter(|page| !extents.overlaps(page * PAGE, PAGE)).collect();
    missing.sort_unstable();
    missing.dedup();
    for run in missing.chunk_by(|page, next| page + 1 == *next) {
        if let [first, ..] = run {
            memory.map_module(device, Some(first * PAGE), run.len() as u64 * PAGE)?;
        }
    }
    Ok(())
}

impl Module {
    /// Loads the PTX that `select` found, with its variables where `spot` says for so many bytes, and those in managed memory where
    /// `named` says. It may be `foreign`: made again of what another kind of device had.
    ///
    /// # Errors
    /// When its PTX is wrong, needs what the device has not, or is foreign and cannot go on here; nothing is then left behind.
    pub fn load(
        selected: &Selected,
        memory: &Memory,
        device: usize,
        named: &[(&str, u64)],
        foreign: bool,
        spot: impl FnOnce(u64) -> Spot,
    ) -> Result<Self, ModuleError> {
        let tree = ptx::parse(&selected.text)?;
        if foreign {
            check_portable(&tree)?;
        }
        let mut layout = Layout::new(&tree, named, false)?;
        let size = |layout: &Layout<'_>| layout.bytes().next_multiple_of(layout::GRANULARITY);
        let at = match if size(&layout) > 0 { spot(size(&layout)) } else { Spot::Anywhere } {
            Spot::At(base) => Some(base),
            Spot::Anywhere => None,
            Spot::AsNamed => {
                layout = Layout::new(&tree, named, true)?;
                map_pages(memory, device, layout.as_named())?;
                None
            }
        };
        let size = size(&layout);
        let placed = if size > 0 { Some((memory.map_module(device, at, size)?, size)) } else { None };
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
        Ok(Self { image, kernels, variables: layout.variables(base), placed })
    }
}
