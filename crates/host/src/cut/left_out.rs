//! Memory of a job that stands still, of which CRIU would write all by itself, one part after the other, while nobody goes on. So it does not hear of
//! it ([`super::withheld`]); or, where that cannot be, it is asked for a dump with lazy pages, which names private memory in its images and leaves it
//! out ([`crate::criu::pagemap`]). Private memory is read from copies of the processes, which the plugin makes ([`super::copies`]), when the job has
//! gone on; or, where there can be none, several threads copy it while it stands still, to memory that is there before it is stopped. They do so with
//! files in memory that have no names ([`super::nameless`]), of which nobody can have a copy otherwise. With all of that the images are those of an
//! ordinary dump.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File};
use std::io::{self, Read};
use std::ops::{Range, RangeInclusive};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use super::chunks::{WINDOW, chunks};
use super::copies::{Copy, Seen};
use super::dump::MemoryWay;
use super::nameless::Lacking;
use super::room::{CopyRoom, Parts};
use super::setback::Setback;
use super::withheld::Ranges;
use crate::criu::pagemap::{Pagemap, Run};
use crate::memory;
use crate::tasks::{InnerPid, OuterPid, Task};

/// Bytes that belong into files of CRIU's images.
#[derive(Debug)]
pub struct LeftOut {
    files: BTreeMap<String, Pages>,
    /// Ends before the copies.
    watch: Option<Watch>,
    /// What the pieces that are left lie in.
    copies: Arc<BTreeMap<OuterPid, Copy>>,
    rooms: Vec<CopyRoom>,
    bytes: u64,
    /// How many of them are in files in memory.
    shared: u64,
    /// How many of the others CRIU has not heard of.
    withheld: u64,
    /// How many more it has not heard of, which the program has excluded.
    excluded: u64,
    /// To be told when a copy has not what it should have, and when all of them had it.
    forking: Arc<Setback>,
    /// How many files have been read to their ends.
    read: AtomicUsize,
}

/// A file of CRIU's images.
#[derive(Debug)]
struct Pages {
    /// What it is made of, in order.
    pieces: Vec<Piece>,
    /// How long the chunks are that it is stored in.
    chunks: Vec<u64>,
}

/// A part of such a file.
#[derive(Debug, Clone)]
enum Piece {
    /// It lies in CRIU's own.
    Written(Range<u64>),
    /// It is this.
    Known(Vec<u8>),
    /// It was copied to a room.
    Copied(usize, Range<usize>),
    /// It is in a process still.
    Left(OuterPid, Range<u64>),
}

impl LeftOut {
    /// What a dump into `images` has left out of `tasks`, which stand still, and what it lacks since it has not heard of it: copied, or but for what
    /// copies of the processes will have. `seen` is what was seen of them. None where all is written.
    pub(super) fn taken(
        images: &Path,
        tasks: &[Task],
        way: MemoryWay,
        (mut withheld, shared): (Ranges, Vec<Lacking>),
        seen: impl FnOnce() -> io::Result<Seen>,
    ) -> io::Result<Option<Self>> {
        let Seen { unlike, excluded } = match &way {
            MemoryWay::Written => return Ok(None),
            MemoryWay::Forked { .. } => seen()?,
            // Where nothing was seen all is saved.
            MemoryWay::Copied { .. } => seen().unwrap_or_default(),
        };
        let excluded = leave_out(&mut withheld, &excluded);
        let mut left_out = Self { excluded, ..Self::left_by(images, tasks, &withheld)? };
        match way {
            MemoryWay::Written => {}
            MemoryWay::Copied { private, shared: room } => {
                left_out.copy_of(Some(private), copied)?;
                left_out.copy_shared(room, shared)?;
            }
            // What copies of the processes would not have as it is.
            MemoryWay::Forked { shared: room } => {
                left_out.copy_of(None, |process, range| match unlike.get(&process) {
                    Some(unlike) => split(range, unlike),
                    None => copied(process, range),
                })?;
                left_out.copy_shared(room, shared)?;
            }
        }
        Ok(Some(left_out))
    }

