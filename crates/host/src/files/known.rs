//! The files that a job has written, each found again by what it is: programs write under one name and rename to another.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirEntryExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::handle::{Handle, MountId};
use crate::tasks::OuterPid;

/// What the job has written and closed, as far as it still exists.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Written {
    /// By the names they have now.
    pub(crate) files: BTreeSet<PathBuf>,
    /// Names they once had, of those that exist and whose name now cannot be found.
    pub(crate) nameless: BTreeSet<PathBuf>,
}

/// A file among all of the machine, while it exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    pub(super) fn of(meta: &fs::Metadata) -> Self {
        Self { device: meta.dev(), inode: meta.ino() }
    }

    pub(super) fn is_at(self, path: &Path) -> bool {
        fs::symlink_metadata(path).is_ok_and(|meta| Self::of(&meta) == self)
    }
}

/// How a file is found again.
#[derive(Debug)]
enum Reference {
    /// By its handle and its folder's, on a mount of the job's.
    Handle { mount: MountId, file: Handle, folder: Option<Handle> },
    /// It is kept open as a place, where the file system has no way back from handles (overlayfs).
    Pin(OwnedFd),
    /// By name only: too many are pinned already.
    Name,
}

#[derive(Debug)]
struct Known {
    /// The last that is known.
    name: PathBuf,
    reference: Reference,
}

enum Found {
    At(PathBuf),
    Deleted,
    Nameless,
}

/// Every file that a job has written and closed.
#[derive(Debug)]
pub(super) struct KnownFiles {
    init: OuterPid,
    /// Mounts of the job where handles lead back to files.
    mounts: HashMap<MountId, PathBuf>,
    files: HashMap<FileId, Known>,
    pinned: usize,
    most_pinned: usize,
    /// How many there may be before those deleted are looked for.
    enough: usize,
}

/// See [`KnownFiles::enough`].
const ENOUGH: usize = 1024;

impl KnownFiles {
    /// None yet, of the job of which `init` is pid 1.
    pub(super) fn new(init: OuterPid) -> Self {
        // Descriptors are for other things too.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let most_pinned = limit.map_or(1 << 16, |limit| usize::try_from(limit / 4).unwrap_or(0));
        Self { init, mounts: HashMap::new(), files: HashMap::new(), pinned: 0, most_pinned, enough: ENOUGH }
    }

    /// `path` of the job, seen from out here.
    pub(super) fn seen(init: OuterPid, path: &Path) -> PathBuf {
        PathBuf::from(format!("/proc/{init}/root")).join(path.strip_prefix("/").unwrap_or(path))
    }

    /// Finds out whether handles can be used on the job's mount at `target`.
    pub(super) fn try_mount(&mut self, target: &Path) -> io::Result<()> {
        let root = open_mount(&Self::seen(self.init, target))?;
        let (handle, mount) = Handle::of(root.as_fd())?;
        handle.open(&root)?;
        self.mounts.insert(mount, target.to_owned());
        Ok(())
    }

