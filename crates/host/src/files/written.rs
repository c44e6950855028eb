//! Files that the job has open for writing at the cut, and their way back to what they were.
//!
//! CRIU restores a descriptor's offset and insists on the file's length; contents are ours. A file that can only have been
//! appended to needs its length and nothing else. One that may be changed in place is copied, up to a limit.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use procfs::process::{MMPermissions, MMapPath, Process};
use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use crate::tasks::OuterPid;
use crate::tmpfs::JOB_DIR;

/// A file as it was at the cut.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenFile {
    /// Where it lies.
    pub path: PathBuf,
    /// Its length in bytes.
    pub length: u64,
    /// Its permission bits.
    pub mode: u32,
    /// Its owner and group.
    pub owner: (u32, u32),
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
    fn new(path: &Path, what: impl Into<String>) -> Self {
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

/// Records the files that `tasks`, all stopped, have open for writing, and saves into `folder` those that may be changed in
/// place and are no longer than `limit` bytes. Answers warnings too.
pub(crate) fn collect(
    tasks: &[OuterPid],
    folder: &Path,
    limit: u64,
) -> Result<(Vec<WrittenFile>, Vec<String>), FileError> {
    let mut found: BTreeMap<PathBuf, Found> = BTreeMap::new();
    for task in tasks {
        find_open(*task, &mut found);
        find_mapped(*task, &mut found);
    }
    let (mut files, mut warnings) = (Vec::new(), Vec::new());
    for (path, Found { through, appended }) in found {
        // What has no name out here (deleted, or on a mount of the job's own) is CRIU's to carry.
        let (Ok(named), Ok(open)) = (fs::metadata(&path), fs::metadata(&through)) else { continue };
        if !open.is_file() || (named.dev(), named.ino()) != (open.dev(), open.ino()) {
            continue;
        }
        let restoration = if appended {
            Restoration::Truncate
        } else if open.len() <= limit {
            let name = format!("written-{}", files.len());
            save(&through, &folder.join(&name), open.len())
                .map_err(|e| FileError::new(&path, format!("cannot be saved with the checkpoint: {e}")))?;
            Restoration::Contents(name)
        } else {
            warnings.push(format!(
                "{} ({} bytes) is open for writing and longer than the {limit} bytes that are saved: \
                 a restart will restore its length, but not what is changed in it after this checkpoint",
                path.display(),
                open.len()
            ));
            Restoration::LengthOnly
        };
        files.push(WrittenFile {
            path,
            length: open.len(),
            mode: open.mode() & 0o7777,
            owner: (open.uid(), open.gid()),
            restoration,
        });
    }
    Ok((files, warnings))
}

fn find_open(task: OuterPid, found: &mut BTreeMap<PathBuf, Found>) {
    let Ok(links) = fs::read_dir(format!("/proc/{task}/fd")) else { return };
    for link in links.flatten() {
        let Some(flags) = open_flags(task, &link.file_name().to_string_lossy()) else { continue };
        if flags & OFlags::RWMODE == OFlags::RDONLY {
            continue;
        }
        if let Ok(path) = fs::read_link(link.path()) {
            note(found, path, link.path(), flags.contains(OFlags::APPEND));
        }
    }
}

fn open_flags(task: OuterPid, fd: &str) -> Option<OFlags> {
    let info = fs::read_to_string(format!("/proc/{task}/fdinfo/{fd}")).ok()?;
    let octal = info.lines().find_map(|l| l.strip_prefix("flags:"))?;
    u32::from_str_radix(octal.trim(), 8).ok().map(OFlags::from_bits_retain)
}

fn find_mapped(task: OuterPid, found: &mut BTreeMap<PathBuf, Found>) {
    let Ok(maps) = Process::new(task.0).and_then(|p| p.maps()) else { return };
    for map in maps.into_iter().filter(|m| m.perms.contains(MMPermissions::SHARED | MMPermissions::WRITE)) {
        if let MMapPath::Path(path) = map.pathname {
            let through = format!("/proc/{task}/map_files/{:x}-{:x}", map.address.0, map.address.1);
            note(found, path, through.into(), false);
        }
    }
}

fn note(found: &mut BTreeMap<PathBuf, Found>, path: PathBuf, through: PathBuf, appended: bool) {
    if path.is_absolute()
        && !path.starts_with(JOB_DIR)
        && !path.starts_with("/dev")
        && !path.starts_with("/proc")
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

/// Returns every file to its state at the cut; `folder` holds the saved contents.
///
/// # Errors
/// Names the first file that cannot be brought back. Nothing has been changed if one is missing or has lost data.
pub(crate) fn put_back(files: &[WrittenFile], folder: &Path) -> Result<(), FileError> {
    for file in files.iter().filter(|f| !matches!(f.restoration, Restoration::Contents(_))) {
        let now = fs::metadata(&file.path).map_err(|e| {
            FileError::new(
                &file.path,
                format!("the job was writing it at the checkpoint, but now: {e}; bring it back"),
            )
        })?;
        if now.len() < file.length {
            let what =
                format!("has {} bytes, but had {} at the checkpoint; bring it back", now.len(), file.length);
            return Err(FileError::new(&file.path, what));
        }
    }
    for file in files {
        put_one_back(file, folder)
            .map_err(|e| FileError::new(&file.path, format!("cannot be brought back: {e}")))?;
    }
    Ok(())
}

fn put_one_back(file: &WrittenFile, folder: &Path) -> io::Result<()> {
    let Restoration::Contents(name) = &file.restoration else {
        return OpenOptions::new().write(true).open(&file.path)?.set_len(file.length);
    };
    // A name of ours, not a way out of the folder.
    if name.contains('/') {
        return Err(io::Error::from(io::ErrorKind::InvalidData));
    }
    let mut saved = File::open(folder.join(name))?;
    if saved.metadata()?.len() != file.length {
        return Err(io::Error::other("its saved contents have another length than recorded"));
    }
    let existed = file.path.exists();
    // The same inode where there is one: it may have other names.
    let mut to =
        OpenOptions::new().write(true).create(true).truncate(true).mode(file.mode).open(&file.path)?;
    io::copy(&mut saved, &mut to)?;
    if !existed {
        std::os::unix::fs::fchown(&to, Some(file.owner.0), Some(file.owner.1))?;
        to.set_permissions(fs::Permissions::from_mode(file.mode))?;
    }
    Ok(())
}
