//! Kernel nodes.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use ::graph::Body;
use cuda_abi::{CuError, CuResult, sys};
use wire::{Callee, LaunchValue};

use super::add::{Place, set, work_of};
use crate::api::launch::kernel_node;
use crate::client::{Call, handle, out, with};
use crate::graph::{self, Kernel, Size, Work, told};

/// The parameters of a node as every version of the record has them.
#[derive(Clone, Copy)]
struct Params {
    function: sys::CUfunction,
    ctx: sys::CUcontext,
    size: Size,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
}

macro_rules! fields {
    ($from:expr, $function:expr, $ctx:expr) => {
        Params {
            function: $function,
            ctx: $ctx,
            size: Size {
                grid: [$from.gridDimX, $from.gridDimY, $from.gridDimZ],
                block: [$from.blockDimX, $from.blockDimY, $from.blockDimZ],
                shared: $from.sharedMemBytes,
            },
            params: $from.kernelParams,
            extra: $from.extra,
        }
    };
}

impl Params {
    unsafe fn v1(from: *const sys::CUDA_KERNEL_NODE_PARAMS_v1) -> CuResult<Self> {
        // SAFETY: NULL or the caller's record, of numbers and pointers only.
        let from = unsafe { from.as_ref() }.ok_or(CuError::INVALID_VALUE)?;
        Ok(fields!(from, from.func, std::ptr::null_mut()))
    }

    unsafe fn v2(from: *const sys::CUDA_KERNEL_NODE_PARAMS_v2) -> CuResult<Self> {
        // SAFETY: NULL or the caller's record, of numbers and pointers only.
        let from = unsafe { from.as_ref() }.ok_or(CuError::INVALID_VALUE)?;
        // CUDA takes a kernel wherever it takes a function.
        let function = if from.func.is_null() { from.kern.cast() } else { from.func };
        Ok(fields!(from, function, from.ctx))
    }

    unsafe fn work(self, call: &mut Call<'_>) -> CuResult<Work> {
        let Self { function, ctx, size, params, extra } = self;
        // SAFETY: the caller gives the parameters that the function takes.
        unsafe { kernel_node(call, function, ctx, size, (params, extra)) }
            .map(|kernel| Work::Kernel(Arc::new(kernel)))
    }
}

/// The work that a record of the second version describes.
pub(in crate::api) unsafe fn kernel_v2(
    call: &mut Call<'_>,
    from: *const sys::CUDA_KERNEL_NODE_PARAMS_v2,
) -> CuResult<Work> {
    // SAFETY: the caller's contract is the same.
    unsafe { Params::v2(from)?.work(call) }
}

/// The work that a record of the first version describes.
pub(in crate::api) unsafe fn kernel_v1(
    call: &mut Call<'_>,
    from: *const sys::CUDA_KERNEL_NODE_PARAMS_v1,
) -> CuResult<Work> {
    // SAFETY: the caller's contract is the same.
    unsafe { Params::v1(from)?.work(call) }
}

/// Adds a node that runs a kernel.
pub unsafe fn cuGraphAddKernelNode(
    phGraphNode: *mut sys::CUgraphNode,
    hGraph: sys::CUgraph,
    dependencies: *const sys::CUgraphNode,
    numDependencies: usize,
    nodeParams: *const sys::CUDA_KERNEL_NODE_PARAMS_v1,
) -> CuResult {
    let place = Place::new(phGraphNode, hGraph, dependencies, numDependencies);
    // SAFETY: the caller's contract is the same.
    unsafe { place.add(|call| kernel_v1(call, nodeParams)) }
}

/// Adds a node that runs a kernel.
pub unsafe fn cuGraphAddKernelNode_v2(
    phGraphNode: *mut sys::CUgraphNode,
    hGraph: sys::CUgraph,
    dependencies: *const sys::CUgraphNode,
    numDependencies: usize,
    nodeParams: *const sys::CUDA_KERNEL_NODE_PARAMS,
) -> CuResult {
    let place = Place::new(phGraphNode, hGraph, dependencies, numDependencies);
    // SAFETY: the caller's contract is the same.
    unsafe { place.add(|call| kernel_v2(call, nodeParams)) }
}

fn kernel_of(node: sys::CUgraphNode) -> CuResult<Arc<Kernel>> {
    match work_of(node)? {
        Work::Kernel(kernel) => Ok(kernel),
        _ => Err(CuError::INVALID_VALUE),
    }
}

/// Gives the parameters; they are the node's, and stay as long as it does.
pub unsafe fn cuGraphKernelNodeGetParams(
    hNode: sys::CUgraphNode,
    nodeParams: *mut sys::CUDA_KERNEL_NODE_PARAMS_v1,
) -> CuResult {
    let nodeParams = out(nodeParams)?;
    let kernel = kernel_of(hNode)?;
    let function = match kernel.callable.callee {
        Callee::Function(id) => id,
        Callee::Kernel(_) => with(|call| call.kernel_function(&kernel.callable))?,
    };
    let Size { grid, block, shared } = kernel.size;
    let params = sys::CUDA_KERNEL_NODE_PARAMS_v1 {
        func: handle(function.handle()),
        gridDimX: grid[0],
        gridDimY: grid[1],
        gridDimZ: grid[2],
        blockDimX: block[0],
        blockDimY: block[1],
        blockDimZ: block[2],
        sharedMemBytes: shared,
        kernelParams: kernel.pointers(),
        extra: std::ptr::null_mut(),
    };
    // SAFETY: the caller's to write to.
    unsafe { nodeParams.set(params) };
    Ok(())
}