    /// What a dump into `images` has left out of `tasks`, or not heard of. The images are completed but for the files of pages.
    fn left_by(images: &Path, tasks: &[Task], withheld: &Ranges) -> io::Result<Self> {
        let mut files = BTreeMap::new();
        let mut bytes = 0;
        let mut found = 0;
        for entry in fs::read_dir(images)? {
            let entry = entry?;
            let Some(pid) = entry.file_name().to_str().and_then(process_of) else { continue };
            let image = fs::read(entry.path())?;
            let task = tasks.iter().find(|task| task.inner == pid).ok_or(io::ErrorKind::NotFound)?;
            let more = withheld.get(&task.outer);
            found += usize::from(more.is_some());
            let pagemap =
                Pagemap::of(&image).and_then(|map| map.with_left_out(more.map_or(&[], Vec::as_slice)));
            let pagemap = pagemap.ok_or_else(|| damaged(&entry.path()))?;
            let left_out: u64 = pagemap.runs().filter(|run| run.left_out).map(|run| run.bytes).sum();
            if left_out == 0 {
                continue;
            }
            bytes += left_out;
            files.insert(pagemap.pages_file(), Pages::of(&pagemap, task.outer));
            fs::write(entry.path(), pagemap.completed())?;
        }
        if found < withheld.len() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "CRIU has written no page map of a process"));
        }
        let withheld = withheld.values().flatten().map(|range| range.end - range.start).sum();
        Ok(Self {
            files,
            watch: None,
            copies: Arc::default(),
            rooms: Vec::new(),
            bytes,
            shared: 0,
            withheld,
            excluded: 0,
            forking: Arc::default(),
            read: AtomicUsize::new(0),
        })
    }

    /// Copies all that is left in the processes, which stand still.
    pub(super) fn copy(&mut self) -> io::Result<()> {
        self.copy_of(None, copied)
    }

    /// Copies all of files in memory to `room`, or another one where that is too small.
    fn copy_shared(&mut self, room: CopyRoom, shared: Vec<Lacking>) -> io::Result<()> {
        let (number, mut parts) = (self.rooms.len(), Parts::default());
        for lacking in shared {
            let bytes: u64 = lacking.parts.iter().map(|(_, range)| range.end - range.start).sum();
            self.bytes += bytes;
            self.shared += bytes;
            self.files.insert(lacking.name.clone(), Pages::shared(lacking, number, &mut parts));
        }
        self.rooms.push(parts.copied_to(Some(room))?);
        Ok(())
    }

    /// Copies of what is left in processes the parts that `choose` says so of, to `room`, or another one where that is too small.
    fn copy_of(
        &mut self,
        room: Option<CopyRoom>,
        choose: impl Fn(OuterPid, Range<u64>) -> Vec<(Range<u64>, bool)>,
    ) -> io::Result<()> {
        let (number, mut parts) = (self.rooms.len(), Parts::default());
        for pages in self.files.values_mut() {
            pages.pieces = std::mem::take(&mut pages.pieces)
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
        self.rooms.push(parts.copied_to(room)?);
        Ok(())
    }

    /// Where the rest is when the processes go on.
    pub(super) fn is_in(
        &mut self,
        copies: BTreeMap<OuterPid, Copy>,
        forking: &Arc<Setback>,
    ) -> io::Result<()> {
        let left = self.pieces().filter_map(|piece| match piece {
            Piece::Left(process, _) => Some(process),
            _ => None,
        });
        if left.into_iter().any(|process| !copies.contains_key(process)) {
            return Err(io::Error::new(io::ErrorKind::NotFound, "a process has no copy"));
        }
        self.copies = Arc::new(copies);
        self.watch = Watch::over(&self.copies);
        self.forking = Arc::clone(forking);
        Ok(())
    }

    fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.files.values().flat_map(|pages| &pages.pieces)
    }

    /// How many bytes are not in the images.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many of them are shared memory, in files that have no names, and were copied.
    #[must_use]
    pub fn shared(&self) -> u64 {
        self.shared
    }

    /// How many of the others CRIU has not heard of, and has not spent time on.
    #[must_use]
    pub fn withheld(&self) -> u64 {
        self.withheld
    }

    /// How many bytes the program has excluded: they are in no image.
    #[must_use]
    pub fn excluded(&self) -> u64 {
        self.excluded
    }

    /// How many bytes are in copies of the processes; the others were copied while these stood still.
    #[must_use]
    pub fn forked(&self) -> u64 {
        let left = self.pieces().map(|piece| match piece {
            Piece::Left(_, range) => range.end - range.start,
            _ => 0,
        });
        left.sum()
    }

    /// The content of a file of CRIU's `images`, and how long the chunks are that it is to be stored in; `None` of one in which all is written.
    ///
    /// # Errors
    /// Those of opening it.
    pub fn content(&self, images: &Path, name: &Path) -> io::Result<Option<(impl Read + use<'_>, Vec<u64>)>> {
        let Some(pages) = name.to_str().and_then(|name| self.files.get(name)) else { return Ok(None) };
        let file = File::open(images.join(name))?;
        let content = Content { memory: self, file, left: pages.pieces.clone().into() };
        Ok(Some((content, pages.chunks.clone())))
    }
}

