//! Real faults of a userfaultfd of user mode only: the functions that these tests call are this library's, as in a program that has it preloaded.
#![allow(clippy::unwrap_used)]

use libc::{FILE, c_int, c_void, iovec, off_t, size_t, ssize_t};
use linux_raw_sys::general as sys;
use linux_raw_sys::ioctl;
use std::ffi::CString;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

mod files;
mod messages;
mod others;

const PAGE: usize = 4096;

/// Where the next test's memory lies.
static NEXT: AtomicUsize = AtomicUsize::new(0x2000_0000_0000);

/// Memory whose pages come, each full of its number, when they are touched; what the kernel touches fails.
struct Managed {
    at: *mut u8,
    bytes: usize,
    fault: c_int,
}

/// Whether pages fault when they are written.
fn protect(fault: c_int, page: u64, count: usize, protect: bool) {
    let range = sys::uffdio_range { start: page, len: (count * PAGE) as u64 };
    let mut protect = sys::uffdio_writeprotect { range, mode: protect.into() };
    // SAFETY: pages of a test's.
    done(unsafe { libc::ioctl(fault, ioctl::UFFDIO_WRITEPROTECT.into(), &raw mut protect) });
}

fn done(code: c_int) -> c_int {
    assert!(code >= 0, "{}", std::io::Error::last_os_error());
    code
}

impl Managed {
    fn new(pages: usize) -> Self {
        let bytes = pages * PAGE;
        let at = NEXT.fetch_add(bytes.next_multiple_of(1 << 30), Ordering::Relaxed) as *mut c_void;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE | libc::MAP_NORESERVE;
        // SAFETY: addresses that nobody else has.
        assert_eq!(unsafe { libc::mmap(at, bytes, access, flags, -1, 0) }, at);
        let user_mode = libc::O_CLOEXEC | 1;
        // SAFETY: it takes effect on memory only when that is registered.
        let fault = done(unsafe { libc::syscall(libc::SYS_userfaultfd, user_mode) } as c_int);
        let mut api = sys::uffdio_api { api: sys::UFFD_API.into(), features: 0, ioctls: 0 };
        let range = sys::uffdio_range { start: at as u64, len: bytes as u64 };
        let mode = sys::UFFDIO_REGISTER_MODE_MISSING | sys::UFFDIO_REGISTER_MODE_WP;
        let mut register = sys::uffdio_register { range, mode: mode.into(), ioctls: 0 };
        // SAFETY: each with its own structure.
        unsafe {
            done(libc::ioctl(fault, ioctl::UFFDIO_API.into(), &raw mut api));
            done(libc::ioctl(fault, ioctl::UFFDIO_REGISTER.into(), &raw mut register));
        }
        let begin = at as u64;
        std::thread::spawn(move || {
            loop {
                // SAFETY: zeros are one.
                let mut message: sys::uffd_msg = unsafe { std::mem::zeroed() };
                let at = (&raw mut message).cast::<c_void>();
                // SAFETY: room for what is read.
                if unsafe { libc::syscall(libc::SYS_read, fault, at, size_of::<sys::uffd_msg>()) } <= 0 {
                    return;
                }
                // SAFETY: what the one event carries that there is.
                let (page, flags) = unsafe {
                    let fault = message.arg.pagefault;
                    (fault.address / PAGE as u64 * PAGE as u64, fault.flags)
                };
                if flags & u64::from(sys::UFFD_PAGEFAULT_FLAG_WP) != 0 {
                    protect(fault, page, 1, false);
                    continue;
                }
                let contents = vec![number((page - begin) as usize / PAGE); PAGE];
                let mut copy = sys::uffdio_copy {
                    dst: page,
                    src: contents.as_ptr() as u64,
                    len: PAGE as u64,
                    mode: 0,
                    copy: 0,
                };
                // SAFETY: a page of the test's.
                unsafe { libc::ioctl(fault, ioctl::UFFDIO_COPY.into(), &raw mut copy) };
            }
        });
        // The descriptor stays open, and the thread waits there, until all tests are over.
        Self { at: at.cast(), bytes, fault }
    }

    /// Pages are there, and whoever writes them faults.
    fn protect(&self, from: usize, count: usize) {
        for page in from..from + count {
            assert_eq!(self.all()[page * PAGE], number(page));
        }
        protect(self.fault, self.at.wrapping_add(from * PAGE) as u64, count, true);
    }

    fn all(&self) -> &[u8] {
        // SAFETY: a test's own memory, in one thread.
        unsafe { std::slice::from_raw_parts(self.at, self.bytes) }
    }

    /// Nothing is there again.
    fn drop_all(&self) {
        // SAFETY: the same.
        done(unsafe { libc::madvise(self.at.cast(), self.bytes, libc::MADV_DONTNEED) });
    }
}

/// What a page that comes is full of.
fn number(page: usize) -> u8 {
    (page % 251) as u8 + 1
}

fn expected(pages: std::ops::Range<usize>) -> Vec<u8> {
    pages.flat_map(|page| [number(page); PAGE]).collect()
}

/// A file of so many bytes, none of which a page has that comes.
fn file(bytes: usize) -> (std::fs::File, Vec<u8>) {
    let contents: Vec<u8> = (0..bytes).map(|at| (at / 7 % 256) as u8).collect();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&contents).unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    (file, contents)
}
