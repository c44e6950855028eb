//! Files that the job has written, and their way back to what they were at the cut.
//!
//! CRIU restores a descriptor's offset and insists on the file's length; contents are ours. A file that can only have been
//! appended to needs its length and nothing else. One that may be changed in place, or is not open and may be opened again, is
//! copied, up to a limit.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::known::Written;
use super::maps;
use super::on_disk::{Doubtful, OnDisk};
use crate::stdio::FileKey;
use crate::tasks::OuterPid;
use crate::tmpfs::JOB_DIR;

/// A file as it was at the cut.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenFile {
    /// Where it lies.
    #[serde(with = "crate::raw")]
    pub path: PathBuf,
    /// Its length in bytes.
    pub length: u64,
    /// Its permission bits.
    pub mode: u32,
    /// Its owner and group.
    pub owner: (u32, u32),
    /// Whether it was open. One that was not may be missing later.
    pub open: bool,
    /// How it is brought back.
    pub restoration: Restoration,
}

/// How a restart returns a file to its state at the cut.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Restoration {
    /// It was only ever appended to: what was added since is cut off.
    Truncate,
    /// Its contents are saved under this name in the images' folder.
    Contents(String),
    /// It was too long to be saved: its length is brought back, changes in place are not. The user has been warned.
    LengthOnly,
}

/// Why a file could not be saved or brought back.
#[derive(Debug, thiserror::Error)]
#[error("file {path}: {what}")]
pub struct FileError {
    /// Which.
    pub path: PathBuf,
    /// What went wrong, and what it means.
    pub what: String,
}

impl FileError {
    pub(super) fn new(path: &Path, what: impl Into<String>) -> Self {
        Self { path: path.to_owned(), what: what.into() }
    }
}

/// A file found open for writing or mapped writable.
struct Found {
    /// A name by which it can be opened from here, whatever its own name has become.
    through: PathBuf,
    /// Every writer has it open with O_APPEND, and nobody has it mapped.
    appended: bool,
}

/// How much is copied, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limits {
    /// Of each file that is open.
    pub(crate) open: u64,
    /// Of each file that is not.
    pub(crate) closed: u64,
    /// Of all that are not.
    pub(crate) all_closed: u64,
}

/// Records the files that `tasks`, all stopped, have open for writing or have written before (`closed`), and saves into `folder`
/// those that may be changed in place. What they were `given` is not theirs alone, and left as it is. Fails where the image would rely on what is `doubtful`.
pub(crate) fn collect(
    tasks: &[OuterPid],
    closed: Written,
    given: &BTreeSet<FileKey>,
    folder: &Path,
    limits: Limits,
    doubtful: &Arc<Doubtful>,
) -> Result<Collected, FileError> {
    let mut open: BTreeMap<PathBuf, Found> = BTreeMap::new();
    for task in tasks {
        find_open(*task, given, &mut open);
        find_mapped(*task, given, &mut open);
    }
    let collected = Collected { on_disk: OnDisk::new(doubtful), ..Collected::default() };
    let mut collection = Collection { folder, collected };
    let files: Vec<PathBuf> = closed.files.into_iter().filter(|path| !open.contains_key(path)).collect();
    for (path, Found { through, appended }) in open {
        // What has no name out here (deleted, or on a mount of the job's own) is CRIU's to carry.
        let (Ok(named), Ok(meta)) = (fs::metadata(&path), fs::metadata(&through)) else { continue };
        if !meta.is_file() || (named.dev(), named.ino()) != (meta.dev(), meta.ino()) {
            continue;
        }
        let restoration = if appended {
            Restoration::Truncate
        } else if meta.len() <= limits.open {
            collection.save(&path, &through, meta.len())?
        } else {
            collection.collected.warnings.push(format!(
                "{} ({} bytes) is open for writing and longer than the {} bytes that are saved: \
                 a restart will restore its length, but not what is changed in it after this checkpoint",
                path.display(),
                meta.len(),
                limits.open
            ));
            Restoration::LengthOnly
        };
        collection.add(path, &meta, Some(&through), restoration)?;
    }
    collection.add_closed(files, limits)?;
    collection.warn_of(&closed.nameless);
    Ok(collection.collected)
}

