//! Which devices there are, and how they are told apart.

use std::ffi::{CStr, c_char, c_int, c_uint};

use wire::{Gpu, Pci, Text};

use super::known::machine;
use super::out::{chars, check_version, put, put_text};
use super::{Answer, Device, Error, handle, sys};
use crate::api::device::pci_address;

/// How many devices.
pub unsafe fn count(count: *mut c_uint) -> Answer {
    let gpus = machine()?.gpus.len();
    // SAFETY: the caller's to write to.
    unsafe { put(count, gpus as c_uint) }
}

/// The device with this index.
pub unsafe fn by_index(index: c_uint, device: *mut Device) -> Answer {
    if index as usize >= machine()?.gpus.len() {
        return Err(Error::INVALID_ARGUMENT);
    }
    // SAFETY: the caller's to write to.
    unsafe { put(device, handle::of(index as usize)) }
}

/// The device with this serial number.
pub unsafe fn by_serial(serial: *const c_char, device: *mut Device) -> Answer {
    // SAFETY: NULL or a text of the caller's.
    let wanted = unsafe { text(serial) }?;
    // SAFETY: the caller's to write to.
    unsafe { found(device, |gpu| gpu.text(Text::Serial) == Some(wanted)) }
}

/// The device with this UUID.
pub unsafe fn by_uuid(uuid: *const c_char, device: *mut Device) -> Answer {
    // SAFETY: NULL or a text of the caller's.
    let wanted = unsafe { text(uuid) }?;
    // SAFETY: the caller's to write to.
    unsafe { found(device, |gpu| gpu.uuid == wanted) }
}

/// The device with this UUID, in text or bytes.
pub unsafe fn by_uuid_v(uuid: *const sys::nvmlUUID_t, device: *mut Device) -> Answer {
    // SAFETY: NULL or the caller's, which begins with its version; its type says which of the two it is.
    unsafe {
        check_version(uuid, 1)?;
        match (*uuid).type_ {
            sys::nvmlUUIDType_t_NVML_UUID_TYPE_ASCII => {
                let bytes = (*uuid).value.str_.map(|char| char as u8);
                let wanted = CStr::from_bytes_until_nul(&bytes).map_err(|_| Error::INVALID_ARGUMENT)?;
                found(device, |gpu| gpu.uuid.as_bytes() == wanted.to_bytes())
            }
            sys::nvmlUUIDType_t_NVML_UUID_TYPE_BINARY => {
                let wanted: String = (*uuid).value.bytes.iter().map(|byte| format!("{byte:02x}")).collect();
                found(device, |gpu| gpu.uuid.trim_start_matches("GPU").replace('-', "") == wanted)
            }
            _ => Err(Error::INVALID_ARGUMENT),
        }
    }
}

/// The device at this PCI address.
pub unsafe fn by_pci_bus_id(address: *const c_char, device: *mut Device) -> Answer {
    // SAFETY: NULL or a text of the caller's.
    let wanted = pci_address(unsafe { text(address) }?).ok_or(Error::INVALID_ARGUMENT)?;
    // SAFETY: the caller's to write to.
    unsafe { found(device, |Gpu { pci, .. }| (pci.domain, pci.bus, pci.device, 0) == wanted) }
}

/// Its index.
pub unsafe fn index(device: Device, index: *mut c_uint) -> Answer {
    let found = handle::index(device)?;
    // SAFETY: the caller's to write to.
    unsafe { put(index, found as c_uint) }
}

/// Its name.
pub unsafe fn name(device: Device, name: *mut c_char, length: c_uint) -> Answer {
    // SAFETY: the caller's to write to.
    unsafe { put_text(name, length, &handle::gpu(device)?.name) }
}

/// Its UUID.
pub unsafe fn uuid(device: Device, uuid: *mut c_char, length: c_uint) -> Answer {
    // SAFETY: the caller's to write to.
    unsafe { put_text(uuid, length, &handle::gpu(device)?.uuid) }
}

/// Another text.
pub unsafe fn other_text(which: Text, device: Device, text: *mut c_char, length: c_uint) -> Answer {
    let found = handle::gpu(device)?.text(which).ok_or(Error::NOT_SUPPORTED)?;
    // SAFETY: the caller's to write to.
    unsafe { put_text(text, length, found) }
}