/// Gives the parameters; they are the node's, and stay as long as it does.
pub unsafe fn cuGraphKernelNodeGetParams_v2(
    hNode: sys::CUgraphNode,
    nodeParams: *mut sys::CUDA_KERNEL_NODE_PARAMS,
) -> CuResult {
    let nodeParams = out(nodeParams)?;
    let kernel = kernel_of(hNode)?;
    let (func, kern) = match kernel.callable.callee {
        // cudart knows a library's functions by their kernels.
        Callee::Function(id) => {
            let kernel = kernel.callable.library_kernel().map_or(0, wire::KernelId::handle);
            (handle(id.handle()), handle(kernel))
        }
        Callee::Kernel(id) => (std::ptr::null_mut(), handle(id.handle())),
    };
    let Size { grid, block, shared } = kernel.size;
    let params = sys::CUDA_KERNEL_NODE_PARAMS {
        func,
        gridDimX: grid[0],
        gridDimY: grid[1],
        gridDimZ: grid[2],
        blockDimX: block[0],
        blockDimY: block[1],
        blockDimZ: block[2],
        sharedMemBytes: shared,
        kernelParams: kernel.pointers(),
        extra: std::ptr::null_mut(),
        kern,
        ctx: handle(kernel.ctx.handle()),
    };
    // SAFETY: the caller's to write to.
    unsafe { nodeParams.set(params) };
    Ok(())
}

/// Sets the parameters.
pub unsafe fn cuGraphKernelNodeSetParams(
    hNode: sys::CUgraphNode,
    nodeParams: *const sys::CUDA_KERNEL_NODE_PARAMS_v1,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    set(hNode, |call| unsafe { kernel_v1(call, nodeParams) })
}

/// Sets the parameters.
pub unsafe fn cuGraphKernelNodeSetParams_v2(
    hNode: sys::CUgraphNode,
    nodeParams: *const sys::CUDA_KERNEL_NODE_PARAMS,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    set(hNode, |call| unsafe { kernel_v2(call, nodeParams) })
}

/// Attributes that a node can have: those of a launch that are not its stream's.
fn check_attribute(attribute: c_uint) -> CuResult {
    use sys::CUlaunchAttributeID as Id;
    const CARRIED: [Id; 9] = [
        Id::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW,
        Id::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
        Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
        Id::CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
        Id::CU_LAUNCH_ATTRIBUTE_PRIORITY,
        Id::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP,
        Id::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN,
        Id::CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION,
        Id::CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
    ];
    let device_node = Id::CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE as c_uint;
    match attribute {
        known if CARRIED.iter().any(|carried| *carried as c_uint == known) => Ok(()),
        unsupported if unsupported == device_node => Err(CuError::NOT_SUPPORTED),
        _ => Err(CuError::INVALID_VALUE),
    }
}

/// Gives an attribute; one that was never set is zero.
pub unsafe fn cuGraphKernelNodeGetAttribute(
    hNode: sys::CUgraphNode,
    attr: c_uint,
    value_out: *mut sys::CUkernelNodeAttrValue,
) -> CuResult {
    let value_out = out(value_out.cast::<[u8; 64]>())?;
    check_attribute(attr)?;
    let kernel = kernel_of(hNode)?;
    let found = kernel.attributes.iter().find(|(id, _)| *id == attr);
    // SAFETY: the caller's to write to, 64 bytes of plain data.
    unsafe { value_out.set(found.map_or([0; 64], |(_, value)| value.0)) };
    Ok(())
}

/// Puts other attributes in place of a node's.
fn change(node: sys::CUgraphNode, attributes: impl FnOnce(&Kernel) -> Vec<(u32, LaunchValue)>) -> CuResult {
    let node = graph::node(node)?;
    with(|call| {
        let mut model = call.session.graphs.lock();
        match model.graphs.body_mut(node).map_err(told)? {
            Body::Work(Work::Kernel(kernel)) => {
                *kernel = Arc::new(kernel.with_attributes(attributes(kernel)));
                Ok(())
            }
            _ => Err(CuError::INVALID_VALUE),
        }
    })
}

/// Sets an attribute.
pub unsafe fn cuGraphKernelNodeSetAttribute(
    hNode: sys::CUgraphNode,
    attr: c_uint,
    value: *const sys::CUkernelNodeAttrValue,
) -> CuResult {
    if value.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    check_attribute(attr)?;
    // SAFETY: not NULL, so the caller's: 64 bytes of plain data.
    let value = LaunchValue(unsafe { value.cast::<[u8; 64]>().read() });
    change(hNode, |kernel| {
        let mut attributes = kernel.attributes.clone();
        attributes.retain(|(id, _)| *id != attr);
        attributes.push((attr, value));
        attributes
    })
}

/// Gives a node the attributes of another.
pub unsafe fn cuGraphKernelNodeCopyAttributes(dst: sys::CUgraphNode, src: sys::CUgraphNode) -> CuResult {
    let from = kernel_of(src)?;
    change(dst, |_| from.attributes.clone())
}
