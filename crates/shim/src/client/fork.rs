//! Telling a forked child that it is one: a page that the kernel wipes in children.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use cuda_abi::{CuError, CuResult};

/// Holds 1 in the process that has the session; NULL before there is one.
static PAGE: AtomicPtr<AtomicU8> = AtomicPtr::new(std::ptr::null_mut());

/// Marks this process as the one that has the session.
///
/// # Errors
/// `OUT_OF_MEMORY`.
pub fn mark() -> CuResult {
    // SAFETY: a new private anonymous mapping; nothing existing is touched.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    if page == libc::MAP_FAILED {
        return Err(CuError::OUT_OF_MEMORY);
    }
    // SAFETY: the page just mapped.
    if unsafe { libc::madvise(page, 4096, libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: as above; nobody else knows it.
        unsafe { libc::munmap(page, 4096) };
        return Err(CuError::NOT_SUPPORTED);
    }
    let page = page.cast::<AtomicU8>();
    // SAFETY: zeroed, writable, never unmapped from here on.
    unsafe { (*page).store(1, Ordering::Release) };
    PAGE.store(page, Ordering::Release);
    Ok(())
}

/// Whether this process was forked from one that has a session.
#[inline]
pub fn is_child() -> bool {
    NonNull::new(PAGE.load(Ordering::Acquire))
        // SAFETY: `mark` never unmaps the page.
        .is_some_and(|page| unsafe { page.as_ref() }.load(Ordering::Relaxed) == 0)
}
