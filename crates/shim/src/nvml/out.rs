//! Places to write to, which belong to the caller.

use std::ffi::{c_char, c_uint};
use std::ptr::NonNull;

use super::{Answer, Error};

/// Writes a value.
///
/// # Safety
/// `to` is NULL or the caller's to write a `T` to.
pub unsafe fn put<T>(to: *mut T, value: T) -> Answer {
    let to = NonNull::new(to).ok_or(Error::INVALID_ARGUMENT)?;
    // SAFETY: not NULL, so as the caller says.
    unsafe { to.write(value) };
    Ok(())
}

/// Writes a text and a NUL, which must fit into `length` bytes.
///
/// # Safety
/// `to` is NULL or the caller's to write `length` bytes to.
pub unsafe fn put_text(to: *mut c_char, length: c_uint, text: &str) -> Answer {
    if to.is_null() {
        return Err(Error::INVALID_ARGUMENT);
    }
    if text.len() >= length as usize {
        return Err(Error::INSUFFICIENT_SIZE);
    }
    // SAFETY: not NULL, and the text and its NUL are no longer than `length`.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, text.len());
        to.add(text.len()).write(0);
    }
    Ok(())
}

/// A text as an array that ends with a NUL, cut to fit.
pub fn chars<const N: usize>(text: &str) -> [c_char; N] {
    let mut chars = [0; N];
    for (to, byte) in chars.iter_mut().take(N.saturating_sub(1)).zip(text.bytes()) {
        *to = byte as c_char;
    }
    chars
}

/// Checks the version with which a structure begins: the size of a `T` and a number.
///
/// # Safety
/// `to` is NULL or leads to an `unsigned int`.
pub unsafe fn check_version<T>(to: *const T, number: u32) -> Answer {
    if to.is_null() {
        return Err(Error::INVALID_ARGUMENT);
    }
    // SAFETY: not NULL, so as the caller says.
    let version = unsafe { to.cast::<c_uint>().read() };
    if version == version_of::<T>(number) { Ok(()) } else { Err(Error::VERSION_MISMATCH) }
}

/// `NVML_STRUCT_VERSION`.
pub const fn version_of<T>(number: u32) -> c_uint {
    size_of::<T>() as c_uint | number << 24
}