    /// Notes a file that the job knows as `path`, if it is there.
    pub(super) fn note_path(&mut self, path: &Path) {
        let place = fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_NOFOLLOW)
            .open(Self::seen(self.init, path));
        if let Ok(place) = place {
            self.note(place.as_fd());
        }
    }

    /// Notes an open file.
    pub(super) fn note(&mut self, file: BorrowedFd<'_>) {
        let link = link_of(file);
        let (Ok(meta), Ok(name)) = (fs::metadata(&link), fs::read_link(&link)) else { return };
        if !meta.is_file() || meta.nlink() == 0 {
            return;
        }
        let id = FileId::of(&meta);
        // An inode's number may be another file's by now.
        self.forget(id);
        let reference = self.refer_to(file, &name);
        self.pinned += usize::from(matches!(reference, Reference::Pin(_)));
        self.files.insert(id, Known { name, reference });
        if self.files.len() > self.enough {
            self.forget_deleted();
            self.enough = ENOUGH.max(2 * self.files.len());
        }
    }

    fn refer_to(&self, file: BorrowedFd<'_>, name: &Path) -> Reference {
        if let Ok((handle, mount)) = Handle::of(file)
            && self.mounts.contains_key(&mount)
        {
            let folder = name.parent().and_then(|folder| File::open(Self::seen(self.init, folder)).ok());
            let folder = folder.and_then(|folder| Handle::of(folder.as_fd()).ok()).map(|(handle, _)| handle);
            return Reference::Handle { mount, file: handle, folder };
        }
        let place = || fs::OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(link_of(file));
        match (self.pinned < self.most_pinned).then(place) {
            Some(Ok(place)) => Reference::Pin(place.into()),
            _ => Reference::Name,
        }
    }

    fn forget(&mut self, id: FileId) {
        if let Some(Known { reference: Reference::Pin(_), .. }) = self.files.remove(&id) {
            self.pinned -= 1;
        }
    }

    /// Whether files are kept from being freed: [`Self::forget_deleted`] is to be called soon.
    pub(super) fn any_pinned(&self) -> bool {
        self.pinned > 0
    }

    pub(super) fn forget_deleted(&mut self) {
        let mut mounts = OpenMounts::new(self.init, &self.mounts);
        self.files.retain(|id, known| !known.is_deleted(*id, &mut mounts));
        self.pinned =
            self.files.values().filter(|known| matches!(known.reference, Reference::Pin(_))).count();
    }

    /// Finds every file's present name, and forgets those that are deleted.
    pub(super) fn find(&mut self) -> Written {
        let mut mounts = OpenMounts::new(self.init, &self.mounts);
        let mut written = Written::default();
        self.files.retain(|id, known| match known.find(*id, &mut mounts) {
            Found::At(path) => {
                known.name.clone_from(&path);
                written.files.insert(path);
                true
            }
            Found::Nameless => {
                written.nameless.insert(known.name.clone());
                true
            }
            Found::Deleted => false,
        });
        self.pinned =
            self.files.values().filter(|known| matches!(known.reference, Reference::Pin(_))).count();
        written
    }
}

impl Known {
    fn is_deleted(&self, id: FileId, mounts: &mut OpenMounts<'_>) -> bool {
        matches!(self.open(id, mounts), Err(Found::Deleted))
    }

    /// The file itself.
    fn open(&self, id: FileId, mounts: &mut OpenMounts<'_>) -> Result<OwnedFd, Found> {
        let file = match &self.reference {
            Reference::Pin(place) => place.try_clone(),
            Reference::Handle { mount, file, .. } => match mounts.get(*mount) {
                Some(mount) => file.open(mount),
                None => return Err(Found::Nameless),
            },
            Reference::Name if id.is_at(&self.name) => File::open(&self.name).map(OwnedFd::from),
            // Deleted or renamed: nobody can tell.
            Reference::Name => return Err(Found::Deleted),
        };
        match file {
            Ok(file) if fs::metadata(link_of(file.as_fd())).is_ok_and(|meta| meta.nlink() > 0) => Ok(file),
            Ok(_) => Err(Found::Deleted),
            Err(error) if error.raw_os_error() == Some(libc::ESTALE) => Err(Found::Deleted),
            Err(_) => Err(Found::Nameless),
        }
    }

    fn find(&self, id: FileId, mounts: &mut OpenMounts<'_>) -> Found {
        if id.is_at(&self.name) {
            return Found::At(self.name.clone());
        }
        let file = match self.open(id, mounts) {
            Ok(file) => file,
            Err(found) => return found,
        };
        // The kernel knows the name while it has it cached.
        if let Ok(path) = fs::read_link(link_of(file.as_fd()))
            && id.is_at(&path)
        {
            return Found::At(path);
        }
        self.find_in_folder(id, mounts).map_or(Found::Nameless, Found::At)
    }

    /// A folder's name is always known, and most are renamed within their folder.
    fn find_in_folder(&self, id: FileId, mounts: &mut OpenMounts<'_>) -> Option<PathBuf> {
        let Reference::Handle { mount, folder: Some(folder), .. } = &self.reference else { return None };
        let folder = folder.open(mounts.get(*mount)?).ok()?;
        let folder = fs::read_link(link_of(folder.as_fd())).ok()?;
        let entries = fs::read_dir(folder).ok()?.flatten();
        entries.filter(|entry| entry.ino() == id.inode).map(|entry| entry.path()).find(|path| id.is_at(path))
    }
}

