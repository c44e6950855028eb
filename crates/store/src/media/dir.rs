//! A folder of the local file system.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, IoSliceMut};
use std::num::NonZeroU64;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rustix::fs::{
    Advice, CWD, FlockOperation, RenameFlags, fadvise, flock, fstatfs, renameat_with, sendfile, statfs,
};
use rustix::io::{Errno, ReadWriteFlags, preadv2};

use super::direct::{LongFile, is_memory};
use super::{LOCK_WAIT, Media, MediaFile, MediaLock, MediaRead};
use crate::layout;

/// How often it is looked whether a lock is free.
const LOOK: Duration = Duration::from_millis(20);

/// A folder of the local file system. Descriptors are closed on exec, so a lock ends with the process that took it.
///
/// What is made in it is its owner's alone, but as far as the store's `config` is open to the group and others: who changes the modes
/// of all that there is shares what comes, too.
#[derive(Debug, Clone)]
pub struct Dir {
    root: PathBuf,
    cached: bool,
    wait: Duration,
}

impl Dir {
    /// The folder `root`; nothing is created.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), cached: false, wait: LOCK_WAIT }
    }

    /// The same; what is written to it is read soon, and goes through the page cache.
    #[must_use]
    pub fn cached(self) -> Self {
        Self { cached: true, ..self }
    }

    /// The same; a lock that somebody has alone is waited for so long.
    #[must_use]
    pub fn waiting(self, wait: Duration) -> Self {
        Self { wait, ..self }
    }

    /// Opens what is new to others as far as `config` is, whatever the umask says.
    fn share_new(&self, new: &File) -> io::Result<()> {
        let open_to = fs::metadata(self.full_path(layout::CONFIG)).map_or(0, |config| config.mode() & 0o066);
        let found = new.metadata()?;
        // Who may read a folder may look into it.
        let may_enter = if found.is_dir() { (open_to & 0o044) >> 2 } else { 0 };
        let mode = found.mode() & 0o7777;
        let wanted = mode | open_to | may_enter;
        if wanted != mode
            && let Err(error) = new.set_permissions(Permissions::from_mode(wanted))
        {
            // As on a file system that has no modes.
            tracing::debug!(%error, "the mode of what is new cannot be changed");
        }
        Ok(())
    }
}

impl Media for Dir {
    fn create(&self, path: &str) -> io::Result<Box<dyn MediaFile>> {
        let path = self.full_path(path);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        self.share_new(&file)?;
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

    fn rename_new(&self, from: &str, to: &str) -> io::Result<()> {
        let (from, to) = (self.full_path(from), self.full_path(to));
        match renameat_with(CWD, &from, CWD, &to, RenameFlags::NOREPLACE) {
            // File systems that do not know this, such as NFS, know links.
            Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
                link_new(&from, &to, |from, to| fs::hard_link(from, to))
            }
            done => Ok(done?),
        }
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        fs::remove_file(self.full_path(path))
    }

    fn create_folder(&self, folder: &str) -> io::Result<()> {
        let path = self.full_path(folder);
        match DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
            done => done?,
        }
        match File::open(&path) {
            // A cleaner was faster.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            made => self.share_new(&made?),
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
        let file = OpenOptions::new().write(true).create(create).truncate(false).mode(0o600).open(&path)?;
        if create {
            self.share_new(&file)?;
        }
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        // Between open and lock a cleaner may have removed the file: then this is the lock of nothing.
        let (held, named) = (file.metadata()?, fs::metadata(&path)?);
        let same = (held.dev(), held.ino()) == (named.dev(), named.ino());
        Ok(same.then(|| Box::new(file) as MediaLock))
    }

