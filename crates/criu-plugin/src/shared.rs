//! The contents of files in memory that have no names, of which CRIU does not hear while it dumps: shared anonymous memory, memory files
//! (`memfd_create`) and deleted files of a tmpfs. It would copy one after the other while all stand still; the supervisor does so with several threads.
//!
//! CRIU asks where such a file has contents (`lseek` with `SEEK_DATA`). The C library's `lseek64` is the one below for it, which answers that there
//! are none behind there, keeps the file open as long as CRIU lives, and writes down where: `file PID FD`, CRIU's pid and the descriptor.

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;

use crate::withheld::write_down;

/// The environment variable that is there where these files are to be withheld.
const FILES: &str = "DORMOUSE_WITHHELD_FILES";
/// Smaller files are not worth it, bytes.
const LEAST: i64 = 1 << 20;

/// The C library's `lseek64`, for CRIU.
#[unsafe(no_mangle)]
pub extern "C" fn lseek64(fd: c_int, offset: i64, whence: c_int) -> i64 {
    if whence == libc::SEEK_DATA && std::env::var_os(FILES).is_some() && is_in_memory(fd) && keep(fd).is_ok()
    {
        // SAFETY: the thread's own.
        unsafe { *libc::__errno_location() = libc::ENXIO };
        return -1;
    }
    // SAFETY: it has no other effect than on the descriptor, which is the caller's.
    unsafe { libc::syscall(libc::SYS_lseek, fd, offset, whence) }
}

/// Whether this is a file of a tmpfs without a name, and long enough.
fn is_in_memory(fd: c_int) -> bool {
    let mut system = MaybeUninit::<libc::statfs>::zeroed();
    let mut file = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: there is room for what is written; zeros are both, too.
    let (system, file, failed) = unsafe {
        let failed = libc::fstatfs(fd, system.as_mut_ptr()) != 0 || libc::fstat(fd, file.as_mut_ptr()) != 0;
        (system.assume_init(), file.assume_init(), failed)
    };
    !failed
        && system.f_type == libc::TMPFS_MAGIC
        && file.st_mode & libc::S_IFMT == libc::S_IFREG
        && file.st_nlink == 0
        && file.st_blocks * 512 >= LEAST
}

/// Keeps the file open, and says so, if anybody wants to know.
fn keep(fd: c_int) -> io::Result<()> {
    // SAFETY: makes a descriptor that nobody else has.
    let kept = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if kept < 0 {
        return Err(io::Error::last_os_error());
    }
    let written = write_down(&format!("file {} {kept}\n", std::process::id()));
    if written.is_err() {
        // SAFETY: the descriptor from above, of which nobody has heard.
        unsafe { libc::close(kept) };
    }
    written
}
