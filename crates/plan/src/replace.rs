//! Files that are replaced.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

/// Writes a file, whole or not at all: what is there already stays until the new one is on the disk.
///
/// # Errors
/// What the system says. Nothing is left behind then.
pub fn replace(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut draft = file.as_os_str().to_owned();
    draft.push(".tmp");
    let write = || {
        let mut written = File::create(&draft)?;
        written.write_all(bytes)?;
        written.sync_all()?;
        fs::rename(&draft, file)
    };
    write().inspect_err(|_| {
        // Nobody would look for it.
        let _ = fs::remove_file(&draft);
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_or_stays() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("plan");
        replace(&file, b"one").unwrap();
        replace(&file, b"other").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"other");
        let in_the_way = folder.path().join("folder");
        fs::create_dir(&in_the_way).unwrap();
        replace(&in_the_way, b"third").unwrap_err();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "no draft is left");
    }
}
