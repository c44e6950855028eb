//! `fread` and `fwrite`, which give the kernel the caller's own memory where they have much to move.

use crate::buffer::{How, PIECE, Way, one_by_buffer};
use crate::next::{entry, next};
use libc::{FILE, c_void, size_t, ssize_t};

unsafe extern "C" {
    fn flockfile(stream: *mut FILE);
    fn funlockfile(stream: *mut FILE);
    fn __fbufsize(stream: *mut FILE) -> size_t;
}

/// Past a smaller buffer than this glibc has the kernel take what it could copy there.
const COPIED: size_t = 128;

/// A function of a stream, and the same where the caller has locked it.
macro_rules! streams {
    ($($way:ident $name:ident $slow:ident $unlocked:ident $slow_unlocked:ident;)*) => {$(
        entry!($name if "rdi" => $slow);
        entry!($unlocked if "rdi" => $slow_unlocked);

        extern "C" fn $slow(at: *mut c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t {
            // SAFETY: the caller's stream, of which nobody else has a part between two chunks.
            unsafe { flockfile(stream) };
            let moved = $slow_unlocked(at, size, count, stream);
            // SAFETY: the same.
            unsafe { funlockfile(stream) };
            moved
        }

        extern "C" fn $slow_unlocked(at: *mut c_void, size: size_t, count: size_t, stream: *mut FILE) -> size_t {
            let bytes = size.saturating_mul(count);
            // What is less than the stream's own buffer the C library copies from there, or to there, if that is large enough for it.
            // SAFETY: the caller's stream.
            let buffer = unsafe { __fbufsize(stream) };
            if bytes == 0 || bytes < buffer && buffer >= COPIED {
                return next!($unlocked(
                    at => *mut c_void, size => size_t, count => size_t, stream => *mut FILE
                ) -> size_t);
            }
            let how =
                How { way: Way::$way, most: usize::MAX, chunk: PIECE, keeps: false, goes_on: true };
            let moved = one_by_buffer((at, bytes), &how, |at, bytes, _| {
                let moved = next!($unlocked(at => *mut c_void, 1 => size_t, bytes => size_t, stream => *mut FILE) -> size_t);
                moved as ssize_t
            });
            usize::try_from(moved).map_or(0, |moved| moved / size)
        }
    )*};
}

streams! {
    Into fread slow_fread fread_unlocked slow_fread_unlocked;
    From fwrite slow_fwrite fwrite_unlocked slow_fwrite_unlocked;
}

/// What is read into a buffer whose size the compiler knows, and the C library compares (`_FORTIFY_SOURCE`): what does not fit ends the process there.
macro_rules! checked {
    ($($name:ident $slow:ident => $plain:ident;)*) => {$(
        entry!($name if "rdi" => $slow);

        extern "C" fn $slow(at: *mut c_void, room: size_t, size: size_t, count: size_t, stream: *mut FILE) -> size_t {
            if size.checked_mul(count).is_some_and(|bytes| bytes <= room) {
                return $plain(at, size, count, stream);
            }
            next!($name(
                at => *mut c_void, room => size_t, size => size_t, count => size_t, stream => *mut FILE
            ) -> size_t)
        }
    )*};
}

checked! {
    __fread_chk slow_fread_chk => slow_fread;
    __fread_unlocked_chk slow_fread_unlocked_chk => slow_fread_unlocked;
}
