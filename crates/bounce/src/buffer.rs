//! Memory of this library's own between the kernel and managed memory.

use libc::{c_int, c_void, iovec, ssize_t};
use std::ops::Range;
use std::ptr::null_mut;

/// Where memory of devices lies, and with it all managed memory that has shadow pages (`DEVICE` of the shim; `ARCHITECTURE.md`, addresses).
const DEVICE: Range<usize> = 0x2000_0000_0000..0x5000_0000_0000;
const PAGE: usize = 4096;
/// The most bytes that are given to the kernel at once.
const CHUNK: usize = 16 << 20;
/// The most that it takes of one call (`MAX_RW_COUNT`).
const MOST: usize = 0x7fff_f000;
/// The most parts that it takes (`UIO_MAXIOV`).
const PARTS: usize = 1024;

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the kernel into memory.
    Into,
    /// From memory to the kernel.
    From,
}

/// Whether there is managed memory at an address: mapped, and touched this way. Addresses of device memory, which nobody may touch, are not.
pub fn is_managed(at: *const c_void, way: Way) -> bool {
    if !DEVICE.contains(&at.addr()) {
        return false;
    }
    let advice = match way {
        Way::Into => libc::MADV_POPULATE_WRITE,
        Way::From => libc::MADV_POPULATE_READ,
    };
    let page = at.map_addr(|at| at / PAGE * PAGE).cast_mut();
    keeping_errno(|| {
        loop {
            // SAFETY: it changes no contents; what is not mapped it refuses.
            if unsafe { libc::madvise(page, PAGE, advice) } == 0 {
                return true;
            }
            match errno() {
                libc::EINTR | libc::EAGAIN => {}
                // Only a fault that the kernel may not wait for is answered so, or one beyond the end of a file.
                error => return error == libc::EFAULT,
            }
        }
    })
}

/// Whether one of these, or their list itself, is managed memory.
///
/// # Safety
/// A list of so many.
pub unsafe fn any_is_managed(parts: *const iovec, count: usize, way: Way) -> bool {
    let list = parts.cast::<c_void>();
    if count == 0 || count > PARTS || list.is_null() {
        return false;
    }
    // SAFETY: as the caller says.
    let all = || unsafe { std::slice::from_raw_parts(parts, count) };
    is_managed(list, Way::From) || all().iter().any(|part| part.iov_len > 0 && is_managed(part.iov_base, way))
}

/// Does `call`, which has the kernel fill or read memory and answers how many bytes it has, with buffers in place of those of `parts` that are managed.
/// It is called for one chunk behind the other as long as each is done whole and `goes_on`, with how many bytes were done before. The answer is how many
/// were in all, or what the first call says. `None`: none of them is managed, or there is no memory for a buffer.
///
/// # Safety
/// `count` parts at `parts`, each of which is memory that the kernel may be given.
pub unsafe fn by_buffer(
    (parts, count): (*const iovec, usize),
    (way, goes_on): (Way, impl Fn() -> bool),
    mut call: impl FnMut(&[iovec], usize) -> ssize_t,
) -> Option<ssize_t> {
    // SAFETY: as the caller says.
    if !unsafe { any_is_managed(parts, count, way) } {
        return None;
    }
    // SAFETY: the same.
    let parts = unsafe { std::slice::from_raw_parts(parts, count) };
    let all = parts.iter().fold(0usize, |all, part| all.saturating_add(part.iov_len)).min(MOST);
    let buffer = Buffer::new(parts, way, all)?;
    let mut done = 0;
    loop {
        let given = buffer.fill(done, all - done);
        let bytes: usize = given.iter().map(|part| part.iov_len).sum();
        let got = call(given, done);
        let Ok(got) = usize::try_from(got) else { return Some(if done > 0 { done as ssize_t } else { got }) };
        // A message that was cut may say how long it had been.
        buffer.empty(done, got.min(bytes));
        done += got;
        if got < bytes || done >= all || !goes_on() {
            return Some(done as ssize_t);
        }
    }
}

