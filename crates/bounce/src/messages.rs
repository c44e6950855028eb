//! `sendmsg` and `recvmsg`, and what they have that `read` and `write` have not: flags, names, control data.

use crate::buffer::{How, MESSAGE, MOST, Mapping, PAGE, Way, by_buffer, is_of_device, one_by_buffer};
use crate::io::parts;
use crate::next::{entry, next, set_errno};
use libc::{c_int, c_void, iovec, msghdr, size_t, sockaddr, socklen_t, ssize_t};
use std::mem::MaybeUninit;
use std::ptr::null_mut;

/// How messages are received with these flags, in several chunks only if that is right otherwise.
fn receiving(flags: c_int, may_go_on: bool) -> How {
    let waits = may_go_on && flags & libc::MSG_WAITALL != 0 && flags & libc::MSG_PEEK == 0;
    // With `MSG_TRUNC` bytes may be counted that are put nowhere.
    How { way: Way::Into, most: MOST, chunk: MESSAGE, keeps: flags & libc::MSG_TRUNC != 0, goes_on: waits }
}

fn sending() -> How {
    How { way: Way::From, most: MOST, chunk: MESSAGE, keeps: false, goes_on: true }
}

entry!(recv if "rsi" => slow_recv);
entry!(__recv_chk if "rsi" => slow_recv_chk);
entry!(send if "rsi" => slow_send);
entry!(recvfrom if is_addressed => slow_recvfrom);
entry!(__recvfrom_chk if is_addressed_chk => slow_recvfrom_chk);
entry!(sendto if is_addressed => slow_sendto);
entry!(recvmsg if is_message => slow_recvmsg);
entry!(sendmsg if is_message => slow_sendmsg);

extern "C" fn slow_recv(fd: c_int, at: *mut c_void, bytes: size_t, flags: c_int) -> ssize_t {
    one_by_buffer(
        (at, bytes),
        &receiving(flags, true),
        |at, bytes, _| next!(recv(fd => c_int, at => *mut c_void, bytes => size_t, flags => c_int) -> ssize_t),
    )
}

extern "C" fn slow_recv_chk(
    fd: c_int,
    at: *mut c_void,
    bytes: size_t,
    room: size_t,
    flags: c_int,
) -> ssize_t {
    if bytes <= room {
        return slow_recv(fd, at, bytes, flags);
    }
    // It ends the process.
    next!(__recv_chk(fd => c_int, at => *mut c_void, bytes => size_t, room => size_t, flags => c_int) -> ssize_t)
}

extern "C" fn slow_send(fd: c_int, at: *mut c_void, bytes: size_t, flags: c_int) -> ssize_t {
    one_by_buffer(
        (at, bytes),
        &sending(),
        |at, bytes, _| next!(send(fd => c_int, at => *mut c_void, bytes => size_t, flags => c_int) -> ssize_t),
    )
}

/// Whether what is sent or received, its name, or that one's length is of a device's memory. Where it is a number it is a small one.
extern "C" fn is_addressed(
    _fd: c_int,
    at: *const c_void,
    _bytes: size_t,
    _flags: c_int,
    name: *const c_void,
    length: *const c_void,
) -> bool {
    [at, name, length].into_iter().any(is_of_device)
}

/// The same of `__recvfrom_chk`, whose last argument is on the stack, and beside the name where one keeps the other.
extern "C" fn is_addressed_chk(
    fd: c_int,
    at: *const c_void,
    bytes: size_t,
    _room: size_t,
    flags: c_int,
    name: *const c_void,
) -> bool {
    is_addressed(fd, at, bytes, flags, name, std::ptr::null())
}

extern "C" fn slow_recvfrom(
    fd: c_int,
    at: *mut c_void,
    bytes: size_t,
    flags: c_int,
    name: *mut sockaddr,
    length: *mut socklen_t,
) -> ssize_t {
    let mut part = iovec { iov_base: at, iov_len: bytes };
    let mut message = message(&raw mut part, name.cast());
    if !name.is_null() {
        // SAFETY: who gives room for a name says how much.
        message.msg_namelen = unsafe { *length };
    }
    let received = slow_recvmsg(fd, &raw mut message, flags);
    if received >= 0 && !name.is_null() {
        // SAFETY: the same.
        unsafe { *length = message.msg_namelen };
    }
    received
}

extern "C" fn slow_recvfrom_chk(
    fd: c_int,
    at: *mut c_void,
    bytes: size_t,
    room: size_t,
    flags: c_int,
    name: *mut sockaddr,
    length: *mut socklen_t,
) -> ssize_t {
    if bytes <= room {
        return slow_recvfrom(fd, at, bytes, flags, name, length);
    }
    // It ends the process.
    next!(__recvfrom_chk(
        fd => c_int, at => *mut c_void, bytes => size_t, room => size_t, flags => c_int, name => *mut sockaddr, length => *mut socklen_t
    ) -> ssize_t)
}

extern "C" fn slow_sendto(
    fd: c_int,
    at: *mut c_void,
    bytes: size_t,
    flags: c_int,
    name: *mut sockaddr,
    length: socklen_t,
) -> ssize_t {
    let mut part = iovec { iov_base: at, iov_len: bytes };
    let mut message = message(&raw mut part, name.cast());
    message.msg_namelen = length;
    slow_sendmsg(fd, &raw const message, flags)
}

/// A message of one part.
fn message(part: *mut iovec, name: *mut c_void) -> msghdr {
    // SAFETY: zeros are one.
    let mut message: msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    (message.msg_iov, message.msg_iovlen, message.msg_name) = (part, 1, name);
    message
}

