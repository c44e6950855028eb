//! Version.

use std::ffi::c_int;

use cuda_abi::{CuError, CuResult};

use crate::facts;

/// Gives the driver's interface version; works before `cuInit`.
pub unsafe fn cuDriverGetVersion(driverVersion: *mut c_int) -> CuResult {
    if driverVersion.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: not NULL, so the caller's to write to.
    unsafe { driverVersion.write(facts::driver_version()) };
    Ok(())
}
