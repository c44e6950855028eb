//! Virtual memory that the application manages: it reserves addresses, takes pieces of device memory, and maps these there.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use cuda_abi::{CuError, CuResult, FunctionId, sys};
use wire::{
    AddressFree, AddressReserve, Device, MemGetAccess, MemMap, MemSetAccess, MemUnmap, PhysicalCreate,
    PhysicalExport, PhysicalId, PhysicalImport, PhysicalProperties, PhysicalRelease, PhysicalRetain, Shared,
};

use super::location::{Access, Location};
use crate::client::{Kind, Owner, descriptor, out, session, with};
use crate::report::{Unsupported, report};

/// What sizes and addresses are multiples of, at least and as recommended.
const GRANULARITY: usize = 2 << 20;
/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const PINNED: c_uint = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED as c_uint;
/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const DESCRIPTOR: c_uint = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;
/// `CU_MEM_ALLOCATION_COMP_GENERIC`.
const GENERIC: u8 = sys::CUmemAllocationCompType::CU_MEM_ALLOCATION_COMP_GENERIC as u8;

/// The piece of memory of a handle.
fn physical(handle: c_ulonglong) -> CuResult<PhysicalId> {
    PhysicalId::from_handle(handle).ok_or(CuError::INVALID_VALUE)
}

/// What memory is to be made.
struct Wanted {
    device: Device,
    handle_types: c_uint,
    compressible: bool,
}

/// Reads the properties of memory to be made.
unsafe fn properties(prop: *const sys::CUmemAllocationProp) -> CuResult<Wanted> {
    if prop.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: not NULL, so the caller's to read; the enumerations in it may be any numbers.
    let (kind, handle_types, location, flags) = unsafe {
        (
            (&raw const (*prop).type_).cast::<c_uint>().read(),
            (&raw const (*prop).requestedHandleTypes).cast::<c_uint>().read(),
            Location::read(&raw const (*prop).location),
            (*prop).allocFlags,
        )
    };
    if kind != PINNED {
        return Err(CuError::INVALID_VALUE);
    }
    // Tiles of sparse arrays, and what the decompression engine reads, there are none.
    if handle_types & !DESCRIPTOR != 0 || flags.usage != 0 {
        return Err(CuError::NOT_SUPPORTED);
    }
    if flags.compressionType > GENERIC {
        return Err(CuError::INVALID_VALUE);
    }
    let compressible = flags.compressionType == GENERIC;
    Ok(Wanted { device: location.device()?, handle_types, compressible })
}

/// Reserves addresses.
pub unsafe fn cuMemAddressReserve(
    ptr: *mut sys::CUdeviceptr,
    size: usize,
    alignment: usize,
    addr: sys::CUdeviceptr,
    flags: c_ulonglong,
) -> CuResult {
    let ptr = out(ptr)?;
    let aligned = alignment == 0 || alignment.is_power_of_two();
    if size == 0 || !size.is_multiple_of(GRANULARITY) || !aligned || flags != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let (bytes, alignment) = (size as u64, alignment as u64);
    let base = with(|call| call.ask(&AddressReserve { bytes, alignment, wanted: addr }))?;
    // SAFETY: the caller's to write to.
    unsafe { ptr.set(base) };
    Ok(())
}

/// Gives reserved addresses back.
pub unsafe fn cuMemAddressFree(ptr: sys::CUdeviceptr, size: usize) -> CuResult {
    with(|call| call.ask_all_the_same(&AddressFree { address: ptr, bytes: size as u64 }))
}

/// Takes a piece of device memory.
pub unsafe fn cuMemCreate(
    handle: *mut sys::CUmemGenericAllocationHandle,
    size: usize,
    prop: *const sys::CUmemAllocationProp,
    flags: c_ulonglong,
) -> CuResult {
    let handle = out(handle)?;
    // SAFETY: the caller's to read, where not NULL.
    let Wanted { device, handle_types, compressible } = unsafe { properties(prop)? };
    if size == 0 || !size.is_multiple_of(GRANULARITY) || flags != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let id = with(|call| {
        let physical = PhysicalId(call.session.next_id());
        call.ask(&PhysicalCreate { physical, device, bytes: size as u64, handle_types, compressible })?;
        Ok(physical)
    })?;
    // SAFETY: the caller's to write to.
    unsafe { handle.set(id.handle()) };
    Ok(())
}

/// Releases a handle; what is mapped stays.
pub unsafe fn cuMemRelease(handle: sys::CUmemGenericAllocationHandle) -> CuResult {
    let physical = physical(handle)?;
    with(|call| call.ask_all_the_same(&PhysicalRelease { physical }))
}

/// Maps a piece of memory.
pub unsafe fn cuMemMap(
    ptr: sys::CUdeviceptr,
    size: usize,
    offset: usize,
    handle: sys::CUmemGenericAllocationHandle,
    flags: c_ulonglong,
) -> CuResult {
    let physical = physical(handle)?;
    // The offset is one that no driver takes yet.
    if offset != 0 || flags != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let bytes = size as u64;
    with(|call| {
        let (device, _) = call.ask(&PhysicalProperties { physical })?;
        call.ask(&MemMap { address: ptr, bytes, physical })?;
        let primary = &call.session.device(device.0 as c_int)?.primary;
        call.session.add_allocation((ptr, bytes), Owner::new(primary), Kind::Mapped);
        Ok(())
    })
}

