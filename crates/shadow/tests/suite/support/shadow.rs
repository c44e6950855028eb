//! A region as an application sees it.

use rustix::mm::{MapFlags, ProtFlags};
use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::AtomicU64;

/// The region's pages in this process.
pub struct Shadow {
    base: *mut u8,
    bytes: usize,
    file: OwnedFd,
}

// SAFETY: plain memory; the tests see to it that no two threads touch a byte at the same time.
unsafe impl Send for Shadow {}
// SAFETY: as above.
unsafe impl Sync for Shadow {}

impl Shadow {
    pub fn new(file: OwnedFd, bytes: usize) -> Self {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping where the kernel likes.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, protection, MapFlags::SHARED, &file, 0) };
        Self { base: base.unwrap().cast(), bytes, file }
    }

    pub fn file(&self) -> OwnedFd {
        self.file.try_clone().unwrap()
    }

    pub fn address(&self) -> u64 {
        self.base as u64
    }

    /// Bytes of the region.
    fn at(&self, at: usize, bytes: usize) -> *mut u8 {
        assert!(at + bytes <= self.bytes);
        // SAFETY: inside the mapping.
        unsafe { self.base.add(at) }
    }

    /// A word that any thread may add to at any time.
    pub fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: inside the mapping, which lives as long, and aligned; whoever calls this touches it by atomic accesses alone.
        unsafe { AtomicU64::from_ptr(self.at(at, 8).cast()) }
    }

    pub fn read(&self, at: usize, bytes: usize) -> Vec<u8> {
        let mut read = vec![0; bytes];
        // SAFETY: both are as long, and nobody writes these bytes meanwhile.
        unsafe { self.at(at, bytes).copy_to_nonoverlapping(read.as_mut_ptr(), bytes) };
        read
    }

    pub fn write(&self, at: usize, bytes: &[u8]) {
        // SAFETY: both are as long, and nobody else touches these bytes meanwhile.
        unsafe { self.at(at, bytes.len()).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    /// Moves the mapping, where the kernel likes.
    pub fn move_away(&self) {
        let flags = rustix::mm::MremapFlags::MAYMOVE;
        // SAFETY: for a test at whose end the process is ended.
        let kept = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                self.bytes,
                ProtFlags::empty(),
                MapFlags::PRIVATE,
            )
        };
        // SAFETY: the same; the target is this process's own.
        unsafe { rustix::mm::mremap_fixed(self.base.cast(), self.bytes, self.bytes, flags, kept.unwrap()) }
            .unwrap();
    }

    /// Takes its pages out of this process, not out of the file.
    pub fn advise_dont_need(&self) {
        let advice = rustix::mm::Advice::LinuxDontNeed;
        // SAFETY: the file keeps what is in them.
        unsafe { rustix::mm::madvise(self.base.cast(), self.bytes, advice) }.unwrap();
    }

    /// As `read`, with a system call that reads the region; no more than a pipe takes.
    pub fn read_by_call(&self, at: usize, bytes: usize) -> Vec<u8> {
        let bytes = bytes.min(32 << 10);
        let (out, into) = rustix::pipe::pipe().unwrap();
        // SAFETY: as in `read`.
        let given = unsafe { std::slice::from_raw_parts(self.at(at, bytes), bytes) };
        let done = rustix::io::write(into.as_fd(), given).unwrap();
        let mut read = vec![0; done];
        assert_eq!(rustix::io::read(out.as_fd(), &mut read), Ok(done));
        read
    }

    /// Writes bytes of `from`, with a system call that has the pages of this region pinned, as direct I/O has, before it touches those. Answers how many it has written.
    pub fn write_pinned(&self, at: usize, from: &Self, bytes: usize) -> isize {
        unsafe extern "C" {
            fn process_vm_writev(
                process: i32,
                from: *const IoSlice<'_>,
                count_from: usize,
                to: *const IoSlice<'_>,
                count_to: usize,
                flags: usize,
            ) -> isize;
        }
        let process = rustix::process::getpid().as_raw_nonzero().get();
        let named = |start: *mut u8| {
            // SAFETY: as in `read`; the kernel alone looks at what is named.
            IoSlice::new(unsafe { std::slice::from_raw_parts(start, bytes) })
        };
        let (from, to) = (named(from.at(0, bytes)), named(self.at(at, bytes)));
        // SAFETY: one of each, in this process; nobody else touches these bytes meanwhile.
        unsafe { process_vm_writev(process, &raw const from, 1, &raw const to, 1, 0) }
    }

    /// As `write`, with a system call that writes the region.
    pub fn write_by_call(&self, at: usize, bytes: &[u8]) {
        let (out, into) = rustix::pipe::pipe().unwrap();
        let done = rustix::io::write(into.as_fd(), bytes).unwrap();
        assert_eq!(done, bytes.len());
        // SAFETY: as in `write`.
        let region = unsafe { std::slice::from_raw_parts_mut(self.at(at, done), done) };
        assert_eq!(rustix::io::read(out.as_fd(), region), Ok(done));
    }
}

impl Drop for Shadow {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, and nobody uses it any more.
        unsafe { rustix::mm::munmap(self.base.cast(), self.bytes) }.unwrap();
    }
}
