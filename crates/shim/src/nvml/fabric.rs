//! What a device can say of others, and of its links to them.

use std::ffi::{c_int, c_uint};

use wire::{Pci, Quantity as Q, Quantity};

use super::identity::{PciInfo1, pci_info};
use super::known::machine;
use super::numbers::of;
use super::out::{check_version, put};
use super::{Answer, Device, Error, handle, sys};

/// Capabilities of a link, and what two devices can be asked about each other.
const CAPABILITIES: c_uint = 6;

/// Where the ways of two devices meet.
pub unsafe fn ancestor(first: Device, second: Device, level: *mut sys::nvmlGpuTopologyLevel_t) -> Answer {
    let found = of(first, Q::TopologyCommonAncestor, handle::index(second)? as u16)?;
    // SAFETY: the caller's to write to.
    unsafe { put(level, found as c_uint) }
}

/// The devices that are just so far away.
pub unsafe fn nearest(device: Device, level: c_uint, count: *mut c_uint, devices: *mut Device) -> Answer {
    let this = handle::index(device)?;
    let others = (0..machine()?.gpus.len()).filter(|other| *other != this);
    let is_near =
        |other: &usize| of(device, Q::TopologyCommonAncestor, *other as u16) == Ok(u64::from(level));
    let near: Vec<usize> = others.filter(is_near).collect();
    if count.is_null() {
        return Err(Error::INVALID_ARGUMENT);
    }
    // SAFETY: the caller's to read from and write to.
    let room = unsafe { count.read() } as usize;
    if !devices.is_null() {
        for (place, other) in near.iter().take(room).enumerate() {
            // SAFETY: the caller gives room for so many.
            unsafe { devices.add(place).write(handle::of(*other)) };
        }
    }
    // SAFETY: as above.
    unsafe { put(count, near.len() as c_uint) }
}

/// Whether they share a board.
pub unsafe fn on_same_board(first: Device, second: Device, same: *mut c_int) -> Answer {
    let (first, second) = (of(first, Q::BoardId, 0)?, of(second, Q::BoardId, 0)?);
    // SAFETY: the caller's to write to.
    unsafe { put(same, c_int::from(first == second)) }
}

/// What they can do with each other's memory.
pub unsafe fn p2p(
    first: Device,
    second: Device,
    what: c_uint,
    status: *mut sys::nvmlGpuP2PStatus_t,
) -> Answer {
    let other = handle::index(second)? as u16;
    handle::index(first)?;
    if what >= CAPABILITIES {
        return Err(Error::INVALID_ARGUMENT);
    }
    let found = of(first, Q::P2PStatus, Quantity::pair(other, what as u16))?;
    // SAFETY: the caller's to write to.
    unsafe { put(status, found as c_uint) }
}

/// What a link can do.
pub unsafe fn capability(device: Device, link: c_uint, what: c_uint, can: *mut c_uint) -> Answer {
    let link = number_of(device, link)?;
    if what >= CAPABILITIES {
        return Err(Error::INVALID_ARGUMENT);
    }
    let found = of(device, Q::NvLinkCapability, Quantity::pair(link, what as u16))?;
    // SAFETY: the caller's to write to.
    unsafe { put(can, found as c_uint) }
}

/// What is at the other end of a link.
pub unsafe fn remote_pci(device: Device, link: c_uint, pci: *mut sys::nvmlPciInfo_t) -> Answer {
    let found = of(device, Q::NvLinkRemotePciInfo, number_of(device, link)?)?;
    // SAFETY: the caller's to write to.
    unsafe { put(pci, pci_info(Pci::unpacked(found))) }
}

/// The same, as NVML told it first.
pub unsafe fn remote_pci_v1(device: Device, link: c_uint, pci: *mut PciInfo1) -> Answer {
    let found = of(device, Q::NvLinkRemotePciInfo, number_of(device, link)?)?;
    // SAFETY: the caller's to write to.
    unsafe { put(pci, PciInfo1::of(&pci_info(Pci::unpacked(found)))) }
}

/// A job's devices are in no fabric that it could use.
pub unsafe fn fabric(device: Device, info: *mut sys::nvmlGpuFabricInfo_t) -> Answer {
    handle::index(device)?;
    let none = sys::nvmlGpuFabricInfo_t {
        clusterUuid: [0; 16],
        status: sys::nvmlReturn_enum_NVML_SUCCESS,
        cliqueId: 0,
        state: sys::NVML_GPU_FABRIC_STATE_NOT_SUPPORTED as u8,
    };
    // SAFETY: the caller's to write to.
    unsafe { put(info, none) }
}

/// The same, in either of the versions that there are.
pub unsafe fn fabric_v(device: Device, info: *mut sys::nvmlGpuFabricInfoV_t) -> Answer {
    handle::index(device)?;
    let second = info.cast::<sys::nvmlGpuFabricInfo_v2_t>();
    // SAFETY: NULL or the caller's, which begins with its version; zero is "none" in every other field.
    unsafe {
        match check_version(second, 2) {
            Ok(()) => {
                put(second, sys::nvmlGpuFabricInfo_v2_t { version: (*info).version, ..std::mem::zeroed() })
            }
            Err(_) => {
                check_version(info, 3)?;
                put(info, sys::nvmlGpuFabricInfoV_t { version: (*info).version, ..std::mem::zeroed() })
            }
        }
    }
}

fn number_of(device: Device, link: c_uint) -> Answer<u16> {
    handle::index(device)?;
    if link >= sys::NVML_NVLINK_MAX_LINKS { Err(Error::INVALID_ARGUMENT) } else { Ok(link as u16) }
}
