//! What is mounted in a job's namespace.

use std::io;
use std::path::PathBuf;

use procfs::process::Process;
use serde::{Deserialize, Serialize};

use crate::tasks::OuterPid;

/// A mount, as the job sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mount {
    /// Where it is mounted.
    #[serde(with = "crate::raw")]
    pub target: PathBuf,
    /// The file system's type.
    pub fs_type: String,
    /// The file system itself, as major and minor number.
    pub device: String,
    /// Which part of the file system it shows.
    #[serde(with = "crate::raw")]
    pub root: PathBuf,
    /// Whether `target` is a folder.
    pub is_dir: bool,
}

/// Who brings a mount back at a restart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keeper {
    /// CRIU: it is private to the job (`/proc`, `/dev/pts`, what the application mounted).
    Criu,
    /// CRIU, from the machine's own root.
    Root,
    /// We, by naming what to mount there.
    Us,
}

/// The mounts of a process, in the order in which they were made.
pub(crate) fn of(pid: OuterPid) -> io::Result<Vec<Mount>> {
    let infos = Process::new(pid.0).and_then(|p| p.mountinfo()).map_err(io::Error::other)?;
    Ok(infos
        .0
        .into_iter()
        .map(|info| {
            let target = PathBuf::from(unescape(info.mount_point.as_os_str()));
            let seen_from_here =
                PathBuf::from(format!("/proc/{pid}/root")).join(target.strip_prefix("/").unwrap_or(&target));
            Mount {
                is_dir: std::fs::metadata(seen_from_here).map_or(true, |m| m.is_dir()),
                target,
                fs_type: info.fs_type,
                device: info.majmin,
                root: PathBuf::from(unescape(std::ffi::OsStr::new(&info.root))),
            }
        })
        .collect())
}

impl Mount {
    /// Who keeps this mount, given those that were there when the application started.
    pub(crate) fn keeper(&self, base: &[Self]) -> Keeper {
        let private = (self.fs_type == "proc" && self.target.as_os_str() == "/proc")
            || (self.fs_type == "devpts" && self.target.as_os_str() == "/dev/pts");
        if self.target.as_os_str() == "/" {
            Keeper::Root
        } else if private || !base.iter().any(|b| (&b.target, &b.fs_type) == (&self.target, &self.fs_type)) {
            Keeper::Criu
        } else {
            Keeper::Us
        }
    }
}

/// The kernel writes blanks, tabs, newlines and backslashes in octal.
fn unescape(field: &std::ffi::OsStr) -> std::ffi::OsString {
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    let mut rest = field.as_bytes();
    let mut plain = Vec::with_capacity(rest.len());
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|d| first == b'\\' && d.iter().all(|b| (b'0'..=b'7').contains(b)));
        match octal {
            Some(digits) => {
                plain.push(digits.iter().fold(0u8, |value, d| value.wrapping_mul(8).wrapping_add(d - b'0')));
                rest = &tail[3..];
            }
            None => {
                plain.push(first);
                rest = tail;
            }
        }
    }
    std::ffi::OsString::from_vec(plain)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    #[test]
    fn octal_escapes_are_undone() {
        assert_eq!(super::unescape(OsStr::new(r"/mnt/a\040b\134c")), OsStr::new(r"/mnt/a b\c"));
        assert_eq!(super::unescape(OsStr::new(r"/mnt/\04")), OsStr::new(r"/mnt/\04"));
    }
}
