//! Modules.

use std::ffi::c_uint;

use cuda_abi::{CuError, CuResult, sys::CUmoduleLoadingMode};

use crate::facts;

/// Always lazy: cudart then loads a module at the first launch of one of its kernels.
pub unsafe fn cuModuleGetLoadingMode(mode: *mut c_uint) -> CuResult {
    facts::get()?;
    if mode.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: not NULL, so the caller's to write to.
    unsafe { mode.write(CUmoduleLoadingMode::CU_MODULE_LAZY_LOADING as c_uint) };
    Ok(())
}
