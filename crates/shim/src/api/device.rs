//! Devices: nearly all answered from what the server said once.

use std::ffi::{CStr, c_char, c_int, c_uint};

use cuda_abi::{CuError, CuResult, sys};

use wire::{Device, LinearTextureWidth};

use crate::client::{out, session, with};

/// The highest `CUdevice_attribute` of CUDA 13.0.
const LAST_ATTRIBUTE: c_uint = 145;

/// Gives the device of an ordinal.
pub unsafe fn cuDeviceGet(device: *mut sys::CUdevice, ordinal: c_int) -> CuResult {
    let device = out(device)?;
    session()?.device(ordinal)?;
    // SAFETY: the caller's to write to.
    unsafe { device.set(ordinal) };
    Ok(())
}

/// Gives the number of devices.
pub unsafe fn cuDeviceGetCount(count: *mut c_int) -> CuResult {
    let count = out(count)?;
    let devices = session()?.devices.len();
    // SAFETY: the caller's to write to.
    unsafe { count.set(devices as c_int) };
    Ok(())
}

/// Gives the device's name, cut to fit.
pub unsafe fn cuDeviceGetName(name: *mut c_char, len: c_int, dev: sys::CUdevice) -> CuResult {
    let facts = &session()?.device(dev)?.facts;
    // SAFETY: the caller gives `len` bytes.
    unsafe { put_text(name, len, &facts.name) }
}

/// Gives the device's UUID.
pub unsafe fn cuDeviceGetUuid_v2(uuid: *mut sys::CUuuid, dev: sys::CUdevice) -> CuResult {
    let uuid = out(uuid)?;
    let bytes = session()?.device(dev)?.facts.uuid.map(|byte| byte as c_char);
    // SAFETY: the caller's to write to.
    unsafe { uuid.set(sys::CUuuid { bytes }) };
    Ok(())
}

/// Gives the device's memory, bytes.
pub unsafe fn cuDeviceTotalMem_v2(bytes: *mut usize, dev: sys::CUdevice) -> CuResult {
    let bytes = out(bytes)?;
    let total = session()?.device(dev)?.facts.total_memory;
    // SAFETY: the caller's to write to.
    unsafe { bytes.set(total as usize) };
    Ok(())
}

/// Gives an attribute; one that the server's driver does not know is 0.
pub unsafe fn cuDeviceGetAttribute(pi: *mut c_int, attrib: c_uint, dev: sys::CUdevice) -> CuResult {
    let pi = out(pi)?;
    let device = session()?.device(dev)?;
    if attrib == 0 || attrib > LAST_ATTRIBUTE {
        return Err(CuError::INVALID_VALUE);
    }
    let value = device.attribute(attrib as i32);
    // SAFETY: the caller's to write to.
    unsafe { pi.set(value) };
    Ok(())
}

/// Gives the properties that CUDA 1 had.
pub unsafe fn cuDeviceGetProperties(prop: *mut sys::CUdevprop, dev: sys::CUdevice) -> CuResult {
    let prop = out(prop)?;
    let device = session()?.device(dev)?;
    let of = |attribute| device.attribute(attribute);
    let value = sys::CUdevprop {
        maxThreadsPerBlock: of(1),
        maxThreadsDim: [of(2), of(3), of(4)],
        maxGridSize: [of(5), of(6), of(7)],
        sharedMemPerBlock: of(8),
        totalConstantMemory: of(9),
        SIMDWidth: of(10),
        memPitch: of(11),
        regsPerBlock: of(12),
        clockRate: of(13),
        textureAlign: of(14),
    };
    // SAFETY: the caller's to write to.
    unsafe { prop.set(value) };
    Ok(())
}

/// Gives the compute capability.
pub unsafe fn cuDeviceComputeCapability(
    major: *mut c_int,
    minor: *mut c_int,
    dev: sys::CUdevice,
) -> CuResult {
    let (major, minor) = (out(major)?, out(minor)?);
    let device = session()?.device(dev)?;
    // SAFETY: the caller's to write to.
    unsafe {
        major.set(device.attribute(75));
        minor.set(device.attribute(76));
    }
    Ok(())
}

