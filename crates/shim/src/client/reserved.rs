//! The addresses of device memory, kept free of other mappings in this process. They hold nothing and cost nothing.
//!
//! What keeps them is a shared mapping of the session's file, which nobody can touch, and not a private one of nothing: of each page of private
//! addresses, used or not, CRIU makes a note of 32 bytes where it leaves memory out of a dump.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::memory::ARENAS;

/// Each device's, bytes.
const ARENA: u64 = 4 << 40;

/// Keeps those of so many devices.
///
/// # Errors
/// The number of the first whose addresses it could not have.
pub fn keep(folder: &Path, devices: usize) -> Result<(), usize> {
    (0..devices).try_for_each(|device| {
        let address = ARENAS.start + device as u64 * ARENA;
        // SAFETY: MAP_FIXED_NOREPLACE replaces no mapping.
        if unsafe { map(folder, address, ARENA, libc::MAP_FIXED_NOREPLACE) } { Ok(()) } else { Err(device) }
    })
}

/// Takes whole pages out of use; their addresses stay reserved.
///
/// # Safety
/// The pages are of the arenas, and nobody may use them any more.
pub unsafe fn keep_again(folder: &Path, address: u64, bytes: u64) {
    // SAFETY: as the caller says.
    unsafe { map(folder, address, bytes, libc::MAP_FIXED) };
}

/// # Safety
/// With `MAP_FIXED` what was there is gone.
unsafe fn map(folder: &Path, address: u64, bytes: u64, fixed: libc::c_int) -> bool {
    let Ok(name) = CString::new(folder.join("session").as_os_str().as_bytes()) else { return false };
    // SAFETY: a NUL-terminated name.
    let file = unsafe { libc::open(name.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW) };
    let flags = match file {
        // Who may not open it any more reserves them the dear way.
        -1 => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
        _ => libc::MAP_SHARED | libc::MAP_NORESERVE,
    };
    let wanted = std::ptr::without_provenance_mut(address as usize);
    // So that neighbours are one mapping.
    let offset = (address - ARENAS.start) as libc::off_t;
    // SAFETY: replaces what the caller gives up, or nothing; nobody can touch the pages.
    let got = unsafe { libc::mmap(wanted, bytes as usize, libc::PROT_NONE, flags | fixed, file, offset) };
    if file >= 0 {
        // SAFETY: the descriptor opened above.
        unsafe { libc::close(file) };
    }
    if got != wanted {
        if got != libc::MAP_FAILED {
            // SAFETY: a kernel that does not know MAP_FIXED_NOREPLACE put the mapping elsewhere; nobody else knows it.
            unsafe { libc::munmap(got, bytes as usize) };
        }
        return false;
    }
    // A child has no session, and would keep the file of this one.
    // SAFETY: the mapping just made.
    unsafe { libc::madvise(got, bytes as usize, libc::MADV_DONTFORK) == 0 }
}
