//! Files that only their owner may read or change, written whole or not at all.

use super::KeysError;
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use zeroize::Zeroizing;

/// The longest file of keys.
const FILE_MAX: u64 = 1 << 20;

/// Who but its owner may do what with a file.
#[derive(Clone, Copy)]
pub(super) enum Others {
    /// It holds a secret.
    Nothing,
    /// It says who is trusted.
    Read,
}

/// What a file holds; `None` where there is none.
pub(super) fn read(path: &Path, others: Others) -> Result<Option<Zeroizing<String>>, KeysError> {
    let about = |error| KeysError::File { path: path.to_owned(), error };
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(about(error)),
    };
    let found = file.metadata().map_err(about)?;
    let forbidden = match others {
        Others::Nothing => 0o077,
        Others::Read => 0o022,
    };
    if found.mode() & forbidden != 0 {
        return Err(KeysError::OpenToOthers { path: path.to_owned(), mode: found.mode() & 0o777 });
    }
    if found.uid() != rustix::process::geteuid().as_raw() && found.uid() != 0 {
        return Err(KeysError::OfOthers { path: path.to_owned(), owner: found.uid() });
    }
    // Read once into room that does not move: what moves is not wiped.
    let mut text = Zeroizing::new(String::with_capacity(FILE_MAX as usize + 1));
    match file.take(FILE_MAX + 1).read_to_string(&mut text).map_err(about)? {
        len if len as u64 > FILE_MAX => Err(KeysError::damaged(path, "it is too long")),
        _ => Ok(Some(text)),
    }
}

/// Replaces a file.
pub(super) fn write(path: &Path, content: &[u8]) -> Result<(), KeysError> {
    let about = |error| KeysError::File { path: path.to_owned(), error };
    let draft = path.with_extension("new");
    // Left over by somebody who was killed; the lock says that nobody writes it now.
    let _ = fs::remove_file(&draft);
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft).map_err(about)?;
    let written = file.write_all(content).and_then(|()| file.sync_all());
    let written = written.and_then(|()| fs::rename(&draft, path));
    if let Err(error) = written {
        let _ = fs::remove_file(&draft);
        return Err(about(error));
    }
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all()).map_err(about)
}

/// Makes the folder if it is not there, and has it alone until the file is dropped.
pub(super) fn lock(folder: &Path) -> Result<File, KeysError> {
    let about = |error: io::Error| KeysError::File { path: folder.to_owned(), error };
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(about)?;
    let lock = folder.join("lock");
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(lock);
    let file = file.map_err(about)?;
    flock(&file, FlockOperation::LockExclusive).map_err(|error| about(error.into()))?;
    Ok(file)
}
