//! Names and texts of errors: a static table, whose strings live for ever.

use std::ffi::{CStr, c_char, c_uint};

use cuda_abi::{CudaError, CudaResult};

/// Gives the error's name.
pub unsafe fn cuGetErrorName(error: c_uint, pStr: *mut *const c_char) -> CudaResult {
    // SAFETY: the caller's contract is the same.
    unsafe { give(pStr, CudaError::check(error).map_or_else(CudaError::name, |()| Some(c"CUDA_SUCCESS"))) }
}

/// Gives the error's text.
pub unsafe fn cuGetErrorString(error: c_uint, pStr: *mut *const c_char) -> CudaResult {
    // SAFETY: the caller's contract is the same.
    unsafe { give(pStr, CudaError::check(error).map_or_else(CudaError::text, |()| Some(c"no error"))) }
}

/// Writes the string, or NULL for a code that has none.
unsafe fn give(to: *mut *const c_char, string: Option<&'static CStr>) -> CudaResult {
    if to.is_null() {
        return Err(CudaError::INVALID_VALUE);
    }
    // SAFETY: not NULL, so the caller's to write to.
    unsafe { to.write(string.map_or(std::ptr::null(), CStr::as_ptr)) };
    if string.is_some() { Ok(()) } else { Err(CudaError::INVALID_VALUE) }
}
