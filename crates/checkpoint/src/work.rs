//! The folder of one cut or restart: what CRIU writes or reads, and what GPU servers hand over. It lies in memory that is gone
//! with this process, killed or not, so that the job is not stopped for as long as a disk takes; or, where memory is short, on
//! disk, where the next one removes what a killed process has left.

use crate::error::{Chain, Failure, Kind};
use crate::lock;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// What the folders on disk are called.
const PREFIX: &str = "dormouse-work-";
/// Room for what cannot be told beforehand.
const MARGIN: u64 = 64 << 20;

/// A folder of files on their way, gone when this is dropped.
#[derive(Debug)]
pub struct WorkFolder {
    path: PathBuf,
    /// The folder goes with it.
    place: Place,
}

#[derive(Debug)]
enum Place {
    Memory { _tmpfs: host::Scratch },
    Disk { _folder: tempfile::TempDir, _lock: OwnedFd },
}

impl WorkFolder {
    /// A folder for about `bytes` bytes of a cut.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn new(bytes: u64) -> Result<Self, Failure> {
        Self::beside(bytes, 0)
    }

    /// A folder for the `bytes` bytes of CRIU's files for a restart: they stay while the job's processes get as much memory again,
    /// and GPU servers `others`.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn for_restart(bytes: u64, others: u64) -> Result<Self, Failure> {
        Self::beside(bytes, bytes.saturating_add(others))
    }

    /// A folder for about `bytes` bytes, while something else takes `others`.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn beside(bytes: u64, others: u64) -> Result<Self, Failure> {
        let folder = on_disk();
        remove_left_over(&folder);
        match room_in_memory(bytes, others, host::memory::available()) {
            Some(room) => Self::in_memory(room),
            None => {
                tracing::info!("memory is too short for {bytes} bytes: they go to {}", folder.display());
                Self::in_folder(&folder)
            }
        }
    }

    fn in_memory(room: u64) -> Result<Self, Failure> {
        let tmpfs = host::Scratch::create(room).map_err(|error| {
            let kind = match error {
                host::TmpfsError::Privilege(_) => Kind::Unavailable,
                _ => Kind::Failed,
            };
            Failure::new(kind, Chain(&error).to_string())
        })?;
        Self::with_parts(tmpfs.path(), Place::Memory { _tmpfs: tmpfs })
    }

    fn in_folder(parent: &Path) -> Result<Self, Failure> {
        let fail = |error: io::Error| {
            Failure::of(format_args!("cannot make a folder in {}", parent.display()), &error)
        };
        loop {
            // The memory of processes will lie here.
            let owner_only = fs::Permissions::from_mode(0o700);
            let folder = tempfile::Builder::new()
                .prefix(PREFIX)
                .permissions(owner_only)
                .tempdir_in(parent)
                .map_err(fail)?;
            match lock::try_existing(folder.path()) {
                Ok(Some(lock)) => {
                    let path = folder.path().to_owned();
                    return Self::with_parts(path, Place::Disk { _folder: folder, _lock: lock });
                }
                // Somebody took it for left over before it was locked.
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(fail(error)),
            }
        }
    }

    fn with_parts(path: PathBuf, place: Place) -> Result<Self, Failure> {
        let made = Self { path, place };
        for part in [made.images(), made.states(), made.session()] {
            fs::create_dir(&part)
                .map_err(|error| Failure::of(format_args!("cannot make {}", part.display()), &error))?;
        }
        Ok(made)
    }

    /// The folder on disk that is left over if this process is killed.
    #[must_use]
    pub fn on_disk(&self) -> Option<&Path> {
        matches!(self.place, Place::Disk { .. }).then_some(&*self.path)
    }

    /// What to do when it is full.
    #[must_use]
    pub fn when_full(&self) -> &'static str {
        match self.place {
            Place::Memory { .. } => {
                "; the machine's memory has become short meanwhile: free some, or try again"
            }
            Place::Disk { .. } => "; free some space there, or set TMPDIR to a folder that has more",
        }
    }

    /// For CRIU's files.
    #[must_use]
    pub fn images(&self) -> PathBuf {
        self.path.join("images")
    }

    /// For the object tables that servers hand over.
    #[must_use]
    pub fn states(&self) -> PathBuf {
        self.path.join("states")
    }

    /// For the files of a session that no process has.
    #[must_use]
    pub fn session(&self) -> PathBuf {
        self.path.join("session")
    }
}

/// The most that may be written to memory, if `bytes` fit well into the `available`, beside `others`.
pub fn room_in_memory(bytes: u64, others: u64, available: u64) -> Option<u64> {
    let room = (available - available / 10).checked_sub(others)?;
    (bytes.saturating_add(bytes / 8).saturating_add(MARGIN) <= room).then_some(room)
}

/// `/tmp` is memory on many machines.
fn on_disk() -> PathBuf {
    std::env::var_os("TMPDIR").map_or_else(|| PathBuf::from("/var/tmp"), PathBuf::from)
}

/// Removes the folders of processes that were killed.
fn remove_left_over(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_name().to_string_lossy().starts_with(PREFIX)
            && let Ok(Some(_held)) = lock::try_existing(&path)
            && let Err(error) = fs::remove_dir_all(&path)
        {
            tracing::warn!("{} is left over and cannot be removed: {error}", path.display());
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_where_there_is_enough() {
        assert_eq!(room_in_memory(1 << 30, 0, 10 << 30), Some((10 << 30) - (1 << 30)));
        assert_eq!(room_in_memory(9 << 30, 0, 10 << 30), None);
        assert_eq!(room_in_memory(0, 0, 32 << 20), None);
        assert_eq!(room_in_memory(u64::MAX, 0, u64::MAX), None);
    }

    #[test]
    fn at_a_restart_the_processes_need_as_much_again() {
        let in_memory = |bytes, others| room_in_memory(bytes, bytes + others, 10 << 30).is_some();
        assert!(in_memory(4 << 30, 0));
        assert!(!in_memory(5 << 30, 0), "half of the memory is too much");
        assert!(!in_memory(4 << 30, 1 << 30), "GPU servers count");
        assert_eq!(room_in_memory(1, u64::MAX, 10 << 30), None);
    }

    #[test]
    fn memory_is_gone_with_its_holder() {
        let work = WorkFolder::in_memory(1 << 20).unwrap();
        let file = work.images().join("pages-1.img");
        fs::write(&file, "x").unwrap();
        drop(work);
        assert!(fs::read(&file).is_err());
    }

    #[test]
    fn what_a_killed_process_left_on_disk_is_removed_and_what_is_used_is_not() {
        let parent = tempfile::tempdir().unwrap();
        let left = parent.path().join(format!("{PREFIX}dead"));
        fs::create_dir_all(left.join("images")).unwrap();
        fs::create_dir(parent.path().join("other")).unwrap();
        let used = WorkFolder::in_folder(parent.path()).unwrap();
        remove_left_over(parent.path());
        assert!(!left.exists());
        assert!(used.images().is_dir());
        assert_eq!(fs::metadata(&used.path).unwrap().permissions().mode() & 0o777, 0o700);
        drop(used);
        let names: Vec<_> =
            fs::read_dir(parent.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["other"]);
    }
}
