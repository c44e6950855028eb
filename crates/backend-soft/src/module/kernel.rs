//! What is known of a kernel without running it.

use ptx::ast;

use super::layout::Layout;
use super::{ModuleError, Selected};
use crate::exec::{Callee, Function};
use crate::memory::RESERVED_SHARED;

/// Most threads of a block.
pub const MAX_THREADS: u32 = 1024;
/// Dynamic shared memory is at least so aligned.
const SHARED_ALIGN: u64 = 16;
/// Registers a thread has at most, so that the largest block always fits a multiprocessor.
const MAX_REGISTERS: usize = 64;
/// Registers a thread has at least.
const MIN_REGISTERS: usize = 16;

/// One parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelParam {
    /// From the start of the buffer, bytes.
    pub offset: u64,
    /// Bytes.
    pub size: u64,
}

/// A kernel.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// Its name.
    pub name: String,
    /// Index in the image.
    pub index: usize,
    /// Its parameters.
    pub params: Vec<KernelParam>,
    /// Size of the parameter buffer.
    pub param_bytes: u64,
    /// Threads of a block at most.
    pub max_threads: u32,
    /// Threads a block must have, if `.reqntid` says so.
    pub required: Option<[u32; 3]>,
    /// Shared memory that it declares, bytes.
    pub static_shared: u64,
    /// Where its dynamic shared memory begins, counted from the start of the block's shared memory.
    pub dynamic_shared_base: u64,
    /// Local memory of a thread, bytes.
    pub local_bytes: u64,
    /// Constant memory of its module, bytes.
    pub constant_bytes: u64,
    /// Registers a thread counts as having. What the host's register file takes says nothing about a GPU: it is bounded so that
    /// no block that CUDA allows is refused.
    pub registers: u32,
    /// Architecture of its PTX, major times ten plus minor.
    pub ptx_version: u32,
    /// Architecture of the device.
    pub binary_version: u32,
}

impl Kernel {
    pub(super) fn new(
        tree: &ast::Module,
        function: &ast::Function,
        index: usize,
        functions: &[Function],
        layout: &Layout<'_>,
        selected: &Selected,
    ) -> Result<Self, ModuleError> {
        let refused = |what: &str| ModuleError::Refused(format!("{}: {what}", function.name));
        let (params, param_bytes) =
            function.param_layout().ok_or_else(|| refused("its parameters have no size"))?;
        let (_, shared_end) = layout
            .kernel_shared(tree, function)
            .ok_or_else(|| refused("its shared variables are too large"))?;
        let externs = function.body.iter().flat_map(|body| &body.locals).chain(tree.variables());
        let align = externs.filter(|v| crate::lower::is_dynamic_shared(v)).map(ast::Variable::alignment);
        let align = align.max().unwrap_or(1).max(SHARED_ALIGN);
        let limits = &function.performance;
        if limits.cluster.req_ncta.is_some_and(|[x, y, z]| x.max(1) * y.max(1) * z.max(1) > 1) {
            return Err(refused("clusters of more than one block are not supported"));
        }
        let threads = |dims: [u32; 3]| dims.iter().fold(1u32, |all, n| all.saturating_mul((*n).max(1)));
        let bound = limits.req_ntid.or(limits.max_ntid).map(threads);
        let own = &functions[index];
        Ok(Self {
            name: function.name.to_string(),
            index,
            params: params.iter().map(|p| KernelParam { offset: p.offset, size: p.size }).collect(),
            param_bytes,
            max_threads: bound.unwrap_or(MAX_THREADS).clamp(1, MAX_THREADS),
            required: limits.req_ntid.map(|dims| dims.map(|n| n.max(1))),
            static_shared: shared_end - RESERVED_SHARED,
            dynamic_shared_base: shared_end.next_multiple_of(align),
            local_bytes: local_bytes(functions, index, 0),
            constant_bytes: layout.constant_bytes(),
            registers: own.rows.next_multiple_of(8).clamp(MIN_REGISTERS, MAX_REGISTERS) as u32,
            ptx_version: selected.sm,
            binary_version: selected.capability,
        })
    }
}

/// Local memory of a function and the deepest of the functions it calls; recursion counts a few times.
fn local_bytes(functions: &[Function], index: usize, depth: u32) -> u64 {
    const DEEPEST: u32 = 16;
    let Some(function) = functions.get(index).filter(|_| depth < DEEPEST) else { return 0 };
    let mut called: Vec<usize> = function
        .calls
        .iter()
        .filter_map(|site| match site.callee {
            Callee::Direct(callee) => Some(callee),
            _ => None,
        })
        .collect();
    called.sort_unstable();
    called.dedup();
    let deepest = called.into_iter().map(|callee| local_bytes(functions, callee, depth + 1)).max();
    function.local_bytes.next_multiple_of(16) + deepest.unwrap_or(0)
}
