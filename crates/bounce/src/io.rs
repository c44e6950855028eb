//! `read`, `write`, and those like them.
//!
//! What unwinds through here, since a thread is cancelled while the kernel has it wait, passes these functions by; but one that waits with a buffer
//! of this library's ends the process.

use crate::buffer::{Way, by_buffer, one_by_buffer};
use crate::next::next;
use libc::{c_int, c_uint, c_void, iovec, off_t, size_t, sockaddr, socklen_t, ssize_t, stat};
use std::mem::MaybeUninit;

/// Whether a descriptor gives all that it is asked for, if it has that: then what is read in several calls is what one would have read.
fn is_file(fd: c_int) -> bool {
    let mut about = MaybeUninit::<stat>::uninit();
    // SAFETY: room for what is written.
    if unsafe { libc::fstat(fd, about.as_mut_ptr()) } != 0 {
        return false;
    }
    // SAFETY: it has been filled.
    let mode = unsafe { about.assume_init() }.st_mode & libc::S_IFMT;
    mode == libc::S_IFREG || mode == libc::S_IFBLK
}

/// One buffer: what the C library's function is called with, and what is told of it. `$at`, `$bytes` and `$done` are what a chunk is called with.
macro_rules! one {
    ($(
        $way:ident $name:ident($($before:ident: $b:ty),*; $at:ident, $bytes:ident $(; $($after:ident: $a:ty),*)?)
            goes_on $goes_on:expr; |$done:ident| $call:expr;
    )*) => {$(
        /// As the C library's.
        ///
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            $($before: $b,)* $at: *mut c_void, $bytes: size_t $(, $($after: $a),*)?
        ) -> ssize_t {
            let call = |$at: *mut c_void, $bytes: usize, $done: usize| $call;
            // SAFETY: memory that the caller has the kernel touch.
            match unsafe { one_by_buffer(($at, $bytes), (Way::$way, || $goes_on), call) } {
                Some(done) => done,
                None => {
                    let $done = 0;
                    $call
                }
            }
        }
    )*};
}

one! {
    Into read(fd: c_int; at, bytes) goes_on is_file(fd);
        |_done| next!(read(fd => c_int, at => *mut c_void, bytes => size_t) -> ssize_t);
    From write(fd: c_int; at, bytes) goes_on true;
        |_done| next!(write(fd => c_int, at => *mut c_void, bytes => size_t) -> ssize_t);
    Into pread(fd: c_int; at, bytes; offset: off_t) goes_on is_file(fd);
        |done| next!(pread(fd => c_int, at => *mut c_void, bytes => size_t, offset + done as off_t => off_t) -> ssize_t);
    Into pread64(fd: c_int; at, bytes; offset: off_t) goes_on is_file(fd);
        |done| next!(pread64(fd => c_int, at => *mut c_void, bytes => size_t, offset + done as off_t => off_t) -> ssize_t);
    From pwrite(fd: c_int; at, bytes; offset: off_t) goes_on true;
        |done| next!(pwrite(fd => c_int, at => *mut c_void, bytes => size_t, offset + done as off_t => off_t) -> ssize_t);
    From pwrite64(fd: c_int; at, bytes; offset: off_t) goes_on true;
        |done| next!(pwrite64(fd => c_int, at => *mut c_void, bytes => size_t, offset + done as off_t => off_t) -> ssize_t);
    Into recv(fd: c_int; at, bytes; flags: c_int) goes_on flags & libc::MSG_WAITALL != 0;
        |_done| next!(recv(fd => c_int, at => *mut c_void, bytes => size_t, flags => c_int) -> ssize_t);
    From send(fd: c_int; at, bytes; flags: c_int) goes_on true;
        |_done| next!(send(fd => c_int, at => *mut c_void, bytes => size_t, flags => c_int) -> ssize_t);
    Into recvfrom(fd: c_int; at, bytes; flags: c_int, name: *mut sockaddr, length: *mut socklen_t)
        goes_on flags & libc::MSG_WAITALL != 0;
        |_done| next!(recvfrom(
            fd => c_int, at => *mut c_void, bytes => size_t, flags => c_int, name => *mut sockaddr, length => *mut socklen_t
        ) -> ssize_t);
    From sendto(fd: c_int; at, bytes; flags: c_int, name: *const sockaddr, length: socklen_t) goes_on true;
        |_done| next!(sendto(
            fd => c_int, at => *mut c_void, bytes => size_t, flags => c_int, name => *const sockaddr, length => socklen_t
        ) -> ssize_t);
    Into getrandom(; at, bytes; flags: c_uint) goes_on true;
        |_done| next!(getrandom(at => *mut c_void, bytes => size_t, flags => c_uint) -> ssize_t);
}