/// What was found of a job's files.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    /// For the record.
    pub(crate) files: Vec<WrittenFile>,
    /// Those of them that are not saved.
    pub(crate) on_disk: OnDisk,
    /// For the user.
    pub(crate) warnings: Vec<String>,
}

struct Collection<'a> {
    folder: &'a Path,
    collected: Collected,
}

impl Collection<'_> {
    fn add_closed(&mut self, closed: Vec<PathBuf>, limits: Limits) -> Result<(), FileError> {
        let (mut room, mut too_long) = (limits.all_closed, 0);
        for path in closed {
            // Deleted since, or on a mount of the job's own.
            let Ok(meta) = fs::symlink_metadata(&path) else { continue };
            if !meta.is_file() {
                continue;
            }
            let restoration = if meta.len() <= limits.closed.min(room) {
                room -= meta.len();
                self.save(&path, &path, meta.len())?
            } else {
                too_long += 1;
                Restoration::LengthOnly
            };
            self.add(path, &meta, None, restoration)?;
        }
        if too_long > 0 {
            self.collected.warnings.push(format!(
                "{too_long} files that the job has written and closed are too long to be saved: \
                 a restart will restore their lengths, but not what is changed in them after this checkpoint"
            ));
        }
        Ok(())
    }

    fn warn_of(&mut self, nameless: &BTreeSet<PathBuf>) {
        if let Some(once) = nameless.first() {
            self.collected.warnings.push(format!(
                "{} files that the job has written have been renamed and are not found, one of them once {}: \
                 a restart will not bring back what is changed in them after this checkpoint",
                nameless.len(),
                once.display()
            ));
        }
    }

    fn save(&self, path: &Path, through: &Path, length: u64) -> Result<Restoration, FileError> {
        let name = format!("written-{}", self.collected.files.len());
        match save(through, &self.folder.join(&name), length) {
            Ok(()) => Ok(Restoration::Contents(name)),
            Err(e) => Err(FileError::new(path, format!("cannot be saved with the checkpoint: {e}"))),
        }
    }

    /// Adds a file; if it is open `through` leads to it.
    fn add(
        &mut self,
        path: PathBuf,
        meta: &fs::Metadata,
        through: Option<&Path>,
        restoration: Restoration,
    ) -> Result<(), FileError> {
        if !matches!(restoration, Restoration::Contents(_)) {
            self.collected.on_disk.add(&path, meta, through)?;
        }
        self.collected.files.push(WrittenFile {
            path,
            length: meta.len(),
            mode: meta.mode() & 0o7777,
            owner: (meta.uid(), meta.gid()),
            open: through.is_some(),
            restoration,
        });
        Ok(())
    }
}

fn find_open(task: OuterPid, given: &BTreeSet<FileKey>, found: &mut BTreeMap<PathBuf, Found>) {
    let Ok(links) = fs::read_dir(format!("/proc/{task}/fd")) else { return };
    for link in links.flatten() {
        let Some(flags) = open_flags(task, &link.file_name().to_string_lossy()) else { continue };
        if flags & OFlags::RWMODE == OFlags::RDONLY {
            continue;
        }
        if let Ok(path) = fs::read_link(link.path()) {
            note(found, given, path, link.path(), flags.contains(OFlags::APPEND));
        }
    }
}

pub(super) fn open_flags(task: OuterPid, fd: &str) -> Option<OFlags> {
    let info = fs::read_to_string(format!("/proc/{task}/fdinfo/{fd}")).ok()?;
    let octal = info.lines().find_map(|l| l.strip_prefix("flags:"))?;
    u32::from_str_radix(octal.trim(), 8).ok().map(OFlags::from_bits_retain)
}

