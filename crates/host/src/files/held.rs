//! What a process holds of the file system.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::maps;
use super::written::open_flags;
use crate::stdio::FileKey;
use crate::tasks::OuterPid;

/// The path of everything that a stopped process has open or mapped, but for what it was `given`, of its program, its root and its
/// working folder.
pub(crate) fn held_by(task: OuterPid, given: &BTreeSet<FileKey>) -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(format!("/proc/{task}/fd"))
        .into_iter()
        .flatten()
        .flatten()
        .map(|link| link.path())
        .filter(|link| given.is_empty() || !FileKey::behind(link).is_ok_and(|key| given.contains(&key)))
        .filter_map(|link| fs::read_link(link).ok())
        .collect();
    paths.extend(
        ["cwd", "root", "exe"].iter().filter_map(|what| fs::read_link(format!("/proc/{task}/{what}")).ok()),
    );
    let mut mapped: Vec<PathBuf> = maps::of(task).into_iter().map(|mapping| mapping.path).collect();
    mapped.dedup();
    paths.extend(mapped);
    paths.retain(|path| path.is_absolute());
    paths
}

/// Bytes of the files whose contents go into an image because `tasks` have them open: deleted ones, and those open for writing of
/// at most `limit` bytes each. What lies on the job's tmpfs, at `tmpfs`, and what they were `given` is not among
/// them.
pub(crate) fn carried_by(tasks: &[OuterPid], given: &BTreeSet<FileKey>, tmpfs: &Path, limit: u64) -> u64 {
    let on_tmpfs = fs::metadata(tmpfs).map(|meta| meta.dev()).ok();
    all(
        tasks,
        |mapping| mapping.written,
        |link, meta, writable| {
            let is_given = || FileKey::behind(link).is_ok_and(|key| given.contains(&key));
            if Some(meta.dev()) == on_tmpfs || is_given() {
                return None;
            }
            match meta.nlink() {
                0 => Some(meta.blocks().saturating_mul(512)),
                _ if writable && meta.len() <= limit => Some(meta.len()),
                _ => None,
            }
        },
    )
}

/// Bytes of files in memory that `tasks` have open or mapped, and that have no names.
pub(crate) fn nameless(tasks: &[OuterPid]) -> u64 {
    let is_deleted = |mapping: &maps::Mapped| mapping.path.as_os_str().as_bytes().ends_with(b" (deleted)");
    all(tasks, is_deleted, |link, meta, _| {
        let is_in_memory = || rustix::fs::statfs(link).is_ok_and(|system| system.f_type == libc::TMPFS_MAGIC);
        (meta.nlink() == 0 && is_in_memory()).then(|| meta.blocks().saturating_mul(512))
    })
}

/// Adds up what `bytes` says of each file that `tasks` have open, or mapped so that `is_one`, by a link to it, and whether it may be written.
fn all(
    tasks: &[OuterPid],
    is_one: impl Fn(&maps::Mapped) -> bool,
    bytes: impl Fn(&Path, &fs::Metadata, bool) -> Option<u64>,
) -> u64 {
    let mut counted = HashMap::new();
    for task in tasks {
        let opened = fs::read_dir(format!("/proc/{task}/fd")).into_iter().flatten().flatten();
        let opened = opened.map(|link| (link.path(), is_writable(*task, &link.file_name())));
        let mapped = maps::of(*task).into_iter().filter(&is_one);
        let mapped = mapped
            .map(|mapping| (format!("/proc/{task}/map_files/{}", mapping.range).into(), mapping.written));
        for (link, writable) in opened.chain(mapped) {
            let Ok(meta) = fs::metadata::<&PathBuf>(&link) else { continue };
            if let Some(bytes) = meta.is_file().then(|| bytes(&link, &meta, writable)).flatten() {
                counted.insert((meta.dev(), meta.ino()), bytes);
            }
        }
    }
    counted.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
}

fn is_writable(task: OuterPid, fd: &OsStr) -> bool {
    fd.to_str()
        .and_then(|fd| open_flags(task, fd))
        .is_some_and(|flags| flags & OFlags::RWMODE != OFlags::RDONLY)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn this_process_holds_its_program_its_folder_and_what_it_has_open() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let held = held_by(OuterPid(std::process::id() as i32), &BTreeSet::new());
        for path in
            [std::env::current_exe().unwrap(), std::env::current_dir().unwrap(), file.path().to_owned()]
        {
            assert!(held.contains(&path), "{} is not in {held:?}", path.display());
        }
    }

    #[test]
    fn deleted_files_and_those_being_written_are_carried() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let file = |name: &str, length: usize| {
            fs::write(folder.path().join(name), vec![1; length]).unwrap();
            fs::OpenOptions::new().read(true).append(true).open(folder.path().join(name)).unwrap()
        };
        let this = [OuterPid(std::process::id() as i32)];
        let none = BTreeSet::new();
        let carried = || carried_by(&this, &none, Path::new("/proc"), 1 << 20);
        let before = carried();
        let _written = file("written", 300_000);
        assert_eq!(carried() - before, 300_000);
        let _too_long = file("too-long", 2 << 20);
        assert_eq!(carried() - before, 300_000);
        let _deleted = file("deleted", 4 << 20);
        fs::remove_file(folder.path().join("deleted")).unwrap();
        let _again = fs::File::open(folder.path().join("too-long")).unwrap();
        assert_eq!(carried() - before, 300_000 + (4 << 20));
        assert_eq!(carried_by(&this, &none, folder.path(), 1 << 20), before);
        assert!(nameless(&this) >= 4 << 20);
    }
}
