//! Files whose contents an image does not hold: a restart finds them where they lie, so a power failure must not take from them what was
//! there at the cut.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use super::known::FileId;
use super::written::FileError;
use crate::cut::by_threads;

/// Each waits for the disk, which makes several files durable at once as quickly as one.
const THREADS: usize = 8;
/// The most files that are held: descriptors are for other things, too.
const HELD_MAX: usize = 256;

/// What of a job could once not be made durable, files and folders. Linux tells of bytes that it could not write only once, and the next sync
/// succeeds although they are nowhere. Nor are the contents saved instead: what is read then need not be what was written (ext4 drops pages
/// for which it gets no room).
#[derive(Debug, Default)]
pub(crate) struct Doubtful(Mutex<BTreeSet<Birth>>);

/// A file among all of the machine, ever: inodes' numbers are used again.
type Birth = (FileId, Option<SystemTime>);

fn birth(meta: &fs::Metadata) -> Birth {
    (FileId::of(meta), meta.created().ok())
}

impl Doubtful {
    /// Whether an image must not rely on what lies on disk of the file of this name.
    pub(super) fn is_doubtful(&self, path: &Path, meta: &fs::Metadata) -> bool {
        let all = self.all();
        let is_in_doubt = |folder: &Path| fs::metadata(folder).is_ok_and(|meta| all.contains(&birth(&meta)));
        !all.is_empty() && (all.contains(&birth(meta)) || path.ancestors().skip(1).any(is_in_doubt))
    }

    fn all(&self) -> MutexGuard<'_, BTreeSet<Birth>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes it durable, if it is there and there is a disk behind it.
    fn synced(
        &self,
        opened: io::Result<Option<File>>,
        sync: impl FnOnce(&File) -> io::Result<()>,
    ) -> io::Result<()> {
        let Some(file) = opened? else { return Ok(()) };
        let birth = birth(&file.metadata()?);
        match sync(&file) {
            // It has nothing to sync. `EROFS` is an error: ext4's, once its disk has failed.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
            Err(error) => {
                self.all().insert(birth);
                Err(error)
            }
            // Whoever has heard of what is lost may be a checkpoint that was given up, after this one's cut.
            Ok(()) if self.all().contains(&birth) => {
                Err(io::Error::other("another checkpoint could not make it durable"))
            }
            Ok(()) => Ok(()),
        }
    }
}

/// The files that an image relies on as they lie on disk.
#[derive(Debug, Default)]
#[must_use = "an image without the files that it relies on is none"]
pub struct OnDisk {
    files: Vec<Relied>,
    doubtful: Arc<Doubtful>,
    held: usize,
}

#[derive(Debug)]
struct Relied {
    path: PathBuf,
    id: FileId,
    /// Held as a place since the cut: a restart asks for it under its name then, whatever it is called now.
    place: Option<File>,
}

impl OnDisk {
    /// None yet. What turns out to be `doubtful` is noted there.
    pub(super) fn new(doubtful: &Arc<Doubtful>) -> Self {
        Self { doubtful: Arc::clone(doubtful), ..Self::default() }
    }

    /// Notes a file that has this name. Where it is open `through` leads to it.
    ///
    /// # Errors
    /// When it is doubtful.
    pub(super) fn add(
        &mut self,
        path: &Path,
        meta: &fs::Metadata,
        through: Option<&Path>,
    ) -> Result<(), FileError> {
        if self.doubtful.is_doubtful(path, meta) {
            let what = "the image needs what is in it, which an earlier checkpoint could not make durable: \
                        it may be lost, whatever can be read now; have the program write another file";
            return Err(FileError::new(path, what));
        }
        let through = through.filter(|_| self.held < HELD_MAX);
        // Where no descriptor is to be had it is found by its name.
        let place = through.and_then(|through| open(through, libc::O_PATH).ok());
        self.held += usize::from(place.is_some());
        self.files.push(Relied { path: path.to_owned(), id: FileId::of(meta), place });
        Ok(())
    }

    /// Makes all that is in them, and their names, durable; what has been written since the cut, too. Takes as long as it takes: nothing bounds
    /// how much of a file is not on disk, nor how long a network's file system waits for its server.
    ///
    /// # Errors
    /// Names the first that cannot be made durable.
    pub fn sync(&self) -> io::Result<()> {
        self.sync_by(File::sync_data, File::sync_all)
    }