/// Ends copies when memory is [short](memory::SHORT), before the kernel does: whoever reads one keeps its memory for a moment when it has been
/// killed, and the kernel, which finds that nothing is gained, kills the program next.
#[derive(Debug)]
struct Watch {
    /// Bytes that were left when they were ended.
    left: Arc<OnceLock<u64>>,
    /// Closed when it is to end.
    until: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// How often it is looked: about as soon as memory could be short, and often enough to see a limit that comes down.
    const LOOK: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_millis(30);

    /// Where no thread can be had nobody watches.
    fn over(copies: &Arc<BTreeMap<OuterPid, Copy>>) -> Option<Self> {
        let (until, ends) = mpsc::channel();
        let (copies, left) = (Arc::clone(copies), Arc::new(OnceLock::new()));
        let seen = Arc::clone(&left);
        let watch = move || {
            let mut look = *Self::LOOK.start();
            while ends.recv_timeout(look) == Err(RecvTimeoutError::Timeout) {
                let left = memory::available();
                if left < memory::SHORT {
                    seen.get_or_init(|| left);
                    copies.values().for_each(Copy::kill);
                    return;
                }
                look = memory::lasts(left - memory::SHORT).clamp(*Self::LOOK.start(), *Self::LOOK.end());
            }
        };
        let thread = thread::Builder::new().name("copies-room".into()).spawn(watch);
        let thread = thread.inspect_err(|error| {
            tracing::warn!("nobody ends copies of processes where memory runs out: {error}")
        });
        Some(Self { left, until: Some(until), thread: Some(thread.ok()?) })
    }

    fn short_of_memory(&self) -> Option<u64> {
        self.left.get().copied()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.until = None;
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The process of which a pagemap of that name is.
fn process_of(name: &str) -> Option<InnerPid> {
    name.strip_prefix("pagemap-")?.strip_suffix(".img")?.parse().ok().map(InnerPid)
}

fn damaged(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("{} is damaged", path.display()))
}

impl Pages {
    /// Those of a process.
    fn of(pagemap: &Pagemap, process: OuterPid) -> Self {
        let mut written = 0;
        let piece = |run: Run| {
            if run.left_out {
                return Piece::Left(process, run.addresses());
            }
            let before = written;
            written += run.bytes;
            Piece::Written(before..written)
        };
        Self {
            pieces: pagemap.runs().map(piece).collect(),
            chunks: chunks(pagemap.runs().map(|run| run.addresses())),
        }
    }

