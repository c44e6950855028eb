//! `libdormouse_bounce.so`: the C library's functions that read and write, for a program whose shadow pages are kept by a userfaultfd of user mode
//! only (`dormouse run --user-faults`, `docs/shadow-pages.md`).
//!
//! With such a userfaultfd the kernel fails with `EFAULT` where it would itself touch a page of managed memory that is not there, or is to be
//! written and may not be yet. These functions hand it a buffer instead and copy between that and managed memory here, where faults are served.
//! A call that names no address of a device's memory goes to the C library by a jump: nothing of this library is on the stack while it waits, so a
//! thread that is cancelled there unwinds as ever. One that waits with a buffer of this library's ends the process, where that is built to abort.
//!
//! What else is given managed memory fails: `docs/managed-memory.md` names it.

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
