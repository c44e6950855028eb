//! `sendmsg` and `recvmsg`.

use crate::buffer::{Way, by_buffer};
use crate::next::next;
use libc::{c_int, iovec, msghdr, ssize_t};
use std::ptr::null_mut;

/// A message like this one, with these parts.
fn with_parts(message: &msghdr, parts: &[iovec]) -> msghdr {
    msghdr { msg_iov: parts.as_ptr().cast_mut(), msg_iovlen: parts.len(), ..*message }
}

/// As the C library's.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let by_buffer = |message: &msghdr| {
        let call = |given: &[iovec], done: usize| {
            let mut part = with_parts(message, given);
            if done > 0 {
                // Descriptors go once.
                (part.msg_control, part.msg_controllen) = (null_mut(), 0);
            }
            next!(sendmsg(fd => c_int, &raw const part => *const msghdr, flags => c_int) -> ssize_t)
        };
        // SAFETY: memory that the caller has the kernel read.
        unsafe { by_buffer((message.msg_iov, message.msg_iovlen), (Way::From, || true), call) }
    };
    // SAFETY: the caller's message, if it gives one.
    match unsafe { message.as_ref() }.and_then(by_buffer) {
        Some(sent) => sent,
        None => next!(sendmsg(fd => c_int, message => *const msghdr, flags => c_int) -> ssize_t),
    }
}

/// As the C library's.
///
/// # Safety
/// As the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let by_buffer = |message: &mut msghdr| {
        let (parts, count) = (message.msg_iov, message.msg_iovlen);
        let call = |given: &[iovec], _: usize| {
            let mut part = with_parts(message, given);
            let received =
                next!(recvmsg(fd => c_int, &raw mut part => *mut msghdr, flags => c_int) -> ssize_t);
            *message = msghdr { msg_iov: parts, msg_iovlen: count, ..part };
            received
        };
        // SAFETY: memory that the caller has the kernel write.
        unsafe { by_buffer((parts, count), (Way::Into, || flags & libc::MSG_WAITALL != 0), call) }
    };
    // SAFETY: the caller's message, if it gives one.
    match unsafe { message.as_mut() }.and_then(by_buffer) {
        Some(received) => received,
        None => next!(recvmsg(fd => c_int, message => *mut msghdr, flags => c_int) -> ssize_t),
    }
}
