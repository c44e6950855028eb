//! Room for copies of a job's shared files, made before the job stands still: new memory is had at 2 GB/s, one thread at a time for each file, and filled at many times that.

use crate::folder::{Entry, EntryKind, beneath};
use crate::work::room_in_memory;
use memmap2::{Advice, MmapMut};
use rustix::fs::{Dir, Mode, OFlags};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Files with less than that in them are made when they are copied, bytes.
const LONG: u64 = 4 << 20;
/// The most that a thread makes or copies before it looks for more, bytes.
const PIECE: usize = 4 << 20;
/// Bytes of a huge page.
const HUGE: u64 = 2 << 20;
/// Bytes under way in a thread.
const BUFFER: usize = 256 << 10;
/// The most files whose memory is made beforehand: each takes a mapping.
const READY_MAX: usize = 8 << 10;
/// What lies deeper than that, or behind so many others, is made when it is copied.
const DEPTH_MAX: u32 = 16;
const SEEN_MAX: usize = 64 << 10;
/// Files that are open at a time, twice.
const OPEN_MAX: usize = 256;
/// More threads than this are in each other's way.
const THREADS_MAX: usize = 8;
/// Beside the program, which runs meanwhile.
const MAKING_MAX: usize = 4;

/// Memory for copies of files.
pub struct Room {
    scratch: host::Scratch,
    /// Files whose memory is there, by their paths.
    ready: BTreeMap<PathBuf, MmapMut>,
    /// Their bytes.
    bytes: u64,
}

/// Where bytes of a file begin, and how many they are.
type Runs = Vec<(usize, usize)>;

/// A run of bytes of a file to be copied.
struct Run<'a> {
    from: &'a File,
    first: u64,
    to: Target<'a>,
}

