//! Who uses a device. The processes of a job use it through its servers, which the job cannot see: nobody does.

use std::ffi::{c_uint, c_void};

use super::out::put;
use super::{Answer, Device, handle};

/// No process, in whichever form.
pub unsafe fn none(device: Device, count: *mut c_uint, _processes: *mut c_void) -> Answer {
    handle::index(device)?;
    // SAFETY: the caller's to write to.
    unsafe { put(count, 0) }
}