/// Its compute capability.
pub unsafe fn capability(device: Device, major: *mut c_int, minor: *mut c_int) -> Answer {
    let found = handle::gpu(device)?.capability;
    if major.is_null() || minor.is_null() {
        return Err(Error::INVALID_ARGUMENT);
    }
    // SAFETY: the caller's to write to.
    unsafe {
        put(major, found.0 as c_int)?;
        put(minor, found.1 as c_int)
    }
}

/// Where it is.
pub unsafe fn pci(device: Device, pci: *mut sys::nvmlPciInfo_t) -> Answer {
    let found = pci_info(handle::gpu(device)?.pci);
    // SAFETY: the caller's to write to.
    unsafe { put(pci, found) }
}

/// Where it is, as NVML told it before there were long domains: a part of what it tells now.
pub unsafe fn pci_v1(device: Device, pci: *mut PciInfo1) -> Answer {
    let found = pci_info(handle::gpu(device)?.pci);
    // SAFETY: the caller's to write to.
    unsafe { put(pci, PciInfo1::of(&found)) }
}

/// The same with the subsystem.
pub unsafe fn pci_v2(device: Device, pci: *mut PciInfo2) -> Answer {
    let found = pci_info(handle::gpu(device)?.pci);
    // SAFETY: the caller's to write to.
    unsafe { put(pci, PciInfo2 { first: PciInfo1::of(&found), subsystem: found.pciSubSystemId }) }
}

/// Where it is, and which class of device.
pub unsafe fn pci_ext(device: Device, pci: *mut sys::nvmlPciInfoExt_t) -> Answer {
    /// Display controller, 3D controller.
    const CLASSES: (c_uint, c_uint) = (3, 2);
    let found = handle::gpu(device)?.pci;
    let info = pci_info(found);
    // SAFETY: NULL or the caller's, which begins with its version.
    unsafe {
        check_version(pci, 1)?;
        let value = sys::nvmlPciInfoExt_t {
            version: (*pci).version,
            domain: found.domain,
            bus: found.bus,
            device: found.device,
            pciDeviceId: found.id,
            pciSubSystemId: found.subsystem,
            baseClass: CLASSES.0,
            subClass: CLASSES.1,
            busId: info.busId,
        };
        put(pci, value)
    }
}

/// How `nvmlDeviceGetPciInfo` was declared first.
#[repr(C)]
pub struct PciInfo1 {
    bus_id: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    id: c_uint,
}

/// How `nvmlDeviceGetPciInfo_v2` was; what it reserved is left alone.
#[repr(C)]
pub struct PciInfo2 {
    first: PciInfo1,
    subsystem: c_uint,
}

impl PciInfo1 {
    /// What it has of the newest form.
    #[must_use]
    pub fn of(info: &sys::nvmlPciInfo_t) -> Self {
        Self {
            bus_id: info.busIdLegacy,
            domain: info.domain,
            bus: info.bus,
            device: info.device,
            id: info.pciDeviceId,
        }
    }
}

/// The newest form.
pub fn pci_info(pci: Pci) -> sys::nvmlPciInfo_t {
    let Pci { domain, bus, device, id, subsystem } = pci;
    sys::nvmlPciInfo_t {
        busIdLegacy: chars(&format!("{domain:04X}:{bus:02X}:{device:02X}.0")),
        domain,
        bus,
        device,
        pciDeviceId: id,
        pciSubSystemId: subsystem,
        busId: chars(&format!("{domain:08X}:{bus:02X}:{device:02X}.0")),
    }
}

/// # Safety
/// `text` is NULL or ends with a NUL, and lives as long as is said.
unsafe fn text<'a>(text: *const c_char) -> Answer<&'a str> {
    if text.is_null() {
        return Err(Error::INVALID_ARGUMENT);
    }
    // SAFETY: not NULL, so as the caller says.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| Error::INVALID_ARGUMENT)
}

/// # Safety
/// `device` is NULL or the caller's to write to.
unsafe fn found(device: *mut Device, is_it: impl Fn(&Gpu) -> bool) -> Answer {
    let index = machine()?.gpus.iter().position(is_it).ok_or(Error::NOT_FOUND)?;
    // SAFETY: as the caller says.
    unsafe { put(device, handle::of(index)) }
}
