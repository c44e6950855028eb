//! The process that a session serves, as this machine knows it.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// The application.
pub struct Application {
    pid: i32,
    pidfd: OwnedFd,
}

impl Application {
    /// The process with that pid, which the descriptor refers to.
    #[must_use]
    pub fn new(pid: i32, pidfd: OwnedFd) -> Self {
        Self { pid, pidfd }
    }

    /// Its number, as this machine has it.
    #[must_use]
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Kills it, and waits until it runs no more.
    ///
    /// # Errors
    /// `TimedOut` when it does after 10 s.
    pub(crate) fn end(&self) -> io::Result<()> {
        host::pidfd::end(&self.pidfd)
    }

    /// What it has mapped.
    ///
    /// # Errors
    /// Those of `/proc`.
    pub(crate) fn mappings(&self) -> io::Result<Mappings> {
        let text = fs::read(format!("/proc/{}/maps", self.pid))?;
        Mappings::parse(&text).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

/// The mappings of files of a process, by their addresses.
pub(crate) struct Mappings(Vec<Mapping>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Mapping {
    start: u64,
    end: u64,
    /// In the file.
    offset: u64,
    device: u64,
    inode: u64,
}

impl Mappings {
    /// Of `/proc/PID/maps`.
    fn parse(text: &[u8]) -> Option<Self> {
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        lines.map(Mapping::parse).collect::<Option<_>>().map(Self)
    }

    /// The parts of these bytes at which a file is mapped that belongs there from its beginning on.
    pub(crate) fn of_file(&self, base: u64, bytes: u64, file: impl AsFd) -> io::Result<Vec<shadow::Range>> {
        let about = rustix::fs::fstat(file)?;
        let end = base.saturating_add(bytes);
        let first = self.0.partition_point(|mapping| mapping.end <= base);
        let meeting = self.0[first..].iter().take_while(|mapping| mapping.start < end);
        let mut parts: Vec<shadow::Range> = Vec::new();
        for mapping in
            meeting.filter(|mapping| (mapping.device, mapping.inode) == (about.st_dev, about.st_ino))
        {
            // One that was moved inside of the region is not where it belongs.
            if base.checked_add(mapping.offset) != Some(mapping.start) || mapping.end > end {
                continue;
            }
            match parts.last_mut() {
                Some(last) if last.end() == mapping.start => last.bytes = mapping.end - last.base,
                _ => parts.push(shadow::Range { base: mapping.start, bytes: mapping.end - mapping.start }),
            }
        }
        Ok(parts)
    }
}

impl Mapping {
    /// `start-end rights offset major:minor inode path`, all but the inode in hexadecimal.
    fn parse(line: &[u8]) -> Option<Self> {
        let mut words = line.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
        let mut word = || words.next().and_then(|word| std::str::from_utf8(word).ok());
        let hex = |digits: &str| u64::from_str_radix(digits, 16).ok();
        let (start, end) = word()?.split_once('-')?;
        let _rights = word()?;
        let offset = hex(word()?)?;
        let (major, minor) = word()?.split_once(':')?;
        let device = rustix::fs::makedev(u32::try_from(hex(major)?).ok()?, u32::try_from(hex(minor)?).ok()?);
        Some(Self { start: hex(start)?, end: hex(end)?, offset, device, inode: word()?.parse().ok()? })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    use std::os::unix::fs::MetadataExt;
    use std::process::{Command, Stdio};

    #[test]
    fn who_is_ended_runs_no_more() {
        let mut child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let pidfd = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
        let application = Application::new(pid, pidfd);
        assert!(!application.mappings().unwrap().0.is_empty());
        application.end().unwrap();
        assert!(child.try_wait().unwrap().is_some());
        application.end().unwrap();
    }

    #[test]
    fn what_is_left_of_a_region_is_found() {
        let file = tempfile::tempfile().unwrap();
        let about = file.metadata().unwrap();
        let (major, minor) = (rustix::fs::major(about.dev()), rustix::fs::minor(about.dev()));
        let line = |start: u64, end: u64, offset: u64, inode: u64| {
            format!(
                "{start:x}-{end:x} rw-s {offset:08x} {major:02x}:{minor:02x} {inode}    /a file (deleted)\n"
            )
        };
        let inode = about.ino();
        let text = [
            line(0x1000, 0x2000, 0, inode + 1),
            // Two mappings side by side, a hole, another file, one that was moved, and one more.
            line(0x10000, 0x12000, 0, inode),
            line(0x12000, 0x13000, 0x2000, inode),
            line(0x14000, 0x15000, 0x4000, inode + 1),
            "15000-16000 rw-p 00000000 00:00 0\n".to_owned(),
            line(0x16000, 0x17000, 0x2000, inode),
            line(0x18000, 0x20000, 0x8000, inode),
            line(0x30000, 0x40000, 0x20000, inode),
        ]
        .concat();
        let mappings = Mappings::parse(text.as_bytes()).unwrap();
        let parts = mappings.of_file(0x10000, 0x10000, &file).unwrap();
        let parts: Vec<_> = parts.iter().map(|part| (part.base, part.end())).collect();
        assert_eq!(parts, [(0x10000, 0x13000), (0x18000, 0x20000)]);
        assert!(mappings.of_file(0x50000, 0x1000, &file).unwrap().is_empty());
        assert!(Mappings::parse(b"nonsense\n").is_none());
    }
}
