//! Names and texts of errors: a static table, whose strings live for ever.

use std::ffi::{CStr, c_char, c_uint};

use cuda_abi::{CuError, CuResult};

/// Gives the error's name.
pub unsafe fn cuGetErrorName(error: c_uint, pStr: *mut *const c_char) -> CuResult {
    // SAFETY: the caller's contract is the same.
    unsafe { give(pStr, CuError::check(error).map_or_else(CuError::name, |()| Some(c"CUDA_SUCCESS"))) }
}

/// Gives the error's text.
pub unsafe fn cuGetErrorString(error: c_uint, pStr: *mut *const c_char) -> CuResult {
    // SAFETY: the caller's contract is the same.
    unsafe { give(pStr, CuError::check(error).map_or_else(CuError::text, |()| Some(c"no error"))) }
}

/// Writes the string, or NULL for a code that has none.
unsafe fn give(to: *mut *const c_char, string: Option<&'static CStr>) -> CuResult {
    if to.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: not NULL, so the caller's to write to.
    unsafe { to.write(string.map_or(std::ptr::null(), CStr::as_ptr)) };
    if string.is_some() { Ok(()) } else { Err(CuError::INVALID_VALUE) }
}
