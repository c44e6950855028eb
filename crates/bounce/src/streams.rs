//! `fread` and `fwrite`, which give the kernel the caller's own memory where they have much to move.

use crate::buffer::{Way, is_managed, one_by_buffer};
use crate::next::next;
use libc::{FILE, c_void, size_t, ssize_t};

unsafe extern "C" {
    fn flockfile(stream: *mut FILE);
    fn funlockfile(stream: *mut FILE);
}

/// A function of a stream, and the same where the caller has locked it.
macro_rules! streams {
    ($($way:ident $name:ident $unlocked:ident($at:ty);)*) => {$(
        /// As the C library's.
        ///
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(at: $at, size: size_t, count: size_t, stream: *mut FILE) -> size_t {
            if !is_managed(at.cast(), Way::$way) {
                return next!($name(at => $at, size => size_t, count => size_t, stream => *mut FILE) -> size_t);
            }
            // SAFETY: the caller's memory and stream, of which nobody else has a part between two chunks.
            unsafe {
                flockfile(stream);
                let moved = $unlocked(at, size, count, stream);
                funlockfile(stream);
                moved
            }
        }

        /// As the C library's.
        ///
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $unlocked(at: $at, size: size_t, count: size_t, stream: *mut FILE) -> size_t {
            let bytes = size.saturating_mul(count);
            let call = |at: *mut c_void, bytes: size_t, _: usize| {
                next!($unlocked(at => $at, 1 => size_t, bytes => size_t, stream => *mut FILE) -> size_t) as ssize_t
            };
            // SAFETY: the caller's memory and stream.
            match unsafe { one_by_buffer((at.cast(), bytes), (Way::$way, || true), call) } {
                Some(moved) => moved as size_t / size,
                None => next!($unlocked(at => $at, size => size_t, count => size_t, stream => *mut FILE) -> size_t),
            }
        }
    )*};
}

streams! {
    Into fread fread_unlocked(*mut c_void);
    From fwrite fwrite_unlocked(*const c_void);
}

/// What is read into a buffer whose size the compiler knows, and the C library compares (`_FORTIFY_SOURCE`).
macro_rules! checked {
    ($($name:ident => $plain:ident;)*) => {$(
        /// As the C library's.
        ///
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            at: *mut c_void, room: size_t, size: size_t, count: size_t, stream: *mut FILE
        ) -> size_t {
            if size.checked_mul(count).is_some_and(|bytes| bytes <= room) {
                // SAFETY: as the caller says.
                unsafe { $plain(at, size, count, stream) }
            } else {
                // It ends the process.
                next!($name(
                    at => *mut c_void, room => size_t, size => size_t, count => size_t, stream => *mut FILE
                ) -> size_t)
            }
        }
    )*};
}

checked! {
    __fread_chk => fread;
    __fread_unlocked_chk => fread_unlocked;
}