/// Gives a descriptor by which another process of the job, or this one, gets to a piece of memory: a file in memory with its name.
pub unsafe fn cuMemExportToShareableHandle(
    shareableHandle: *mut c_void,
    handle: sys::CUmemGenericAllocationHandle,
    handleType: c_uint,
    flags: c_ulonglong,
) -> CuResult {
    let shareableHandle = out(shareableHandle.cast::<c_int>())?;
    let physical = physical(handle)?;
    if flags != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    if handleType != DESCRIPTOR {
        return Err(CuError::NOT_SUPPORTED);
    }
    let share = with(|call| {
        let (_, (handles, _)) = call.ask(&PhysicalProperties { physical })?;
        if handles & DESCRIPTOR == 0 {
            return Err(CuError::INVALID_VALUE);
        }
        call.ask(&PhysicalExport { physical })
    })?;
    let file = descriptor::make(&Shared::Piece(share).to_bytes())?;
    // SAFETY: the caller gives room for what this type of handle is.
    unsafe { shareableHandle.set(file) };
    Ok(())
}

/// Takes a piece of memory by such a descriptor.
pub unsafe fn cuMemImportFromShareableHandle(
    handle: *mut sys::CUmemGenericAllocationHandle,
    osHandle: *mut c_void,
    shHandleType: c_uint,
) -> CuResult {
    let handle = out(handle)?;
    if shHandleType != DESCRIPTOR {
        return Err(CuError::NOT_SUPPORTED);
    }
    let file = c_int::try_from(osHandle.addr()).map_err(|_| CuError::INVALID_VALUE)?;
    let id = with(|call| {
        // What a driver has given out, whose descriptors cannot be read, or anything else.
        let Some(Shared::Piece(share)) = descriptor::read(file).and_then(|bytes| Shared::from_bytes(&bytes))
        else {
            report(Unsupported::ForeignHandle(FunctionId::cuMemImportFromShareableHandle));
            return Err(CuError::INVALID_VALUE);
        };
        let physical = PhysicalId(call.session.next_id());
        call.ask(&PhysicalImport { physical, share })
    })?;
    // SAFETY: the caller's to write to.
    unsafe { handle.set(id.handle()) };
    Ok(())
}

/// Takes mappings away.
pub unsafe fn cuMemUnmap(ptr: sys::CUdeviceptr, size: usize) -> CuResult {
    let bytes = size as u64;
    with(|call| {
        call.ask_all_the_same(&MemUnmap { address: ptr, bytes })?;
        let inside = |base: u64| base.checked_sub(ptr).is_some_and(|offset| offset < bytes);
        call.session.memory.sweep(|each| matches!(each.kind, Kind::Mapped) && inside(each.base));
        Ok(())
    })
}

/// Says what devices may do with what is mapped.
pub unsafe fn cuMemSetAccess(
    ptr: sys::CUdeviceptr,
    size: usize,
    desc: *const sys::CUmemAccessDesc,
    count: usize,
) -> CuResult {
    if desc.is_null() || count == 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let wanted = (0..count).map(|index| {
        // SAFETY: the caller gives `count` elements.
        let (location, access) = unsafe { Access::read(desc.add(index)) };
        match access {
            Access::Invalid => Err(CuError::INVALID_VALUE),
            access => Ok((location.device()?, access as u32)),
        }
    });
    let wanted = wanted.collect::<CuResult<Vec<_>>>()?;
    with(|call| {
        wanted.iter().try_for_each(|(device, access)| {
            call.ask(&MemSetAccess { address: ptr, bytes: size as u64, device: *device, access: *access })
        })
    })
}

/// Tells what a device may do with what is mapped at an address.
pub unsafe fn cuMemGetAccess(
    flags: *mut c_ulonglong,
    location: *const sys::CUmemLocation,
    ptr: sys::CUdeviceptr,
) -> CuResult {
    let flags = out(flags)?;
    // SAFETY: the caller's to read, where not NULL.
    let device = unsafe { Location::given(location)? }.device()?;
    let access = with(|call| call.ask(&MemGetAccess { address: ptr, device }))?;
    // SAFETY: the caller's to write to.
    unsafe { flags.set(access.into()) };
    Ok(())
}

/// Gives what sizes and addresses are to be multiples of.
pub unsafe fn cuMemGetAllocationGranularity(
    granularity: *mut usize,
    prop: *const sys::CUmemAllocationProp,
    option: c_uint,
) -> CuResult {
    let granularity = out(granularity)?;
    session()?;
    // SAFETY: the caller's to read, where not NULL.
    unsafe { properties(prop)? };
    if option > 1 {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: the caller's to write to.
    unsafe { granularity.set(GRANULARITY) };
    Ok(())
}

/// Gives the properties that memory was made with.
pub unsafe fn cuMemGetAllocationPropertiesFromHandle(
    prop: *mut sys::CUmemAllocationProp,
    handle: sys::CUmemGenericAllocationHandle,
) -> CuResult {
    let prop = out(prop)?;
    let physical = physical(handle)?;
    let (device, (handles, compressible)) = with(|call| call.ask(&PhysicalProperties { physical }))?;
    // SAFETY: a plain record of numbers and a pointer, for which zero is "none".
    let mut found: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    found.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    found.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
    found.location.id = device.0 as c_int;
    if handles & DESCRIPTOR != 0 {
        found.requestedHandleTypes = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    }
    if compressible {
        found.allocFlags.compressionType = GENERIC;
    }
    // SAFETY: the caller's to write to.
    unsafe { prop.set(found) };
    Ok(())
}

/// Gives a further handle of what is mapped at an address.
pub unsafe fn cuMemRetainAllocationHandle(
    handle: *mut sys::CUmemGenericAllocationHandle,
    addr: *mut c_void,
) -> CuResult {
    let handle = out(handle)?;
    let address = addr.expose_provenance() as u64;
    let id = with(|call| call.ask(&PhysicalRetain { address }))?;
    // SAFETY: the caller's to write to.
    unsafe { handle.set(id.handle()) };
    Ok(())
}
