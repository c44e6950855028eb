//! Memory pools and stream-ordered allocation. A pool is the server's; here it is a handle, and what a device's current pool is.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use cuda_abi::{CuError, CuResult, sys};
use wire::{
    Device, MemAllocAsync, MemFreeAsync, PoolCreate, PoolDestroy, PoolGetAttribute, PoolId, PoolSetAttribute,
    PoolTrim,
};

use super::location::{Access, Location};
use crate::client::{Call, Kind, Owner, Pool, handle, out, session, with};
use crate::graph::{Captive, Target, Work};

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const PINNED: c_uint = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED as c_uint;
/// The attributes that are an `int`; the others are 64 bits long.
const LAST_INT_ATTRIBUTE: c_uint =
    sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES as c_uint;

/// The pool of a handle.
fn pool(handle: sys::CUmemoryPool) -> CuResult<Arc<Pool>> {
    let id = PoolId::from_handle(handle.addr() as u64).ok_or(CuError::INVALID_VALUE)?;
    session()?.pools.get(id.0).ok_or(CuError::INVALID_VALUE)
}

/// Allocates from the current pool of the stream's device.
pub unsafe fn cuMemAllocAsync(
    dptr: *mut sys::CUdeviceptr,
    bytesize: usize,
    hStream: sys::CUstream,
) -> CuResult {
    let dptr = out(dptr)?;
    let address = with(|call| {
        if let Some(target) = call.capture_of(hStream)? {
            return capture(call, target, bytesize);
        }
        let (stream, ctx) = call.any_stream(hStream)?;
        let device = call.session.contexts.get(ctx.0).ok_or(CuError::INVALID_CONTEXT)?.device;
        let current = call.session.device(device.0 as c_int)?.pools.current();
        let pool = call.session.pools.get(current.0).ok_or(CuError::INVALID_VALUE)?;
        allocate(call, &pool, bytesize, (stream, ctx))
    })?;
    // SAFETY: the caller's to write to.
    unsafe { dptr.set(address) };
    Ok(())
}

/// Allocates from a pool.
pub unsafe fn cuMemAllocFromPoolAsync(
    dptr: *mut sys::CUdeviceptr,
    bytesize: usize,
    pool: sys::CUmemoryPool,
    hStream: sys::CUstream,
) -> CuResult {
    let dptr = out(dptr)?;
    let pool = self::pool(pool)?;
    let address = with(|call| {
        if let Some(target) = call.capture_of(hStream)? {
            return capture(call, target, bytesize);
        }
        let stream = call.any_stream(hStream)?;
        allocate(call, &pool, bytesize, stream)
    })?;
    // SAFETY: the caller's to write to.
    unsafe { dptr.set(address) };
    Ok(())
}

/// Allocates in a capture: memory of the graph's.
fn capture(call: &mut Call<'_>, target: Target, bytes: usize) -> CuResult<u64> {
    let memory = call.graph_memory(target.ctx, bytes as u64)?;
    let address = memory.address;
    call.capture(target, Captive::Work(Work::MemAlloc(memory)))?;
    Ok(address)
}

fn allocate(
    call: &mut Call<'_>,
    pool: &Pool,
    bytes: usize,
    (stream, ctx): (wire::Stream, wire::ContextId),
) -> CuResult<u64> {
    if bytes == 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let bytes = bytes as u64;
    let context = call.session.contexts.get(ctx.0).ok_or(CuError::INVALID_CONTEXT)?;
    let address = call.ask(&MemAllocAsync { ctx, stream, pool: pool.name(), bytes })?;
    call.session.add_allocation((address, bytes), Owner::new(&context), Kind::Pooled(pool.id));
    Ok(address)
}

