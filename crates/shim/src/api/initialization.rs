//! Initialisation and version.

use std::ffi::{c_int, c_uint};
use std::path::Path;

use cuda_abi::{CuError, CuResult};

use crate::{client, facts};

/// Gives the driver's interface version; works before `cuInit`.
pub unsafe fn cuDriverGetVersion(driverVersion: *mut c_int) -> CuResult {
    if driverVersion.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: not NULL, so the caller's to write to.
    unsafe { driverVersion.write(facts::driver_version()) };
    Ok(())
}

/// Starts the session.
pub unsafe fn cuInit(Flags: c_uint) -> CuResult {
    if Flags != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    client::start(Path::new(client::JOB))
}
