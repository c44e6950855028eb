//! Nodes that copy, set, allocate and free memory.

use std::ffi::{c_uint, c_void};

use cuda_abi::{CuError, CuResult, sys};
use wire::ContextId;

use super::add::{Place, set, work_of};
use crate::api::location::Location;
use crate::api::set::checked;
use crate::client::{Call, End, Extent, Side, handle, out};
use crate::graph::{Copy, Fill, Work};

use sys::CUmemorytype as Kind;

/// The context that a record names; NULL is the current one.
pub(super) fn context(call: &Call<'_>, ctx: sys::CUcontext) -> CuResult<ContextId> {
    if ctx.is_null() {
        return Ok(call.context()?.id);
    }
    let context = call.session.context(ctx)?;
    if context.is_active() { Ok(context.id) } else { Err(CuError::CONTEXT_IS_DESTROYED) }
}

/// The work that a description of a copy asks for.
pub(in crate::api) unsafe fn copy(
    call: &Call<'_>,
    params: *const sys::CUDA_MEMCPY3D,
    ctx: sys::CUcontext,
) -> CuResult<Work> {
    let ctx = context(call, ctx)?;
    // SAFETY: the caller's contract is the same.
    let (dst, src, extent) = unsafe { crate::api::copy::described(call, params) }?;
    if extent.width == 0 || extent.height == 0 || extent.depth == 0 {
        return Err(CuError::INVALID_VALUE);
    }
    dst.place(call, extent)?;
    src.place(call, extent)?;
    Ok(Work::Copy(Copy { ctx, dst, src, extent }))
}

/// Adds a node that copies.
pub unsafe fn cuGraphAddMemcpyNode(
    phGraphNode: *mut sys::CUgraphNode,
    hGraph: sys::CUgraph,
    dependencies: *const sys::CUgraphNode,
    numDependencies: usize,
    copyParams: *const sys::CUDA_MEMCPY3D,
    ctx: sys::CUcontext,
) -> CuResult {
    let place = Place::new(phGraphNode, hGraph, dependencies, numDependencies);
    // SAFETY: the caller's contract is the same.
    unsafe { place.add(|call| copy(call, copyParams, ctx)) }
}

/// A side of a copy in the application's form.
struct Told {
    kind: Kind,
    host: *mut c_void,
    device: u64,
    array: sys::CUarray,
    at: [usize; 3],
    pitch: usize,
    rows: usize,
}

impl Told {
    fn of(end: &End) -> Self {
        let nothing = Self {
            kind: Kind::CU_MEMORYTYPE_ARRAY,
            host: std::ptr::null_mut(),
            device: 0,
            array: std::ptr::null_mut(),
            at: [0; 3],
            pitch: 0,
            rows: 0,
        };
        let rows = match end {
            End::Rows(rows) => rows,
            End::Array(array, at) => {
                let at = at.map(|each| each as usize);
                return Self { array: handle(array.id.handle()), at, ..nothing };
            }
        };
        let nothing = Self { pitch: rows.pitch as usize, rows: rows.rows as usize, ..nothing };
        match rows.side {
            Side::Host(address) => {
                let host = std::ptr::with_exposed_provenance_mut(address as usize);
                Self { kind: Kind::CU_MEMORYTYPE_HOST, host, ..nothing }
            }
            Side::Device(device) => Self { kind: Kind::CU_MEMORYTYPE_DEVICE, device, ..nothing },
            Side::Any(device) => Self { kind: Kind::CU_MEMORYTYPE_UNIFIED, device, ..nothing },
        }
    }
}

/// Gives the parameters: each side in memory begins at its first byte.
pub unsafe fn cuGraphMemcpyNodeGetParams(
    hNode: sys::CUgraphNode,
    nodeParams: *mut sys::CUDA_MEMCPY3D,
) -> CuResult {
    let nodeParams = out(nodeParams)?;
    let Work::Copy(copy) = work_of(hNode)? else { return Err(CuError::INVALID_VALUE) };
    let Extent { width, height, depth } = copy.extent;
    let (dst, src) = (Told::of(&copy.dst), Told::of(&copy.src));
    let params = sys::CUDA_MEMCPY3D {
        srcXInBytes: src.at[0],
        srcY: src.at[1],
        srcZ: src.at[2],
        srcLOD: 0,
        srcMemoryType: src.kind,
        srcHost: src.host,
        srcDevice: src.device,
        srcArray: src.array,
        reserved0: std::ptr::null_mut(),
        srcPitch: src.pitch,
        srcHeight: src.rows,
        dstXInBytes: dst.at[0],
        dstY: dst.at[1],
        dstZ: dst.at[2],
        dstLOD: 0,
        dstMemoryType: dst.kind,
        dstHost: dst.host,
        dstDevice: dst.device,
        dstArray: dst.array,
        reserved1: std::ptr::null_mut(),
        dstPitch: dst.pitch,
        dstHeight: dst.rows,
        WidthInBytes: width as usize,
        Height: height as usize,
        Depth: depth as usize,
    };
    // SAFETY: the caller's to write to.
    unsafe { nodeParams.set(params) };
    Ok(())
}