/// The job's mounts, opened when they are needed: none is kept from being unmounted for longer.
struct OpenMounts<'a> {
    init: OuterPid,
    all: &'a HashMap<MountId, PathBuf>,
    open: HashMap<MountId, Option<File>>,
}

impl<'a> OpenMounts<'a> {
    fn new(init: OuterPid, all: &'a HashMap<MountId, PathBuf>) -> Self {
        Self { init, all, open: HashMap::new() }
    }

    fn get(&mut self, id: MountId) -> Option<&File> {
        let (init, all) = (self.init, self.all);
        let open = || open_mount(&KnownFiles::seen(init, all.get(&id)?)).ok();
        self.open.entry(id).or_insert_with(open).as_ref()
    }
}

fn open_mount(path: &Path) -> io::Result<File> {
    fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

fn link_of(file: BorrowedFd<'_>) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Files of this process, in a mount of its own, found by handles or by pins.
    fn known(folder: &Path, handles: bool) -> KnownFiles {
        let mut known = KnownFiles::new(OuterPid(std::process::id() as i32));
        if handles {
            known.try_mount(folder).unwrap();
        }
        known
    }

    fn set(paths: &[&Path]) -> BTreeSet<PathBuf> {
        paths.iter().map(|path| path.to_path_buf()).collect()
    }

    #[test]
    fn files_are_found_under_their_new_names_and_their_folders_too() {
        for handles in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let at = |name: &str| folder.path().join(name);
            fs::create_dir_all(at("tmp-checkpoint")).unwrap();
            let mut known = known(folder.path(), handles);
            for name in ["state.tmp", "tmp-checkpoint/weights", "gone", "replaced", "as-it-was"] {
                known.note(File::create(at(name)).unwrap().as_fd());
            }
            assert_eq!(known.any_pinned(), !handles);
            fs::rename(at("state.tmp"), at("replaced")).unwrap();
            fs::rename(at("tmp-checkpoint"), at("checkpoint")).unwrap();
            fs::remove_file(at("gone")).unwrap();
            let expected = set(&[&at("replaced"), &at("checkpoint/weights"), &at("as-it-was")]);
            let written = known.find();
            assert_eq!(written, Written { files: expected, nameless: BTreeSet::new() }, "handles: {handles}");
            assert_eq!(known.files.len(), 3, "those deleted are forgotten");
        }
    }

    #[test]
    fn a_name_is_found_in_its_folder_when_the_kernel_has_forgotten_it() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        let mut known = known(folder.path(), true);
        known.note(File::create(&one).unwrap().as_fd());
        fs::rename(&one, &other).unwrap();
        let (id, file) = known.files.iter().next().unwrap();
        let mut mounts = OpenMounts::new(known.init, &known.mounts);
        assert_eq!(file.find_in_folder(*id, &mut mounts), Some(other));
    }

    #[test]
    fn what_was_deleted_does_not_pile_up() {
        for handles in [true, false] {
            let folder = tempfile::tempdir().unwrap();
            let mut known = known(folder.path(), handles);
            for number in 0..3 * ENOUGH {
                let path = folder.path().join(number.to_string());
                let file = File::create(&path).unwrap();
                known.note(file.as_fd());
                fs::remove_file(path).unwrap();
            }
            assert!(known.files.len() <= ENOUGH + 1, "{}", known.files.len());
            known.forget_deleted();
            assert_eq!((known.files.len(), known.any_pinned()), (0, false));
        }
    }

    #[test]
    fn without_room_for_pins_names_are_left() {
        let folder = tempfile::tempdir().unwrap();
        let mut known = known(folder.path(), false);
        known.most_pinned = 0;
        let path = folder.path().join("file");
        known.note(File::create(&path).unwrap().as_fd());
        assert!(!known.any_pinned());
        assert_eq!(known.find().files, set(&[&path]));
    }
}