fn find_mapped(task: OuterPid, given: &BTreeSet<FileKey>, found: &mut BTreeMap<PathBuf, Found>) {
    for mapping in maps::of(task).into_iter().filter(|mapping| mapping.written) {
        let through = format!("/proc/{task}/map_files/{}", mapping.range);
        note(found, given, mapping.path, through.into(), false);
    }
}

fn note(
    found: &mut BTreeMap<PathBuf, Found>,
    given: &BTreeSet<FileKey>,
    path: PathBuf,
    through: PathBuf,
    appended: bool,
) {
    if path.is_absolute()
        && !path.starts_with(JOB_DIR)
        && !path.starts_with("/dev")
        && !path.starts_with("/proc")
        && !FileKey::behind(&through).is_ok_and(|key| given.contains(&key))
    {
        let file = found.entry(path).or_insert(Found { through, appended });
        file.appended &= appended;
    }
}

/// Copies the first `length` bytes, sharing extents where the file system can.
fn save(from: &Path, to: &Path, length: u64) -> io::Result<()> {
    let from = File::open(from)?;
    let to = File::create(to)?;
    if rustix::fs::ioctl_ficlone(&to, &from).is_ok() {
        return to.set_len(length);
    }
    io::copy(&mut io::Read::take(from, length), &mut &to).map(drop)
}

/// The files that can and are to be returned to their state at the cut. Changes nothing.
///
/// # Errors
/// Names the first file that cannot be brought back: it is missing, or has lost data.
pub(crate) fn restorable(files: &[WrittenFile]) -> Result<Vec<&WrittenFile>, FileError> {
    let mut wanted = Vec::new();
    for file in files {
        match (&file.restoration, fs::symlink_metadata(&file.path)) {
            // A link since then makes room for the file: it leads to another.
            (Restoration::Contents(_), Ok(now)) if now.is_symlink() => {}
            (_, Ok(now)) if !now.is_file() => {
                return Err(FileError::new(
                    &file.path,
                    "the job was writing it, but now it is no regular file",
                ));
            }
            (Restoration::Contents(_), Ok(_)) => {}
            // Its folder may have been renamed or removed since.
            (Restoration::Contents(_), Err(e)) if e.kind() == io::ErrorKind::NotFound => {}
            (_, Ok(now)) if now.len() >= file.length => {}
            // The job may have been done with it.
            (Restoration::Truncate | Restoration::LengthOnly, Err(_)) if !file.open => continue,
            (_, Ok(now)) => {
                let what = format!(
                    "has {} bytes, but had {} at the checkpoint; bring it back",
                    now.len(),
                    file.length
                );
                return Err(FileError::new(&file.path, what));
            }
            (_, Err(e)) => {
                let what = format!("the job was writing it at the checkpoint, but now: {e}; bring it back");
                return Err(FileError::new(&file.path, what));
            }
        }
        wanted.push(file);
    }
    Ok(wanted)
}

/// Returns every file to its state at the cut; `folder` holds the saved contents. Before one is changed, `may_change` is asked.
///
/// # Errors
/// Names the first file that cannot be brought back. Nothing has been changed if one is missing or has lost data, or if none may be.
pub(crate) fn put_back(
    files: &[WrittenFile],
    folder: &Path,
    may_change: &dyn Fn() -> io::Result<()>,
) -> Result<(), FileError> {
    for file in restorable(files)? {
        put_one_back(file, folder, may_change)
            .map_err(|e| FileError::new(&file.path, format!("cannot be brought back: {e}")))?;
    }
    Ok(())
}

