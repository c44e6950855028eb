//! Regular files that the job was started with. It has the very open file, so that it shares the offset with whoever else has it,
//! although the file's mount is not the job's.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, OFlags, SeekFrom, StatxFlags, seek, statx};
use serde::{Deserialize, Serialize};

use super::kind::{Stdio, Stream, StreamKind};

/// What an open file is on: the mount through which it was opened, and its inode. CRIU's way to name files outside the job's mounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FileKey {
    mount: u64,
    inode: u64,
}

impl FileKey {
    /// Of an open file.
    pub(crate) fn of(fd: BorrowedFd<'_>) -> io::Result<Self> {
        Self::at(fd, Path::new(""), AtFlags::EMPTY_PATH)
    }

    /// Of what a link of `/proc` (`fd`, `map_files`) leads to.
    pub(crate) fn behind(link: &Path) -> io::Result<Self> {
        Self::at(CWD, link, AtFlags::empty())
    }

    fn at(folder: BorrowedFd<'_>, path: &Path, flags: AtFlags) -> io::Result<Self> {
        let stat = statx(folder, path, flags, StatxFlags::INO | StatxFlags::MNT_ID)?;
        if stat.stx_mask & StatxFlags::MNT_ID.bits() == 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Self { mount: stat.stx_mnt_id, inode: stat.stx_ino })
    }

    /// What tells CRIU's dump to take no further interest in the file.
    pub(crate) fn external(self) -> String {
        format!("file[{:x}:{:x}]", self.mount, self.inode)
    }

    /// What tells CRIU's restore to use the descriptor that it inherits, as it is. Inherited files go by their path without the slash
    /// that it begins with, and CRIU takes the first letter off what stands for a path here too; by the whole name it would
    /// open the file anew, with an offset of its own.
    pub(crate) fn inherited(self) -> String {
        format!("ile[{:x}:{:x}]", self.mount, self.inode)
    }
}

/// A regular file that the job was started with, at the cut.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SharedFile {
    /// The application's descriptor.
    pub fd: i32,
    /// What CRIU's images call it.
    pub key: FileKey,
    /// Where it lay.
    #[serde(with = "crate::raw")]
    pub path: PathBuf,
    /// Its open flags.
    pub flags: u32,
    /// Where the next byte would have been read or written.
    pub offset: u64,
}

/// Such a file while the job runs.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) fd: i32,
    pub(super) file: OwnedFd,
    /// Where the job is to find it, if it is the restart's own and not there yet.
    pub(super) start: Option<u64>,
}

impl Shared {
    pub(super) fn key(&self) -> io::Result<FileKey> {
        FileKey::of(self.file.as_fd())
    }

    /// Brings it to where the job was in it.
    pub(super) fn move_to_start(&self) -> io::Result<()> {
        let start = self.start.map(SeekFrom::Start);
        start.map_or(Ok(()), |start| Ok(seek(&self.file, start).map(drop)?))
    }

    pub(super) fn record(&self) -> io::Result<SharedFile> {
        Ok(SharedFile {
            fd: self.fd,
            key: self.key()?,
            path: fs::read_link(format!("/proc/self/fd/{}", self.file.as_raw_fd()))?,
            flags: rustix::fs::fcntl_getfl(&self.file)?.bits(),
            offset: seek(&self.file, SeekFrom::Current(0))?,
        })
    }
}

/// What a job goes on with in place of a file that it was started with.
pub(super) enum Replacement {
    /// An open file, to be handed over; to be moved to this offset when the job runs, and not before.
    File(OwnedFd, Option<u64>),
    /// What the restart was given at that number, or nothing, through a pipe.
    Relayed,
}

impl SharedFile {
    fn flags(&self) -> OFlags {
        OFlags::from_bits_retain(self.flags)
    }

    /// Whether it is there to be read from, as descriptor 0 always is.
    pub(super) fn is_input(fd: i32, flags: OFlags) -> bool {
        fd == 0 || flags & OFlags::RWMODE == OFlags::RDONLY
    }

    /// Whether a restart is likely to need the file, and it is there.
    pub(crate) fn is_lost_input(&self) -> bool {
        Self::is_input(self.fd, self.flags()) && !self.path.exists()
    }

    /// What is to take its place in a restart that is given `stdio`. Output goes to what the restart is given; input goes on where it
    /// was, unless another file is given.
    pub(super) fn replacement(&self, stdio: &Stdio) -> io::Result<Replacement> {
        let given = stdio.stream(self.fd);
        let file = |stream: &&Stream| stream.kind == StreamKind::Shared;
        if Self::is_input(self.fd, self.flags()) {
            let given = given.filter(file).filter(|stream| stream.directions().0);
            let Some(stream) = given else { return Ok(Replacement::File(self.reopen()?, None)) };
            let start = match self.is_at(stream)? {
                true => Some(self.offset_within(stream.outer.as_fd())?),
                false => None,
            };
            return Ok(Replacement::File(stream.outer.try_clone()?, start));
        }
        match given.filter(|stream| stream.directions().1) {
            Some(stream) if file(&stream) => Ok(Replacement::File(stream.outer.try_clone()?, None)),
            None if self.fd > 2 => Ok(Replacement::File(self.reopen()?, None)),
            _ => Ok(Replacement::Relayed),
        }
    }

    /// Whether `stream` is this file, by the name that it had.
    fn is_at(&self, stream: &Stream) -> io::Result<bool> {
        let given = rustix::fs::fstat(&stream.outer)?;
        let same = |there: fs::Metadata| (there.dev(), there.ino()) == (given.st_dev, given.st_ino);
        Ok(fs::metadata(&self.path).is_ok_and(same))
    }

    /// Opens it by its name: where it was for reading, at its end for writing.
    fn reopen(&self) -> io::Result<OwnedFd> {
        let named = |e: io::Error| {
            let what =
                format!("{}, which the job has open as {}: {e}; bring it back", self.path.display(), self.fd);
            io::Error::new(e.kind(), what)
        };
        let access = self.flags() & OFlags::RWMODE;
        let once = OFlags::CREATE | OFlags::EXCL | OFlags::TRUNC | OFlags::RWMODE;
        let file = OpenOptions::new()
            .read(access != OFlags::WRONLY)
            .write(access != OFlags::RDONLY)
            .custom_flags(self.flags().difference(once).bits().cast_signed())
            .open(&self.path)
            .map_err(named)?;
        let position = match Self::is_input(self.fd, self.flags()) {
            true => SeekFrom::Start(self.offset_within(file.as_fd()).map_err(named)?),
            false => SeekFrom::End(0),
        };
        seek(&file, position)?;
        Ok(file.into())
    }

    fn offset_within(&self, file: BorrowedFd<'_>) -> io::Result<u64> {
        let length = u64::try_from(rustix::fs::fstat(file)?.st_size).unwrap_or(0);
        if length < self.offset {
            let what = format!("it has {length} bytes, of which the job had read {}", self.offset);
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
        }
        Ok(self.offset)
    }
}

/// What all of `files` are on.
pub(crate) fn keys(files: &[SharedFile]) -> BTreeSet<FileKey> {
    files.iter().map(|file| file.key).collect()
}
