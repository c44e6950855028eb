//! A folder of the local file system.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, FlockOperation, fadvise, flock};

use super::direct::LongFile;
use super::{Media, MediaFile, MediaLock, MediaRead};

/// A folder of the local file system. Descriptors are closed on exec, so a lock ends with the process that took it.
#[derive(Debug, Clone)]
pub struct Dir {
    root: PathBuf,
    cached: bool,
}

impl Dir {
    /// The folder `root`; nothing is created.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), cached: false }
    }

    /// The same; what is written to it is read soon, and goes through the page cache.
    #[must_use]
    pub fn cached(self) -> Self {
        Self { cached: true, ..self }
    }
}

impl Media for Dir {
    fn create(&self, path: &str) -> io::Result<Box<dyn MediaFile>> {
        let path = self.full_path(path);
        let file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        Ok(Box::new(if self.cached { LongFile::cached(path, file) } else { LongFile::new(path, file) }))
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn MediaRead>> {
        Ok(Box::new(File::open(self.full_path(path))?))
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let names =
            fs::read_dir(self.full_path(folder))?.map(|entry| Ok(entry?.file_name().into_string().ok()));
        // A name that is no text is none of ours.
        names.filter_map(Result::transpose).collect()
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.full_path(from), self.full_path(to))
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        fs::remove_file(self.full_path(path))
    }

    fn create_folder(&self, folder: &str) -> io::Result<()> {
        match fs::create_dir(self.full_path(folder)) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            done => done,
        }
    }

    fn remove_folder(&self, folder: &str) -> io::Result<()> {
        fs::remove_dir(self.full_path(folder))
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        File::open(self.full_path(folder))?.sync_all()
    }

    fn lock(&self, path: &str, create: bool) -> io::Result<Option<MediaLock>> {
        let path = self.full_path(path);
        let file = OpenOptions::new().write(true).create(create).truncate(false).open(&path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        // Between open and lock a cleaner may have removed the file: then this is the lock of nothing.
        let (held, named) = (file.metadata()?, fs::metadata(&path)?);
        let same = (held.dev(), held.ino()) == (named.dev(), named.ino());
        Ok(same.then(|| Box::new(file) as MediaLock))
    }

    fn share(&self, path: &str) -> io::Result<MediaLock> {
        let file = File::open(self.full_path(path))?;
        rustix::io::retry_on_intr(|| flock(&file, FlockOperation::LockShared))?;
        Ok(Box::new(file))
    }

    fn side_by_side(&self) -> usize {
        // Many file systems let one write at a time make a file longer.
        3
    }

    fn full_path(&self, path: &str) -> PathBuf {
        // Joined with nothing it would get a slash at its end.
        if path.is_empty() { self.root.clone() } else { self.root.join(path) }
    }
}

impl MediaRead for File {
    fn will_read(&self, offset: u64, len: u64) {
        // It is read all the same.
        let _ = fadvise(self, offset, NonZeroU64::new(len), Advice::WillNeed);
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, buffer, offset)
    }
}