/// Frees device memory when the stream gets there.
pub unsafe fn cuMemFreeAsync(dptr: sys::CUdeviceptr, hStream: sys::CUstream) -> CuResult {
    with(|call| {
        if dptr == 0 {
            return Ok(());
        }
        if let Some(target) = call.capture_of(hStream)? {
            let work = crate::api::graph_node::release(call, dptr)?;
            return call.capture(target, Captive::Work(work));
        }
        let (stream, ctx) = call.any_stream(hStream)?;
        call.check()?;
        if call.free_graph_memory(dptr)? {
            return Ok(());
        }
        if call.is_managed(dptr) {
            return Err(CuError::NOT_SUPPORTED);
        }
        // Out of the table first, so that of two threads that free the same memory one is told.
        let allocation = call.session.memory.remove(dptr, Kind::is_freed).ok_or(CuError::INVALID_VALUE)?;
        let sent = call.submit(&MemFreeAsync { ctx, stream, address: dptr });
        if sent.is_err() {
            call.session.memory.insert(allocation);
        }
        sent
    })
}

/// Makes a pool.
pub unsafe fn cuMemPoolCreate(
    pool: *mut sys::CUmemoryPool,
    poolProps: *const sys::CUmemPoolProps,
) -> CuResult {
    let pool = out(pool)?;
    if poolProps.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: not NULL, so the caller's to read; the enumerations in it may be any numbers.
    let (kind, handles, location, max) = unsafe {
        (
            (&raw const (*poolProps).allocType).cast::<c_uint>().read(),
            (&raw const (*poolProps).handleTypes).cast::<c_uint>().read(),
            Location::read(&raw const (*poolProps).location),
            (*poolProps).maxSize,
        )
    };
    if kind != PINNED {
        return Err(CuError::NOT_SUPPORTED);
    }
    // No type of shareable handle is said to be supported (`CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES`).
    if handles != 0 {
        return Err(CuError::NOT_SUPPORTED);
    }
    let device = location.device()?;
    let id = with(|call| {
        let id = PoolId(call.session.next_id());
        call.ask(&PoolCreate { pool: id, device, max_bytes: max as u64 })?;
        let made = Pool { id, device, default: false, gone: AtomicBool::new(false) };
        call.session.pools.insert(id.0, Arc::new(made));
        Ok(id)
    })?;
    // SAFETY: the caller's to write to.
    unsafe { pool.set(handle(id.handle())) };
    Ok(())
}

/// Destroys a pool: what is allocated from it stays. A default pool cannot be destroyed.
pub unsafe fn cuMemPoolDestroy(pool: sys::CUmemoryPool) -> CuResult {
    let pool = self::pool(pool)?;
    if pool.default {
        return Err(CuError::INVALID_VALUE);
    }
    with(|call| {
        if call.session.pools.remove(pool.id.0).is_none() {
            return Err(CuError::INVALID_VALUE);
        }
        pool.gone.store(true, Ordering::Release);
        call.session.device(pool.device.0 as c_int)?.pools.forget(pool.id);
        call.ask(&PoolDestroy { pool: pool.id })
    })
}

/// Has a pool give up what it holds and does not need.
pub unsafe fn cuMemPoolTrimTo(pool: sys::CUmemoryPool, minBytesToKeep: usize) -> CuResult {
    let pool = self::pool(pool)?.name();
    with(|call| call.ask(&PoolTrim { pool, keep: minBytesToKeep as u64 }))
}

/// Sets an attribute.
pub unsafe fn cuMemPoolSetAttribute(pool: sys::CUmemoryPool, attr: c_uint, value: *mut c_void) -> CuResult {
    let pool = self::pool(pool)?.name();
    if value.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: not NULL, and as long as the attribute's type, which the caller knows.
    let value = unsafe {
        if attr <= LAST_INT_ATTRIBUTE {
            u64::from(value.cast::<u32>().read_unaligned())
        } else {
            value.cast::<u64>().read_unaligned()
        }
    };
    with(|call| call.ask(&PoolSetAttribute { pool, attribute: attr, value }))
}

/// Gives an attribute.
pub unsafe fn cuMemPoolGetAttribute(pool: sys::CUmemoryPool, attr: c_uint, value: *mut c_void) -> CuResult {
    let pool = self::pool(pool)?.name();
    if value.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    let found = with(|call| call.ask(&PoolGetAttribute { pool, attribute: attr }))?;
    // SAFETY: not NULL, and the caller gives room for the attribute's type.
    unsafe {
        if attr <= LAST_INT_ATTRIBUTE {
            value.cast::<u32>().write_unaligned(found as u32);
        } else {
            value.cast::<u64>().write_unaligned(found);
        }
    }
    Ok(())
}

