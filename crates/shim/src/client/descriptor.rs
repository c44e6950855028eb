//! Descriptors that stand for memory of the device: files in memory, which CRIU brings back, each with a handle of ours in it.

use std::ffi::c_int;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd};

use cuda_abi::{CuError, CuResult};
use wire::SHARED_BYTES;

/// A descriptor with a handle in it, the application's to close.
///
/// # Errors
/// `OUT_OF_MEMORY` when there is none to be had.
pub fn make(handle: &[u8; SHARED_BYTES]) -> CuResult<c_int> {
    // SAFETY: a NUL-terminated name.
    let raw =
        unsafe { libc::memfd_create(c"cuda-memory".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if raw < 0 {
        return Err(CuError::OUT_OF_MEMORY);
    }
    // SAFETY: the descriptor just made, which nobody else has.
    let mut file = unsafe { File::from_raw_fd(raw) };
    file.write_all(handle).map_err(|_| CuError::OUT_OF_MEMORY)?;
    let seals = libc::F_SEAL_WRITE | libc::F_SEAL_GROW | libc::F_SEAL_SHRINK | libc::F_SEAL_SEAL;
    // SAFETY: a descriptor of ours.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
        return Err(CuError::OPERATING_SYSTEM);
    }
    Ok(file.into_raw_fd())
}

/// The handle in a descriptor of the application's; `None` when so many bytes cannot be read from it.
pub fn read(file: c_int) -> Option<[u8; SHARED_BYTES]> {
    let mut handle = [0u8; SHARED_BYTES];
    // SAFETY: reads into a buffer of that length; whatever the number is, the kernel tells.
    let read = unsafe { libc::pread(file, handle.as_mut_ptr().cast(), SHARED_BYTES, 0) };
    (usize::try_from(read) == Ok(SHARED_BYTES)).then_some(handle)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_holds_what_was_put_into_it() {
        let handle = [7; SHARED_BYTES];
        let file = make(&handle).unwrap();
        assert_eq!(read(file), Some(handle));
        // SAFETY: a write to a descriptor that this test has.
        assert!(unsafe { libc::write(file, handle.as_ptr().cast(), 1) } < 0, "nobody can change it");
        // SAFETY: this test's own.
        unsafe { libc::close(file) };
        assert_eq!(read(file), None);
    }
}
