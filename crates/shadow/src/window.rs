//! A region's file, as whoever keeps it sees it: pages are filled and written back here, while the application has them not mapped, or protected.

use crate::PAGE;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

/// What the kernel has in one piece where it can, and where the tmpfs lets it: moving that costs a fifth of moving its pages.
pub(crate) const HUGE: usize = 2 << 20;

/// A mapping of a whole file.
#[derive(Debug)]
pub(crate) struct Window {
    file: OwnedFd,
    base: *mut u8,
    bytes: usize,
    /// Of which more is mapped, maybe, than it has.
    mapped: usize,
}

// SAFETY: plain memory; who uses a part of it has the lock of the region that this part belongs to, or works for who has it and waits, each on a
// part of his own.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Window {
    /// Maps so many bytes of a file.
    pub(crate) fn new(file: OwnedFd, bytes: usize) -> io::Result<Self> {
        // The end is a huge page, too, if that is not mostly waste.
        let mapped = if bytes % HUGE < HUGE / 2 { bytes } else { bytes.next_multiple_of(HUGE) };
        let access = ProtFlags::READ | ProtFlags::WRITE;
        if mapped < HUGE {
            // SAFETY: a new mapping where the kernel likes.
            let base = unsafe { mmap(std::ptr::null_mut(), mapped, access, MapFlags::SHARED, &file, 0) }?;
            return Ok(Self { file, base: base.cast(), bytes, mapped });
        }
        let space = mapped.checked_add(HUGE).ok_or(Errno::NOMEM)?;
        let nothing = ProtFlags::empty();
        // SAFETY: as above; room for it wherever huge pages can lie.
        let around = unsafe { mmap_anonymous(std::ptr::null_mut(), space, nothing, MapFlags::PRIVATE) }?;
        let before = (around as usize).next_multiple_of(HUGE) - around as usize;
        let base = around.wrapping_byte_add(before);
        // SAFETY: inside of what has just been mapped, and nobody knows.
        let placed = unsafe { mmap(base, mapped, access, MapFlags::SHARED | MapFlags::FIXED, &file, 0) };
        let rest = [(around, before), (base.wrapping_byte_add(mapped), space - before - mapped)];
        for (unused, bytes) in rest.into_iter().filter(|(_, bytes)| *bytes > 0) {
            // SAFETY: as above, on both sides of it.
            unsafe { munmap(unused, bytes) }?;
        }
        let window = Self { file, base: base.cast(), bytes, mapped };
        placed?;
        // SAFETY: its contents are the file's. A kernel without huge pages refuses, and has small ones.
        let _ = unsafe { madvise(base, mapped, Advice::LinuxHugepage) };
        Ok(window)
    }

    /// The file.
    pub(crate) fn file(&self) -> impl AsFd {
        &self.file
    }

    /// Some of its bytes. To touch a page that the file has not makes one, or raises SIGBUS where there is no room: [`Self::make`] comes first.
    pub(crate) fn at(&self, range: Range<usize>) -> *mut [u8] {
        assert!(range.start <= range.end && range.end <= self.bytes, "inside the file");
        std::ptr::slice_from_raw_parts_mut(self.base.wrapping_add(range.start), range.len())
    }

    /// Whether a page can be in a huge one.
    pub(crate) fn is_huge(&self, page: usize) -> bool {
        page * PAGE / HUGE < self.mapped / HUGE
    }

    /// Makes pages in the file that have these contents, where there are none: quicker than [`Self::make`] and a copy for small ones.
    ///
    /// # Errors
    /// `NOSPC` where there is no room, or the kernel's.
    pub(crate) fn write(&self, page: usize, mut bytes: &[u8]) -> io::Result<()> {
        let mut at = (page * PAGE) as u64;
        while !bytes.is_empty() {
            match rustix::io::pwrite(&self.file, bytes, at) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => (at, bytes) = (at + written as u64, &bytes[written..]),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Makes pages in the file where there are none.
    ///
    /// # Errors
    /// `NOSPC` where there is no room, or the kernel's.
    pub(crate) fn make(&self, pages: Range<usize>) -> io::Result<()> {
        let part = self.at(pages.start * PAGE..pages.end * PAGE);
        loop {
            // SAFETY: it changes no contents.
            match unsafe { madvise(part.cast(), part.len(), Advice::LinuxPopulateWrite) } {
                Err(Errno::INTR | Errno::AGAIN) => {}
                // An access would have raised SIGBUS.
                Err(Errno::FAULT | Errno::NOMEM) => return Err(Errno::NOSPC.into()),
                made => return Ok(made?),
            }
        }
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, and nobody uses it any more.
        let _ = unsafe { munmap(self.base.cast(), self.mapped) };
    }
}