/// Where it goes.
enum Target<'a> {
    /// To so many bytes of a file, from the same place on.
    File(&'a File, u64),
    /// To memory.
    Memory(&'a mut [u8]),
}

impl Room {
    /// Room for copies of the files of `dir`, `used` bytes of them, beside `others` that are needed too; `None` where memory would be short. What there is of
    /// `before`, from an attempt that came to nothing, is used again.
    pub fn make(before: Option<Self>, dir: &Path, used: u64, others: u64) -> Option<Self> {
        let mut room = match before {
            Some(room) => room,
            None => match room_in_memory(used, others, host::memory::available()) {
                Some(bytes) => Self::of(bytes)
                    .inspect_err(|error| tracing::info!("no copy of shared files: {error}"))
                    .ok()?,
                None => {
                    tracing::info!("memory is too short for a copy of the job's shared files, {used} bytes");
                    return None;
                }
            },
        };
        room.make_ready(dir);
        Some(room)
    }

    pub(super) fn of(bytes: u64) -> io::Result<Self> {
        let scratch = host::Scratch::for_copies(bytes).map_err(io::Error::other)?;
        Ok(Self { scratch, ready: BTreeMap::new(), bytes: 0 })
    }

    /// Where the files are.
    pub fn path(&self) -> PathBuf {
        self.scratch.path()
    }

    /// How much memory it takes already.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Makes the memory that copies of files need which there are now. What cannot be had, or has gone meanwhile, is made when it is copied.
    pub(super) fn make_ready(&mut self, dir: &Path) {
        let mut new = Vec::new();
        for_each_long_file(dir, |path, from| {
            match self.memory_for(&path, from) {
                Ok(Some((memory, runs))) => new.push((path, memory, runs)),
                Ok(None) => {}
                Err(error) => tracing::debug!(%error, "{} is made when it is copied", path.display()),
            }
            self.ready.len() + new.len() < READY_MAX
        });
        let runs: Vec<_> =
            new.iter().flat_map(|(_, memory, runs)| runs.iter().map(move |run| (memory, *run))).collect();
        let make = |(memory, (first, bytes)): (&MmapMut, (usize, usize))| {
            memory.advise_range(Advice::PopulateWrite, first, bytes)
        };
        if let Err(error) = host::by_threads(MAKING_MAX, runs, || (), |(), run| make(run)) {
            tracing::debug!(%error, "not all memory for copies is made before the job stands still");
        }
        for (path, memory, runs) in new {
            self.bytes += runs.iter().map(|(_, bytes)| *bytes as u64).sum::<u64>();
            self.ready.insert(path, memory);
        }
    }

    /// A file as long as another one, mapped, and what is in that; nothing if there is one.
    fn memory_for(&self, path: &Path, from: &File) -> io::Result<Option<(MmapMut, Runs)>> {
        let len = from.metadata()?.len();
        if self.ready.get(path).is_some_and(|memory| memory.len() as u64 == len) {
            return Ok(None);
        }
        let to = self.path().join(path);
        to.parent().map_or(Ok(()), fs::create_dir_all)?;
        let file = File::options().read(true).write(true).create(true).truncate(true).open(to)?;
        file.set_len(len)?;
        // SAFETY: a file of a mount that no other process has, and nobody makes it shorter while it is mapped.
        let memory = unsafe { MmapMut::map_mut(&file) }?;
        let (mut at, mut runs) = (0, Vec::new());
        while let Some((first, stop)) = host::next_data(from, at)?.filter(|(first, _)| *first < len) {
            // It may be longer by now.
            let stop = stop.min(len);
            at = stop;
            // Not where there are holes.
            let (huge, end) = (first.next_multiple_of(HUGE), stop / HUGE * HUGE);
            if huge < end {
                // A kernel without huge pages makes small ones.
                let _ = memory.advise_range(Advice::HugePage, huge as usize, (end - huge) as usize);
            }
            let piece = |first: u64| (first as usize, ((stop - first) as usize).min(PIECE));
            runs.extend((first..stop).step_by(PIECE).map(piece));
        }
        Ok(Some((memory, runs)))
    }

    /// Copies files of `dir` with these entries; holes stay holes.
    ///
    /// # Errors
    /// When they cannot be read, or memory is short.
    pub fn copy(&mut self, dir: &Path, entries: &[Entry]) -> io::Result<()> {
        let to = self.path();
        for entry in entries {
            self.clear(entry)?;
            if entry.kind == EntryKind::Folder {
                fs::create_dir_all(to.join(&entry.path))?;
            }
        }
        let files: Vec<_> = entries.iter().filter(|entry| entry.kind == EntryKind::File).collect();
        files.chunks(OPEN_MAX).try_for_each(|files| self.copy_files(dir, files))
    }

    /// Removes what was made ready for a file where there is something else now.
    fn clear(&mut self, entry: &Entry) -> io::Result<()> {
        let there = self.path().join(&entry.path);
        match (fs::symlink_metadata(&there), entry.kind == EntryKind::Folder) {
            (Ok(meta), false) if meta.is_dir() => {
                self.ready.retain(|path, _| !path.starts_with(&entry.path));
                fs::remove_dir_all(there)
            }
            (Ok(meta), true) if !meta.is_dir() => {
                self.ready.remove(&entry.path);
                fs::remove_file(there)
            }
            _ => Ok(()),
        }
    }

    fn copy_files(&mut self, dir: &Path, entries: &[&Entry]) -> io::Result<()> {
        let to = self.path();
        let mut files = Vec::new();
        for entry in entries {
            let from = File::open(dir.join(&entry.path))?;
            let len = from.metadata()?.len();
            let ready = self.ready.remove(&entry.path).filter(|memory| memory.len() as u64 == len);
            let new = match &ready {
                Some(_) => None,
                None => {
                    let file = File::create(to.join(&entry.path))?;
                    file.set_len(len)?;
                    Some(file)
                }
            };
            files.push((entry.path.clone(), from, new, ready));
        }
        let mut runs = Vec::new();
        for (_, from, new, ready) in &mut files {
            let (mut at, mut rest) = (0, ready.as_deref_mut());
            let mut passed = 0;
            while let Some((first, stop)) = host::next_data(from, at)? {
                at = stop;
                for first in (first..stop).step_by(PIECE) {
                    let bytes = (stop - first).min(PIECE as u64);
                    let piece = rest.take().and_then(|rest| {
                        let (_, rest) = rest.split_at_mut_checked((first - passed) as usize)?;
                        rest.split_at_mut_checked(bytes as usize)
                    });
                    let to = match (piece, &*new) {
                        (Some((piece, behind)), _) => {
                            (rest, passed) = (Some(behind), first + bytes);
                            Target::Memory(piece)
                        }
                        (None, Some(file)) => Target::File(file, bytes),
                        (None, None) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    };
                    runs.push(Run { from, first, to });
                }
            }
        }
        host::by_threads(THREADS_MAX, runs, || vec![0; BUFFER], |buffer, run| run.copy(buffer))?;
        // They stay mapped: to let go of them takes time, in which the job would stand still.
        self.ready.extend(files.into_iter().filter_map(|(path, _, _, ready)| Some((path, ready?))));
        Ok(())
    }
}

impl Run<'_> {
    fn copy(self, buffer: &mut [u8]) -> io::Result<()> {
        let Self { from, first, to } = self;
        match to {
            // By the kernel, for which memory that cannot be had is an error, and no signal.
            Target::Memory(to) => from.read_exact_at(to, first),
            Target::File(to, bytes) => {
                let mut done = 0;
                while done < bytes {
                    let part = &mut buffer[..(bytes - done).min(BUFFER as u64) as usize];
                    from.read_exact_at(part, first + done)?;
                    to.write_all_at(part, first + done)?;
                    done += part.len() as u64;
                }
                Ok(())
            }
        }
    }
}

