//! Devices' handles: their indices, told from other pointers.

use super::known::machine;
use super::{Answer, Device, Error};
use wire::Gpu;

/// The first device's handle. Nothing is there: programs do not follow handles.
const FIRST: usize = 0x6e76_6d6c_0000;
const APART: usize = 0x100;

/// The handle of a device.
pub fn of(index: usize) -> Device {
    std::ptr::without_provenance_mut(FIRST + index * APART)
}

/// Which device has the handle.
pub fn index(device: Device) -> Answer<usize> {
    let from_first = device.addr().checked_sub(FIRST).ok_or(Error::INVALID_ARGUMENT)?;
    let index = from_first / APART;
    if from_first % APART != 0 || index >= machine()?.gpus.len() {
        return Err(Error::INVALID_ARGUMENT);
    }
    Ok(index)
}

/// The device, as the process was told first.
pub fn gpu(device: Device) -> Answer<&'static Gpu> {
    machine()?.gpus.get(index(device)?).ok_or(Error::INVALID_ARGUMENT)
}
