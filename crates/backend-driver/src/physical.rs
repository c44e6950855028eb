//! Device memory without an address, and who may reach it where it is mapped.

use crate::api::{Api, check};
use crate::device;
use backend::{Access, Range, RawPhysical, Result};
use cudarc::driver::sys::{self, CUmemAccess_flags as Flags, CUmemAllocationCompType as Compression};
use wire::DeviceFacts;

/// Takes memory, and tells whether the driver has made it compressible.
pub fn create(
    api: &Api,
    device: sys::CUdevice,
    facts: &DeviceFacts,
    bytes: u64,
    compressible: bool,
) -> Result<(RawPhysical, bool)> {
    let mut properties = device::block_properties(device, facts);
    if compressible {
        properties.allocFlags.compressionType = Compression::CU_MEM_ALLOCATION_COMP_GENERIC as u8;
        // Other devices on the bus cannot read what is compressed.
        properties.allocFlags.gpuDirectRDMACapable = 0;
    }
    let mut handle = 0;
    // SAFETY: whole properties; the handle is a local.
    check(unsafe { (api.cuMemCreate)(&raw mut handle, bytes as usize, &raw const properties, 0) })?;
    let mut made = properties;
    if compressible {
        // SAFETY: the handle was just made; the properties are a local.
        let told = check(unsafe { (api.cuMemGetAllocationPropertiesFromHandle)(&raw mut made, handle) });
        if let Err(error) = told {
            // SAFETY: nothing is mapped of it, and nobody else has the handle.
            check(unsafe { (api.cuMemRelease)(handle) })?;
            return Err(error);
        }
    }
    let generic = Compression::CU_MEM_ALLOCATION_COMP_GENERIC as u8;
    Ok((RawPhysical(handle), made.allocFlags.compressionType == generic))
}

/// Takes memory of the host, of the node that the device is at.
pub fn create_on_host(api: &Api, facts: &DeviceFacts, bytes: u64) -> Result<RawPhysical> {
    let of_device = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID as i32;
    let node = facts.attribute(of_device);
    // SAFETY: a plain record of numbers and a pointer, for which zero is "none".
    let mut properties: sys::CUmemAllocationProp = unsafe { std::mem::zeroed() };
    properties.type_ = sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type_ = sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA;
    // A machine without nodes says -1: all its memory is node 0.
    properties.location.id = node.unwrap_or(0).max(0);
    let mut handle = 0;
    // SAFETY: whole properties; the handle is a local.
    check(unsafe { (api.cuMemCreate)(&raw mut handle, bytes as usize, &raw const properties, 0) })?;
    Ok(RawPhysical(handle))
}

pub fn set_access(
    api: &Api,
    device: sys::CUdevice,
    facts: &DeviceFacts,
    range: Range,
    access: Access,
) -> Result<()> {
    let flags = match access {
        Access::None => Flags::CU_MEM_ACCESS_FLAGS_PROT_NONE,
        Access::Read => Flags::CU_MEM_ACCESS_FLAGS_PROT_READ,
        Access::ReadWrite => Flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    let access = sys::CUmemAccessDesc { location: device::block_properties(device, facts).location, flags };
    // SAFETY: a whole mapping of ours.
    check(unsafe { (api.cuMemSetAccess)(range.base, range.bytes as usize, &raw const access, 1) })
}