fn put_one_back(
    file: &WrittenFile,
    folder: &Path,
    may_change: &dyn Fn() -> io::Result<()>,
) -> io::Result<()> {
    let Restoration::Contents(name) = &file.restoration else {
        let there = open_itself(OpenOptions::new().write(true), &file.path)?;
        if there.metadata()?.len() == file.length {
            return Ok(());
        }
        may_change()?;
        return there.set_len(file.length);
    };
    // A name of ours, not a way out of the folder.
    if name.contains('/') {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    let saved = open_itself(OpenOptions::new().read(true), &folder.join(name))?;
    if saved.metadata()?.len() != file.length {
        return Err(io::Error::other("its saved contents have another length than recorded"));
    }
    // The same inode where there is one: it may have other names.
    let existing = match open_itself(OpenOptions::new().read(true), &file.path) {
        Ok(there) if same_contents(&saved, &there)? => return Ok(()),
        Ok(_) => Some(open_itself(OpenOptions::new().write(true), &file.path)?),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) if e.raw_os_error() == Some(libc::ELOOP) => {
            may_change()?;
            fs::remove_file(&file.path)?;
            None
        }
        Err(e) => return Err(e),
    };
    may_change()?;
    let existed = existing.is_some();
    let mut to = match existing {
        Some(there) => there,
        None => {
            if let Some(folder) = file.path.parent() {
                fs::create_dir_all(folder)?;
            }
            open_itself(OpenOptions::new().write(true).create_new(true).mode(file.mode), &file.path)?
        }
    };
    to.set_len(0)?;
    io::copy(&mut &saved, &mut to)?;
    if !existed {
        std::os::unix::fs::fchown(&to, Some(file.owner.0), Some(file.owner.1))?;
        to.set_permissions(fs::Permissions::from_mode(file.mode))?;
    }
    Ok(())
}

/// Opens the file of this name, not one that a link leads to.
fn open_itself(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    options.custom_flags(libc::O_NOFOLLOW).open(path)
}

