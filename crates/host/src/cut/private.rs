//! Private memory of a job that stands still. CRIU would write it alone, one task after the other, while nobody goes on. So it is asked for a dump with
//! lazy pages, which names them in its images and leaves them out ([`crate::criu::pagemap`]). They are read from copies of the processes, which the
//! plugin makes ([`super::copies`]), when the job has gone on; or, where there can be none, several threads copy them while it stands still, to memory
//! that is there before it is stopped. With them the images are those of an ordinary dump.

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;
use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::copies::{Copy, Unlike};
use super::dump::MemoryWay;
use crate::criu::pagemap::{Pagemap, Run};
use crate::tasks::{InnerPid, OuterPid, Task};

/// What one system call copies: small enough that all threads have something to do, and no more ranges than it takes.
const PART_BYTES: usize = 8 << 20;
const PART_RANGES: usize = 512;
/// What one thread makes of the room at a time.
const POPULATED: usize = 64 << 20;
/// More threads than this the memory has no use for.
const THREADS: usize = 8;

/// Bytes that belong into files of CRIU's images.
#[derive(Debug)]
pub struct PrivateMemory {
    /// Of each file of pages what it is made of, in order.
    files: BTreeMap<String, Vec<Piece>>,
    /// What the pieces that are left lie in.
    copies: BTreeMap<OuterPid, Copy>,
    rooms: Vec<CopyRoom>,
    bytes: u64,
    /// To be set when a copy has not what it should have.
    copies_fail: Arc<AtomicBool>,
}

/// A part of a file of pages.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    /// It lies in CRIU's own.
    Written(Range<u64>),
    /// It was copied to a room.
    Copied(usize, Range<usize>),
    /// It is in a process still.
    Left(OuterPid, Range<u64>),
}

/// What one system call copies.
struct Part {
    process: OuterPid,
    from: Vec<libc::iovec>,
    to: Range<usize>,
}

// SAFETY: the addresses are another process's; nobody follows them here.
unsafe impl Sync for Part {}

impl PrivateMemory {
    /// What a dump into `images` has left out of `tasks`, which stand still: copied, or but for what copies of the processes will have. `unlike`
    /// says what they will not have. None where it has left out nothing.
    pub(super) fn taken(
        images: &Path,
        tasks: &[Task],
        way: MemoryWay,
        unlike: impl FnOnce() -> io::Result<Unlike>,
    ) -> io::Result<Option<Self>> {
        let mut private = match &way {
            MemoryWay::Written => return Ok(None),
            _ => Self::left_by(images, tasks)?,
        };
        match way {
            MemoryWay::Written => {}
            MemoryWay::Copied(room) => private.copy(Some(room))?,
            MemoryWay::Forked => private.copy_unlike(&unlike()?)?,
        }
        Ok(Some(private))
    }

    /// What a dump with lazy pages into `images` has left out of `tasks`. The images are completed but for the files of pages.
    fn left_by(images: &Path, tasks: &[Task]) -> io::Result<Self> {
        let mut files = BTreeMap::new();
        let mut bytes = 0;
        for entry in fs::read_dir(images)? {
            let entry = entry?;
            let Some(pid) = entry.file_name().to_str().and_then(process_of) else { continue };
            let image = fs::read(entry.path())?;
            let pagemap = Pagemap::of(&image).ok_or_else(|| damaged(&entry.path()))?;
            let left_out: u64 = pagemap.runs().filter(|run| run.left_out).map(|run| run.bytes).sum();
            if left_out == 0 {
                continue;
            }
            bytes += left_out;
            let task = tasks.iter().find(|task| task.inner == pid).ok_or(io::ErrorKind::NotFound)?;
            files.insert(pagemap.pages_file(), pieces(&pagemap, task.outer));
            fs::write(entry.path(), pagemap.completed())?;
        }
        Ok(Self { files, copies: BTreeMap::new(), rooms: Vec::new(), bytes, copies_fail: Arc::default() })
    }

    /// Copies all that is left in the processes, which stand still, to `room`, or another one where that is too small.
    pub(super) fn copy(&mut self, room: Option<CopyRoom>) -> io::Result<()> {
        self.copy_of(room, |_, range| vec![(range, true)])
    }

    /// Copies what their copies would not have as it is.
    fn copy_unlike(&mut self, unlike: &Unlike) -> io::Result<()> {
        self.copy_of(None, |process, range| match unlike.get(&process) {
            Some(unlike) => split(range, unlike),
            None => vec![(range, true)],
        })
    }

    /// Copies of what is left the parts that `choose` says so of.
    fn copy_of(
        &mut self,
        room: Option<CopyRoom>,
        choose: impl Fn(OuterPid, Range<u64>) -> Vec<(Range<u64>, bool)>,
    ) -> io::Result<()> {
        let (number, mut parts) = (self.rooms.len(), Parts::default());
        for pieces in self.files.values_mut() {
            *pieces = std::mem::take(pieces)
                .into_iter()
                .flat_map(|piece| match piece {
                    Piece::Left(process, range) => choose(process, range)
                        .into_iter()
                        .map(|(range, copied)| match copied {
                            true => Piece::Copied(number, parts.add(process, range)),
                            false => Piece::Left(process, range),
                        })
                        .collect(),
                    other => vec![other],
                })
                .collect();
        }
        let Parts { all, end } = parts;
        let mut room = match room {
            Some(room) if end <= room.bytes => room,
            _ => CopyRoom::new(end)?,
        };
        room.fill(&all)?;
        self.rooms.push(room);
        Ok(())
    }

