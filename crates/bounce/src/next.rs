//! The C library's own functions, which those of this library stand before.

/// Calls the C library's function that has this name, of these types. Where it has none such the call fails with `ENOSYS`.
macro_rules! next {
    ($name:ident($($argument:expr => $type:ty),*) -> $result:ty) => {{
        static FOUND: std::sync::atomic::AtomicPtr<libc::c_void> =
            std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());
        type Function = unsafe extern "C-unwind" fn($($type),*) -> $result;
        match $crate::next::find(&FOUND, concat!(stringify!($name), "\0")) {
            // SAFETY: the C library's function of this name has this type, and is called as whoever has called this one would.
            Some(found) => unsafe { std::mem::transmute::<*mut libc::c_void, Function>(found)($($argument),*) },
            None => {
                // SAFETY: this thread's own.
                unsafe { *libc::__errno_location() = libc::ENOSYS };
                -1_i8 as $result
            }
        }
    }};
}
pub(crate) use next;

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The next function behind this library's of a name, which ends with a zero; looked for once.
pub fn find(found: &AtomicPtr<c_void>, name: &'static str) -> Option<*mut c_void> {
    let known = found.load(Ordering::Relaxed);
    if !known.is_null() {
        return Some(known);
    }
    // SAFETY: a name that ends with a zero.
    let looked = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast()) };
    found.store(looked, Ordering::Relaxed);
    (!looked.is_null()).then_some(looked)
}
