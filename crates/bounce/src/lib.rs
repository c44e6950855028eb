//! `libdormouse_bounce.so`: the C library's functions that read and write, for a program whose shadow pages are kept by a userfaultfd of user mode
//! only (`dormouse run --user-faults`, `docs/shadow-pages.md`).
//!
//! With such a userfaultfd the kernel fails with `EFAULT` where it would itself touch a page of managed memory that is not there, or may not be
//! written. These functions hand it a buffer instead and copy between that and managed memory here, where faults are served. All other memory
//! goes to the C library as it is.
//!
//! What else is given managed memory fails: system calls made without the C library or inside of it (`printf` of a long string, a contended mutex
//! there), paths, `ioctl`, `io_uring`, `vmsplice`, another process's `process_vm_readv`.

mod buffer;
mod io;
mod messages;
mod next;
mod streams;
#[cfg(test)]
mod tests;

/// Tells the shim that this library is there.
#[unsafe(no_mangle)]
pub static dormouse_bounces: u8 = 1;
