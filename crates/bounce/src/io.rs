//! `read`, `write`, and those like them.

use crate::buffer::{How, MOST, Way, by_buffer, is_of_device, keeping_errno, one_by_buffer};
use crate::next::{entry, next};
use libc::{c_int, c_uint, c_void, iovec, off_t, size_t, ssize_t};
use std::mem::MaybeUninit;

/// Whether a descriptor gives all that it is asked for, if it has that: then what is read by several calls is what one would have read.
fn is_file(fd: c_int) -> bool {
    let mut about = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: room for what is written.
    if keeping_errno(|| unsafe { libc::fstat(fd, about.as_mut_ptr()) }) != 0 {
        return false;
    }
    // SAFETY: it has been filled.
    let mode = unsafe { about.assume_init() }.st_mode & libc::S_IFMT;
    mode != libc::S_IFIFO && mode != libc::S_IFSOCK
}

/// How the kernel moves bytes.
fn kernel<F: Fn() -> bool>(way: Way, goes_on: F) -> How<F> {
    How { way, most: MOST, keeps: false, goes_on }
}

/// One buffer: the function that is called if it is one of a device's memory, for each chunk with what `call` says.
macro_rules! one {
    ($(
        $way:ident $name:ident $slow:ident($($before:ident: $b:ty,)* [$at:ident, $bytes:ident] $(, $after:ident: $a:ty)*)
            if $register:literal, goes_on $goes_on:expr; |$done:ident| $call:expr;
    )*) => {$(
        entry!($name if $register => $slow);

        extern "C" fn $slow($($before: $b,)* $at: *mut c_void, $bytes: size_t $(, $after: $a)*) -> ssize_t {
            one_by_buffer(($at, $bytes), &kernel(Way::$way, || $goes_on), |$at, $bytes, $done| $call)
        }
    )*};
}

one! {
    Into read slow_read(fd: c_int, [at, bytes]) if "rsi", goes_on is_file(fd);
        |_done| next!(read(fd => c_int, at => *mut c_void, bytes => size_t) -> ssize_t);
    From write slow_write(fd: c_int, [at, bytes]) if "rsi", goes_on true;
        |_done| next!(write(fd => c_int, at => *mut c_void, bytes => size_t) -> ssize_t);
    Into pread slow_pread(fd: c_int, [at, bytes], offset: off_t) if "rsi", goes_on is_file(fd);
        |done| next!(pread(fd => c_int, at => *mut c_void, bytes => size_t, behind(offset, done) => off_t) -> ssize_t);
    Into pread64 slow_pread64(fd: c_int, [at, bytes], offset: off_t) if "rsi", goes_on is_file(fd);
        |done| next!(pread64(fd => c_int, at => *mut c_void, bytes => size_t, behind(offset, done) => off_t) -> ssize_t);
    From pwrite slow_pwrite(fd: c_int, [at, bytes], offset: off_t) if "rsi", goes_on true;
        |done| next!(pwrite(fd => c_int, at => *mut c_void, bytes => size_t, behind(offset, done) => off_t) -> ssize_t);
    From pwrite64 slow_pwrite64(fd: c_int, [at, bytes], offset: off_t) if "rsi", goes_on true;
        |done| next!(pwrite64(fd => c_int, at => *mut c_void, bytes => size_t, behind(offset, done) => off_t) -> ssize_t);
    Into getrandom slow_getrandom([at, bytes], flags: c_uint) if "rdi", goes_on true;
        |_done| next!(getrandom(at => *mut c_void, bytes => size_t, flags => c_uint) -> ssize_t);
}

/// What is read into a buffer whose size the compiler knows, and the C library compares (`_FORTIFY_SOURCE`): what does not fit ends the process there.
macro_rules! checked {
    ($($name:ident $slow:ident($($argument:ident: $type:ty),*) if $fits:expr => $plain:ident($($given:ident),*);)*) => {$(
        entry!($name if "rsi" => $slow);

        extern "C" fn $slow($($argument: $type),*) -> ssize_t {
            if $fits { $plain($($given),*) } else { next!($name($($argument => $type),*) -> ssize_t) }
        }
    )*};
}

checked! {
    __read_chk slow_read_chk(fd: c_int, at: *mut c_void, bytes: size_t, room: size_t)
        if bytes <= room => slow_read(fd, at, bytes);
    __pread_chk slow_pread_chk(fd: c_int, at: *mut c_void, bytes: size_t, offset: off_t, room: size_t)
        if bytes <= room => slow_pread(fd, at, bytes, offset);
    __pread64_chk slow_pread64_chk(fd: c_int, at: *mut c_void, bytes: size_t, offset: off_t, room: size_t)
        if bytes <= room => slow_pread64(fd, at, bytes, offset);
}