/// A file that nobody has changed keeps its times.
fn same_contents(a: &File, b: &File) -> io::Result<bool> {
    if a.metadata()?.len() != b.metadata()?.len() {
        return Ok(false);
    }
    let hash = |mut file: &File| {
        let mut hasher = blake3::Hasher::new();
        let hash = hasher.update_reader(file)?.finalize();
        file.rewind().map(|()| hash)
    };
    Ok(hash(a)? == hash(b)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn file(path: &Path, length: u64, open: bool, restoration: Restoration) -> WrittenFile {
        WrittenFile { path: path.to_owned(), length, mode: 0o640, owner: (0, 0), open, restoration }
    }

    fn always() -> io::Result<()> {
        Ok(())
    }

    fn never() -> io::Result<()> {
        Err(io::Error::other("it may not"))
    }

    #[test]
    fn nothing_is_changed_that_may_not_be_and_what_is_as_it_was_need_not() {
        let folder = tempfile::tempdir().unwrap();
        let (log, table, new) =
            (folder.path().join("log"), folder.path().join("table"), folder.path().join("new"));
        fs::write(&log, "one two").unwrap();
        fs::write(&table, "other").unwrap();
        fs::write(folder.path().join("written-0"), "contents").unwrap();
        for file in [
            file(&log, 3, true, Restoration::Truncate),
            file(&table, 8, true, Restoration::Contents("written-0".into())),
            file(&new, 8, true, Restoration::Contents("written-0".into())),
        ] {
            let error = put_back(&[file], folder.path(), &never).unwrap_err().to_string();
            assert!(error.contains("it may not"), "{error}");
        }
        assert_eq!(fs::read_to_string(&log).unwrap(), "one two");
        assert_eq!(fs::read_to_string(&table).unwrap(), "other");
        assert!(!new.exists());
        let as_it_was = file(&log, 7, true, Restoration::Truncate);
        fs::write(&table, "contents").unwrap();
        let alike = file(&table, 8, true, Restoration::Contents("written-0".into()));
        put_back(&[as_it_was, alike], folder.path(), &never).unwrap();
    }

    #[test]
    fn lengths_contents_and_permissions_come_back() {
        let folder = tempfile::tempdir().unwrap();
        let (log, table) = (folder.path().join("log"), folder.path().join("table"));
        fs::write(&log, "one two").unwrap();
        fs::write(folder.path().join("written-0"), "contents").unwrap();
        let files = [
            file(&log, 3, true, Restoration::Truncate),
            file(&table, 8, false, Restoration::Contents("written-0".into())),
            file(Path::new("/nowhere/at/all"), 8, false, Restoration::LengthOnly),
        ];
        put_back(&files, folder.path(), &always).unwrap();
        assert_eq!(fs::read_to_string(&log).unwrap(), "one");
        assert_eq!(fs::read_to_string(&table).unwrap(), "contents");
        assert_eq!(fs::metadata(&table).unwrap().mode() & 0o7777, 0o640);
    }

    #[test]
    fn a_program_that_runs_and_has_not_changed_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("program");
        for copy in [&program, &folder.path().join("written-0")] {
            fs::copy("/bin/sleep", copy).unwrap();
        }
        let mut running = std::process::Command::new(&program).arg("60").spawn().unwrap();
        let length = fs::metadata(&program).unwrap().len();
        let result = put_back(
            &[file(&program, length, false, Restoration::Contents("written-0".into()))],
            folder.path(),
            &never,
        );
        running.kill().unwrap();
        running.wait().unwrap();
        result.unwrap();
    }

    #[test]
    fn what_was_in_a_folder_that_was_renamed_since_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("written-0"), "weights").unwrap();
        let path = folder.path().join("tmp-checkpoint/part/weights");
        let files = [file(&path, 7, false, Restoration::Contents("written-0".into()))];
        put_back(&files, folder.path(), &always).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "weights");
        // But not below what is a file now.
        let path = path.join("more");
        let files = [file(&path, 7, false, Restoration::Contents("written-0".into()))];
        let error = put_back(&files, folder.path(), &always).unwrap_err().to_string();
        assert!(error.contains("bring it back"), "{error}");
    }

    #[test]
    fn nothing_is_changed_when_one_file_has_lost_data() {
        let folder = tempfile::tempdir().unwrap();
        let (log, short) = (folder.path().join("log"), folder.path().join("short"));
        fs::write(&log, "one two").unwrap();
        fs::write(&short, "x").unwrap();
        let files =
            [file(&log, 3, true, Restoration::Truncate), file(&short, 2, true, Restoration::LengthOnly)];
        let error = put_back(&files, folder.path(), &always).unwrap_err().to_string();
        assert!(
            error.contains("short has 1 bytes, but had 2") || error.contains("short: has 1 bytes, but had 2"),
            "{error}"
        );
        assert_eq!(fs::read_to_string(&log).unwrap(), "one two");
    }

    #[test]
    fn links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (path, victim) = (folder.path().join("f"), folder.path().join("victim"));
        fs::write(&victim, "old!").unwrap();
        fs::write(folder.path().join("written-0"), "new").unwrap();
        std::os::unix::fs::symlink(&victim, &path).unwrap();
        for restoration in [Restoration::Truncate, Restoration::LengthOnly] {
            let files = [file(&path, 3, true, restoration)];
            let error = put_back(&files, folder.path(), &always).unwrap_err().to_string();
            assert!(error.contains("no regular file"), "{error}");
            assert!(put_one_back(&files[0], folder.path(), &always).is_err());
        }
        let files = [file(&path, 3, true, Restoration::Contents("written-0".into()))];
        put_back(&files, folder.path(), &always).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        assert_eq!(fs::read_to_string(&victim).unwrap(), "old!");
        // Nor from what is saved.
        std::os::unix::fs::symlink(&victim, folder.path().join("written-1")).unwrap();
        let files = [file(&folder.path().join("new"), 4, true, Restoration::Contents("written-1".into()))];
        assert!(put_back(&files, folder.path(), &always).is_err());
    }

    #[test]
    fn a_saved_name_cannot_leave_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        let files = [file(&path, 1, true, Restoration::Contents("../../etc/passwd".into()))];
        assert!(put_back(&files, folder.path(), &always).is_err());
        assert!(!path.exists());
    }
}
