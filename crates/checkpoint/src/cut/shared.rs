//! The files that application and servers share, pinned memory most of all. Where memory has room for it they are copied while the job
//! stands still, by several threads, and written when it goes on; else they are written at once.

use crate::error::Failure;
use crate::folder::{self, Entry, EntryKind};
use crate::work::room_in_memory;
use image::ObjectKind;
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use store::ChunkWriter;

/// The most that a thread copies before it looks for more, bytes.
const PIECE: u64 = 4 << 20;
/// Bytes under way in a thread.
const BUFFER: usize = 256 << 10;
/// Files that are open at a time, twice.
const OPEN_MAX: usize = 256;
/// More threads than this are in each other's way.
const THREADS_MAX: usize = 8;

/// Memory for copies of `used` bytes of files, beside `others` that are needed too; `None` where it would be short.
pub fn room(used: u64, others: u64) -> Option<host::Scratch> {
    let Some(room) = room_in_memory(used, others, host::memory::available()) else {
        tracing::info!("memory is too short for a copy of the job's shared files, {used} bytes");
        return None;
    };
    host::Scratch::create(room).inspect_err(|error| tracing::info!("{error}")).ok()
}

/// Shared files as they were at the cut.
pub struct Shared {
    /// What there is.
    pub entries: Vec<Entry>,
    /// The copies that are not written yet.
    copies: Option<host::Scratch>,
}

impl Shared {
    /// Takes all files of `dir`: copies them to `room` or, where there is none, writes them.
    ///
    /// # Errors
    /// When they cannot be read, or the store cannot take them.
    pub fn take(dir: &Path, room: Option<host::Scratch>, writer: &ChunkWriter) -> Result<Self, Failure> {
        let unreadable = |error| Failure::of(format_args!("cannot read {}", dir.display()), &error);
        let entries = folder::entries(dir).map_err(unreadable)?;
        let copied = room.and_then(|room| match copy(dir, &entries, &room.path()) {
            Ok(()) => Some(room),
            Err(error) => {
                tracing::info!("the job's shared files are not copied: {error}");
                None
            }
        });
        let shared = Self { entries, copies: copied };
        if shared.copies.is_none() {
            shared.save(dir, writer)?;
        }
        Ok(shared)
    }

    /// Writes what is not written yet.
    ///
    /// # Errors
    /// When the store cannot take it.
    pub fn write(&mut self, writer: &ChunkWriter) -> Result<(), Failure> {
        self.copies.take().map_or(Ok(()), |copies| self.save(&copies.path(), writer))
    }

    /// Bytes that are not written yet, holes included.
    pub fn bytes(&self) -> u64 {
        self.copies.as_ref().map_or(0, |copies| folder::bytes(&copies.path(), &self.entries))
    }

    fn save(&self, dir: &Path, writer: &ChunkWriter) -> Result<(), Failure> {
        folder::save(dir, &self.entries, writer, |path| ObjectKind::SharedFile { path }).map(drop)
    }
}

/// A run of bytes of a file to be copied.
struct Run<'a> {
    from: &'a File,
    to: &'a File,
    first: u64,
    bytes: u64,
}

/// Copies files with these entries from one folder to another; holes stay holes.
fn copy(dir: &Path, entries: &[Entry], to: &Path) -> io::Result<()> {
    for entry in entries.iter().filter(|entry| entry.kind == EntryKind::Folder) {
        fs::create_dir(to.join(&entry.path))?;
    }
    let files: Vec<_> = entries.iter().filter(|entry| entry.kind == EntryKind::File).collect();
    files.chunks(OPEN_MAX).try_for_each(|files| copy_files(dir, files, to))
}