/// Whether any of a message is of a device's memory.
extern "C" fn is_message(_fd: c_int, message: *const msghdr) -> bool {
    // SAFETY: the caller's message, if it gives one.
    is_of_device(message.cast()) || unsafe { given(message) }.is_some_and(|message| is_any(&message))
}

fn is_any(message: &msghdr) -> bool {
    let list = message.msg_iov.cast_const().cast();
    // SAFETY: the caller's list.
    let parts = unsafe { parts(message.msg_iov, count(message)) };
    let parts = parts.into_iter().flatten().map(|part| part.iov_base.cast_const());
    parts.chain([list, message.msg_name, message.msg_control]).any(is_of_device)
}

fn count(message: &msghdr) -> c_int {
    c_int::try_from(message.msg_iovlen).unwrap_or(c_int::MAX)
}

/// A copy of the caller's message; `None` where the kernel refuses it.
///
/// # Safety
/// It points to one, unless it is null or close to that.
unsafe fn given(message: *const msghdr) -> Option<msghdr> {
    // SAFETY: as the caller says.
    (message.addr() >= PAGE).then(|| unsafe { message.read() })
}

/// Names and control data of this library's own, in place of those that are of a device's memory.
struct Beside {
    of: msghdr,
    room: Option<Mapping>,
}

impl Beside {
    /// Where control data are in the room: names are no longer.
    const CONTROL: usize = PAGE;
    /// The most that a name has, and control data have (`net.core.optmem_max` is less).
    const MOST: usize = 1 << 20;

    /// Room for those of a message, with what they hold; `Err` with an error's number.
    fn new(of: msghdr) -> Result<Self, c_int> {
        if !is_of_device(of.msg_name) && !is_of_device(of.msg_control) {
            return Ok(Self { of, room: None });
        }
        let (name, control) = (of.msg_namelen as usize, of.msg_controllen);
        if name > Self::CONTROL || control > Self::MOST {
            return Err(libc::EINVAL);
        }
        let room = Mapping::new(Self::CONTROL + control + 1).ok_or(libc::ENOMEM)?;
        let this = Self { of, room: Some(room) };
        for (own, ours, bytes) in this.both(name, control) {
            // SAFETY: so many bytes of the caller's, and room for them.
            unsafe { ours.cast::<u8>().copy_from_nonoverlapping(own.cast(), bytes) };
        }
        Ok(this)
    }

    /// The caller's name and control data that have room here, and where that is, and how many bytes of each.
    fn both(&self, name: usize, control: usize) -> impl Iterator<Item = (*mut c_void, *mut c_void, usize)> {
        let room = self.room.as_ref().map_or(null_mut(), Mapping::at);
        let both = [
            (self.of.msg_name, room, name),
            (self.of.msg_control, room.wrapping_byte_add(Self::CONTROL), control),
        ];
        both.into_iter().filter(|(own, ..)| is_of_device(*own))
    }

    /// The message with these in their places, and these parts.
    fn with(&self, parts: &[iovec]) -> msghdr {
        let mut message = msghdr { msg_iov: parts.as_ptr().cast_mut(), msg_iovlen: parts.len(), ..self.of };
        for (own, ours, _) in self.both(0, 0) {
            let place =
                if own == self.of.msg_name { &mut message.msg_name } else { &mut message.msg_control };
            *place = ours;
        }
        message
    }

    /// What has been received to them goes to the caller's.
    fn empty(&self, received: &msghdr) {
        let name = received.msg_namelen.min(self.of.msg_namelen) as usize;
        for (own, ours, bytes) in self.both(name, received.msg_controllen.min(self.of.msg_controllen)) {
            // SAFETY: no more than each has room for.
            unsafe { own.cast::<u8>().copy_from_nonoverlapping(ours.cast(), bytes) };
        }
    }
}

extern "C" fn slow_sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    let ask = |message: *const msghdr| next!(sendmsg(fd => c_int, message => *const msghdr, flags => c_int) -> ssize_t);
    let sent = by_message(
        message,
        |_| sending(),
        |beside, given, done| {
            let mut part = beside.with(given);
            if done > 0 {
                // Descriptors go once.
                (part.msg_control, part.msg_controllen) = (null_mut(), 0);
            }
            ask(&raw const part)
        },
    );
    sent.unwrap_or_else(|| ask(message))
}

extern "C" fn slow_recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    let ask =
        |message: *mut msghdr| next!(recvmsg(fd => c_int, message => *mut msghdr, flags => c_int) -> ssize_t);
    // What comes with a message comes with one chunk.
    let how = |of: &msghdr| receiving(flags, of.msg_control.is_null());
    let received = by_message(message, how, |beside, given, _| {
        let mut part = beside.with(given);
        let received = ask(&raw mut part);
        if received >= 0 {
            beside.empty(&part);
            // SAFETY: the caller's message; all else in it stays.
            unsafe {
                (*message).msg_namelen = part.msg_namelen;
                (*message).msg_controllen = part.msg_controllen;
                (*message).msg_flags = part.msg_flags;
            }
        }
        received
    });
    received.unwrap_or_else(|| ask(message))
}

/// Does `call` for the parts of a message as [`by_buffer`] does; `None` where the kernel refuses it as it is.
fn by_message(
    message: *const msghdr,
    how: impl Fn(&msghdr) -> How,
    mut call: impl FnMut(&Beside, &[iovec], usize) -> ssize_t,
) -> Option<ssize_t> {
    // SAFETY: the caller's message, if it gives one.
    let of = unsafe { given(message) }?;
    // SAFETY: its list.
    let parts = unsafe { parts(of.msg_iov, count(&of)) }?;
    Some(match Beside::new(of) {
        Ok(beside) => by_buffer(parts, &how(&of), |given, done| call(&beside, given, done)),
        Err(error) => {
            set_errno(error);
            -1
        }
    })
}
