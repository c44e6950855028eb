//! Real faults of a userfaultfd of user mode only: the functions below are this library's, as in a program that has it preloaded.
#![allow(clippy::unwrap_used)]

use libc::{c_int, c_void, iovec};
use linux_raw_sys::general as sys;
use linux_raw_sys::ioctl;
use std::ffi::CString;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

const PAGE: usize = 4096;

/// Where the next test's memory lies.
static NEXT: AtomicUsize = AtomicUsize::new(0x2000_0000_0000);

/// Memory whose pages come, each full of its number, when they are touched; what the kernel touches fails.
struct Managed {
    at: *mut u8,
    bytes: usize,
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
        let mut register =
            sys::uffdio_register { range, mode: sys::UFFDIO_REGISTER_MODE_MISSING.into(), ioctls: 0 };
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
                let page = unsafe { message.arg.pagefault.address } / PAGE as u64 * PAGE as u64;
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
        Self { at: at.cast(), bytes }
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

#[test]
fn the_kernel_itself_fails_there() {
    let memory = Managed::new(4);
    let (file, _) = file(100);
    let (fd, at) = (file.as_raw_fd(), memory.at);
    // SAFETY: the test's memory.
    let read = unsafe { libc::syscall(libc::SYS_read, fd, at, 100) };
    assert_eq!((read, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EFAULT)));
}

#[test]
fn a_file_is_read_whole_in_chunks_and_no_further() {
    let memory = Managed::new(10_000);
    let (file, contents) = file(35 << 20);
    // SAFETY: the test's memory.
    let read = unsafe { libc::read(file.as_raw_fd(), memory.at.wrapping_add(100).cast(), 36 << 20) };
    assert_eq!(read, 35 << 20);
    assert!(memory.all()[100..100 + contents.len()] == contents, "other bytes");
    let behind = 100 + contents.len();
    assert_eq!(memory.all()[99], number(0));
    assert!(
        memory.all()[behind..36 << 20]
            .iter()
            .enumerate()
            .all(|(at, byte)| *byte == number((behind + at) / PAGE))
    );
}

#[test]
fn a_file_is_written_whole_in_chunks() {
    let memory = Managed::new(5000);
    let mut to = tempfile::tempfile().unwrap();
    // SAFETY: the test's memory.
    assert_eq!(unsafe { libc::write(to.as_raw_fd(), memory.at.cast(), memory.bytes) }, memory.bytes as isize);
    to.seek(SeekFrom::Start(0)).unwrap();
    let mut written = Vec::new();
    to.read_to_end(&mut written).unwrap();
    assert!(written == expected(0..5000), "other bytes");
}

#[test]
fn offsets_are_those_of_each_chunk() {
    let memory = Managed::new(9000);
    let (file, contents) = file(30 << 20);
    // SAFETY: the test's memory, as below.
    let read = unsafe { libc::pread(file.as_raw_fd(), memory.at.cast(), 20 << 20, 1 << 20) };
    assert_eq!(read, 20 << 20);
    assert!(memory.all()[..20 << 20] == contents[1 << 20..21 << 20], "other bytes");
    memory.drop_all();
    // SAFETY: as above.
    let written = unsafe { libc::pwrite(file.as_raw_fd(), memory.at.cast(), 20 << 20, 5 << 20) };
    assert_eq!(written, 20 << 20);
    let mut now = vec![0; 30 << 20];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut now, 0).unwrap();
    assert!(now[..5 << 20] == contents[..5 << 20] && now[25 << 20..] == contents[25 << 20..], "beside it");
    assert!(now[5 << 20..25 << 20] == expected(0..5120), "other bytes");
}

#[test]
fn lists_have_managed_memory_among_other() {
    let memory = Managed::new(6);
    let (file, contents) = file(3 * PAGE);
    let mut own = vec![0u8; 50];
    let parts = [
        (memory.at.wrapping_add(10), 100),
        (own.as_mut_ptr(), 50),
        (memory.at.wrapping_add(2 * PAGE), 2 * PAGE),
    ]
    .map(|(at, bytes)| iovec { iov_base: at.cast(), iov_len: bytes });
    // SAFETY: the test's memory, as below.
    let read = unsafe { libc::readv(file.as_raw_fd(), parts.as_ptr(), 3) };
    assert_eq!(read, 150 + 2 * PAGE as isize);
    assert_eq!(memory.all()[10..110], contents[..100]);
    assert_eq!(own, contents[100..150]);
    assert_eq!(memory.all()[2 * PAGE..4 * PAGE], contents[150..150 + 2 * PAGE]);
    memory.drop_all();
    // The list lies there, too.
    let list = memory.at.wrapping_add(5 * PAGE).cast::<iovec>();
    for (index, part) in parts.into_iter().enumerate() {
        // SAFETY: a page of the test's.
        unsafe { list.add(index).write(part) };
    }
    // SAFETY: as above.
    let written = unsafe { libc::pwritev(file.as_raw_fd(), list, 3, 0) };
    assert_eq!(written, 150 + 2 * PAGE as isize);
    let mut now = vec![0; 150 + 2 * PAGE];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut now, 0).unwrap();
    assert_eq!(now[..100], [number(0); 100]);
    assert_eq!(now[100..150], own);
    assert_eq!(now[150..], expected(2..4));
}

