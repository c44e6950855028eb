//! What a store needs of the medium it lies on, and nothing else: so few operations that a test can stand in for all of them.

mod around;
mod covered;
mod dir;
mod direct;
mod s3;

use std::any::Any;
use std::collections::HashMap;
use std::fmt::Debug;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

pub use around::Around;
pub use covered::Covered;
pub use dir::Dir;
pub use s3::{S3, S3Options};

/// For how long a lock is waited for that somebody has alone.
pub(crate) const LOCK_WAIT: Duration = Duration::from_secs(60);

/// A place for files. Paths are relative to the store, with `/` between parts.
///
/// What an implementation must promise is in §7 of `docs/image-format.md`: what is synced stays, renames are atomic, locks end with
/// their holder. Of everything else a store assumes nothing.
pub trait Media: Debug + Send + Sync + 'static {
    /// Creates a file that was not there.
    ///
    /// # Errors
    /// As `open(2)` with `O_CREAT | O_EXCL`.
    fn create(&self, path: &str) -> io::Result<Box<dyn MediaFile>>;

    /// Opens a file for reading.
    ///
    /// # Errors
    /// As `open(2)`.
    fn open(&self, path: &str) -> io::Result<Box<dyn MediaRead>>;

    /// The names in a folder, in no order.
    ///
    /// # Errors
    /// As `readdir(3)`.
    fn list(&self, folder: &str) -> io::Result<Vec<String>>;

    /// The files in a folder that can be opened, each with its length.
    ///
    /// # Errors
    /// As [`Media::list`].
    fn lengths(&self, folder: &str) -> io::Result<HashMap<String, u64>> {
        let length = |name: String| {
            let file = self.open(&format!("{folder}/{name}")).ok()?;
            Some((name, file.len().ok()?))
        };
        Ok(self.list(folder)?.into_iter().filter_map(length).collect())
    }

    /// Moves a file, atomically, over whatever is there.
    ///
    /// # Errors
    /// As `rename(2)`.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Moves a short file, atomically, to a name that nothing has.
    ///
    /// # Errors
    /// As `rename(2)`; [`io::ErrorKind::AlreadyExists`] where something has that name, and all stays as it is.
    fn rename_new(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// As `unlink(2)`.
    fn remove(&self, path: &str) -> io::Result<()>;

    /// Creates a folder. One that is there is no error.
    ///
    /// # Errors
    /// As `mkdir(2)`.
    fn create_folder(&self, folder: &str) -> io::Result<()>;

    /// Removes an empty folder.
    ///
    /// # Errors
    /// As `rmdir(2)`.
    fn remove_folder(&self, folder: &str) -> io::Result<()>;

    /// Makes the names in a folder durable.
    ///
    /// # Errors
    /// As `fsync(2)`.
    fn sync_folder(&self, folder: &str) -> io::Result<()>;

    /// Takes the lock file at `path`: for ever exclusively, without waiting. `None` where another holds it.
    ///
    /// # Errors
    /// As `open(2)` and `flock(2)`. [`io::ErrorKind::NotFound`] where it is not there and `create` is false.
    fn lock(&self, path: &str, create: bool) -> io::Result<Option<MediaLock>>;

    /// Takes the file at `path` together with others who do, and waits a while for one that has it exclusively.
    ///
    /// # Errors
    /// As `open(2)` and `flock(2)`; [`io::ErrorKind::WouldBlock`], with what to do, where that one does not end.
    fn share(&self, path: &str) -> io::Result<MediaLock>;

    /// How many long files it takes best at a time from one writer.
    fn side_by_side(&self) -> usize {
        1
    }

    /// Whether what is written lies in this machine's memory.
    fn is_memory(&self) -> bool {
        false
    }

    /// Ends what others had begun to write and nobody will finish, where such a thing lies beside the files and takes room. Whoever asks for
    /// it holds the store alone.
    ///
    /// # Errors
    /// Those of a medium that does not say what there is. Nothing depends on it.
    fn end_uploads(&self) -> io::Result<()> {
        Ok(())
    }

    /// The path as the user knows it, for messages.
    fn full_path(&self, path: &str) -> PathBuf;
}

/// A held lock; dropped, it is free.
pub type MediaLock = Box<dyn Any + Send + Sync>;

/// A file being written, from start to end.
pub trait MediaFile: Debug + Send {
    /// Appends all of `bytes`.
    ///
    /// # Errors
    /// As `write(2)`. Some of the bytes may have been written.
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Makes everything written durable.
    ///
    /// # Errors
    /// As `fsync(2)`. The file is then good for nothing: a second try may succeed without the bytes being there.
    fn sync(&mut self) -> io::Result<()>;
}

/// A file being read.
pub trait MediaRead: Debug + Send + Sync {
    /// Its length in bytes.
    ///
    /// # Errors
    /// As `fstat(2)`.
    fn len(&self) -> io::Result<u64>;

    /// Fills `buffer` with what lies at `offset`.
    ///
    /// # Errors
    /// As `pread(2)`; [`io::ErrorKind::UnexpectedEof`] where the file ends before.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Says that these bytes will be read soon. Nothing comes of it where a medium knows no use for that.
    fn will_read(&self, _offset: u64, _len: u64) {}

    /// Whether it has no bytes.
    ///
    /// # Errors
    /// As [`MediaRead::len`].
    fn is_empty(&self) -> io::Result<bool> {
        self.len().map(|len| len == 0)
    }
}

/// A [`MediaRead`] from front to back.
#[derive(Debug)]
pub(crate) struct Cursor<'a> {
    file: &'a dyn MediaRead,
    at: u64,
    end: u64,
}

impl<'a> Cursor<'a> {
    /// Reads `file` from `at` up to `end`.
    pub(crate) fn new(file: &'a dyn MediaRead, at: u64, end: u64) -> Self {
        Self { file, at, end }
    }
}

impl io::Read for Cursor<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let len = buffer.len().min(left);
        let Some(buffer) = buffer.get_mut(..len) else { return Ok(0) };
        self.file.read_exact_at(buffer, self.at)?;
        self.at += len as u64;
        Ok(len)
    }
}
