//! The job's tmpfs: everything the application and its servers share lies here as linked files.
//!
//! It is made with the new mount API and never appears in the machine's own mount table: the supervisor reaches it through a
//! descriptor, the job through `/run/dormouse-job`. When the last of them is gone, killed or not, its memory is free again.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Seek};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, SeekFrom};
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
};

use crate::init::instructions::PROGRAM;
use crate::privilege::{self, Capability, PrivilegeError};

/// Where the tmpfs lies inside every job, before and after any restart: mappings and open files are found again by this path.
pub const JOB_DIR: &str = "/run/dormouse-job";

/// A file there that the job's programs make before they mark memory of their own that need not be saved: without it no marks count.
pub const EXCLUDES: &str = "excludes";

/// The part of the tmpfs that is this crate's own: init, `/dev`, status files. It is captured and restored like the rest.
pub(crate) const HOST_DIR: &str = ".host";

/// Why a tmpfs could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TmpfsError {
    /// Mounting takes a capability.
    #[error(transparent)]
    Privilege(#[from] PrivilegeError),
    /// The kernel refused.
    #[error("cannot {what} in memory (a tmpfs of {size} bytes): {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// How much it was to hold.
        size: u64,
        /// Why it failed.
        source: io::Error,
    },
}

/// A mounted tmpfs, alive as long as this value, a server holding a file of it, or a job that has it.
#[derive(Debug)]
pub struct Tmpfs {
    mount: OwnedFd,
    size: u64,
}

impl Tmpfs {
    /// Mounts a tmpfs that can hold up to `size` bytes. Needs CAP_SYS_ADMIN.
    ///
    /// # Errors
    /// When the kernel refuses, for want of privilege or because it is older than 5.2.
    pub fn create(size: u64) -> Result<Self, TmpfsError> {
        // Who maps a file and asks for them gets huge pages: shadows of managed memory do.
        let mount = mount_detached(size, "advise")?;
        let tmpfs = Self { mount, size };
        DirBuilder::new().mode(0o755).create(tmpfs.host_dir()).map_err(|source| TmpfsError::Io {
            what: "make a folder",
            size,
            source,
        })?;
        Ok(tmpfs)
    }

    /// The folder by which this process and its children reach the tmpfs. Valid while this process lives and holds the value;
    /// the job's own name for it is [`JOB_DIR`].
    #[must_use]
    pub fn path(&self) -> PathBuf {
        path_of(&self.mount)
    }

    /// The most bytes it can hold.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes that its files take; 0 where the kernel does not tell.
    #[must_use]
    pub fn used(&self) -> u64 {
        rustix::fs::fstatvfs(&self.mount).map_or(0, |stat| (stat.f_blocks - stat.f_bfree) * stat.f_frsize)
    }

    /// Where a file that the job knows as `inside` (a path under [`JOB_DIR`]) lies for this process.
    #[must_use]
    pub fn outside(&self, inside: &Path) -> Option<PathBuf> {
        inside.strip_prefix(JOB_DIR).ok().map(|rest| self.path().join(rest))
    }

    /// The program of the job's init, which never changes.
    #[must_use]
    pub fn init_program(&self) -> PathBuf {
        self.host_file(PROGRAM)
    }

    pub(crate) fn host_dir(&self) -> PathBuf {
        self.path().join(HOST_DIR)
    }

    pub(crate) fn host_file(&self, name: &str) -> PathBuf {
        self.host_dir().join(name)
    }

    /// Replaces a file of ours in one step, so that a reader inside never sees half of it.
    pub(crate) fn write_host_file(&self, name: &str, contents: &[u8]) -> io::Result<()> {
        let new = self.host_file(&format!("{name}.new"));
        fs::write(&new, contents)?;
        fs::rename(new, self.host_file(name))
    }
}

/// `huge` as in tmpfs(5): which files get huge pages, where the kernel has any.
fn mount_detached(size: u64, huge: &str) -> Result<OwnedFd, TmpfsError> {
    privilege::require(&[Capability::SysAdmin])?;
    let failed = |what| move |e: rustix::io::Errno| TmpfsError::Io { what, size, source: e.into() };
    let context = fsopen("tmpfs", FsOpenFlags::FSOPEN_CLOEXEC).map_err(failed("open a file system"))?;
    for (key, value) in
        [("size", size.to_string()), ("mode", "0755".into()), ("source", "dormouse-job".into())]
    {
        fsconfig_set_string(context.as_fd(), key, value).map_err(failed("configure a file system"))?;
    }
    if let Err(error) = fsconfig_set_string(context.as_fd(), "huge", huge) {
        tracing::debug!(%error, "no huge pages for files in memory");
    }
    fsconfig_create(context.as_fd()).map_err(failed("create a file system"))?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::MOUNT_ATTR_NOSUID)
        .map_err(failed("mount a file system"))
}

/// A folder in memory for what is written on the way. Gone with this process, killed or not.
#[derive(Debug)]
pub struct Scratch(OwnedFd);

