//! The addresses of device memory, kept free of other mappings in this process. They hold nothing and cost nothing.
//!
//! What keeps them is a shared mapping of the session's file, which nobody can touch, and not a private one of nothing: of each page of private
//! addresses, used or not, CRIU makes a note of 32 bytes where it leaves memory out of a dump. Shadow pages would cut it into thousands of
//! mappings of one file, between which CRIU restores the shadows' own files wrongly; so where there are any a private one takes its place.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use super::memory::ARENAS;

/// Each device's, bytes.
const ARENA: u64 = 4 << 40;

/// The devices whose addresses are kept, a bit each.
static KEPT: AtomicU64 = AtomicU64::new(0);

fn arena(device: usize) -> u64 {
    ARENAS.start + device as u64 * ARENA
}

/// Keeps those of so many devices.
///
/// # Errors
/// The number of the first whose addresses it could not have.
pub fn keep(folder: &Path, devices: usize) -> Result<(), usize> {
    let file = open(&folder.join("session"));
    let flags = match file {
        // Who may not open it reserves them the dear way.
        -1 => PRIVATE,
        _ => libc::MAP_SHARED,
    };
    let mut kept = Ok(());
    for device in 0..devices {
        // SAFETY: MAP_FIXED_NOREPLACE replaces no mapping.
        if unsafe { map(arena(device), ARENA, flags | libc::MAP_FIXED_NOREPLACE, file) } {
            KEPT.fetch_or(1 << device, Ordering::Relaxed);
        } else {
            kept = kept.and(Err(device));
        }
    }
    if file >= 0 {
        // SAFETY: the descriptor opened above.
        unsafe { libc::close(file) };
    }
    kept
}

/// Prepares them for shadow pages. To be called before the first of these is mapped.
pub fn keep_for_shadows() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let kept = KEPT.load(Ordering::Relaxed);
        for device in (0..u64::BITS as usize).filter(|device| kept & 1 << device != 0) {
            // SAFETY: what is replaced is this module's own, in which nothing has been mapped yet.
            if !unsafe { map(arena(device), ARENA, PRIVATE | libc::MAP_FIXED, -1) } {
                KEPT.fetch_and(!(1 << device), Ordering::Relaxed);
            }
        }
    });
}

/// Whether all of these addresses are kept: what is there is a reservation of this module's, or what was mapped in it. Where they are not
/// the program may have something of its own.
pub fn are_kept(address: u64, bytes: u64) -> bool {
    let kept = KEPT.load(Ordering::Relaxed);
    (0..u64::BITS as usize).filter(|device| kept & 1 << device != 0).any(|device| {
        let first = arena(device);
        address >= first && bytes <= ARENA && address - first <= ARENA - bytes
    })
}

/// Takes whole pages out of use; their addresses stay reserved.
///
/// # Safety
/// The addresses are kept ([`are_kept`]), and nobody may use the pages any more.
pub unsafe fn keep_again(address: u64, bytes: u64) {
    // SAFETY: as the caller says.
    unsafe { map(address, bytes, PRIVATE | libc::MAP_FIXED, -1) };
}

const PRIVATE: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

fn open(path: &Path) -> libc::c_int {
    let Ok(name) = CString::new(path.as_os_str().as_bytes()) else { return -1 };
    // SAFETY: a NUL-terminated name.
    unsafe { libc::open(name.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NOFOLLOW) }
}

/// # Safety
/// With `MAP_FIXED` what was there is gone.
unsafe fn map(address: u64, bytes: u64, flags: libc::c_int, file: libc::c_int) -> bool {
    let wanted = std::ptr::without_provenance_mut(address as usize);
    let flags = flags | libc::MAP_NORESERVE;
    // SAFETY: replaces what the caller gives up, or nothing; nobody can touch the pages.
    let got = unsafe { libc::mmap(wanted, bytes as usize, libc::PROT_NONE, flags, file, 0) };
    if got != wanted {
        if got != libc::MAP_FAILED {
            // SAFETY: a kernel that does not know MAP_FIXED_NOREPLACE put the mapping elsewhere; nobody else knows it.
            unsafe { libc::munmap(got, bytes as usize) };
        }
        return false;
    }
    // A child has no session, and would keep the file of this one.
    // SAFETY: the mapping just made.
    file < 0 || unsafe { libc::madvise(got, bytes as usize, libc::MADV_DONTFORK) == 0 }
}