/// Sets the parameters.
pub unsafe fn cuGraphMemcpyNodeSetParams(
    hNode: sys::CUgraphNode,
    nodeParams: *const sys::CUDA_MEMCPY3D,
) -> CuResult {
    let Work::Copy(old) = work_of(hNode)? else { return Err(CuError::INVALID_VALUE) };
    // SAFETY: the caller's contract is the same.
    set(hNode, |call| unsafe { copy(call, nodeParams, handle(old.ctx.handle())) })
}

/// What is to be set, as every version of the record says it.
#[derive(Clone, Copy)]
pub(in crate::api) struct Setting {
    pub dst: u64,
    pub pitch: usize,
    pub value: c_uint,
    pub element: c_uint,
    pub width: usize,
    pub height: usize,
}

impl Setting {
    unsafe fn read(from: *const sys::CUDA_MEMSET_NODE_PARAMS) -> CuResult<Self> {
        // SAFETY: NULL or the caller's record, of numbers only.
        let from = unsafe { from.as_ref() }.ok_or(CuError::INVALID_VALUE)?;
        let sys::CUDA_MEMSET_NODE_PARAMS { dst, pitch, value, elementSize: element, width, height } = *from;
        Ok(Self { dst, pitch, value, element, width, height })
    }

    /// The work.
    pub fn work(self, call: &Call<'_>, ctx: sys::CUcontext) -> CuResult<Work> {
        let ctx = context(call, ctx)?;
        let Self { dst, pitch, value, element, width, height } = self;
        let element = u8::try_from(element).ok().filter(|bytes| matches!(bytes, 1 | 2 | 4));
        if width == 0 || height == 0 {
            return Err(CuError::INVALID_VALUE);
        }
        let element = element.ok_or(CuError::INVALID_VALUE)?;
        checked(call, ctx, dst, (element, value), (pitch, width, height)).map(Work::Fill)
    }
}

/// The work that a record describes.
pub(in crate::api) unsafe fn fill(
    call: &Call<'_>,
    params: *const sys::CUDA_MEMSET_NODE_PARAMS,
    ctx: sys::CUcontext,
) -> CuResult<Work> {
    // SAFETY: the caller's contract is the same.
    unsafe { Setting::read(params) }?.work(call, ctx)
}

/// Adds a node that sets memory.
pub unsafe fn cuGraphAddMemsetNode(
    phGraphNode: *mut sys::CUgraphNode,
    hGraph: sys::CUgraph,
    dependencies: *const sys::CUgraphNode,
    numDependencies: usize,
    memsetParams: *const sys::CUDA_MEMSET_NODE_PARAMS,
    ctx: sys::CUcontext,
) -> CuResult {
    let place = Place::new(phGraphNode, hGraph, dependencies, numDependencies);
    // SAFETY: the caller's contract is the same.
    unsafe { place.add(|call| fill(call, memsetParams, ctx)) }
}

fn fill_of(node: sys::CUgraphNode) -> CuResult<Fill> {
    match work_of(node)? {
        Work::Fill(fill) => Ok(fill),
        _ => Err(CuError::INVALID_VALUE),
    }
}

/// Gives the parameters.
pub unsafe fn cuGraphMemsetNodeGetParams(
    hNode: sys::CUgraphNode,
    nodeParams: *mut sys::CUDA_MEMSET_NODE_PARAMS,
) -> CuResult {
    let nodeParams = out(nodeParams)?;
    let Fill { dst, pitch, element, value, width, height, .. } = fill_of(hNode)?;
    let params = sys::CUDA_MEMSET_NODE_PARAMS {
        dst,
        pitch: pitch as usize,
        value,
        elementSize: element.into(),
        width: width as usize,
        height: height as usize,
    };
    // SAFETY: the caller's to write to.
    unsafe { nodeParams.set(params) };
    Ok(())
}

/// Sets the parameters.
pub unsafe fn cuGraphMemsetNodeSetParams(
    hNode: sys::CUgraphNode,
    nodeParams: *const sys::CUDA_MEMSET_NODE_PARAMS,
) -> CuResult {
    let ctx = handle(fill_of(hNode)?.ctx.handle());
    // SAFETY: the caller's contract is the same.
    set(hNode, |call| unsafe { fill(call, nodeParams, ctx) })
}

