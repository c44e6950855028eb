//! Room for copies of memory that belongs to other processes, or to files.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::several::{THREADS, by_threads};
use crate::tasks::OuterPid;

/// What one system call copies: small enough that all threads have something to do, and no more ranges than it takes.
const PART_BYTES: usize = 8 << 20;
const PART_RANGES: usize = 512;
/// What may come beside what is known of, bytes.
const MORE: usize = 64 << 20;
/// What one thread makes of the room at a time.
const POPULATED: usize = 64 << 20;

/// What one system call copies.
struct Part {
    from: Source,
    to: Range<usize>,
}

enum Source {
    /// Memory of a process.
    Process(OuterPid, Vec<libc::iovec>),
    /// A file that lies there, from this byte on. Where it ends before, what follows is zero.
    File(Arc<Path>, u64),
}

// SAFETY: the addresses are another process's; nobody follows them here.
unsafe impl Sync for Part {}

/// What is to be copied, side by side.
#[derive(Default)]
pub(super) struct Parts {
    all: Vec<Part>,
    end: usize,
}

impl Parts {
    /// Adds a range of a process; answers where it is to be.
    pub(super) fn add(&mut self, process: OuterPid, range: Range<u64>) -> Range<usize> {
        let (begin, mut at) = (self.end, range.start);
        while at < range.end {
            let open = self.all.last_mut().and_then(|Part { from, to }| match from {
                Source::Process(of, from)
                    if *of == process && from.len() < PART_RANGES && to.len() < PART_BYTES =>
                {
                    Some((from, to))
                }
                _ => None,
            });
            let Some((from, to)) = open else {
                let from = Source::Process(process, Vec::new());
                self.all.push(Part { from, to: self.end..self.end });
                continue;
            };
            let bytes = ((range.end - at) as usize).min(PART_BYTES - to.len());
            from.push(libc::iovec { iov_base: at as *mut c_void, iov_len: bytes });
            at += bytes as u64;
            self.end += bytes;
            to.end = self.end;
        }
        begin..self.end
    }

    /// Adds a range of a file; answers where it is to be.
    pub(super) fn add_file(&mut self, file: &Arc<Path>, range: Range<u64>) -> Range<usize> {
        let begin = self.end;
        for at in range.clone().step_by(PART_BYTES) {
            let bytes = ((range.end - at) as usize).min(PART_BYTES);
            self.all.push(Part { from: Source::File(Arc::clone(file), at), to: self.end..self.end + bytes });
            self.end += bytes;
        }
        begin..self.end
    }

    /// All of it, in `room`, or another one where that is too small.
    pub(super) fn copied_to(self, room: Option<CopyRoom>) -> io::Result<CopyRoom> {
        let mut room = match room {
            Some(room) if self.end <= room.bytes => room,
            small => {
                drop(small);
                CopyRoom::new(self.end)?
            }
        };
        room.fill(&self.all)?;
        Ok(room)
    }
}

/// Memory of this process for a job's.
#[derive(Debug)]
pub struct CopyRoom {
    base: *mut c_void,
    bytes: usize,
}

// SAFETY: the memory belongs to the value alone, has no ties to a thread, and is written by `fill` only, which has it to itself.
unsafe impl Send for CopyRoom {}
// SAFETY: the same.
unsafe impl Sync for CopyRoom {}

impl CopyRoom {
    /// With memory for so many bytes, and addresses for twice as many and some: until it is filled there may be more to copy.
    pub(super) fn made_for(bytes: u64) -> io::Result<Self> {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let room = Self::new(bytes.saturating_mul(2).saturating_add(MORE))?;
        room.populate(bytes);
        Ok(room)
    }

    /// For so many bytes, which takes no memory yet.
    fn new(bytes: usize) -> io::Result<Self> {
        if bytes == 0 {
            return Ok(Self { base: std::ptr::null_mut(), bytes });
        }
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping, wherever there is room.
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), bytes, ProtFlags::READ | ProtFlags::WRITE, flags)
        }?;
        // SAFETY: a mapping of our own; what is in it does not change. It is only quicker.
        let _ = unsafe { madvise(base, bytes, Advice::LinuxHugepage) };
        Ok(Self { base, bytes })
    }

    /// Has memory made for so many bytes, which takes longer than to fill it.
    fn populate(&self, bytes: usize) {
        let end = bytes.min(self.bytes);
        by_threads(
            THREADS,
            (0..end).step_by(POPULATED),
            || (),
            |(), at| {
                let bytes = POPULATED.min(end - at);
                // SAFETY: within the mapping, which is ours; what is in it does not change. What is not made now is made when it is filled.
                let _ = unsafe {
                    madvise(self.base.cast::<u8>().add(at).cast(), bytes, Advice::LinuxPopulateWrite)
                };
                Ok(())
            },
        )
        .unwrap_or_default();
    }

    /// Copies all parts, which have places of their own.
    fn fill(&mut self, parts: &[Part]) -> io::Result<()> {
        let room = &*self;
        by_threads(
            THREADS,
            parts,
            || (),
            |(), part| {
                // SAFETY: `copied_to` has seen that the room is as large as all parts, each of which has a place of its own there that nobody else
                // touches meanwhile; a mapping is zero from the start.
                let to = unsafe {
                    let base = room.base.cast::<u8>().add(part.to.start);
                    std::slice::from_raw_parts_mut(base, part.to.len())
                };
                match &part.from {
                    Source::Process(process, from) => read_process(to, *process, from.clone()),
                    Source::File(file, offset) => read_file(to, &File::open(file)?, *offset),
                }
            },
        )
    }

    /// What lies there; nothing where that is not inside.
    pub(super) fn slice(&self, range: Range<usize>) -> &[u8] {
        let inside = range.start <= range.end && range.end <= self.bytes;
        if !inside || range.is_empty() {
            return &[];
        }
        // SAFETY: within the mapping, which nobody writes as long as it is borrowed.
        unsafe { std::slice::from_raw_parts(self.base.cast::<u8>().add(range.start), range.len()) }
    }
}

