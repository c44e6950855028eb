//! Telling a forked child that it is one, by a page that the kernel wipes in children, and keeping descriptors from it.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, AtomicU8, Ordering};

use cuda_abi::{CuError, CuResult};

use super::moving::on_a_thread;

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

/// Runs something on a thread that has its descriptors for itself: no child is given what is opened there, whoever forks it, and however.
///
/// # Errors
/// What it fails with; `MAP_FAILED` when there is no such thread to be had.
pub(super) fn with_own_descriptors<T: Send>(body: impl FnOnce() -> CuResult<T> + Send) -> CuResult<T> {
    on_a_thread(|| {
        // Where a filter of system calls denies it there is the moment in which a child may be given one, too.
        // SAFETY: closes what this thread has just got for itself, and nothing that others have.
        unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_UNSHARE) };
        body()
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::FromRawFd;

    /// Whether a thread has a descriptor of that file.
    fn has(thread: &str, name: &str) -> bool {
        let all = std::fs::read_dir(format!("/proc/{thread}/fd")).unwrap().flatten();
        all.filter_map(|entry| std::fs::read_link(entry.path()).ok())
            .any(|file| file.to_string_lossy().contains(name))
    }

    #[test]
    fn others_have_no_descriptor_of_what_is_opened_apart() {
        let (ours, others) = with_own_descriptors(|| {
            // SAFETY: a NUL-terminated name.
            let file = unsafe { libc::memfd_create(c"apart".as_ptr(), libc::MFD_CLOEXEC) };
            // SAFETY: the descriptor just made.
            let _file = unsafe { File::from_raw_fd(file) };
            Ok((has("thread-self", "memfd:apart"), has("self", "memfd:apart")))
        })
        .unwrap();
        assert_eq!((ours, others), (true, false));
    }
}
