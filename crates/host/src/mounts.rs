//! What is mounted in a job's namespace.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

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
    let text = fs::read(format!("/proc/{pid}/mountinfo"))?;
    let mut mounts: Vec<Mount> = text.split(|&byte| byte == b'\n').filter_map(parse).collect();
    for mount in &mut mounts {
        let inside = mount.target.strip_prefix("/").unwrap_or(&mount.target);
        let seen_from_here = PathBuf::from(format!("/proc/{pid}/root")).join(inside);
        mount.is_dir = fs::metadata(seen_from_here).map_or(true, |m| m.is_dir());
    }
    Ok(mounts)
}

/// `id parent major:minor root target options [tags…] - type source options`, in no encoding.
fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&byte| byte == b' ');
    let mut path = |at| Some(PathBuf::from(unescape(OsStr::from_bytes(fields.nth(at)?))));
    let (device, root, target) = (path(2)?, path(0)?, path(0)?);
    let fs_type = fields.skip_while(|field| *field != b"-").nth(1)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let device = text(device.as_os_str().as_bytes());
    Some(Mount { target, fs_type: text(fs_type), device, root, is_dir: true })
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
fn unescape(field: &OsStr) -> OsString {
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
    OsString::from_vec(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_whatever_their_names() {
        let line = b"36 35 98:0 /a\\040b /mnt/d\xff rw,noatime shared:1 master:2 - ext3 /dev/root rw";
        let mount = parse(line).unwrap_or_else(|| panic!("not a mount"));
        assert_eq!(mount.target.as_os_str().as_bytes(), b"/mnt/d\xff");
        assert_eq!((mount.root.to_str(), &*mount.device, &*mount.fs_type), (Some("/a b"), "98:0", "ext3"));
        assert_eq!(parse(b"36 35 98:0 / /mnt rw"), None);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn the_root_is_among_this_process_s_mounts() {
        let own = of(OuterPid(std::process::id() as i32)).unwrap_or_default();
        assert!(own.iter().any(|mount| mount.target.as_os_str() == "/" && mount.is_dir));
    }

    #[test]
    fn octal_escapes_are_undone() {
        assert_eq!(unescape(OsStr::new(r"/mnt/a\040b\134c")), OsStr::new(r"/mnt/a b\c"));
        assert_eq!(unescape(OsStr::new(r"/mnt/\04")), OsStr::new(r"/mnt/\04"));
    }
}