#[test]
fn a_pipe_gives_what_it_has() {
    let memory = Managed::new(9000);
    let mut pipe = [0; 2];
    // SAFETY: room for two; the test's memory.
    unsafe {
        done(libc::pipe(pipe.as_mut_ptr()));
        assert_eq!(libc::write(pipe[1], memory.at.wrapping_add(PAGE).cast(), 300), 300);
        assert_eq!(libc::read(pipe[0], memory.at.wrapping_add(3 * PAGE).cast(), 20 << 20), 300);
        libc::close(pipe[1]);
        assert_eq!(libc::read(pipe[0], memory.at.wrapping_add(4 * PAGE).cast(), 20), 0);
        libc::close(pipe[0]);
        assert_eq!(libc::read(pipe[0], memory.at.wrapping_add(4 * PAGE).cast(), 20), -1);
    }
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EBADF));
    assert_eq!(memory.all()[3 * PAGE..3 * PAGE + 301], [vec![number(1); 300], vec![number(3)]].concat());
}

#[test]
fn messages_come_with_what_belongs_to_them() {
    let memory = Managed::new(8);
    let mut ends = [0; 2];
    // SAFETY: room for two.
    done(unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_DGRAM, 0, ends.as_mut_ptr()) });
    let part = |at: usize, bytes| iovec { iov_base: memory.at.wrapping_add(at).cast(), iov_len: bytes };
    let mut parts = [part(PAGE, 10), part(2 * PAGE, 20)];
    // SAFETY: zeros are one; the test's memory, as below.
    let (message, sent, received) = unsafe {
        let mut message: libc::msghdr = std::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (parts.as_mut_ptr(), 2);
        let sent = libc::sendmsg(ends[0], &raw const message, 0);
        parts[0] = part(4 * PAGE, 25);
        message.msg_iovlen = 1;
        let received = libc::recvmsg(ends[1], &raw mut message, 0);
        (message, sent, received)
    };
    assert_eq!((sent, received), (30, 25));
    assert_eq!(message.msg_flags & libc::MSG_TRUNC, libc::MSG_TRUNC);
    assert_eq!((message.msg_iov, message.msg_iovlen), (parts.as_mut_ptr(), 1));
    let came = [vec![number(1); 10], vec![number(2); 15], vec![number(4)]].concat();
    assert_eq!(memory.all()[4 * PAGE..4 * PAGE + 26], came);
    // SAFETY: as above.
    unsafe {
        assert_eq!(libc::send(ends[0], memory.at.wrapping_add(6 * PAGE).cast(), 40, 0), 40);
        let into = memory.at.wrapping_add(7 * PAGE).cast();
        assert_eq!(libc::recv(ends[1], into, 30, libc::MSG_TRUNC), 40, "how long it was");
        assert_eq!(libc::sendto(ends[0], memory.at.wrapping_add(5 * PAGE).cast(), 3, 0, null(), 0), 3);
        assert_eq!(libc::recvfrom(ends[1], into.wrapping_byte_add(30), 30, 0, null_mut(), null_mut()), 3);
        assert_eq!(ends.map(|end| libc::close(end)), [0; 2]);
    }
    let came = [vec![number(6); 30], vec![number(5); 3], vec![number(7); 4]].concat();
    assert_eq!(memory.all()[7 * PAGE..7 * PAGE + 37], came);
}

#[test]
fn streams_count_whole_items() {
    let memory = Managed::new(9000);
    let folder = tempfile::tempdir().unwrap();
    let path = CString::new(folder.path().join("stream").to_str().unwrap()).unwrap();
    let items = (20 << 20) / 12;
    // SAFETY: paths and modes end with zeros; the test's memory.
    unsafe {
        let stream = libc::fopen(path.as_ptr(), c"w+".as_ptr());
        assert_eq!(libc::fwrite(memory.at.cast(), 12, items, stream), items);
        libc::rewind(stream);
        memory.drop_all();
        let into = memory.at.wrapping_add(PAGE);
        assert_eq!(libc::fread(into.cast(), 1000, 30_000, stream), items * 12 / 1000);
        assert_ne!(libc::feof(stream), 0);
        assert_eq!(libc::fread(into.cast(), 0, 5, stream), 0);
        libc::fclose(stream);
    }
    let bytes = items * 12;
    assert!(memory.all()[PAGE..PAGE + bytes] == expected(0..5121)[..bytes], "other bytes");
    assert_eq!(memory.all()[PAGE + bytes..][..2000], expected(0..5123)[PAGE + bytes..][..2000]);
}

#[test]
fn what_nobody_may_touch_is_refused_by_the_kernel_as_ever() {
    let at = NEXT.fetch_add(1 << 30, Ordering::Relaxed) as *mut c_void;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let (file, _) = file(100);
    // SAFETY: addresses that nobody else has.
    unsafe {
        assert_eq!(libc::mmap(at, PAGE, libc::PROT_NONE, flags, -1, 0), at);
        assert_eq!(libc::read(file.as_raw_fd(), at, 10), -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
        assert_eq!(libc::write(file.as_raw_fd(), at, 10), -1);
        assert_eq!(libc::read(file.as_raw_fd(), at.wrapping_byte_add(1 << 20), 10), -1, "not mapped");
        assert_eq!(libc::read(file.as_raw_fd(), at.wrapping_byte_add(1 << 20), 0), 0);
    }
}
