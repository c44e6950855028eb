//! Which pages of a process have contents of their own (`PAGEMAP_SCAN`, Linux 6.7).

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;

use crate::tasks::OuterPid;

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::Ioctl = 0xc060_6610;
const IS_FILE: u64 = 1 << 2;
const IS_PRESENT: u64 = 1 << 3;
const IS_SWAPPED: u64 = 1 << 4;
const IS_ZERO: u64 = 1 << 5;
/// Nobody may touch it (`MADV_GUARD_INSTALL`). Not every kernel that scans knows of it.
const IS_GUARD: u64 = 1 << 8;
/// How many regions are asked for at a time.
const REGIONS: usize = 4096;

/// `struct pm_scan_arg` (`linux/fs.h`).
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region`.
#[repr(C)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// Whether the kernel can tell.
pub(crate) fn is_there() -> bool {
    File::open("/proc/self/pagemap").is_ok_and(|pagemap| Pages(pagemap).of(0..0).is_ok())
}

/// The pages of a process.
#[derive(Debug)]
pub(crate) struct Pages(File);

impl Pages {
    /// Those of this one.
    pub(crate) fn open(process: OuterPid) -> io::Result<Self> {
        File::open(format!("/proc/{process}/pagemap")).map(Self)
    }

    /// What of `range` CRIU would dump: what is there or swapped out, and neither a file's nor zero. In order, and no two side by side.
    pub(crate) fn of(&self, range: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        match self.without(IS_GUARD, range.clone()) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => self.without(0, range),
            done => done,
        }
    }

    fn without(&self, more: u64, range: Range<u64>) -> io::Result<Vec<Range<u64>>> {
        let mut found: Vec<Range<u64>> = Vec::new();
        let mut regions = Box::<[Region]>::new_uninit_slice(REGIONS);
        let mut at = range.start;
        loop {
            let mut scan = Scan {
                size: size_of::<Scan>() as u64,
                start: at,
                end: range.end,
                vec: regions.as_mut_ptr() as u64,
                vec_len: REGIONS as u64,
                category_inverted: IS_FILE | IS_ZERO | more,
                category_mask: IS_FILE | IS_ZERO | more,
                category_anyof_mask: IS_PRESENT | IS_SWAPPED,
                return_mask: IS_PRESENT | IS_SWAPPED,
                ..Scan::default()
            };
            // SAFETY: `vec` has room for as many regions as is said, and both live as long as the call.
            let told = unsafe { libc::ioctl(self.0.as_raw_fd(), PAGEMAP_SCAN, &raw mut scan) };
            let told = usize::try_from(told).map_err(|_| io::Error::last_os_error())?;
            for region in &regions[..told] {
                // SAFETY: the kernel has written so many, and they are numbers.
                let region = unsafe { region.assume_init_ref() };
                match found.last_mut() {
                    Some(last) if last.end == region.start => last.end = region.end,
                    _ => found.push(region.start..region.end),
                }
            }
            // Where there is room left all has been told; the kernel's own end may be one that it has passed since.
            match found.last() {
                Some(last) if told == REGIONS => at = last.end.max(scan.walk_end),
                _ => return Ok(found),
            }
            if at >= range.end {
                return Ok(found);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

    #[test]
    fn pages_with_contents_are_told_from_others() {
        const PAGE: usize = 4096;
        // More runs than are asked for at a time.
        let pages = 3 * REGIONS;
        // SAFETY: a new mapping, wherever there is room.
        let memory = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                pages * PAGE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        let memory = memory.unwrap().cast::<u8>();
        for page in (0..pages).step_by(2) {
            // SAFETY: within the mapping, of which nobody else knows.
            unsafe { memory.add(page * PAGE).write(1) };
        }
        // SAFETY: the same. What is only read is no page of its own.
        assert_eq!(unsafe { memory.add(PAGE).read_volatile() }, 0);
        if !is_there() {
            return;
        }
        let start = memory as u64;
        let found = Pages::open(OuterPid(std::process::id() as i32)).unwrap();
        let found = found.of(start..start + (pages * PAGE) as u64).unwrap();
        let range = |page: usize| start + (page * PAGE) as u64..start + ((page + 1) * PAGE) as u64;
        let expected: Vec<_> = (0..pages).step_by(2).map(range).collect();
        let first = found.iter().zip(&expected).position(|(found, expected)| found != expected);
        assert_eq!((first, found.len()), (None, expected.len()));
    }
}