/// Several buffers, as [`one`] has one.
macro_rules! several {
    ($(
        $way:ident $name:ident $slow:ident(fd, list, count $(, $after:ident: $a:ty)*) goes_on $goes_on:expr;
            |$done:ident| $($moved:expr),*;
    )*) => {$(
        entry!($name if is_listed => $slow);

        extern "C" fn $slow(fd: c_int, list: *const iovec, count: c_int $(, $after: $a)*) -> ssize_t {
            let goes_on: fn(c_int) -> bool = $goes_on;
            // SAFETY: the caller's list, if it has one.
            let Some(parts) = (unsafe { parts(list, count) }) else {
                return next!($name(fd => c_int, list => *const iovec, count => c_int $(, $after => $a)*) -> ssize_t);
            };
            by_buffer(parts, &kernel(Way::$way, || goes_on(fd)), |given, $done| {
                // No more than `PARTS`.
                let count = given.len() as c_int;
                next!($name(fd => c_int, given.as_ptr() => *const iovec, count => c_int $(, $moved => $a)*) -> ssize_t)
            })
        }
    )*};
}

/// A list as the kernel takes one; `None` where it would not.
///
/// # Safety
/// What `list` points to is as many as `count` says, unless it is null or close to that.
pub unsafe fn parts<'a>(list: *const iovec, count: c_int) -> Option<&'a [iovec]> {
    let count = usize::try_from(count).ok().filter(|count| (1..=1024).contains(count))?;
    // SAFETY: as the caller says.
    (list.addr() >= 4096).then(|| unsafe { std::slice::from_raw_parts(list, count) })
}

/// Whether a list or one of its parts is of a device's memory.
extern "C" fn is_listed(_fd: c_int, list: *const iovec, count: c_int) -> bool {
    // SAFETY: the caller's list.
    let parts = unsafe { parts(list, count) };
    is_of_device(list.cast())
        || parts.is_some_and(|parts| parts.iter().any(|part| is_of_device(part.iov_base)))
}

/// Where a chunk goes on, of what begins at an offset; or, if that is none, where the descriptor is.
fn behind(offset: off_t, done: usize) -> off_t {
    if offset < 0 { offset } else { offset + done as off_t }
}

several! {
    Into readv slow_readv(fd, list, count) goes_on is_file; |_done| ;
    From writev slow_writev(fd, list, count) goes_on |_| true; |_done| ;
    Into preadv slow_preadv(fd, list, count, offset: off_t) goes_on is_file; |done| behind(offset, done);
    Into preadv64 slow_preadv64(fd, list, count, offset: off_t) goes_on is_file; |done| behind(offset, done);
    From pwritev slow_pwritev(fd, list, count, offset: off_t) goes_on |_| true; |done| behind(offset, done);
    From pwritev64 slow_pwritev64(fd, list, count, offset: off_t) goes_on |_| true; |done| behind(offset, done);
    Into preadv2 slow_preadv2(fd, list, count, offset: off_t, flags: c_int) goes_on is_file;
        |done| behind(offset, done), flags;
    Into preadv64v2 slow_preadv64v2(fd, list, count, offset: off_t, flags: c_int) goes_on is_file;
        |done| behind(offset, done), flags;
    From pwritev2 slow_pwritev2(fd, list, count, offset: off_t, flags: c_int) goes_on |_| true;
        |done| behind(offset, done), flags;
    From pwritev64v2 slow_pwritev64v2(fd, list, count, offset: off_t, flags: c_int) goes_on |_| true;
        |done| behind(offset, done), flags;
}

entry!(getentropy if "rdi" => slow_getentropy);

extern "C" fn slow_getentropy(at: *mut c_void, bytes: size_t) -> c_int {
    let got = one_by_buffer((at, bytes), &kernel(Way::Into, || true), |at, bytes, _| {
        match next!(getentropy(at => *mut c_void, bytes => size_t) -> c_int) {
            0 => bytes as ssize_t,
            failed => failed as ssize_t,
        }
    });
    if usize::try_from(got) == Ok(bytes) { 0 } else { -1 }
}

entry!(arc4random_buf if "rdi" => slow_arc4random_buf);

extern "C" fn slow_arc4random_buf(at: *mut c_void, bytes: size_t) {
    let how = How { most: usize::MAX, ..kernel(Way::Into, || true) };
    one_by_buffer((at, bytes), &how, |at, bytes, _| {
        next!(arc4random_buf(at => *mut c_void, bytes => size_t) -> isize);
        bytes as ssize_t
    });
}