/// Says which devices reach a pool. Its own does, and that cannot be taken back; others do not.
pub unsafe fn cuMemPoolSetAccess(
    pool: sys::CUmemoryPool,
    map: *const sys::CUmemAccessDesc,
    count: usize,
) -> CuResult {
    let pool = self::pool(pool)?;
    if map.is_null() || count == 0 {
        return Err(CuError::INVALID_VALUE);
    }
    for index in 0..count {
        // SAFETY: the caller gives `count` elements.
        let (location, access) = unsafe { Access::read(map.add(index)) };
        match (location.device()? == pool.device, access) {
            (true, Access::ReadWrite) | (false, Access::None) => {}
            (true, Access::None | Access::Read) | (_, Access::Invalid) => return Err(CuError::INVALID_VALUE),
            (false, Access::Read | Access::ReadWrite) => return Err(CuError::NOT_SUPPORTED),
        }
    }
    Ok(())
}

/// Tells whether a device reaches a pool.
pub unsafe fn cuMemPoolGetAccess(
    flags: *mut c_uint,
    memPool: sys::CUmemoryPool,
    location: *mut sys::CUmemLocation,
) -> CuResult {
    let flags = out(flags)?;
    let pool = pool(memPool)?;
    // SAFETY: the caller's to read, where not NULL.
    let device = unsafe { Location::given(location)? }.device()?;
    let access = if device == pool.device { Access::ReadWrite } else { Access::None };
    // SAFETY: the caller's to write to.
    unsafe { flags.set(access as c_uint) };
    Ok(())
}

/// Gives the default pool of a device.
pub unsafe fn cuDeviceGetDefaultMemPool(pool_out: *mut sys::CUmemoryPool, dev: sys::CUdevice) -> CuResult {
    let pool_out = out(pool_out)?;
    let pool = session()?.device(dev)?.pools.default;
    // SAFETY: the caller's to write to.
    unsafe { pool_out.set(handle(pool.handle())) };
    Ok(())
}

/// Gives the pool that a device allocates from.
pub unsafe fn cuDeviceGetMemPool(pool: *mut sys::CUmemoryPool, dev: sys::CUdevice) -> CuResult {
    let pool = out(pool)?;
    let current = session()?.device(dev)?.pools.current();
    // SAFETY: the caller's to write to.
    unsafe { pool.set(handle(current.handle())) };
    Ok(())
}

/// Makes a pool the one that a device allocates from.
pub unsafe fn cuDeviceSetMemPool(dev: sys::CUdevice, pool: sys::CUmemoryPool) -> CuResult {
    let device = session()?.device(dev)?;
    let pool = self::pool(pool)?;
    if pool.device != Device(dev as u32) {
        return Err(CuError::INVALID_VALUE);
    }
    device.pools.set_current(pool.id);
    Ok(())
}

/// The device of a location, for the one type of memory that pools are made of.
unsafe fn device_of(location: *mut sys::CUmemLocation, kind: c_uint) -> CuResult<c_int> {
    // SAFETY: as the caller says.
    let location = unsafe { Location::given(location)? };
    if kind != PINNED {
        return Err(CuError::NOT_SUPPORTED);
    }
    Ok(location.device()?.0 as c_int)
}

/// Gives the default pool of a location.
pub unsafe fn cuMemGetDefaultMemPool(
    pool_out: *mut sys::CUmemoryPool,
    location: *mut sys::CUmemLocation,
    r#type: c_uint,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    unsafe { cuDeviceGetDefaultMemPool(pool_out, device_of(location, r#type)?) }
}

/// Gives the pool that a location allocates from.
pub unsafe fn cuMemGetMemPool(
    pool: *mut sys::CUmemoryPool,
    location: *mut sys::CUmemLocation,
    r#type: c_uint,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    unsafe { cuDeviceGetMemPool(pool, device_of(location, r#type)?) }
}

/// Makes a pool the one that a location allocates from.
pub unsafe fn cuMemSetMemPool(
    location: *mut sys::CUmemLocation,
    r#type: c_uint,
    pool: sys::CUmemoryPool,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    unsafe { cuDeviceSetMemPool(device_of(location, r#type)?, pool) }
}