/// The same of one buffer of the caller's.
///
/// # Safety
/// Memory that the kernel may be given.
pub unsafe fn one_by_buffer(
    (at, bytes): (*const c_void, usize),
    how: (Way, impl Fn() -> bool),
    mut call: impl FnMut(*mut c_void, usize, usize) -> ssize_t,
) -> Option<ssize_t> {
    // Asked here: this is what every call of a program's comes by.
    if bytes == 0 || !DEVICE.contains(&at.addr()) {
        return None;
    }
    let part = iovec { iov_base: at.cast_mut(), iov_len: bytes };
    // SAFETY: as the caller says.
    unsafe {
        by_buffer((&raw const part, 1), how, |given, done| call(given[0].iov_base, given[0].iov_len, done))
    }
}

/// A mapping: a list of parts, and behind it room for a chunk of those that are managed.
struct Buffer<'a> {
    parts: &'a [iovec],
    way: Way,
    at: *mut c_void,
    bytes: usize,
}

impl<'a> Buffer<'a> {
    /// Where the list ends.
    const LIST: usize = (PARTS * size_of::<iovec>()).next_multiple_of(PAGE);

    fn new(parts: &'a [iovec], way: Way, all: usize) -> Option<Self> {
        // Each begins as it does within its own page, for files that are read past the kernel's cache.
        let bytes = Self::LIST + all.min(CHUNK) + 2 * PAGE * parts.len();
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping where the kernel likes.
        let at = keeping_errno(|| unsafe { libc::mmap(null_mut(), bytes, access, flags, -1, 0) });
        (at != libc::MAP_FAILED).then_some(Self { parts, way, at, bytes })
    }

    /// The parts of the next chunk behind so many bytes, of no more than are left, with what they hold if the kernel is to read it.
    fn fill(&self, done: usize, left: usize) -> &[iovec] {
        let mut count = 0;
        self.each(done, left.min(CHUNK), |own, buffer, bytes| {
            if self.way == Way::From && own != buffer {
                // SAFETY: so many bytes of the caller's, and as many of the mapping's.
                unsafe { buffer.cast::<u8>().copy_from_nonoverlapping(own.cast(), bytes) };
            }
            let part = iovec { iov_base: buffer, iov_len: bytes };
            // SAFETY: the mapping begins with room for as many as there can be.
            unsafe { self.at.cast::<iovec>().add(count).write(part) };
            count += 1;
        });
        // SAFETY: written above.
        unsafe { std::slice::from_raw_parts(self.at.cast::<iovec>(), count) }
    }

    /// So many bytes of the chunk behind `done` have come from the kernel.
    fn empty(&self, done: usize, got: usize) {
        if self.way == Way::From {
            return;
        }
        self.each(done, got, |own, buffer, bytes| {
            if own != buffer {
                // SAFETY: as in `fill`, the other way.
                unsafe { own.cast::<u8>().copy_from_nonoverlapping(buffer.cast(), bytes) };
            }
        });
    }

    /// Goes through so many bytes behind `done`: where they are, where the kernel has them, which is the same for what is not managed, and how many.
    fn each(&self, done: usize, mut bytes: usize, mut with: impl FnMut(*mut c_void, *mut c_void, usize)) {
        let (mut skipped, mut room) = (done, Self::LIST);
        for part in self.parts {
            let before = skipped.min(part.iov_len);
            skipped -= before;
            let taken = (part.iov_len - before).min(bytes);
            if taken == 0 {
                continue;
            }
            let own = part.iov_base.wrapping_byte_add(before);
            let buffer = if DEVICE.contains(&own.addr()) && is_managed(own, self.way) {
                room += own.addr() % PAGE;
                let at = self.at.wrapping_byte_add(room);
                room = (room + taken).next_multiple_of(PAGE);
                at
            } else {
                own
            };
            with(own, buffer, taken);
            bytes -= taken;
        }
    }
}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        // SAFETY: this one's, which nobody else knows.
        keeping_errno(|| unsafe { libc::munmap(self.at, self.bytes) });
    }
}

fn errno() -> c_int {
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() }
}

/// Whoever calls is told nothing of what is asked of the kernel here.
fn keeping_errno<T>(ask: impl FnOnce() -> T) -> T {
    let errno = errno();
    let answer = ask();
    // SAFETY: this thread's own.
    unsafe { *libc::__errno_location() = errno };
    answer
}