    fn sync_by(
        &self,
        sync_file: impl Fn(&File) -> io::Result<()> + Sync,
        sync_folder: impl Fn(&File) -> io::Result<()> + Sync,
    ) -> io::Result<()> {
        let there = self.files.iter().filter(|file| file.is_there());
        let files: BTreeMap<FileId, &Relied> = there.map(|file| (file.id, file)).collect();
        by_threads(
            THREADS,
            files.into_values(),
            || (),
            |(), file| {
                let synced = self.doubtful.synced(file.open(), &sync_file);
                synced.map_err(|error| not_durable(&file.path, &error))
            },
        )?;
        let folders: BTreeSet<&Path> =
            self.files.iter().flat_map(|file| file.path.ancestors().skip(1)).collect();
        by_threads(
            THREADS,
            folders,
            || (),
            |(), folder| {
                let synced = self.doubtful.synced(open_folder(folder), &sync_folder);
                synced.map_err(|error| not_durable(folder, &error))
            },
        )
    }
}

impl Relied {
    /// Whether it can be opened, and is no other by now: what has lost its name a restart would not find either.
    fn is_there(&self) -> bool {
        self.place.is_some() || self.id.is_at(&self.path)
    }

    fn open(&self) -> io::Result<Option<File>> {
        unless_gone(match &self.place {
            Some(place) => open(format!("/proc/self/fd/{}", place.as_raw_fd()), 0),
            // A FIFO that takes its place is not waited for.
            None => open(&self.path, libc::O_NONBLOCK | libc::O_NOFOLLOW),
        })
    }
}

fn open(path: impl AsRef<Path>, flags: i32) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

fn open_folder(folder: &Path) -> io::Result<Option<File>> {
    match open(folder, libc::O_DIRECTORY) {
        // Only a server's folder is shut to the supervisor; it keeps its names itself.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        opened => unless_gone(opened),
    }
}

fn unless_gone(opened: io::Result<File>) -> io::Result<Option<File>> {
    use io::ErrorKind::{NotADirectory, NotFound, StaleNetworkFileHandle};
    match opened {
        Err(error) if matches!(error.kind(), NotFound | NotADirectory | StaleNetworkFileHandle) => Ok(None),
        opened => opened.map(Some),
    }
}