    fn share(&self, path: &str) -> io::Result<MediaLock> {
        let path = self.full_path(path);
        let file = File::open(&path)?;
        let begun = Instant::now();
        loop {
            match flock(&file, FlockOperation::NonBlockingLockShared) {
                Ok(()) => return Ok(Box::new(file)),
                Err(Errno::WOULDBLOCK) if begun.elapsed() >= self.wait => {
                    return Err(being_removed(&path, self.wait));
                }
                Err(Errno::WOULDBLOCK) => std::thread::sleep(LOOK.min(self.wait)),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn side_by_side(&self) -> usize {
        // Many file systems let one write at a time make a file longer, and that is all there is to wait for in memory.
        if self.is_memory() { 8 } else { 3 }
    }

    fn is_memory(&self) -> bool {
        statfs(&self.root).is_ok_and(|file_system| is_memory(&file_system))
    }

    fn full_path(&self, path: &str) -> PathBuf {
        // Joined with nothing it would get a slash at its end.
        if path.is_empty() { self.root.clone() } else { self.root.join(path) }
    }
}

/// Gives a file a name that nothing has, and takes its old one.
fn link_new(from: &Path, to: &Path, link: impl FnOnce(&Path, &Path) -> io::Result<()>) -> io::Result<()> {
    match link(from, to) {
        // NFS asks again where an answer was lost, and hears of its own link.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && is_same(from, to) => {}
        Err(error) if cannot_link(&error) => {
            let what = format!(
                "its file system can neither rename without replacing nor link ({error}), so no store can be made on it: one can be made on \
                 another file system and copied there"
            );
            return Err(io::Error::new(io::ErrorKind::Unsupported, what));
        }
        linked => linked?,
    }
    if let Err(error) = fs::remove_file(from) {
        tracing::debug!(%error, "what has its name stays under its first one, too");
    }
    Ok(())
}

/// Whether two names are of one file.
fn is_same(one: &Path, other: &Path) -> bool {
    let id = |path| fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()));
    matches!((id(one), id(other)), (Ok(one), Ok(other)) if one == other)
}

/// Whether the file system, not the right to the folder, is what is missing: that would be `EACCES`.
fn cannot_link(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS))
}

/// Who may have the lock, and how to go on.
fn being_removed(path: &Path, waited: Duration) -> io::Error {
    let what = format!(
        "images are being removed by another process, which has held it for more than {} s: try again when that is done; it is a \
         `dormouse rm` or `dormouse prune`, or a job with --keep-last, and `fuser {}` on its machine tells its number",
        waited.as_secs(),
        path.display()
    );
    io::Error::new(io::ErrorKind::WouldBlock, what)
}

impl MediaRead for File {
    fn will_read(&self, offset: u64, len: u64) {
        let last = offset.saturating_add(len.saturating_sub(1));
        let is_there = || is_cached(self, offset) && is_cached(self, last);
        // Memory has all pages that there are, and does not take the question.
        let in_memory = fstatfs(self).is_ok_and(|file_system| is_memory(&file_system));
        if !((in_memory || is_there()) && touch(self, offset, len)) {
            // It is read all the same.
            let _ = fadvise(self, offset, NonZeroU64::new(len), Advice::WillNeed);
        }
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, buffer, offset)
    }
}

/// Whether the page cache has the byte there.
fn is_cached(file: &File, offset: u64) -> bool {
    let mut byte = [0; 1];
    // What is no offset is where the file is read next.
    i64::try_from(offset).is_ok()
        && preadv2(file, &mut [IoSliceMut::new(&mut byte)], offset, ReadWriteFlags::NOWAIT) == Ok(1)
}

