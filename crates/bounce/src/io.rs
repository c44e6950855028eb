//! `read`, `write`, and those like them.

use crate::buffer::{
    How, MESSAGE, MOST, PAGE, PARTS, PIECE, Way, by_buffer, is_of_device, keeping_errno, one_by_buffer,
};
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

/// How the kernel moves bytes from or to a descriptor: those of a file in pieces, and in one what may be a message.
fn kernel(way: Way, fd: c_int) -> How {
    let is_file = is_file(fd);
    let goes_on = is_file || way == Way::From;
    let chunk = if is_file { PIECE } else { MESSAGE };
    How { way, most: MOST, chunk, keeps: false, goes_on }
}

/// How bytes come by chance.
fn chance(most: usize) -> How {
    How { way: Way::Into, most, chunk: PIECE, keeps: false, goes_on: true }
}

/// One buffer: the function that is called if it is one of a device's memory, for each chunk with what `call` says.
macro_rules! one {
    ($(
        $name:ident $slow:ident($($before:ident: $b:ty,)* [$at:ident, $bytes:ident] $(, $after:ident: $a:ty)*)
            if $register:literal, $how:expr; |$done:ident| $call:expr;
    )*) => {$(
        entry!($name if $register => $slow);

        extern "C" fn $slow($($before: $b,)* $at: *mut c_void, $bytes: size_t $(, $after: $a)*) -> ssize_t {
            one_by_buffer(($at, $bytes), &$how, |$at, $bytes, $done| $call)
        }
    )*};
}

one! {
    read slow_read(fd: c_int, [at, bytes]) if "rsi", kernel(Way::Into, fd);
        |_done| next!(read(fd => c_int, at => *mut c_void, bytes => size_t) -> ssize_t);
    write slow_write(fd: c_int, [at, bytes]) if "rsi", kernel(Way::From, fd);
        |_done| next!(write(fd => c_int, at => *mut c_void, bytes => size_t) -> ssize_t);
    pread slow_pread(fd: c_int, [at, bytes], offset: off_t) if "rsi", kernel(Way::Into, fd);
        |done| next!(pread(fd => c_int, at => *mut c_void, bytes => size_t, behind(offset, done) => off_t) -> ssize_t);
    pread64 slow_pread64(fd: c_int, [at, bytes], offset: off_t) if "rsi", kernel(Way::Into, fd);
        |done| next!(pread64(fd => c_int, at => *mut c_void, bytes => size_t, behind(offset, done) => off_t) -> ssize_t);
    pwrite slow_pwrite(fd: c_int, [at, bytes], offset: off_t) if "rsi", kernel(Way::From, fd);
        |done| next!(pwrite(fd => c_int, at => *mut c_void, bytes => size_t, behind(offset, done) => off_t) -> ssize_t);
    pwrite64 slow_pwrite64(fd: c_int, [at, bytes], offset: off_t) if "rsi", kernel(Way::From, fd);
        |done| next!(pwrite64(fd => c_int, at => *mut c_void, bytes => size_t, behind(offset, done) => off_t) -> ssize_t);
    getrandom slow_getrandom([at, bytes], flags: c_uint) if "rdi", chance(MOST);
        |_done| next!(getrandom(at => *mut c_void, bytes => size_t, flags => c_uint) -> ssize_t);
}

// What old programs call them.
entry!(__read if "rsi" => slow_read);
entry!(__write if "rsi" => slow_write);
entry!(__pread64 if "rsi" => slow_pread64);
entry!(__pwrite64 if "rsi" => slow_pwrite64);

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
        $way:ident $name:ident $slow:ident(fd, list, count $(, $after:ident: $a:ty)*); |$done:ident| $($moved:expr),*;
    )*) => {$(
        entry!($name if is_listed => $slow);

        extern "C" fn $slow(fd: c_int, list: *const iovec, count: c_int $(, $after: $a)*) -> ssize_t {
            // SAFETY: the caller's list, if it has one.
            let Some(parts) = (unsafe { parts(list, count) }) else {
                return next!($name(fd => c_int, list => *const iovec, count => c_int $(, $after => $a)*) -> ssize_t);
            };
            by_buffer(parts, &kernel(Way::$way, fd), |given, $done| {
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
    let count = usize::try_from(count).ok().filter(|count| (1..=PARTS).contains(count))?;
    // SAFETY: as the caller says.
    (list.addr() >= PAGE).then(|| unsafe { std::slice::from_raw_parts(list, count) })
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
    Into readv slow_readv(fd, list, count); |_done| ;
    From writev slow_writev(fd, list, count); |_done| ;
    Into preadv slow_preadv(fd, list, count, offset: off_t); |done| behind(offset, done);
    Into preadv64 slow_preadv64(fd, list, count, offset: off_t); |done| behind(offset, done);
    From pwritev slow_pwritev(fd, list, count, offset: off_t); |done| behind(offset, done);
    From pwritev64 slow_pwritev64(fd, list, count, offset: off_t); |done| behind(offset, done);
    Into preadv2 slow_preadv2(fd, list, count, offset: off_t, flags: c_int);
        |done| behind(offset, done), flags;
    Into preadv64v2 slow_preadv64v2(fd, list, count, offset: off_t, flags: c_int);
        |done| behind(offset, done), flags;
    From pwritev2 slow_pwritev2(fd, list, count, offset: off_t, flags: c_int);
        |done| behind(offset, done), flags;
    From pwritev64v2 slow_pwritev64v2(fd, list, count, offset: off_t, flags: c_int);
        |done| behind(offset, done), flags;
}

entry!(getentropy if "rdi" => slow_getentropy);

extern "C" fn slow_getentropy(at: *mut c_void, bytes: size_t) -> c_int {
    let got = one_by_buffer((at, bytes), &chance(MOST), |at, bytes, _| {
        match next!(getentropy(at => *mut c_void, bytes => size_t) -> c_int) {
            0 => bytes as ssize_t,
            failed => failed as ssize_t,
        }
    });
    if usize::try_from(got) == Ok(bytes) { 0 } else { -1 }
}

entry!(arc4random_buf if "rdi" => slow_arc4random_buf);

extern "C" fn slow_arc4random_buf(at: *mut c_void, bytes: size_t) {
    one_by_buffer((at, bytes), &chance(usize::MAX), |at, bytes, _| {
        next!(arc4random_buf(at => *mut c_void, bytes => size_t) -> isize);
        bytes as ssize_t
    });
}
