//! Memory of this library's own between the kernel and managed memory.

use crate::next::{errno, set_errno};
use libc::{c_int, c_void, iovec, size_t, ssize_t};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::ptr::null_mut;

/// Where memory of devices lies, and with it all managed memory that has shadow pages (`DEVICE` of the shim; `ARCHITECTURE.md`, addresses).
pub const DEVICE: Range<usize> = 0x2000_0000_0000..0x5000_0000_0000;
pub const PAGE: usize = 4096;
/// The most bytes that are moved at once, if that may be done piece by piece: what a fresh buffer costs grows with its pages.
pub const PIECE: usize = 1 << 20;
/// The same of a message, which is one piece.
pub const MESSAGE: usize = 16 << 20;
/// Fewer than so many in one part go through the stack: it may be a signal's, and no file is read past the kernel's cache in so few.
const SMALL: usize = 512;
/// The most parts that the kernel takes (`UIO_MAXIOV`).
pub const PARTS: usize = 1024;

/// Which way bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the kernel into memory.
    Into,
    /// From memory to the kernel.
    From,
}

/// How bytes are moved.
pub struct How {
    /// Which way.
    pub way: Way,
    /// The most that are moved by one call of the program's.
    pub most: usize,
    /// The most that are moved at once.
    pub chunk: usize,
    /// Whether what was moved may be less than what there is room for and called so: then memory keeps what it holds.
    pub keeps: bool,
    /// Whether more is to be moved behind a chunk that was moved whole, as most are then.
    pub goes_on: bool,
}

/// What the kernel takes of one call (`MAX_RW_COUNT`).
pub const MOST: usize = 0x7fff_f000;

/// Whether an address is one of a device's memory.
pub fn is_of_device(at: *const c_void) -> bool {
    DEVICE.contains(&at.addr())
}

/// Whether there is managed memory at an address: mapped, and touched this way. Addresses of device memory, which nobody may touch, are not.
pub fn is_managed(at: *const c_void, way: Way) -> bool {
    // Only a fault that the kernel may not wait for is answered with `EFAULT`, or one beyond the end of a file.
    is_of_device(at) && matches!(touch(at, 1, way), Ok(()) | Err(libc::EFAULT))
}

/// Has the kernel touch pages, none of whose contents change; or tells with which error it cannot.
fn touch(at: *const c_void, bytes: usize, way: Way) -> Result<(), c_int> {
    let advice = match way {
        Way::Into => libc::MADV_POPULATE_WRITE,
        Way::From => libc::MADV_POPULATE_READ,
    };
    let begin = at.addr() / PAGE * PAGE;
    let bytes = (at.addr() + bytes).next_multiple_of(PAGE) - begin;
    keeping_errno(|| {
        loop {
            // SAFETY: it changes no contents; what is not mapped it refuses.
            if unsafe { libc::madvise(at.with_addr(begin).cast_mut(), bytes, advice) } == 0 {
                return Ok(());
            }
            match errno() {
                libc::EINTR | libc::EAGAIN => {}
                error => return Err(error),
            }
        }
    })
}

/// How many of so many bytes are managed, from the first one on, which is.
fn reach(at: *const c_void, bytes: usize, way: Way) -> usize {
    let (begin, end) = (at.addr(), at.addr() + bytes);
    let second = begin / PAGE * PAGE + PAGE;
    if end <= second || touch(at.with_addr(second), end - second, way) == Ok(()) {
        return bytes;
    }
    let refused = (second..end).step_by(PAGE).find(|page| !is_managed(at.with_addr(*page), way));
    refused.map_or(bytes, |page| page - begin)
}

/// Does `call`, which has the kernel fill or read memory and answers how many bytes it has, with buffers in place of those of `parts` that are managed.
/// It is called for one chunk behind the other as long as each is moved whole and that `goes_on`, with how many bytes were moved before. The answer is
/// how many were in all, or what the first call says.
pub fn by_buffer(parts: &[iovec], how: &How, mut call: impl FnMut(&[iovec], usize) -> ssize_t) -> ssize_t {
    let all = parts.iter().try_fold(0usize, |all, part| all.checked_add(part.iov_len));
    let Some(all) = all.filter(|all| *all <= isize::MAX as usize && parts.len() <= PARTS) else {
        // The kernel refuses it.
        return call(parts, 0);
    };
    let all = all.min(how.most);
    let mut small = MaybeUninit::<[u8; SMALL]>::uninit();
    let mut part = [const { iovec { iov_base: null_mut(), iov_len: 0 } }];
    let mapped;
    let mut room = if parts.len() == 1 && all < SMALL {
        Room { list: &mut part, data: small.as_mut_ptr().cast() }
    } else {
        let chunk = all.min(how.chunk);
        let Some(mapping) = Mapping::new(LIST + chunk + 2 * PAGE * parts.len()) else {
            set_errno(libc::ENOMEM);
            return -1;
        };
        if how.goes_on && chunk > PAGE {
            // All pages at once; what cannot be had so comes when it is touched.
            let _ = touch(mapping.at().wrapping_byte_add(LIST), chunk, Way::Into);
        }
        mapped = mapping;
        mapped.room()
    };
    let mut done = 0;
    loop {
        let round = room.fill(parts, (done, (all - done).min(how.chunk)), how);
        let given = &room.list[..round.count];
        let Ok(got) = usize::try_from(call(given, done)) else {
            return if done > 0 { done as ssize_t } else { -1 };
        };
        if how.way == Way::Into {
            // A message that was cut may say how long it had been.
            empty(parts, given, (done, got.min(round.bytes)));
        }
        done += got;
        if got != round.bytes || round.is_cut || done >= all || !how.goes_on {
            return done as ssize_t;
        }
    }
}