    /// Where the rest is when the processes go on.
    pub(super) fn is_in(
        &mut self,
        copies: BTreeMap<OuterPid, Copy>,
        fail: &Arc<AtomicBool>,
    ) -> io::Result<()> {
        let left = self.files.values().flatten().filter_map(|piece| match piece {
            Piece::Left(process, _) => Some(process),
            _ => None,
        });
        if left.into_iter().any(|process| !copies.contains_key(process)) {
            return Err(io::Error::new(io::ErrorKind::NotFound, "a process has no copy"));
        }
        self.copies = copies;
        self.copies_fail = Arc::clone(fail);
        Ok(())
    }

    /// How many bytes are not in the images.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many of them are in copies of the processes; the others were copied while these stood still.
    #[must_use]
    pub fn forked(&self) -> u64 {
        let left = self.files.values().flatten().map(|piece| match piece {
            Piece::Left(_, range) => range.end - range.start,
            _ => 0,
        });
        left.sum()
    }

    /// The content of a file of CRIU's `images`; `None` of one in which all is written.
    ///
    /// # Errors
    /// Those of opening it.
    pub fn content(&self, images: &Path, name: &Path) -> io::Result<Option<impl Read + use<'_>>> {
        let Some(pieces) = name.to_str().and_then(|name| self.files.get(name)) else { return Ok(None) };
        let file = File::open(images.join(name))?;
        Ok(Some(Content { memory: self, file, left: pieces.clone().into() }))
    }
}

/// The process of which a pagemap of that name is.
fn process_of(name: &str) -> Option<InnerPid> {
    name.strip_prefix("pagemap-")?.strip_suffix(".img")?.parse().ok().map(InnerPid)
}

fn damaged(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{} is damaged", path.display()))
}

/// What a process's file of pages is made of.
fn pieces(pagemap: &Pagemap, process: OuterPid) -> Vec<Piece> {
    let mut written = 0;
    let of = |run: Run| {
        if run.left_out {
            return Piece::Left(process, run.address..run.address + run.bytes);
        }
        let before = written;
        written += run.bytes;
        Piece::Written(before..written)
    };
    pagemap.runs().map(of).collect()
}

/// The parts of `range`, and whether each lies in one of the `unlike`, which are in order.
fn split(range: Range<u64>, unlike: &[Range<u64>]) -> Vec<(Range<u64>, bool)> {
    let mut parts = Vec::new();
    let mut at = range.start;
    let first = unlike.partition_point(|other| other.end <= range.start);
    for other in unlike[first..].iter().take_while(|other| other.start < range.end) {
        if at < other.start {
            parts.push((at..other.start, false));
        }
        let end = other.end.min(range.end);
        parts.push((at.max(other.start)..end, true));
        at = end;
    }
    if at < range.end {
        parts.push((at..range.end, false));
    }
    parts
}

/// What is to be copied, side by side.
#[derive(Default)]
struct Parts {
    all: Vec<Part>,
    end: usize,
}

