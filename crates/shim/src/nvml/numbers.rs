//! Numbers, by the shapes of the functions that answer them. Those that a GPU does not have are not supported.

use std::ffi::{c_uint, c_ulong, c_ulonglong};

use wire::Quantity;

use super::out::put;
use super::{Answer, Device, Error, handle, known, sys};

/// A number of a device.
pub fn of(device: Device, quantity: Quantity, which: u16) -> Answer<u64> {
    all_of(device, quantity)?(which)
}

/// A device's numbers of one kind, which belong together.
pub fn all_of(device: Device, quantity: Quantity) -> Answer<impl Fn(u16) -> Answer<u64>> {
    known::numbers(handle::index(device)?, quantity)
}

/// One number.
pub unsafe fn number(quantity: Quantity, device: Device, value: *mut c_uint) -> Answer {
    let found = of(device, quantity, 0)?;
    // SAFETY: the caller's to write to.
    unsafe { put(value, found as c_uint) }
}

/// One long number.
pub unsafe fn long(quantity: Quantity, device: Device, value: *mut c_ulonglong) -> Answer {
    let found = of(device, quantity, 0)?;
    // SAFETY: the caller's to write to.
    unsafe { put(value, found) }
}

/// Two numbers that come together.
pub unsafe fn pair(quantity: Quantity, device: Device, first: *mut c_uint, second: *mut c_uint) -> Answer {
    let of = all_of(device, quantity)?;
    let found = (of(0)?, of(1)?);
    if first.is_null() || second.is_null() {
        return Err(Error::INVALID_ARGUMENT);
    }
    // SAFETY: the caller's to write to.
    unsafe {
        put(first, found.0 as c_uint)?;
        put(second, found.1 as c_uint)
    }
}

/// One number of several, `most` at most.
pub unsafe fn chosen(
    quantity: Quantity,
    most: u16,
    device: Device,
    which: c_uint,
    value: *mut c_uint,
) -> Answer {
    handle::index(device)?;
    let which = u16::try_from(which).ok().filter(|which| *which < most).ok_or(Error::INVALID_ARGUMENT)?;
    let found = of(device, quantity, which)?;
    // SAFETY: the caller's to write to.
    unsafe { put(value, found as c_uint) }
}

/// A set of processors or NUMA nodes.
pub unsafe fn set(quantity: Quantity, device: Device, words: c_uint, set: *mut c_ulong) -> Answer {
    handle::index(device)?;
    if words == 0 || set.is_null() {
        return Err(Error::INVALID_ARGUMENT);
    }
    const MOST: u16 = 64;
    let of = all_of(device, quantity)?;
    let found: Vec<u64> = (0..MOST).map(|word| of(word).unwrap_or(0)).collect();
    let used = found.iter().rposition(|word| *word != 0).ok_or(Error::NOT_SUPPORTED)? + 1;
    if used > words as usize {
        return Err(Error::INSUFFICIENT_SIZE);
    }
    for (word, value) in (0..words as usize).zip(found.into_iter().chain(std::iter::repeat(0))) {
        // SAFETY: the caller gives so many words.
        unsafe { set.add(word).write(value) };
    }
    Ok(())
}

/// The same within a scope: a NUMA node, which is what is known, or a socket.
pub unsafe fn set_within(
    quantity: Quantity,
    device: Device,
    words: c_uint,
    to: *mut c_ulong,
    scope: sys::nvmlAffinityScope_t,
) -> Answer {
    if scope > sys::NVML_AFFINITY_SCOPE_SOCKET {
        return Err(Error::INVALID_ARGUMENT);
    }
    // SAFETY: the caller's, as `set` wants it.
    unsafe { set(quantity, device, words, to) }
}

/// A clock as it is now; what it could be set to is not known.
pub unsafe fn clock(device: Device, clock: c_uint, id: c_uint, value: *mut c_uint) -> Answer {
    match id {
        // SAFETY: the caller's to write to.
        sys::nvmlClockId_enum_NVML_CLOCK_ID_CURRENT => unsafe {
            chosen(Quantity::ClockInfo, 4, device, clock, value)
        },
        id if id < sys::nvmlClockId_enum_NVML_CLOCK_ID_COUNT => {
            handle::index(device)?;
            Err(Error::NOT_SUPPORTED)
        }
        _ => Err(Error::INVALID_ARGUMENT),
    }
}