/// Calls `each` with files in `dir` that have much in them, the job's `/dev/shm` among them, but for shadows of managed memory, which are empty when the job stands still; as long as
/// it answers that it wants more. The job runs, and may put anything at any path at any moment: nothing is opened before it is known to be a file of this mount's.
fn for_each_long_file(dir: &Path, mut each: impl FnMut(PathBuf, &File) -> bool) {
    let Ok(root) = rustix::fs::open(dir, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    else {
        return;
    };
    let (mut folders, mut seen) = (vec![(PathBuf::new(), 0)], 0);
    while let Some((folder, depth)) = folders.pop() {
        for name in names(&root, &folder) {
            seen += 1;
            if seen > SEEN_MAX {
                return;
            }
            let path = folder.join(&name);
            let Ok(it) = beneath(&root, &path, OFlags::PATH).map(File::from) else { continue };
            let Ok(meta) = it.metadata() else { continue };
            let is_shadow = name.as_os_str().as_bytes().starts_with(b"shadow-");
            if meta.is_dir() && depth < DEPTH_MAX {
                folders.push((path, depth + 1));
            } else if meta.is_file() && meta.blocks() * 512 >= LONG && !is_shadow {
                // That one, whatever lies at its path now.
                let Ok(file) = File::open(format!("/proc/self/fd/{}", it.as_raw_fd())) else { continue };
                if !each(path, &file) {
                    return;
                }
            }
        }
    }
}

/// What is in a folder; nothing if it is none.
fn names(root: &OwnedFd, folder: &Path) -> Vec<PathBuf> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let opened = beneath(root, folder, OFlags::RDONLY | OFlags::DIRECTORY).ok();
    let listed = opened.and_then(|folder| Dir::read_from(&folder).ok());
    let names = listed.into_iter().flatten().filter_map(Result::ok);
    let names = names.map(|entry| PathBuf::from(OsStr::from_bytes(entry.file_name().to_bytes())));
    names.filter(|name| name != Path::new(".") && name != Path::new("..")).collect()
}