/// The same of one buffer of the caller's.
pub fn one_by_buffer(
    (at, bytes): (*const c_void, size_t),
    how: &How,
    mut call: impl FnMut(*mut c_void, size_t, usize) -> ssize_t,
) -> ssize_t {
    let part = iovec { iov_base: at.cast_mut(), iov_len: bytes };
    by_buffer(&[part], how, |given, done| match given {
        [part] => call(part.iov_base, part.iov_len, done),
        _ => call(at.cast_mut(), 0, done),
    })
}

/// A chunk that is about to be moved.
struct Round {
    /// In so many parts.
    count: usize,
    bytes: usize,
    /// Whether it ends where memory is not managed any more.
    is_cut: bool,
}

/// Room for a list of parts, and for what those hold that are managed.
struct Room<'a> {
    list: &'a mut [iovec],
    data: *mut u8,
}

impl Room<'_> {
    /// Lists the parts of so many bytes behind `done`, with what they hold if the kernel is to read it.
    fn fill(&mut self, parts: &[iovec], (done, bytes): (usize, usize), how: &How) -> Round {
        let (mut round, mut used) = (Round { count: 0, bytes: 0, is_cut: false }, 0);
        for (own, taken) in each(parts, done, bytes) {
            let is_bounced = is_managed(own, how.way);
            let taken_whole = if is_bounced { reach(own, taken, how.way) } else { taken };
            let at = if is_bounced {
                if self.list.len() > 1 {
                    // As it lies within its own page, for files that are read past the kernel's cache.
                    used += own.addr() % PAGE;
                }
                let at = self.data.wrapping_add(used);
                used = (used + taken_whole).next_multiple_of(PAGE);
                if how.way == Way::From || how.keeps {
                    // SAFETY: so many bytes of the caller's, and as many of the room.
                    unsafe { at.copy_from_nonoverlapping(own.cast(), taken_whole) };
                }
                at.cast()
            } else {
                own
            };
            self.list[round.count] = iovec { iov_base: at, iov_len: taken_whole };
            round.count += 1;
            round.bytes += taken_whole;
            if taken_whole < taken {
                round.is_cut = true;
                break;
            }
        }
        round
    }
}

/// So many bytes of the chunk behind `done` have come from the kernel, to where the list says.
fn empty(parts: &[iovec], given: &[iovec], (done, got): (usize, usize)) {
    for ((own, bytes), given) in each(parts, done, got).zip(given) {
        if own != given.iov_base {
            // SAFETY: so many bytes of the room, and as many of the caller's, seen to be managed when the list was made.
            unsafe { own.cast::<u8>().copy_from_nonoverlapping(given.iov_base.cast(), bytes) };
        }
    }
}

/// What of these parts so many bytes are that lie behind `done`.
fn each(parts: &[iovec], done: usize, bytes: usize) -> impl Iterator<Item = (*mut c_void, usize)> {
    let (mut skipped, mut left) = (done, bytes);
    let within = move |part: &iovec| {
        let before = skipped.min(part.iov_len);
        skipped -= before;
        let taken = (part.iov_len - before).min(left);
        left -= taken;
        (part.iov_base.wrapping_byte_add(before), taken)
    };
    parts.iter().map(within).filter(|(_, taken)| *taken > 0)
}

/// Where a mapping's list ends.
const LIST: usize = (PARTS * size_of::<iovec>()).next_multiple_of(PAGE);

/// Fresh memory, for as long as a call takes.
pub struct Mapping {
    at: *mut c_void,
    bytes: usize,
}

impl Mapping {
    /// So many bytes; `None` where there are none.
    pub fn new(bytes: usize) -> Option<Self> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping where the kernel likes.
        let at = keeping_errno(|| unsafe { libc::mmap(null_mut(), bytes, access, flags, -1, 0) });
        (at != libc::MAP_FAILED).then_some(Self { at, bytes })
    }

    /// Where it begins.
    pub fn at(&self) -> *mut c_void {
        self.at
    }

    /// Of one that has more than a list takes.
    fn room(&self) -> Room<'_> {
        // SAFETY: zeros, which are such parts, that nobody else has.
        let list = unsafe { std::slice::from_raw_parts_mut(self.at.cast::<iovec>(), PARTS) };
        Room { list, data: self.at.cast::<u8>().wrapping_add(LIST) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this one's, which nobody else knows.
        keeping_errno(|| unsafe { libc::munmap(self.at, self.bytes) });
    }
}

/// Whoever calls is told nothing of what is asked of the kernel here.
pub fn keeping_errno<T>(ask: impl FnOnce() -> T) -> T {
    let errno = errno();
    let answer = ask();
    set_errno(errno);
    answer
}
