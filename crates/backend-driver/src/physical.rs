//! Device memory without an address, and who may reach it where it is mapped.

use crate::api::{Api, check};
use crate::device;
use backend::{Access, Range, RawPhysical, Result};
use cudarc::driver::sys::{self, CUmemAccess_flags as Flags};
use wire::DeviceFacts;

pub fn create(api: &Api, device: sys::CUdevice, facts: &DeviceFacts, bytes: u64) -> Result<RawPhysical> {
    let properties = device::block_properties(device, facts);
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
