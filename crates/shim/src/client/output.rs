//! What kernels have printed, written where the application's own output goes.

use std::ffi::c_void;

unsafe extern "C" {
    /// The C library's, in which the application's own text waits too.
    static stdout: *mut libc::FILE;
}

/// Writes through the process's stdio, so that it comes in order with what the application prints.
pub fn write(bytes: &[u8]) {
    if !bytes.is_empty() {
        // SAFETY: `stdout` is the C library's open stream; the bytes are a slice. A closed or failing stdout loses the text,
        // as it does for the driver.
        unsafe { libc::fwrite(bytes.as_ptr().cast::<c_void>(), 1, bytes.len(), stdout) };
    }
}