impl Scratch {
    /// A folder that can hold up to `size` bytes. Needs CAP_SYS_ADMIN.
    ///
    /// # Errors
    /// As [`Tmpfs::create`].
    pub fn create(size: u64) -> Result<Self, TmpfsError> {
        mount_detached(size, "never").map(Self)
    }

    /// The same for few and long files, which take whole huge pages: making them takes a third of the time that small ones take, and so does reading them the first time, when the
    /// kernel notes of each page that it is used (measured with 16 threads: 50 GB/s instead of 22 to 26).
    ///
    /// # Errors
    /// As [`Tmpfs::create`].
    pub fn for_long_files(size: u64) -> Result<Self, TmpfsError> {
        mount_detached(size, "always").map(Self)
    }

    /// The same for copies of files, which get huge pages where they are mapped and that is asked for.
    ///
    /// # Errors
    /// As [`Tmpfs::create`].
    pub fn for_copies(size: u64) -> Result<Self, TmpfsError> {
        mount_detached(size, "advise").map(Self)
    }

    /// Room for CRIU's log.
    pub(crate) fn for_log() -> io::Result<Self> {
        Self::create(64 << 20).map_err(io::Error::other)
    }

    /// The folder by which this process and its children reach it. Valid while this process lives and holds the value.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        path_of(&self.0)
    }
}

fn path_of(mount: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), mount.as_raw_fd()))
}

impl AsFd for Tmpfs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.mount.as_fd()
    }
}

/// Makes in `to` everything that `from` has: folders, files (holes stay holes), links and FIFOs. Sockets and devices are left
/// out: the former die with their process, the latter are the machine's.
///
/// # Errors
/// When something cannot be read or made.
pub fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (from, to) = (entry.path(), to.join(entry.file_name()));
        let meta = fs::symlink_metadata(&from)?;
        let kind = meta.file_type();
        if kind.is_dir() {
            match fs::create_dir(&to) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                _ => copy_tree(&from, &to)?,
            }
        } else if kind.is_file() {
            copy_file(&from, &to)?;
        } else if kind.is_symlink() {
            std::os::unix::fs::symlink(fs::read_link(&from)?, &to)?;
            continue;
        } else if kind.is_fifo() {
            rustix::fs::mknodat(
                rustix::fs::CWD,
                &to,
                FileType::Fifo,
                Mode::from_raw_mode(meta.mode() & 0o7777),
                0,
            )?;
        } else {
            continue;
        }
        std::os::unix::fs::chown(&to, Some(meta.uid()), Some(meta.gid()))?;
        fs::set_permissions(&to, meta.permissions())?;
    }
    Ok(())
}

/// Copies the data of a file that may be mostly holes.
fn copy_file(from: &Path, to: &Path) -> io::Result<()> {
    let (mut from, mut to) = (File::open(from)?, File::create(to)?);
    to.set_len(from.metadata()?.len())?;
    let mut position = 0;
    while let Some((start, end)) = next_data(&from, position)? {
        from.seek(io::SeekFrom::Start(start))?;
        to.seek(io::SeekFrom::Start(start))?;
        io::copy(&mut Read::by_ref(&mut from).take(end - start), &mut to)?;
        position = end;
    }
    Ok(())
}

/// The next run of bytes of a file, from `position` on, that are no hole: where it begins, and one past its last.
///
/// # Errors
/// As the file system's.
pub fn next_data(file: &File, position: u64) -> io::Result<Option<(u64, u64)>> {
    match rustix::fs::seek(file, SeekFrom::Data(position)) {
        Ok(start) => Ok(Some((start, rustix::fs::seek(file, SeekFrom::Hole(start))?))),
        // Nothing but a hole up to the end.
        Err(rustix::io::Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_copy_has_the_same_holes() {
        let (one, other) = (Tmpfs::create(1 << 30).unwrap(), Tmpfs::create(1 << 20).unwrap());
        let file = File::create(one.path().join("sparse")).unwrap();
        file.set_len(1 << 29).unwrap();
        file.write_all_at(b"here", 300 << 20).unwrap();
        copy_tree(&one.path(), &other.path()).unwrap();
        let copy = File::open(other.path().join("sparse")).unwrap();
        assert_eq!(copy.metadata().unwrap().len(), 1 << 29);
        assert_eq!(copy.metadata().unwrap().blocks(), 8);
        let mut bytes = [0; 4];
        copy.read_exact_at(&mut bytes, 300 << 20).unwrap();
        assert_eq!(&bytes, b"here");
    }

    #[test]
    fn it_is_gone_with_its_last_holder() {
        let tmpfs = Tmpfs::create(1 << 20).unwrap();
        let path = tmpfs.path();
        fs::write(path.join("file"), "x").unwrap();
        assert!(!fs::read_to_string("/proc/self/mountinfo").unwrap().contains("dormouse-job"));
        drop(tmpfs);
        assert!(fs::read(path.join("file")).is_err());
    }
}