fn not_durable(path: &Path, error: &io::Error) -> io::Error {
    let what = format!("the image needs what is in it, which cannot be made durable: {error}");
    io::Error::other(FileError::new(path, what))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{Collected, FileError, Limits, Restoration, Written, collect};
    use super::*;
    use crate::tasks::OuterPid;
    use std::io::Read;
    use std::os::unix::fs::MetadataExt;
    use std::process::{Command, Stdio};
    use std::sync::Mutex;

    /// How often each file and folder is synced, by its name when that happens.
    fn synced_by(on_disk: &OnDisk) -> BTreeMap<PathBuf, u32> {
        let synced = Mutex::new(BTreeMap::new());
        let note = |file: &File| {
            let name = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
            *synced.lock().unwrap().entry(name).or_insert(0) += 1;
            Ok(())
        };
        on_disk.sync_by(note, note).unwrap();
        synced.into_inner().unwrap()
    }

    /// Relies on these, which are not held.
    fn relying_on(paths: &[&Path]) -> OnDisk {
        let mut on_disk = OnDisk::default();
        paths.iter().for_each(|path| on_disk.add(path, &fs::metadata(path).unwrap(), None).unwrap());
        on_disk
    }

    #[test]
    fn files_that_are_not_saved_are_synced_and_no_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        for (name, bytes) in [("table", 3), ("long", 9), ("closed", 3), ("closed-long", 9)] {
            fs::write(path(name), vec![1; bytes]).unwrap();
        }
        let script = "exec 3>>log 4>>log 5<>table 6<>long 7<table; echo ready; exec sleep 60";
        let mut child = Command::new("sh");
        child.args(["-c", script]).current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = child.spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
        let closed = ["closed", "closed-long"].map(path).into();
        let written = Written { files: closed, ..Written::default() };
        let images = tempfile::tempdir().unwrap();
        let limits = Limits { open: 5, closed: 5, all_closed: 5 };
        let tasks = [OuterPid(i32::try_from(child.id()).unwrap())];
        let given = BTreeSet::new();
        let collected = collect(&tasks, written, &given, images.path(), limits, &Arc::default()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();

        // What is open is synced whatever it is called by then.
        fs::rename(path("log"), path("log.1")).unwrap();
        let synced = synced_by(&collected.on_disk);
        let here = synced.iter().filter(|(name, _)| name.parent() == Some(folder.path()));
        let here: Vec<_> = here.map(|(name, times)| (name.clone(), *times)).collect();
        assert_eq!(here, ["closed-long", "log.1", "long"].map(|name| (path(name), 1)));
        // Their names, too, and those of their folders.
        assert!(folder.path().ancestors().all(|each| synced[each] == 1), "{synced:?}");
    }

    #[test]
    fn a_file_is_synced_once_and_not_if_it_is_gone_or_another() {
        let folder = tempfile::tempdir().unwrap();
        let [one, link, gone, moved] = ["one", "link", "gone", "moved"].map(|name| folder.path().join(name));
        [&one, &gone, &moved].iter().for_each(|path| fs::write(path, "x").unwrap());
        fs::hard_link(&one, &link).unwrap();
        let on_disk = relying_on(&[&one, &link, &gone, &moved]);
        [&link, &gone].iter().for_each(|path| fs::remove_file(path).unwrap());
        fs::rename(&moved, folder.path().join("elsewhere")).unwrap();
        fs::write(&moved, "another").unwrap();
        let synced = synced_by(&on_disk);
        let here = synced.into_iter().filter(|(name, _)| name.parent() == Some(folder.path()));
        assert_eq!(here.collect::<Vec<_>>(), [(one, 1)]);
    }

    #[test]
    fn what_cannot_be_synced_is_named_and_what_has_no_disk_is_passed_over() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        fs::write(&log, "x").unwrap();
        let failing = |code| move |_: &File| Err(io::Error::from_raw_os_error(code));
        // The last is ext4's, of a disk that has failed.
        for code in [libc::EIO, libc::ENOSPC, libc::EDQUOT, libc::EROFS] {
            let on_disk = relying_on(&[&log]);
            let why = io::Error::from_raw_os_error(code).to_string();
            for (name, error) in [
                (&*log, on_disk.sync_by(failing(code), |_| Ok(()))),
                (
                    folder.path(),
                    relying_on(&[&log]).sync_by(
                        |_| Ok(()),
                        |file| match file.metadata()?.ino() {
                            ino if ino == fs::metadata(folder.path())?.ino() => failing(code)(file),
                            _ => Ok(()),
                        },
                    ),
                ),
            ] {
                let error = error.unwrap_err().to_string();
                assert!(
                    error.contains(&format!("file {}:", name.display())) && error.contains(&why),
                    "{error}"
                );
            }
        }
        let on_disk = relying_on(&[&log]);
        on_disk.sync_by(failing(libc::EINVAL), failing(libc::EINVAL)).unwrap();
        on_disk.sync().unwrap();
    }

    /// Of files that were written and closed, of which those of up to three bytes are saved.
    fn collected(paths: &[&Path], images: &Path, doubtful: &Arc<Doubtful>) -> Result<Collected, FileError> {
        let files = paths.iter().map(|path| path.to_path_buf()).collect();
        let written = Written { files, ..Written::default() };
        let limits = Limits { open: 5, closed: 3, all_closed: 3 };
        collect(&[], written, &BTreeSet::new(), images, limits, doubtful)
    }

    #[test]
    fn what_could_not_be_synced_is_relied_on_no_more() {
        let [folder, images] = [(), ()].map(|()| tempfile::tempdir().unwrap());
        let [long, short, other] = ["long", "short", "other"].map(|name| folder.path().join(name));
        let collected = |paths: &[&Path], doubtful: &_| collected(paths, images.path(), doubtful);
        for (path, text) in [(&long, "long"), (&short, "x"), (&other, "other")] {
            fs::write(path, text).unwrap();
        }
        let doubtful = Arc::default();
        let on_disk = collected(&[&long], &doubtful).unwrap().on_disk;
        // A checkpoint that has had its cut before.
        let late = collected(&[&long], &doubtful).unwrap().on_disk;
        on_disk.sync_by(|_| Err(os_error(libc::EIO)), |_| Ok(())).unwrap_err();
        for error in [
            late.sync().unwrap_err().to_string(),
            collected(&[&other, &long], &doubtful).unwrap_err().to_string(),
        ] {
            assert!(error.contains(&format!("file {}:", long.display())), "{error}");
        }
        // Others are, and one that has its name by now.
        fs::remove_file(&long).unwrap();
        fs::write(&long, "another").unwrap();
        let on_disk = collected(&[&long, &other], &doubtful).unwrap().on_disk;
        on_disk.sync_by(|_| Ok(()), |_| Err(os_error(libc::EIO))).unwrap_err();
        // Of a folder's names all may be lost.
        collected(&[&other], &doubtful).unwrap_err();
        let files = collected(&[&short], &doubtful).unwrap().files;
        assert!(matches!(files[0].restoration, Restoration::Contents(_)), "{files:?}");
    }

    fn os_error(code: i32) -> io::Error {
        io::Error::from_raw_os_error(code)
    }
}
