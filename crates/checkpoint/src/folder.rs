//! A folder of files into an image, and out of it again: the job's tmpfs, and what CRIU wrote.

use crate::error::{Failure, Kind};
use image::{ObjectKind, RawPath};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};
use store::{ChunkWriter, Image, WriteError};

/// Every regular file below `dir`, as paths within it, in order. Sockets, pipes and devices are not followed: whoever
/// restores the folder makes them anew.
///
/// # Errors
/// As the file system's.
pub fn files(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(dir.join(&folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(path);
            } else if kind.is_file() {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Writes every file of `dir` as the object that `name` makes of its path; tells how many bytes they have.
///
/// # Errors
/// When a file cannot be read or the store cannot take it.
pub fn save(dir: &Path, writer: &ChunkWriter, name: impl Fn(RawPath) -> ObjectKind) -> Result<u64, Failure> {
    let unreadable = |path: &Path, error: io::Error| Failure::of(format_args!("cannot read {}", path.display()), &error);
    let mut bytes = 0;
    for path in files(dir).map_err(|error| unreadable(dir, error))? {
        let full = dir.join(&path);
        let file = File::open(&full).map_err(|error| unreadable(&full, error))?;
        let mut object = writer.object(name(RawPath::from(path.as_os_str())));
        bytes += object.copy_file(&file).map_err(write_failure)?;
        object.finish().map_err(write_failure)?;
    }
    Ok(bytes)
}

/// Makes the files of an image again in `dir`: those for which `path` tells one. Holes stay holes.
///
/// # Errors
/// When the image is damaged, a path in it leads out of the folder, or a file cannot be written.
pub fn load(dir: &Path, image: &Image, path: impl Fn(&ObjectKind) -> Option<&RawPath>) -> Result<(), Failure> {
    for object in &image.manifest().objects {
        let Some(inside) = path(&object.kind).map(RawPath::as_path) else { continue };
        if !inside.components().all(|part| matches!(part, Component::Normal(_))) {
            let message = format!("the image holds a file named {}, which is not a plain path", inside.display());
            return Err(Failure::new(Kind::Damaged, message));
        }
        let full = dir.join(inside);
        let fail = |error: io::Error| Failure::of(format_args!("cannot write {}", full.display()), &error);
        full.parent().map_or(Ok(()), fs::create_dir_all).map_err(fail)?;
        let file = File::create(&full).map_err(fail)?;
        // The job's own programs and libraries are among them.
        file.set_permissions(fs::Permissions::from_mode(0o755)).map_err(fail)?;
        image.copy_to_file(&object.kind, &file).map_err(read_failure)?;
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

/// A new folder in memory, where the machine has one: what CRIU writes goes there first, so that the job is not stopped
/// for as long as a disk takes.
///
/// # Errors
/// When it cannot be made.
pub fn in_memory() -> Result<tempfile::TempDir, Failure> {
    let memory = Path::new("/dev/shm");
    let place = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    tempfile::Builder::new()
        .prefix("dormouse-")
        .tempdir_in(&place)
        .map_err(|error| Failure::of(format_args!("cannot make a folder in {}", place.display()), &error))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn regular_files_of_all_folders_in_order() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("s1/x")).unwrap();
        for path in ["s1/x/b", "s1/a", "top"] {
            fs::write(dir.path().join(path), path.as_bytes()).unwrap();
        }
        let _socket = std::os::unix::net::UnixListener::bind(dir.path().join("hello.sock")).unwrap();
        let found: Vec<_> = files(dir.path()).unwrap();
        assert_eq!(found, ["s1/a", "s1/x/b", "top"].map(PathBuf::from));
    }
}