/// Finds a device by its PCI address: domain, bus, device and function in hexadecimal; domain and function may be left out.
pub unsafe fn cuDeviceGetByPCIBusId(dev: *mut sys::CUdevice, pciBusId: *const c_char) -> CuResult {
    let dev = out(dev)?;
    if pciBusId.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: not NULL, and text as the caller says.
    let wanted = unsafe { CStr::from_ptr(pciBusId) }.to_str().ok().and_then(pci_address);
    let wanted = wanted.ok_or(CuError::INVALID_VALUE)?;
    let found = session()?
        .devices
        .iter()
        .position(|device| pci_address(&device.facts.pci_bus_id) == Some(wanted))
        .ok_or(CuError::INVALID_DEVICE)?;
    // SAFETY: the caller's to write to.
    unsafe { dev.set(found as sys::CUdevice) };
    Ok(())
}

/// Gives the PCI address as text.
pub unsafe fn cuDeviceGetPCIBusId(pciBusId: *mut c_char, len: c_int, dev: sys::CUdevice) -> CuResult {
    let facts = &session()?.device(dev)?.facts;
    // SAFETY: the caller gives `len` bytes.
    unsafe { put_text(pciBusId, len, &facts.pci_bus_id) }
}

/// Says that contexts with execution affinity are not there.
pub unsafe fn cuDeviceGetExecAffinitySupport(pi: *mut c_int, r#type: c_uint, dev: sys::CUdevice) -> CuResult {
    let pi = out(pi)?;
    session()?.device(dev)?;
    if r#type != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: the caller's to write to.
    unsafe { pi.set(0) };
    Ok(())
}

/// Domain, bus, device, function.
pub(crate) fn pci_address(text: &str) -> Option<(u32, u32, u32, u32)> {
    let hex = |text: &str| u32::from_str_radix(text, 16).ok();
    let (rest, function) = match text.split_once('.') {
        Some((rest, function)) => (rest, hex(function)?),
        None => (text, 0),
    };
    let parts: Vec<u32> = rest.split(':').map(hex).collect::<Option<_>>()?;
    match parts[..] {
        [domain, bus, device] => Some((domain, bus, device, function)),
        [bus, device] => Some((0, bus, device, function)),
        _ => None,
    }
}

/// Writes text and a NUL into `len` bytes, cut to fit.
unsafe fn put_text(to: *mut c_char, len: c_int, text: &str) -> CuResult {
    if to.is_null() || len < 1 {
        return Err(CuError::INVALID_VALUE);
    }
    let count = text.len().min(len as usize - 1);
    // SAFETY: the caller gives `len` bytes, and `count + 1` is no more.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, count);
        to.add(count).write(0);
    }
    Ok(())
}

/// Tells what atomic operations of a device on the host's memory can be.
pub unsafe fn cuDeviceGetHostAtomicCapabilities(
    capabilities: *mut c_uint,
    operations: *const c_uint,
    count: c_uint,
    dev: sys::CUdevice,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    unsafe { super::atomics::promise_nothing(capabilities, operations, count, &[dev]) }
}

/// Tells how many elements a texture of device memory can have.
pub unsafe fn cuDeviceGetTexture1DLinearMaxWidth(
    maxWidthInElements: *mut usize,
    format: c_uint,
    numChannels: c_uint,
    dev: sys::CUdevice,
) -> CuResult {
    let maxWidthInElements = out(maxWidthInElements)?;
    let width = with(|call| {
        call.session.device(dev)?;
        let device = Device(dev as u32);
        call.ask(&LinearTextureWidth { device, format, channels: numChannels })
    })?;
    // SAFETY: the caller's to write to.
    unsafe { maxWidthInElements.set(width as usize) };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::pci_address;

    #[test]
    fn pci_addresses_are_read_in_every_form() {
        assert_eq!(pci_address("0001:0a:1f.3"), Some((1, 10, 31, 3)));
        assert_eq!(pci_address("00000000:0a:1f"), Some((0, 10, 31, 0)));
        assert_eq!(pci_address("0a:1f.0"), Some((0, 10, 31, 0)));
        for bad in ["", "0a", "x:y", "0:0:0:0", "0a:1f."] {
            assert_eq!(pci_address(bad), None, "{bad:?}");
        }
    }
}