/// The memory that a record asks for: plain memory of a device.
unsafe fn wanted(params: *const sys::CUDA_MEM_ALLOC_NODE_PARAMS) -> CuResult<(wire::Device, u64)> {
    if params.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: not NULL, so the caller's to read; the enumerations in it may be any numbers.
    let (kind, handles, location, bytes) = unsafe {
        let pool = &raw const (*params).poolProps;
        (
            (&raw const (*pool).allocType).cast::<c_uint>().read(),
            (&raw const (*pool).handleTypes).cast::<c_uint>().read(),
            Location::read(&raw const (*pool).location),
            (*params).bytesize as u64,
        )
    };
    if kind != sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED as c_uint || handles != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    Ok((location.device()?, bytes))
}

/// Allocates memory for a node; peers reach it as they reach the context's other memory.
pub(in crate::api) unsafe fn allocation(
    call: &mut Call<'_>,
    params: *mut sys::CUDA_MEM_ALLOC_NODE_PARAMS,
) -> CuResult<Work> {
    // SAFETY: the caller's contract is the same.
    let (device, bytes) = unsafe { wanted(params) }?;
    let current = call.context()?;
    let ctx = match current.device == device {
        true => current.id,
        false => call.session.device(device.0 as i32)?.primary.id,
    };
    let memory = call.graph_memory(ctx, bytes)?;
    // SAFETY: not NULL, so the caller's to write to.
    unsafe { (&raw mut (*params).dptr).write(memory.address) };
    Ok(Work::MemAlloc(memory))
}

/// Adds a node that allocates memory, and gives the address.
pub unsafe fn cuGraphAddMemAllocNode(
    phGraphNode: *mut sys::CUgraphNode,
    hGraph: sys::CUgraph,
    dependencies: *const sys::CUgraphNode,
    numDependencies: usize,
    nodeParams: *mut sys::CUDA_MEM_ALLOC_NODE_PARAMS,
) -> CuResult {
    let place = Place::new(phGraphNode, hGraph, dependencies, numDependencies);
    // SAFETY: the caller's contract is the same.
    unsafe { place.add(|call| allocation(call, nodeParams)) }
}

/// Gives the parameters.
pub unsafe fn cuGraphMemAllocNodeGetParams(
    hNode: sys::CUgraphNode,
    params_out: *mut sys::CUDA_MEM_ALLOC_NODE_PARAMS,
) -> CuResult {
    let params_out = out(params_out)?;
    let Work::MemAlloc(memory) = work_of(hNode)? else { return Err(CuError::INVALID_VALUE) };
    // SAFETY: a record of numbers, pointers and enumerations that have a 0.
    let mut params: sys::CUDA_MEM_ALLOC_NODE_PARAMS = unsafe { std::mem::zeroed() };
    params.poolProps.allocType = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    params.poolProps.location.id = memory.device.0 as i32;
    (params.bytesize, params.dptr) = (memory.bytes as usize, memory.address);
    // SAFETY: the caller's to write to.
    unsafe { params_out.set(params) };
    Ok(())
}

/// Frees what a graph allocates.
pub(in crate::api) fn release(call: &Call<'_>, dptr: u64) -> CuResult<Work> {
    match call.graph_memory_at(dptr) {
        Some(_) => Ok(Work::MemFree(dptr)),
        None => Err(CuError::INVALID_VALUE),
    }
}

/// Adds a node that frees memory which a graph allocates.
pub unsafe fn cuGraphAddMemFreeNode(
    phGraphNode: *mut sys::CUgraphNode,
    hGraph: sys::CUgraph,
    dependencies: *const sys::CUgraphNode,
    numDependencies: usize,
    dptr: sys::CUdeviceptr,
) -> CuResult {
    let place = Place::new(phGraphNode, hGraph, dependencies, numDependencies);
    // SAFETY: the caller's contract is the same.
    unsafe { place.add(|call| release(call, dptr)) }
}

/// Gives the address.
pub unsafe fn cuGraphMemFreeNodeGetParams(
    hNode: sys::CUgraphNode,
    dptr_out: *mut sys::CUdeviceptr,
) -> CuResult {
    let dptr_out = out(dptr_out)?;
    let Work::MemFree(address) = work_of(hNode)? else { return Err(CuError::INVALID_VALUE) };
    // SAFETY: the caller's to write to.
    unsafe { dptr_out.set(address) };
    Ok(())
}
