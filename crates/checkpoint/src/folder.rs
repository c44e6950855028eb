//! A folder of files into an image, and out of it again: the job's tmpfs, and what CRIU wrote.

use crate::error::{Failure, Kind};
use image::{ObjectKind, RawPath};
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Uid, chmodat, chownat, mkdirat, mknodat, openat,
    openat2, statat, symlinkat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use store::{ChunkWriter, Image, ReadError, WriteError};

/// Something in a folder, beside its bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Path within the folder.
    #[serde(with = "host::raw")]
    pub path: PathBuf,
    /// Permission bits.
    pub mode: u32,
    /// Owner and group.
    pub owner: (u32, u32),
    /// What it is.
    pub kind: EntryKind,
}

/// What an entry of a folder is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EntryKind {
    /// A folder.
    Folder,
    /// A regular file; its bytes are an object of the image.
    File,
    /// A symbolic link and where it leads.
    Link(#[serde(with = "host::raw")] PathBuf),
    /// A named pipe.
    Pipe,
}

/// Everything below `dir`, in order: folders before what is in them. Sockets and devices are left out: whoever made them
/// makes them anew.
///
/// # Errors
/// As the file system's.
pub fn entries(dir: &Path) -> io::Result<Vec<Entry>> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(dir.join(&folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            let meta = entry.metadata()?;
            let kind = match meta.file_type() {
                each if each.is_dir() => {
                    folders.push(path.clone());
                    EntryKind::Folder
                }
                each if each.is_file() => EntryKind::File,
                each if each.is_symlink() => EntryKind::Link(fs::read_link(entry.path())?),
                each if each.is_fifo() => EntryKind::Pipe,
                _ => continue,
            };
            found.push(Entry { path, mode: meta.mode() & 0o7777, owner: (meta.uid(), meta.gid()), kind });
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// Bytes of the files of `dir`, which has these entries, holes included.
#[must_use]
pub fn bytes(dir: &Path, entries: &[Entry]) -> u64 {
    let files = entries.iter().filter(|entry| entry.kind == EntryKind::File);
    let len = |entry: &Entry| fs::symlink_metadata(dir.join(&entry.path)).map_or(0, |meta| meta.len());
    files.map(len).sum()
}

/// Writes every file of `dir`, which has these entries, as the object that `name` makes of its path; tells how many bytes they
/// have.
///
/// # Errors
/// When a file cannot be read or the store cannot take it.
pub fn save(
    dir: &Path,
    entries: &[Entry],
    writer: &ChunkWriter,
    name: impl Fn(RawPath) -> ObjectKind,
) -> Result<u64, Failure> {
    save_with(dir, entries, writer, name, |_| Ok(None::<(io::Empty, Vec<u64>)>))
}

/// The same, but for the files of which `content` gives other bytes than are in them, and how long the chunks of those are.
///
/// # Errors
/// When a file cannot be read or the store cannot take it.
pub fn save_with<C: io::Read>(
    dir: &Path,
    entries: &[Entry],
    writer: &ChunkWriter,
    name: impl Fn(RawPath) -> ObjectKind,
    content: impl Fn(&Path) -> io::Result<Option<(C, Vec<u64>)>>,
) -> Result<u64, Failure> {
    let unreadable =
        |path: &Path, error: io::Error| Failure::of(format_args!("cannot read {}", path.display()), &error);
    let mut bytes = 0;
    for entry in entries {
        if entry.kind != EntryKind::File {
            continue;
        }
        let full = dir.join(&entry.path);
        let content = content(&entry.path).map_err(|error| unreadable(&full, error))?;
        let mut object = writer.object(name(RawPath::from(entry.path.as_os_str())));
        let written = match content {
            Some((content, chunks)) => object.copy_in_chunks(content, &chunks),
            None => {
                let file = File::open(&full).map_err(|error| unreadable(&full, error))?;
                object.copy_file(&file)
            }
        };
        bytes += written.map_err(write_failure)?;
        object.finish().map_err(write_failure)?;
    }
    Ok(bytes)
}

/// A folder to be filled from an image, which may be anybody's: nothing outside of it is written, whatever the image says.
pub struct Target<'a> {
    /// The folder.
    pub dir: &'a Path,
    /// Where a symbolic link may be: what is made there later must not be led elsewhere.
    pub may_link: &'a dyn Fn(&Path) -> bool,
    /// What to do when it is full.
    pub when_full: &'a str,
}

/// Makes `entries` again in `target`, with their bytes from the object that `name` makes of a path. Holes stay holes. `advance` is
/// told how many bytes more are done.
///
/// # Errors
/// [`Kind::Damaged`] when the image is, or what it holds would lead out of the folder; [`Kind::Failed`] when a file cannot be
/// written.
pub fn load(
    target: &Target<'_>,
    image: &Image,
    entries: &[Entry],
    name: impl Fn(RawPath) -> ObjectKind,
    advance: &(dyn Fn(u64) + Sync),
) -> Result<(), Failure> {
    let dir = open_folder(target.dir)
        .map_err(|error| Failure::of(format_args!("cannot open {}", target.dir.display()), &error))?;
    for entry in entries {
        let content = |file: &File| {
            let object = name(RawPath::from(entry.path.as_os_str()));
            image.copy_to_file(&object, file, advance).map(drop).map_err(Stopped::Content)
        };
        make(&dir, entry, target.may_link, content).map_err(|stopped| stopped.failure(entry, target))?;
    }
    Ok(())
}

/// Why an entry was not made.
enum Stopped {
    /// No honest image holds it.
    Hostile(&'static str),
    Content(ReadError),
    Io(Errno),
}

impl From<Errno> for Stopped {
    fn from(error: Errno) -> Self {
        match error {
            Errno::LOOP | Errno::XDEV | Errno::NOTDIR => {
                Self::Hostile("lies below something that is no folder")
            }
            Errno::EXIST => Self::Hostile("is there already"),
            Errno::NOENT => Self::Hostile("lies in no folder"),
            other => Self::Io(other),
        }
    }
}

impl Stopped {
    fn failure(self, entry: &Entry, target: &Target<'_>) -> Failure {
        let (path, dir) = (entry.path.display(), target.dir.display());
        let full = |error: &io::Error| match error.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => target.when_full,
            _ => "",
        };
        match self {
            Self::Hostile(what) => {
                Failure::new(Kind::Damaged, format!("the image holds a file {path:?} that {what}"))
            }
            Self::Content(ReadError::Sink { error, .. }) => {
                let message = format!("cannot write {path} in {dir}: {error}{}", full(&error));
                Failure::new(Kind::Failed, message)
            }
            Self::Content(other) => read_failure(other),
            Self::Io(error) => {
                let error = io::Error::from(error);
                Failure::new(Kind::Failed, format!("cannot make {path} in {dir}: {error}{}", full(&error)))
            }
        }
    }
}

fn open_folder(dir: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(openat(rustix::fs::CWD, dir, flags, Mode::empty())?)
}

/// Opens what lies at a path in `dir`, on the same mount and through no link.
///
/// # Errors
/// The kernel's.
pub(crate) fn beneath(dir: &OwnedFd, path: &Path, flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    openat2(dir, path, flags | OFlags::CLOEXEC, Mode::empty(), within)
}

/// Makes one entry below `dir`, following no link and replacing nothing.
fn make(
    dir: &OwnedFd,
    entry: &Entry,
    may_link: &dyn Fn(&Path) -> bool,
    content: impl FnOnce(&File) -> Result<(), Stopped>,
) -> Result<(), Stopped> {
    let plain = entry.path.components().all(|part| matches!(part, Component::Normal(_)));
    let (true, Some(name)) = (plain, entry.path.file_name()) else {
        return Err(Stopped::Hostile("has no plain path"));
    };
    let folder = match entry.path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let folder = beneath(dir, folder, OFlags::PATH | OFlags::DIRECTORY)?;
    let for_us = Mode::RUSR | Mode::WUSR | Mode::XUSR;
    match &entry.kind {
        EntryKind::Folder => match mkdirat(&folder, name, for_us) {
            // One of ours.
            Err(Errno::EXIST) if is_folder(&folder, name)? => {}
            made => made?,
        },
        EntryKind::Link(_) if !may_link(&entry.path) => {
            return Err(Stopped::Hostile("is a link where Dormouse has its own files"));
        }
        EntryKind::Link(to) => symlinkat(to, &folder, name)?,
        EntryKind::Pipe => mknodat(&folder, name, FileType::Fifo, for_us, 0)?,
        EntryKind::File => {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            content(&File::from(openat(&folder, name, flags, for_us)?))?;
        }
    }
    let (user, group) = (Uid::from_raw(entry.owner.0), Gid::from_raw(entry.owner.1));
    chownat(&folder, name, Some(user), Some(group), AtFlags::SYMLINK_NOFOLLOW)?;
    if !matches!(entry.kind, EntryKind::Link(_)) {
        // No link: it has just been made, and nobody else is in here.
        chmodat(&folder, name, Mode::from_raw_mode(entry.mode & 0o7777), AtFlags::empty())?;
    }
    Ok(())
}

fn is_folder(dir: &OwnedFd, name: &std::ffi::OsStr) -> Result<bool, Errno> {
    let meta = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    Ok(FileType::from_raw_mode(meta.st_mode).is_dir())
}

/// A failure to write, with its kind.
#[must_use]
pub fn write_failure(error: WriteError) -> Failure {
    let kind = match error {
        // Also where others remove images from it for too long: busy would be the job, and another checkpoint of it all that is needed.
        WriteError::Full { .. } | WriteError::NotWritable { .. } | WriteError::Media(_) => Kind::Store,
        _ => Kind::Failed,
    };
    Failure::new(kind, crate::error::Chain(&error).to_string())
}

/// A failure to read an image.
#[must_use]
pub fn read_failure(error: ReadError) -> Failure {
    Failure::new(read_kind(&error), crate::error::Chain(&error).to_string())
}

/// What kind of failure it is that an image cannot be read.
#[must_use]
pub fn read_kind(error: &ReadError) -> Kind {
    match error {
        ReadError::NoImage { .. } => Kind::NotFound,
        ReadError::WrongMachine { .. } => Kind::Mismatch,
        newer if newer.is_newer() => Kind::Mismatch,
        // What took the bytes failed, not the image.
        ReadError::Sink { .. } => Kind::Failed,
        // Nor did it come to be one.
        ReadError::NotCome { .. } => Kind::Failed,
        // Others remove images: nothing is known of this one.
        ReadError::Media(failed) if failed.error.kind() == io::ErrorKind::WouldBlock => Kind::Busy,
        _ => Kind::Damaged,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::copy_failure;
    use std::os::unix::fs::PermissionsExt;
    use std::sync::Arc;
    use std::time::Duration;
    use store::media::{Dir, Media};
    use store::{CopyOptions, Store};

    #[test]
    fn everything_but_sockets_in_order() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("s1/x")).unwrap();
        for path in ["s1/x/b", "s1/a", "top"] {
            fs::write(dir.path().join(path), path.as_bytes()).unwrap();
        }
        fs::set_permissions(dir.path().join("top"), fs::Permissions::from_mode(0o640)).unwrap();
        std::os::unix::fs::symlink("s1/a", dir.path().join("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("hello.sock")).unwrap();
        let found: Vec<_> = entries(dir.path()).unwrap();
        let paths: Vec<_> = found.iter().map(|entry| entry.path.clone()).collect();
        assert_eq!(paths, ["link", "s1", "s1/a", "s1/x", "s1/x/b", "top"].map(PathBuf::from));
        assert_eq!(found[0].kind, EntryKind::Link("s1/a".into()));
        assert_eq!(found[5].mode, 0o640);
    }

    fn entry(path: &str, kind: EntryKind) -> Entry {
        let ids = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Entry { path: path.into(), mode: 0o640, owner: ids, kind }
    }

    fn fill(dir: &Path, entries: &[Entry], may_link: bool) -> Result<(), Failure> {
        let target = Target { dir, may_link: &|_| may_link, when_full: "; buy a bigger one" };
        let opened = open_folder(dir).unwrap();
        entries.iter().try_for_each(|entry| {
            let content = |file: &File| io::Write::write_all(&mut &*file, b"new").map_err(sink);
            make(&opened, entry, target.may_link, content).map_err(|stopped| stopped.failure(entry, &target))
        })
    }

    fn sink(error: io::Error) -> Stopped {
        Stopped::Content(ReadError::Sink { object: "a file".into(), offset: 0, error })
    }

    #[test]
    fn a_folder_is_filled_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("s1")).unwrap();
        let entries = [
            entry("s1", EntryKind::Folder),
            entry("s1/link", EntryKind::Link("/nowhere".into())),
            entry("s1/pipe", EntryKind::Pipe),
            entry("s1/file", EntryKind::File),
        ];
        fill(dir.path(), &entries, true).unwrap();
        let mode =
            |name: &str| fs::symlink_metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("s1"), mode("s1/pipe"), mode("s1/file")), (0o640, 0o640, 0o640));
        assert_eq!(fs::read_link(dir.path().join("s1/link")).unwrap(), Path::new("/nowhere"));
        assert_eq!(fs::read(dir.path().join("s1/file")).unwrap(), b"new");
    }

    #[test]
    fn no_image_writes_outside_its_folder() {
        let outside = tempfile::tempdir().unwrap();
        let victim = outside.path().join("passwd");
        fs::write(&victim, "old").unwrap();
        let there = outside.path().to_str().unwrap();
        let link = |path: &str, to: &str| entry(path, EntryKind::Link(to.into()));
        let file = |path: &str| entry(path, EntryKind::File);
        for hostile in [
            vec![link("a", there), file("a/passwd")],
            vec![link("a", there), entry("a/new", EntryKind::Folder)],
            vec![link("a", victim.to_str().unwrap()), file("a")],
            vec![link("a", victim.to_str().unwrap()), entry("a", EntryKind::Pipe)],
            vec![file("../passwd")],
            vec![file(victim.to_str().unwrap())],
            vec![file("")],
            vec![file("x"), file("x/y")],
            vec![file("x"), file("x")],
            vec![file("no/folder")],
        ] {
            let dir = tempfile::tempdir_in(outside.path()).unwrap();
            let failure = fill(dir.path(), &hostile, true).unwrap_err();
            assert_eq!(failure.kind, Kind::Damaged, "{hostile:?}: {failure}");
            assert!(failure.message.contains("the image holds a file"), "{failure}");
            assert_eq!(fs::read_to_string(&victim).unwrap(), "old", "{hostile:?}");
            drop(dir);
            assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1, "{hostile:?}");
        }
        let failure = fill(outside.path(), &[link("s1", "/etc")], false).unwrap_err();
        assert!(failure.message.contains("a link where Dormouse has its own files"), "{failure}");
    }

    #[test]
    fn a_full_folder_is_not_a_damaged_image() {
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        let target = Target { dir: Path::new("/d"), may_link: &|_| false, when_full: "; buy a bigger one" };
        for stopped in [sink(full()), Stopped::from(Errno::NOSPC)] {
            let failure = stopped.failure(&entry("f", EntryKind::File), &target);
            assert_eq!(failure.kind, Kind::Failed);
            assert!(
                failure.message.contains("f in /d") && failure.message.ends_with("; buy a bigger one"),
                "{failure}"
            );
        }
        let sunk = ReadError::Sink { object: "o".into(), offset: 0, error: full() };
        assert_eq!(read_failure(sunk).kind, Kind::Failed);
    }

    #[test]
    fn a_store_that_others_have_is_not_a_damaged_image() {
        let folder = tempfile::tempdir().unwrap();
        let dir = Dir::new(folder.path()).waiting(Duration::ZERO);
        let store = Store::open_or_create_media(Arc::new(dir.clone())).unwrap();
        let image = image::ImageId([1; 16]);
        let held = dir.lock("config", false).unwrap().unwrap();
        for read in [store.open_image(&image), store.open_foreign_image(&image), store.open_arriving(&image)]
        {
            let failure = read_failure(read.unwrap_err());
            assert_eq!(failure.kind, Kind::Busy);
            assert!(failure.message.contains("try again"), "{failure}");
        }
        let other = tempfile::tempdir().unwrap();
        let other = Store::open_or_create(other.path()).unwrap();
        let copied = |from: &Store, to: &Store| from.copy_to(to, &[], &CopyOptions::default(), &mut |_| {});
        assert_eq!(copy_failure(copied(&store, &other).unwrap_err()).kind, Kind::Busy);
        // Who writes hears of the store, not of the job.
        assert_eq!(copy_failure(copied(&other, &store).unwrap_err()).kind, Kind::Store);
        assert_eq!(write_failure(store.begin().unwrap_err()).kind, Kind::Store);
        drop(held);
        assert_eq!(read_failure(store.open_image(&image).unwrap_err()).kind, Kind::NotFound);
    }
}