impl Drop for CopyRoom {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: the mapping is ours, and nobody has borrowed it.
            let _ = unsafe { munmap(self.base, self.bytes) };
        }
    }
}

/// Reads memory of a process, all of it.
fn read_process(mut to: &mut [u8], process: OuterPid, mut from: Vec<libc::iovec>) -> io::Result<()> {
    while !to.is_empty() {
        let read = read_at_once(to, process, &from)?;
        to = &mut to[read..];
        skip(&mut from, read);
    }
    Ok(())
}

/// The same, as much as goes at once: at least a byte.
fn read_at_once(to: &mut [u8], process: OuterPid, from: &[libc::iovec]) -> io::Result<usize> {
    let room = libc::iovec { iov_base: to.as_mut_ptr().cast(), iov_len: to.len() };
    let count = from.len() as libc::c_ulong;
    // SAFETY: what is written is `to`; the other addresses are the other process's.
    let read = unsafe { libc::process_vm_readv(process.0, &raw const room, 1, from.as_ptr(), count, 0) };
    let read = match (usize::try_from(read), from.first()) {
        (Ok(read), _) => read,
        // What the process itself may not read.
        (Err(_), Some(first)) if io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT) => {
            let memory = File::open(format!("/proc/{process}/mem"))?;
            let bytes = first.iov_len.min(to.len());
            memory.read_at(&mut to[..bytes], first.iov_base as u64)?
        }
        _ => return Err(io::Error::last_os_error()),
    };
    if read == 0 { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(read) }
}

/// Reads a file up to its end.
fn read_file(mut to: &mut [u8], file: &File, mut offset: u64) -> io::Result<()> {
    while !to.is_empty() {
        match file.read_at(to, offset) {
            Ok(0) => return Ok(()),
            Ok(read) => {
                to = &mut to[read..];
                offset += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Takes so many bytes off the front of the ranges.
fn skip(ranges: &mut Vec<libc::iovec>, mut bytes: usize) {
    let whole = ranges.iter().take_while(|range| {
        let is_whole = range.iov_len <= bytes;
        bytes -= if is_whole { range.iov_len } else { 0 };
        is_whole
    });
    let whole = whole.count();
    ranges.drain(..whole);
    if let Some(first) = ranges.first_mut() {
        first.iov_base = first.iov_base.wrapping_byte_add(bytes);
        first.iov_len -= bytes;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::criu::pagemap::PAGE;

    #[test]
    fn ranges_are_skipped_whole_and_in_part() {
        let range = |at: usize, bytes| libc::iovec { iov_base: at as *mut c_void, iov_len: bytes };
        let skipped = |bytes| {
            let mut ranges = vec![range(0x1000, 10), range(0x2000, 20), range(0x3000, 30)];
            skip(&mut ranges, bytes);
            ranges.iter().map(|range| (range.iov_base as usize, range.iov_len)).collect::<Vec<_>>()
        };
        assert_eq!(skipped(0), [(0x1000, 10), (0x2000, 20), (0x3000, 30)]);
        assert_eq!(skipped(4), [(0x1004, 6), (0x2000, 20), (0x3000, 30)]);
        assert_eq!(skipped(10), [(0x2000, 20), (0x3000, 30)]);
        assert_eq!(skipped(35), [(0x3005, 25)]);
        assert_eq!(skipped(60), []);
    }

    #[test]
    fn a_file_is_copied_from_where_it_is_said_to_its_end() {
        let length = 3 * PART_BYTES + 5;
        let written: Vec<u8> = (0..length).map(|at| (at / 1000) as u8 | 1).collect();
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().write_all_at(&written, 0).unwrap();
        let mut parts = Parts::default();
        let from = PAGE as usize;
        let place = parts.add_file(&file.path().into(), PAGE..(length as u64).next_multiple_of(PAGE));
        assert_eq!(place, 0..length.next_multiple_of(from) - from);
        let room = parts.copied_to(None).unwrap();
        let copied = room.slice(place);
        assert!(copied[..length - from] == written[from..]);
        assert!(copied[length - from..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn memory_that_its_process_may_not_read_is_read_all_the_same() {
        let page = PAGE as usize;
        let theirs = CopyRoom::new(3 * page).unwrap();
        for number in 0..3 {
            // SAFETY: within the mapping, of which nobody else knows.
            unsafe { theirs.base.cast::<u8>().add(number * page).write_bytes(number as u8 + 1, page) };
        }
        let forbidden = theirs.base.wrapping_byte_add(page);
        // SAFETY: a page of the same.
        unsafe { rustix::mm::mprotect(forbidden, page, rustix::mm::MprotectFlags::empty()) }.unwrap();
        let mut parts = Parts::default();
        let base = theirs.base as u64;
        parts.add(OuterPid(std::process::id() as i32), base..base + 3 * PAGE);
        let mut room = CopyRoom::new(parts.end).unwrap();
        room.fill(&parts.all).unwrap();
        for number in 0..3 {
            let read = room.slice(number * page..(number + 1) * page);
            assert!(read.iter().all(|byte| *byte == number as u8 + 1), "{number}");
        }
    }
}
