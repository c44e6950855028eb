//! The kernel's part: reserving and mapping pages at given addresses.

use std::io;

use super::MemoryError;

/// Bytes of a page of the host.
pub const PAGE: u64 = 4096;

/// Checks that a range is of whole pages.
pub fn whole(base: u64, bytes: u64) -> Result<(), MemoryError> {
    let whole = bytes > 0 && (base | bytes).is_multiple_of(PAGE) && base.checked_add(bytes).is_some();
    if whole { Ok(()) } else { Err(MemoryError::Malformed { base, bytes }) }
}

fn map(base: u64, bytes: u64, prot: i32, flags: i32) -> Result<(), MemoryError> {
    let (Ok(address), Ok(length)) = (usize::try_from(base), usize::try_from(bytes)) else {
        return Err(MemoryError::Malformed { base, bytes });
    };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | flags;
    // SAFETY: MAP_FIXED_NOREPLACE replaces nothing; MAP_FIXED is used only (below) inside a range reserved so before.
    let at = unsafe { libc::mmap(address as *mut libc::c_void, length, prot, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        return Err(MemoryError::Taken { base, bytes, source: io::Error::last_os_error() });
    }
    if at as usize != address {
        // SAFETY: the mapping that this call has just made.
        unsafe { libc::munmap(at, length) };
        let source = io::Error::from(io::ErrorKind::AddrInUse);
        return Err(MemoryError::Taken { base, bytes, source });
    }
    Ok(())
}

/// Claims a range in which nothing is mapped; nothing can be read or written there.
pub fn reserve(base: u64, bytes: u64) -> Result<(), MemoryError> {
    map(base, bytes, libc::PROT_NONE, libc::MAP_FIXED_NOREPLACE)
}

/// Puts zeros behind a part of a reserved range.
pub fn commit(base: u64, bytes: u64) -> Result<(), MemoryError> {
    map(base, bytes, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_FIXED)
}

/// Puts the beginning of a file behind a part of a reserved range.
pub fn share(file: i32, base: u64, bytes: u64) -> Result<(), MemoryError> {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_SHARED | libc::MAP_NORESERVE | libc::MAP_FIXED;
    // SAFETY: MAP_FIXED is used only inside a range reserved before, where nothing is mapped, which the caller has seen to.
    let at = unsafe { libc::mmap(base as *mut libc::c_void, bytes as usize, prot, flags, file, 0) };
    if at == libc::MAP_FAILED {
        return Err(MemoryError::Taken { base, bytes, source: io::Error::last_os_error() });
    }
    Ok(())
}

/// Takes away what [`commit`] or [`share`] put there; the range stays reserved.
pub fn decommit(base: u64, bytes: u64) -> Result<(), MemoryError> {
    map(base, bytes, libc::PROT_NONE, libc::MAP_FIXED)
}

/// Gives a reserved range back.
pub fn release(base: u64, bytes: u64) {
    // SAFETY: the range was reserved by this module, and its owner gives it up.
    unsafe { libc::munmap(base as *mut libc::c_void, bytes as usize) };
}
