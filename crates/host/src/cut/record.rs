//! What an image must hold besides CRIU's own files.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::files::{NeededFile, ProgramFile, WrittenFile};
use crate::mounts::{Keeper, Mount};
use crate::net::Connection;
use crate::stdio::{ChannelRecord, FileKey, SharedFile};
use crate::tasks::{InnerPid, OuterPid};
use crate::tmpfs::JOB_DIR;

/// The host half of a job at the cut. Stored with the image by the caller; a restart needs it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostRecord {
    /// Which version of this record it is: [`Self::VERSION`].
    pub version: u32,
    /// The CRIU that made the images.
    pub criu: String,
    /// The kernel it was made on.
    pub kernel: String,
    /// Every mount of the job.
    pub mounts: Vec<MountRecord>,
    /// Every pipe to the outside, with the bytes on their way.
    pub channels: Vec<ChannelRecord>,
    /// Every regular file that it was given.
    #[serde(default)]
    pub files: Vec<SharedFile>,
    /// Its TCP connections.
    pub connections: Vec<Connection>,
    /// Files the job has written.
    pub written: Vec<WrittenFile>,
    /// Folders that it was in or had open, and files that it was reading.
    #[serde(default)]
    pub needed: Vec<NeededFile>,
    /// Files the job is made of.
    pub programs: Vec<ProgramFile>,
    /// The blank nodes of its `/dev`, which it may have open.
    #[serde(default, with = "crate::raw")]
    pub blank: Vec<PathBuf>,
    /// Its processes, for people to look at.
    pub tasks: Vec<TaskRecord>,
}

/// A process, for people to look at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskRecord {
    /// Its pid in the job.
    pub pid: InnerPid,
    /// Its parent's.
    pub parent: InnerPid,
    /// Its name.
    pub comm: String,
    /// How many threads it has.
    pub threads: usize,
}

/// A mount and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountRecord {
    /// The mount.
    pub mount: Mount,
    /// CRIU's name for it, where it is ours to bring back.
    pub key: Option<String>,
    /// What is to be mounted there, as a path in the job.
    #[serde(with = "crate::raw")]
    pub source: PathBuf,
    /// Whether a process had something below it: an open file, a mapping, its working folder, or a mount of its own. One that
    /// was not used can be left out where a machine does not have it.
    pub used: bool,
}

impl HostRecord {
    /// The version written, and the newest that is read. It changes when what is recorded no longer means what it did to those who
    /// read this version; a field that may be missing needs a serde default instead.
    pub const VERSION: u32 = 2;

    /// Bytes of the application's descriptor `fd` (1 or 2, or its terminal) that had been delivered at the cut.
    #[must_use]
    pub fn delivered(&self, fd: i32) -> Option<u64> {
        use crate::stdio::Role;
        let of = |role| self.channels.iter().find(|c| c.role == role).map(|c| c.delivered);
        of(Role::Output(fd)).or_else(|| of(Role::Screen))
    }
}

/// Gives each mount its key and source.
pub(super) fn mounts(all: Vec<Mount>, base: &[Mount]) -> Vec<MountRecord> {
    let job_device = all.iter().find(|m| m.target.as_os_str() == JOB_DIR).map(|m| m.device.clone());
    all.into_iter()
        .enumerate()
        .map(|(index, mount)| {
            let key = (mount.keeper(base) == Keeper::Us).then(|| format!("dormouse-{index}"));
            let source = if Some(&mount.device) == job_device.as_ref() {
                PathBuf::from(JOB_DIR).join(mount.root.strip_prefix("/").unwrap_or(&mount.root))
            } else {
                mount.target.clone()
            };
            MountRecord { mount, key, source, used: true }
        })
        .collect()
}

/// Finds out which of `mounts` are used by `tasks`, all stopped. Files that they were `given` are on none of them.
pub(super) fn note_used(mounts: &mut [MountRecord], tasks: &[OuterPid], given: &BTreeSet<FileKey>) {
    let held = |&task: &OuterPid| crate::files::held_by(task, given);
    let mut paths: BTreeSet<PathBuf> = tasks.iter().flat_map(held).collect();
    let own = mounts.iter().filter(|mount| mount.key.is_none()).map(|mount| mount.mount.target.clone());
    paths.extend(own);
    for mount in mounts.iter_mut().filter(|mount| mount.key.is_some()) {
        // In order, what lies below a folder comes right after it.
        let target = &mount.mount.target;
        mount.used = paths.range(target.clone()..).next().is_some_and(|path| path.starts_with(target));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn mount(target: &str, key: Option<&str>) -> MountRecord {
        let mount = Mount {
            target: target.into(),
            fs_type: "tmpfs".into(),
            device: "0:1".into(),
            root: "/".into(),
            is_dir: true,
        };
        MountRecord { mount, key: key.map(str::to_owned), source: target.into(), used: true }
    }

    #[test]
    fn a_mount_is_used_by_what_lies_below_it() {
        let program = std::env::current_exe().unwrap_or_default();
        let folder = program.parent().and_then(Path::to_str).unwrap_or_default().to_owned();
        let mut mounts = [
            mount("/", None),
            mount(&folder, Some("a")),
            mount(&format!("{folder}-and-more"), Some("b")),
            mount("/nowhere", Some("c")),
            mount("/nowhere/else", Some("d")),
            mount("/nowhere/else/own", None),
        ];
        note_used(&mut mounts, &[OuterPid(std::process::id() as i32)], &BTreeSet::new());
        let used: Vec<&str> = mounts.iter().filter(|m| m.used).filter_map(|m| m.key.as_deref()).collect();
        assert_eq!(used, ["a", "c", "d"]);
    }
}
