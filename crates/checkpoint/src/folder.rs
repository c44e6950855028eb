//! A folder of files into an image, and out of it again: the job's tmpfs, and what CRIU wrote.

use crate::error::{Failure, Kind};
use image::{ObjectKind, RawPath};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, lchown};
use std::path::{Component, Path, PathBuf};
use store::{ChunkWriter, Image, WriteError};

/// Something in a folder, beside its bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// Path within the folder.
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
    Link(PathBuf),
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

/// Writes every file of `dir` as the object that `name` makes of its path; tells how many bytes they have.
///
/// # Errors
/// When a file cannot be read or the store cannot take it.
pub fn save(dir: &Path, writer: &ChunkWriter, name: impl Fn(RawPath) -> ObjectKind) -> Result<u64, Failure> {
    let unreadable =
        |path: &Path, error: io::Error| Failure::of(format_args!("cannot read {}", path.display()), &error);
    let mut bytes = 0;
    for entry in entries(dir).map_err(|error| unreadable(dir, error))? {
        if entry.kind != EntryKind::File {
            continue;
        }
        let full = dir.join(&entry.path);
        let file = File::open(&full).map_err(|error| unreadable(&full, error))?;
        let mut object = writer.object(name(RawPath::from(entry.path.as_os_str())));
        bytes += object.copy_file(&file).map_err(write_failure)?;
        object.finish().map_err(write_failure)?;
    }
    Ok(bytes)
}

/// Makes `entries` again in `dir`, with their bytes from the object that `name` makes of a path. Holes stay holes.
///
/// # Errors
/// When the image is damaged, a path in it leads out of the folder, or a file cannot be written.
pub fn load(
    dir: &Path,
    image: &Image,
    entries: &[Entry],
    name: impl Fn(RawPath) -> ObjectKind,
) -> Result<(), Failure> {
    for entry in entries {
        if !entry.path.components().all(|part| matches!(part, Component::Normal(_))) {
            let message =
                format!("the image holds a file named {}, which is not a plain path", entry.path.display());
            return Err(Failure::new(Kind::Damaged, message));
        }
        let full = dir.join(&entry.path);
        let fail = |error: io::Error| Failure::of(format_args!("cannot make {}", full.display()), &error);
        match &entry.kind {
            EntryKind::Folder => fs::create_dir_all(&full).map_err(fail)?,
            EntryKind::Link(target) => std::os::unix::fs::symlink(target, &full).map_err(fail)?,
            EntryKind::Pipe => {
                mknodat(CWD, &full, FileType::Fifo, Mode::empty(), 0).map_err(|error| fail(error.into()))?
            }
            EntryKind::File => {
                let file = File::create(&full).map_err(fail)?;
                image
                    .copy_to_file(&name(RawPath::from(entry.path.as_os_str())), &file)
                    .map_err(read_failure)?;
            }
        }
        lchown(&full, Some(entry.owner.0), Some(entry.owner.1)).map_err(fail)?;
        if !matches!(entry.kind, EntryKind::Link(_)) {
            fs::set_permissions(&full, fs::Permissions::from_mode(entry.mode)).map_err(fail)?;
        }
    }
    Ok(())
}

/// A failure to write, with its kind.
#[must_use]
pub fn write_failure(error: WriteError) -> Failure {
    let kind = match error {
        WriteError::Full { .. } | WriteError::NotWritable { .. } | WriteError::Media(_) => Kind::Store,
        _ => Kind::Failed,
    };
    Failure::new(kind, crate::error::Chain(&error).to_string())
}

/// A failure to read an image.
#[must_use]
pub fn read_failure(error: store::ReadError) -> Failure {
    let kind = match error {
        store::ReadError::NoImage { .. } => Kind::NotFound,
        _ => Kind::Damaged,
    };
    Failure::new(kind, crate::error::Chain(&error).to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

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
}
