//! What a device tells in structures.

use std::ffi::{c_int, c_uint};

use wire::Quantity as Q;

use super::numbers::{all_of, of};
use super::out::{check_version, put, version_of};
use super::{Answer, Device, Error, handle, sys};

/// Memory: what is reserved counts as used, as it always did.
pub unsafe fn memory(device: Device, memory: *mut sys::nvmlMemory_t) -> Answer {
    let of = all_of(device, Q::Memory)?;
    let (total, reserved, free, used) = (of(0)?, of(1)?, of(2)?, of(3)?);
    // SAFETY: the caller's to write to.
    unsafe { put(memory, sys::nvmlMemory_t { total, free, used: used.saturating_add(reserved) }) }
}

/// Memory.
pub unsafe fn memory_v2(device: Device, memory: *mut sys::nvmlMemory_v2_t) -> Answer {
    handle::index(device)?;
    // SAFETY: NULL or the caller's, which begins with its version.
    unsafe { check_version(memory, 2) }?;
    let version = version_of::<sys::nvmlMemory_v2_t>(2);
    let of = all_of(device, Q::Memory)?;
    let (total, reserved, free, used) = (of(0)?, of(1)?, of(2)?, of(3)?);
    // SAFETY: the caller's to write to.
    unsafe { put(memory, sys::nvmlMemory_v2_t { version, total, reserved, free, used }) }
}

/// Memory that is mapped for others on the bus.
pub unsafe fn bar1(device: Device, memory: *mut sys::nvmlBAR1Memory_t) -> Answer {
    let of = all_of(device, Q::Bar1Memory)?;
    let found = sys::nvmlBAR1Memory_t { bar1Total: of(0)?, bar1Free: of(1)?, bar1Used: of(2)? };
    // SAFETY: the caller's to write to.
    unsafe { put(memory, found) }
}

/// How busy it is.
pub unsafe fn utilization(device: Device, rates: *mut sys::nvmlUtilization_t) -> Answer {
    let of = all_of(device, Q::UtilizationRates)?;
    let found = sys::nvmlUtilization_t { gpu: of(0)? as c_uint, memory: of(1)? as c_uint };
    // SAFETY: the caller's to write to.
    unsafe { put(rates, found) }
}

/// How hot it is.
pub unsafe fn temperature(device: Device, temperature: *mut sys::nvmlTemperature_t) -> Answer {
    handle::index(device)?;
    // SAFETY: NULL or the caller's, which begins with its version.
    unsafe {
        check_version(temperature, 1)?;
        if (*temperature).sensorType != sys::nvmlTemperatureSensors_enum_NVML_TEMPERATURE_GPU {
            return Err(Error::INVALID_ARGUMENT);
        }
        (*temperature).temperature = of(device, Q::Temperature, 0)? as c_int;
    }
    Ok(())
}

/// What it is made of.
pub unsafe fn attributes(device: Device, attributes: *mut sys::nvmlDeviceAttributes_t) -> Answer {
    let told = all_of(device, Q::Attributes)?;
    let multiprocessors = told(0)?;
    let count = |which| told(which).unwrap_or(0) as c_uint;
    let found = sys::nvmlDeviceAttributes_t {
        multiprocessorCount: multiprocessors as c_uint,
        sharedCopyEngineCount: count(1),
        sharedDecoderCount: count(2),
        sharedEncoderCount: count(3),
        sharedJpegCount: count(4),
        sharedOfaCount: count(5),
        gpuInstanceSliceCount: count(6),
        computeInstanceSliceCount: count(7),
        memorySizeMB: told(8).or_else(|_| of(device, Q::Memory, 0).map(|all| all >> 20))?,
    };
    // SAFETY: the caller's to write to.
    unsafe { put(attributes, found) }
}

/// No handle is a part of a GPU.
pub unsafe fn is_mig(device: Device, is_mig: *mut c_uint) -> Answer {
    handle::index(device)?;
    // SAFETY: the caller's to write to.
    unsafe { put(is_mig, 0) }
}

/// No part of a GPU has a handle.
pub unsafe fn mig_by_index(device: Device, _index: c_uint, _mig: *mut Device) -> Answer {
    handle::index(device)?;
    Err(Error::NOT_FOUND)
}

/// Values by number: each is answered for itself, and none is had.
pub unsafe fn field_values(device: Device, count: c_int, values: *mut sys::nvmlFieldValue_t) -> Answer {
    handle::index(device)?;
    let count = usize::try_from(count).ok().filter(|count| *count > 0).ok_or(Error::INVALID_ARGUMENT)?;
    if values.is_null() {
        return Err(Error::INVALID_ARGUMENT);
    }
    for each in 0..count {
        // SAFETY: the caller gives so many.
        unsafe { (*values.add(each)).nvmlReturn = Error::NOT_SUPPORTED.0 };
    }
    Ok(())
}