/// What is read into a buffer whose size the compiler knows, and the C library compares (`_FORTIFY_SOURCE`).
macro_rules! checked {
    ($($name:ident($($argument:ident: $type:ty),*) if $fits:expr => $plain:ident($($given:ident),*);)*) => {$(
        /// As the C library's.
        ///
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> ssize_t {
            if $fits {
                // SAFETY: as the caller says.
                unsafe { $plain($($given),*) }
            } else {
                // It ends the process.
                next!($name($($argument => $type),*) -> ssize_t)
            }
        }
    )*};
}

checked! {
    __read_chk(fd: c_int, at: *mut c_void, bytes: size_t, room: size_t) if bytes <= room => read(fd, at, bytes);
    __pread_chk(fd: c_int, at: *mut c_void, bytes: size_t, offset: off_t, room: size_t)
        if bytes <= room => pread(fd, at, bytes, offset);
    __pread64_chk(fd: c_int, at: *mut c_void, bytes: size_t, offset: off_t, room: size_t)
        if bytes <= room => pread64(fd, at, bytes, offset);
    __recv_chk(fd: c_int, at: *mut c_void, bytes: size_t, room: size_t, flags: c_int)
        if bytes <= room => recv(fd, at, bytes, flags);
    __recvfrom_chk(
        fd: c_int, at: *mut c_void, bytes: size_t, room: size_t, flags: c_int, name: *mut sockaddr, length: *mut socklen_t
    ) if bytes <= room => recvfrom(fd, at, bytes, flags, name, length);
}

/// Several buffers, as [`one`] has one; those of a list that is longer than the kernel takes it refuses.
macro_rules! several {
    ($(
        $way:ident $name:ident(fd, $list:ident, $count:ident $(, $after:ident: $a:ty)*)
            goes_on $goes_on:expr; |$done:ident| $($moved:expr),*;
    )*) => {$(
        /// As the C library's.
        ///
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            fd: c_int, $list: *const iovec, $count: c_int $(, $after: $a)*
        ) -> ssize_t {
            let count = usize::try_from($count).unwrap_or(0);
            let goes_on: fn(c_int) -> bool = $goes_on;
            let call = |given: &[iovec], $done: usize| {
                // The kernel takes no more than `int` has.
                let count = given.len() as c_int;
                next!($name(fd => c_int, given.as_ptr() => *const iovec, count => c_int $(, $moved => $a)*) -> ssize_t)
            };
            // SAFETY: memory that the caller has the kernel touch.
            match unsafe { by_buffer(($list, count), (Way::$way, || goes_on(fd)), call) } {
                Some(done) => done,
                None => next!($name(fd => c_int, $list => *const iovec, $count => c_int $(, $after => $a)*) -> ssize_t),
            }
        }
    )*};
}

/// Where a chunk goes on, of what begins at an offset; or, if that is none, where the descriptor is.
fn behind(offset: off_t, done: usize) -> off_t {
    if offset < 0 { offset } else { offset + done as off_t }
}

several! {
    Into readv(fd, list, count) goes_on is_file; |_done| ;
    From writev(fd, list, count) goes_on |_| true; |_done| ;
    Into preadv(fd, list, count, offset: off_t) goes_on is_file; |done| behind(offset, done);
    Into preadv64(fd, list, count, offset: off_t) goes_on is_file; |done| behind(offset, done);
    From pwritev(fd, list, count, offset: off_t) goes_on |_| true; |done| behind(offset, done);
    From pwritev64(fd, list, count, offset: off_t) goes_on |_| true; |done| behind(offset, done);
    Into preadv2(fd, list, count, offset: off_t, flags: c_int) goes_on is_file; |done| behind(offset, done), flags;
    Into preadv64v2(fd, list, count, offset: off_t, flags: c_int) goes_on is_file; |done| behind(offset, done), flags;
    From pwritev2(fd, list, count, offset: off_t, flags: c_int) goes_on |_| true; |done| behind(offset, done), flags;
    From pwritev64v2(fd, list, count, offset: off_t, flags: c_int) goes_on |_| true; |done| behind(offset, done), flags;
}
