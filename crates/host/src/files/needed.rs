//! What CRIU opens again by its path: folders that processes are in or have open, and files open for reading.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::written::{Restoration, WrittenFile};
use crate::stdio::FileKey;
use crate::tasks::OuterPid;

/// A folder or file that must be there at a restart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeededFile {
    /// Where it lies.
    #[serde(with = "crate::raw")]
    pub path: PathBuf,
    /// A file's length in bytes, which CRIU insists on; none of a folder.
    pub length: Option<u64>,
}

/// What `tasks`, all stopped, are in or have open, but for what they were `given`, and what is `written` and thus brought back.
pub(crate) fn needed_by(
    tasks: &[OuterPid],
    given: &BTreeSet<FileKey>,
    written: &[WrittenFile],
) -> Vec<NeededFile> {
    let written: BTreeSet<&Path> = written.iter().map(|file| &*file.path).collect();
    let mut needed = BTreeMap::new();
    for task in tasks {
        let open = fs::read_dir(format!("/proc/{task}/fd")).into_iter().flatten().flatten();
        let open = open.map(|link| link.path());
        let places = ["cwd", "root"].map(|place| PathBuf::from(format!("/proc/{task}/{place}")));
        for through in open.chain(places) {
            let Ok(path) = fs::read_link(&through) else { continue };
            if !path.is_absolute() || written.contains(&*path) {
                continue;
            }
            // What has no name out here (deleted, or on a mount of the job's own) is CRIU's to carry.
            let (Ok(named), Ok(meta)) = (fs::metadata(&path), fs::metadata(&through)) else { continue };
            let is_given = || FileKey::behind(&through).is_ok_and(|key| given.contains(&key));
            if (named.dev(), named.ino()) != (meta.dev(), meta.ino()) || is_given() {
                continue;
            }
            if meta.is_dir() || meta.is_file() {
                needed.insert(path, meta.is_file().then_some(meta.len()));
            }
        }
    }
    needed.into_iter().map(|(path, length)| NeededFile { path, length }).collect()
}

/// Why a restart could not open `file`; folders of files that are brought back are made.
pub(crate) fn lacking(file: &NeededFile, written: &[WrittenFile]) -> Option<String> {
    let is_made = || {
        let made = written.iter().filter(|each| matches!(each.restoration, Restoration::Contents(_)));
        made.into_iter().any(|each| each.path.parent().is_some_and(|folder| folder.starts_with(&file.path)))
    };
    match (fs::metadata(&file.path), file.length) {
        (Ok(now), None) if now.is_dir() => None,
        (Ok(now), Some(length)) if now.is_file() && now.len() == length => None,
        (Ok(now), Some(length)) if now.is_file() => {
            Some(format!("has {} bytes, but had {length} at the checkpoint", now.len()))
        }
        (Ok(_), None) => Some("is no folder any more".to_owned()),
        (Ok(_), Some(_)) => Some("is no regular file any more".to_owned()),
        (Err(_), None) if is_made() => None,
        (Err(error), _) => Some(format!("cannot be opened: {error}")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_open_is_needed_and_missed() {
        let folder = tempfile::tempdir().unwrap();
        let (dir, file, gone) = (folder.path().join("d"), folder.path().join("f"), folder.path().join("g"));
        fs::create_dir(&dir).unwrap();
        for each in [&file, &gone] {
            fs::write(each, "four").unwrap();
        }
        let _open = [&dir, &file, &gone].map(|path| fs::File::open(path).unwrap());
        fs::remove_file(&gone).unwrap();
        let here = OuterPid(i32::try_from(std::process::id()).unwrap());
        let needed = needed_by(&[here], &BTreeSet::new(), &[]);
        let find = |path: &Path| needed.iter().find(|each| each.path == path);
        assert_eq!(find(&dir).unwrap().length, None);
        assert_eq!(find(&file).unwrap().length, Some(4));
        assert_eq!(find(&gone), None);
        assert!(find(&std::env::current_dir().unwrap()).is_some());

        let [dir, file] = [&dir, &file].map(|path| find(path).unwrap());
        assert_eq!((lacking(dir, &[]), lacking(file, &[])), (None, None));
        fs::write(&file.path, "five!").unwrap();
        assert_eq!(lacking(file, &[]).unwrap(), "has 5 bytes, but had 4 at the checkpoint");
        fs::remove_dir(&dir.path).unwrap();
        assert!(lacking(dir, &[]).unwrap().contains("No such file"));
        let inside = WrittenFile {
            path: dir.path.join("e/x"),
            length: 0,
            mode: 0,
            owner: (0, 0),
            open: false,
            restoration: Restoration::Contents("written-0".into()),
        };
        assert_eq!(lacking(dir, &[inside]), None);
    }
}