/// Has the kernel note that cached pages are read a second time, which has it move them to another list and holds up whoever reads them then (23 GB/s in
/// place of 45 by 16 threads). Nothing is copied: the null device takes pages as they are. False where it does not, or where the file ends.
fn touch(file: &File, mut offset: u64, len: u64) -> bool {
    static NULL: LazyLock<Option<File>> =
        LazyLock::new(|| File::options().write(true).open("/dev/null").ok());
    let Some(null) = &*NULL else { return false };
    let end = offset.saturating_add(len);
    while offset < end {
        let most = usize::try_from(end - offset).unwrap_or(usize::MAX);
        if !sendfile(null, file, Some(&mut offset), most).is_ok_and(|sent| sent > 0) {
            return false;
        }
    }
    true
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cached_is_touched_and_nothing_behind_its_end() {
        let mut file = tempfile::tempfile().unwrap();
        io::Write::write_all(&mut file, &[7; 3 << 20]).unwrap();
        let asked = preadv2(&file, &mut [IoSliceMut::new(&mut [0])], 0, ReadWriteFlags::NOWAIT);
        // Not all file systems take the question.
        assert_eq!(is_cached(&file, 0) && is_cached(&file, (3 << 20) - 1), asked != Err(Errno::OPNOTSUPP));
        io::Seek::rewind(&mut file).unwrap();
        assert!(!is_cached(&file, 3 << 20) && !is_cached(&file, u64::MAX));
        assert!(touch(&file, 0, 3 << 20) && touch(&file, 12345, 1 << 20));
        assert!(!touch(&file, 2 << 20, 2 << 20), "the last one is not there");
        assert!(!touch(&file, u64::MAX - 1, 1));
    }

    #[test]
    fn a_name_that_something_has_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let dir = Dir::new(folder.path());
        is_left_alone(&dir, |from, to| dir.rename_new(from, to));
    }

    #[test]
    fn so_it_is_where_the_file_system_knows_links_only() {
        let folder = tempfile::tempdir().unwrap();
        let dir = Dir::new(folder.path());
        is_left_alone(&dir, |from, to| {
            link_new(&dir.full_path(from), &dir.full_path(to), |from, to| fs::hard_link(from, to))
        });
    }

    #[test]
    fn a_name_counts_where_the_old_one_cannot_be_removed() {
        let folder = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
        fs::write(&from, "it").unwrap();
        // Gone by then: removing fails.
        link_new(&from, &to, |from, to| fs::rename(from, to)).unwrap();
        assert_eq!(fs::read_to_string(&to).unwrap(), "it");
    }

    #[test]
    fn ones_own_link_is_no_one_elses() {
        let folder = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
        fs::write(&from, "it").unwrap();
        let twice = |from: &Path, to: &Path| {
            fs::hard_link(from, to).unwrap();
            fs::hard_link(from, to)
        };
        link_new(&from, &to, twice).unwrap();
        assert_eq!(fs::read_to_string(&to).unwrap(), "it");
        assert!(!from.exists());
    }

    #[test]
    fn a_file_system_without_links_is_told_of() {
        let folder = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
        fs::write(&from, "it").unwrap();
        for errno in [Errno::PERM, Errno::OPNOTSUPP, Errno::NOSYS] {
            let error = link_new(&from, &to, |_, _| Err(errno.into())).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::Unsupported);
            assert!(error.to_string().contains("neither rename without replacing nor link"), "{error}");
        }
        // The right to write there can be given.
        let error = link_new(&from, &to, |_, _| Err(Errno::ACCESS.into())).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
        assert!(from.exists() && !to.exists());
    }

    /// Where nothing can be made durable nothing is said to be: the kernel was asked.
    #[test]
    fn what_cannot_be_synced_is_told_of() {
        let is_told = |synced: io::Result<()>| {
            assert_eq!(Errno::from_io_error(&synced.unwrap_err()), Some(Errno::INVAL));
        };
        is_told(Dir::new(Path::new("/proc")).sync_folder("self"));
        let null = Path::new("/dev/null");
        let file = || OpenOptions::new().write(true).open(null).unwrap();
        for make in [LongFile::new, LongFile::cached] {
            // Shorter than a block, and longer.
            for len in [1, 3 << 20] {
                let mut file = make(null.to_owned(), file());
                file.write_all(&vec![1; len]).unwrap();
                is_told(file.sync());
            }
        }
    }

    fn is_left_alone(dir: &Dir, rename_new: impl Fn(&str, &str) -> io::Result<()>) {
        for name in ["first", "second"] {
            fs::write(dir.full_path(name), name).unwrap();
        }
        rename_new("first", "name").unwrap();
        assert_eq!(rename_new("second", "name").unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(dir.full_path("name")).unwrap(), "first");
        let mut names = dir.list("").unwrap();
        names.sort_unstable();
        assert_eq!(names, ["name", "second"]);
    }
}