impl Parts {
    /// Adds a range of a process; answers where it is to be.
    fn add(&mut self, process: OuterPid, range: Range<u64>) -> Range<usize> {
        let (begin, mut at) = (self.end, range.start);
        while at < range.end {
            let is_open = self.all.last().is_some_and(|part| {
                part.process == process && part.from.len() < PART_RANGES && part.to.len() < PART_BYTES
            });
            if !is_open {
                self.all.push(Part { process, from: Vec::new(), to: self.end..self.end });
            }
            let Some(part) = self.all.last_mut() else { break };
            let bytes = ((range.end - at) as usize).min(PART_BYTES - part.to.len());
            part.from.push(libc::iovec { iov_base: at as *mut c_void, iov_len: bytes });
            at += bytes as u64;
            self.end += bytes;
            part.to.end = self.end;
        }
        begin..self.end
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
    /// CopyRoom for so many bytes, which takes no memory yet.
    pub(super) fn new(bytes: usize) -> io::Result<Self> {
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

    /// Has the memory made, which takes longer than to fill it.
    pub(super) fn populate(&self) {
        let pieces: Vec<usize> = (0..self.bytes).step_by(POPULATED).collect();
        each(&pieces, |at| {
            let bytes = POPULATED.min(self.bytes - at);
            // SAFETY: within the mapping, which is ours; what is in it does not change. What is not made now is made when it is filled.
            let _ =
                unsafe { madvise(self.base.cast::<u8>().add(*at).cast(), bytes, Advice::LinuxPopulateWrite) };
            Ok(())
        })
        .unwrap_or_default();
    }

    /// Copies all parts, which have places of their own.
    fn fill(&mut self, parts: &[Part]) -> io::Result<()> {
        let room = &*self;
        each(parts, |part| {
            let mut from = part.from.clone();
            let mut done = 0;
            while done < part.to.len() {
                // SAFETY: `copy_of` has seen that the room is as large as all parts, each of which has a place of its own there.
                let to = unsafe { room.base.cast::<u8>().add(part.to.start + done) };
                let to = libc::iovec { iov_base: to.cast(), iov_len: part.to.len() - done };
                // SAFETY: as many bytes of the room are left for this part, and nobody else's.
                let read = unsafe { read_into(to, part.process, &from) }?;
                done += read;
                skip(&mut from, read);
            }
            Ok(())
        })
    }

    fn slice(&self, range: Range<usize>) -> &[u8] {
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

/// Reads memory of a process, as much as goes at once: at least a byte.
///
/// # Safety
/// `to` may be written.
unsafe fn read_into(to: libc::iovec, process: OuterPid, from: &[libc::iovec]) -> io::Result<usize> {
    let count = from.len() as libc::c_ulong;
    // SAFETY: what is written is `to`; the other addresses are the other process's.
    let mut read = unsafe { libc::process_vm_readv(process.0, &raw const to, 1, from.as_ptr(), count, 0) };
    if read < 0
        && io::Error::last_os_error().raw_os_error() == Some(libc::EFAULT)
        && let Some(first) = from.first()
    {
        // What the process itself may not read.
        let memory = File::open(format!("/proc/{process}/mem"))?;
        let bytes = first.iov_len.min(to.iov_len);
        // SAFETY: no more than `to` has.
        read = unsafe { libc::pread(memory.as_raw_fd(), to.iov_base, bytes, first.iov_base as libc::off_t) };
    }
    match usize::try_from(read) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(read) => Ok(read),
        Err(_) => Err(io::Error::last_os_error()),
    }
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

/// Does all of these, several at a time; the first error is answered when all that had begun are over.
fn each<T: Sync>(all: &[T], work: impl Fn(&T) -> io::Result<()> + Sync) -> io::Result<()> {
    let next = AtomicUsize::new(0);
    let one = || {
        while let Some(each) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Err(error) = work(each) {
                next.store(all.len(), Ordering::Relaxed);
                return Err(error);
            }
        }
        Ok(())
    };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS).min(all.len());
    thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(one)).collect();
        let done = one();
        let joined = others.into_iter().map(|other| other.join().unwrap_or(Err(io::ErrorKind::Other.into())));
        joined.fold(done, Result::and)
    })
}

/// Reads a file of pages.
struct Content<'a> {
    memory: &'a PrivateMemory,
    file: File,
    left: VecDeque<Piece>,
}

impl Read for Content<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        while let Some(piece) = self.left.front_mut() {
            let read = match piece {
                Piece::Written(range) => {
                    let bytes = room.len().min((range.end - range.start) as usize);
                    self.file.read_exact_at(&mut room[..bytes], range.start)?;
                    range.start += bytes as u64;
                    bytes
                }
                Piece::Copied(number, range) => {
                    let bytes = room.len().min(range.len());
                    let here = self
                        .memory
                        .rooms
                        .get(*number)
                        .map_or(&[][..], |from| from.slice(range.start..range.start + bytes));
                    room[..bytes].copy_from_slice(here);
                    range.start += bytes;
                    bytes
                }
                Piece::Left(process, range) => {
                    let bytes = room.len().min((range.end - range.start) as usize);
                    let copy = self.memory.copies.get(process).ok_or(io::ErrorKind::NotFound)?;
                    copy.memory().read_exact_at(&mut room[..bytes], range.start).map_err(|error| {
                        self.memory.copies_fail.store(true, Ordering::Relaxed);
                        let why = format!("the copy of process {process} cannot be read ({error}): was memory short, and it was killed?");
                        io::Error::new(error.kind(), why)
                    })?;
                    range.start += bytes as u64;
                    bytes
                }
            };
            if read > 0 || room.is_empty() {
                return Ok(read);
            }
            self.left.pop_front();
        }
        Ok(0)
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

    #[test]
    fn parts_of_a_range_are_told_apart() {
        let unlike = [10..20, 30..40];
        assert_eq!(split(0..10, &unlike), [(0..10, false)]);
        assert_eq!(split(12..18, &unlike), [(12..18, true)]);
        let parts = [(5..10, false), (10..20, true), (20..30, false), (30..35, true)];
        assert_eq!(split(5..35, &unlike), parts);
    }

    #[test]
    fn the_first_error_ends_the_work() {
        let all: Vec<usize> = (0..1000).collect();
        let done = AtomicUsize::new(0);
        each(&all, |_| {
            done.fetch_add(1, Ordering::Relaxed);
            Ok(())
        })
        .unwrap();
        assert_eq!(done.into_inner(), 1000);
        let failed = each(&all, |n| if *n == 500 { Err(io::ErrorKind::NotFound.into()) } else { Ok(()) });
        assert_eq!(failed.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