    /// Those of a file in memory, which becomes one of the parts that are copied to a room.
    fn shared(lacking: Lacking, room: usize, copied: &mut Parts) -> Self {
        let Lacking { written, parts, file, .. } = lacking;
        let chunks = cut(written, &parts);
        let mut pieces = vec![Piece::Written(0..written)];
        for (known, range) in parts {
            pieces.push(Piece::Known(known));
            pieces.push(Piece::Copied(room, copied.add_file(&file, range)));
        }
        Self { pieces, chunks }
    }
}

/// How long the chunks are of a file with so many bytes and such parts behind them: as those of pages where nothing else lies between the parts.
fn cut(written: u64, parts: &[(Vec<u8>, Range<u64>)]) -> Vec<u64> {
    /// With more parts every chunk is as long as it can be.
    const PARTS: usize = 256;
    let ranges = || parts.iter().map(|(_, range)| range.clone());
    if written == 0 && parts.iter().all(|(known, _)| known.is_empty()) {
        return chunks(ranges());
    }
    if parts.len() > PARTS {
        let bytes: u64 =
            parts.iter().map(|(known, range)| known.len() as u64 + range.end - range.start).sum();
        let bytes = written + bytes;
        return (0..bytes).step_by(WINDOW as usize).map(|at| (bytes - at).min(WINDOW)).collect();
    }
    let mut cut = vec![written];
    for (known, range) in parts {
        // What is before the first part lies beside what is written.
        match cut.as_mut_slice() {
            [first] => *first += known.len() as u64,
            _ => cut.push(known.len() as u64),
        }
        cut.extend(chunks([range.clone()].into_iter()));
    }
    cut
}

/// All of it.
fn copied(_: OuterPid, range: Range<u64>) -> Vec<(Range<u64>, bool)> {
    vec![(range, true)]
}

/// Takes what is `excluded` from processes' pages, and counts its bytes.
fn leave_out(pages: &mut Ranges, excluded: &Ranges) -> u64 {
    let bytes =
        |pages: &Ranges| -> u64 { pages.values().flatten().map(|range| range.end - range.start).sum() };
    let before = bytes(pages);
    for (process, ranges) in pages.iter_mut() {
        let Some(excluded) = excluded.get(process).filter(|excluded| !excluded.is_empty()) else { continue };
        let all = std::mem::take(ranges).into_iter().flat_map(|range| split(range, excluded));
        *ranges = all.filter(|(_, is_excluded)| !is_excluded).map(|(range, _)| range).collect();
    }
    before - bytes(pages)
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

/// Reads a file of pages.
struct Content<'a> {
    memory: &'a LeftOut,
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
                Piece::Known(left) => {
                    let bytes = room.len().min(left.len());
                    room[..bytes].copy_from_slice(&left[..bytes]);
                    left.drain(..bytes);
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
                        self.memory.forking.failed();
                        let why = match self.memory.watch.as_ref().and_then(Watch::short_of_memory) {
                            Some(left) => format!("{} MiB of memory were left: the copies of the job's processes have made room", left >> 20),
                            None => format!("the copy of process {process} cannot be read ({error}): was memory short, and it was killed?"),
                        };
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
            let is_last = || self.memory.read.fetch_add(1, Ordering::Relaxed) + 1 == self.memory.files.len();
            if self.left.is_empty() && is_last() && !self.memory.copies.is_empty() {
                self.memory.forking.worked();
            }
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_excluded_is_left_out_of_its_process_alone() {
        let (one, other) = (OuterPid(1), OuterPid(2));
        let mut pages = Ranges::from([(one, vec![0..10, 20..40]), (other, vec![0..10, 50..60])]);
        assert_eq!(leave_out(&mut pages, &[(one, vec![5..25, 30..31]), (other, vec![])].into()), 11);
        assert_eq!(pages, [(one, vec![0..5, 25..30, 31..40]), (other, vec![0..10, 50..60])].into());
    }

    #[test]
    fn contents_are_cut_where_they_are_and_not_where_they_lie() {
        let head = |bytes| vec![0; bytes];
        let window = |number: u64| number * WINDOW..(number + 1) * WINDOW;
        let pages = [(head(0), window(0)), (head(0), window(7))];
        assert_eq!(cut(0, &pages), [WINDOW; 2]);
        let parts = [(head(9), window(0)), (head(8), 3 * WINDOW - 5..4 * WINDOW)];
        assert_eq!(cut(50, &parts), [59, WINDOW, 8, 5, WINDOW]);
        let many: Vec<_> = (0..400).map(|number| (head(9), number * 8192..number * 8192 + 4096)).collect();
        let all: u64 = cut(50, &many).iter().sum();
        assert_eq!((all, cut(50, &many).len()), (50 + 400 * (9 + 4096), 1));
    }

    #[test]
    fn parts_of_a_range_are_told_apart() {
        let unlike = [10..20, 30..40];
        assert_eq!(split(0..10, &unlike), [(0..10, false)]);
        assert_eq!(split(12..18, &unlike), [(12..18, true)]);
        let parts = [(5..10, false), (10..20, true), (20..30, false), (30..35, true)];
        assert_eq!(split(5..35, &unlike), parts);
    }
}