fn copy_files(dir: &Path, entries: &[&Entry], to: &Path) -> io::Result<()> {
    let open = |entry: &&Entry| {
        let from = File::open(dir.join(&entry.path))?;
        Ok((from, File::create_new(to.join(&entry.path))?))
    };
    let files: Vec<_> = entries.iter().map(open).collect::<io::Result<_>>()?;
    let mut runs = VecDeque::new();
    for (from, to) in &files {
        to.set_len(from.metadata()?.len())?;
        let mut at = 0;
        while let Some((first, stop)) = host::next_data(from, at)? {
            at = stop;
            for first in (first..stop).step_by(PIECE as usize) {
                runs.push_back(Run { from, to, first, bytes: (stop - first).min(PIECE) });
            }
        }
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    let runs = Mutex::new(runs);
    let next = || runs.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
    let work = || -> io::Result<()> {
        let mut buffer = vec![0; BUFFER];
        while let Some(Run { from, to, first, bytes }) = next() {
            let mut done = 0;
            while done < bytes {
                let part = &mut buffer[..(bytes - done).min(BUFFER as u64) as usize];
                from.read_exact_at(part, first + done)?;
                to.write_all_at(part, first + done)?;
                done += part.len() as u64;
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let own = work();
        let panicked = || io::Error::other("a thread panicked");
        let others: io::Result<()> =
            others.into_iter().try_for_each(|each| each.join().unwrap_or_else(|_| Err(panicked())));
        own.and(others)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;
    use store::{Store, WriteOptions};

    /// Files with holes, an empty one, and one in a folder.
    fn files(dir: &Path) {
        fs::create_dir(dir.join("s1")).unwrap();
        let mixed = File::create(dir.join("s1/pinned-1")).unwrap();
        mixed.set_len(40 << 20).unwrap();
        let bytes: Vec<u8> = (0..9u32 << 18).flat_map(u32::to_le_bytes).collect();
        mixed.write_all_at(&bytes, 6 << 20).unwrap();
        mixed.write_all_at(&[7; 5000], (39 << 20) + 17).unwrap();
        File::create(dir.join("empty")).unwrap();
        std::os::unix::fs::symlink("empty", dir.join("link")).unwrap();
    }

    #[test]
    fn copies_are_what_the_files_were() {
        let tmpfs = host::Scratch::create(64 << 20).unwrap();
        let dir = tmpfs.path();
        files(&dir);
        let before = fs::read(dir.join("s1/pinned-1")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open_or_create(folder.path()).unwrap();
        let save = |room: Option<host::Scratch>| {
            let draft = store.begin().unwrap();
            let writer = draft.writer(&WriteOptions::default()).unwrap();
            let copied = room.is_some();
            let mut shared = Shared::take(&dir, room, &writer).unwrap();
            assert_eq!(shared.bytes(), if copied { 40 << 20 } else { 0 });
            if copied {
                let copy = shared.copies.as_ref().unwrap().path().join("s1/pinned-1");
                let sparse = fs::metadata(&copy).unwrap().blocks() * 512;
                assert!(sparse < 12 << 20, "holes take {sparse} bytes");
                let original = File::options().write(true).open(dir.join("s1/pinned-1")).unwrap();
                original.write_all_at(&[9; 100], 6 << 20).unwrap();
            }
            shared.write(&writer).unwrap();
            let id = draft.publish(image::Manifest::new("job"), vec![writer.finish().unwrap()]).unwrap().id;
            let object = ObjectKind::SharedFile { path: Path::new("s1/pinned-1").into() };
            store.open_image(&id).unwrap().read_to_vec(&object, 64 << 20).unwrap()
        };
        assert!(save(None) == before);
        assert!(save(room(40 << 20, 0)) == before, "it was written after the copy");
        // One that is too small is as good as none.
        let now = fs::read(dir.join("s1/pinned-1")).unwrap();
        assert!(now != before && save_small(&dir, &store) == now);
    }

    fn save_small(dir: &Path, store: &Store) -> Vec<u8> {
        let draft = store.begin().unwrap();
        let writer = draft.writer(&WriteOptions::default()).unwrap();
        let mut shared = Shared::take(dir, Some(host::Scratch::create(1 << 20).unwrap()), &writer).unwrap();
        assert_eq!(shared.bytes(), 0);
        shared.write(&writer).unwrap();
        let id = draft.publish(image::Manifest::new("job"), vec![writer.finish().unwrap()]).unwrap().id;
        let object = ObjectKind::SharedFile { path: Path::new("s1/pinned-1").into() };
        store.open_image(&id).unwrap().read_to_vec(&object, 64 << 20).unwrap()
    }

    #[test]
    fn where_memory_is_short_there_is_no_room() {
        assert!(room(1 << 20, 0).is_some());
        assert!(room(1 << 20, u64::MAX).is_none());
        assert!(room(u64::MAX / 2, 0).is_none());
    }
}
