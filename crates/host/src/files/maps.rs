//! What a process has mapped, with paths as the kernel has them: bytes, in no encoding.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use crate::tasks::OuterPid;

/// A file that a process has mapped.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mapped {
    /// First and last address, as `/proc/PID/map_files` names the mapping.
    pub(super) range: String,
    /// Shared and writable: the file changes with it.
    pub(super) written: bool,
    pub(super) inode: u64,
    pub(super) path: PathBuf,
}

/// Every mapping of a file that `task` has.
pub(super) fn of(task: OuterPid) -> Vec<Mapped> {
    let text = fs::read(format!("/proc/{task}/maps")).unwrap_or_default();
    text.split(|&byte| byte == b'\n').filter_map(parse).collect()
}

/// `range permissions offset device inode path`; nothing before the path has a slash but the mapping of a file has one there.
fn parse(line: &[u8]) -> Option<Mapped> {
    let path = line.iter().position(|&byte| byte == b'/')?;
    let facts = std::str::from_utf8(&line[..path]).ok()?;
    let mut words = facts.split_ascii_whitespace();
    let (range, permissions) = (words.next()?, words.next()?.as_bytes());
    let inode = words.nth(2)?.parse().ok()?;
    let written = permissions.get(1) == Some(&b'w') && permissions.get(3) == Some(&b's');
    Some(Mapped { range: range.to_owned(), written, inode, path: unescape(&line[path..]) })
}

/// The kernel writes a newline in a path in octal.
fn unescape(path: &[u8]) -> PathBuf {
    const NEWLINE: &[u8] = b"\\012";
    let mut plain = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((&first, tail)) = rest.split_first() {
        match rest.strip_prefix(NEWLINE) {
            Some(tail) => {
                plain.push(b'\n');
                rest = tail;
            }
            None => {
                plain.push(first);
                rest = tail;
            }
        }
    }
    OsString::from_vec(plain).into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn paths_are_bytes_to_the_end_of_the_line() {
        let line = b"7f00-7f10 rw-s 00000000 fe:00 42      /tmp/a b\xff\\012/c (deleted)";
        let mapped = parse(line).unwrap();
        assert_eq!(mapped.path.as_os_str().as_bytes(), b"/tmp/a b\xff\n/c (deleted)");
        assert_eq!((&*mapped.range, mapped.written, mapped.inode), ("7f00-7f10", true, 42));
        assert!(!parse(b"7f00-7f10 rw-p 00000000 fe:00 42 /x").unwrap().written);
        assert_eq!(parse(b"7f00-7f10 rw-p 00000000 00:00 0      [heap]"), None);
        assert_eq!(parse(b"7f00-7f10 /x"), None);
    }

    #[test]
    fn this_process_has_its_program_mapped() {
        let program = std::env::current_exe().unwrap();
        assert!(of(OuterPid(std::process::id() as i32)).iter().any(|each| each.path == program));
    }
}
