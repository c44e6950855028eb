//! File handles: what a file system finds a file by, whatever its name has become, without keeping it open.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// A file's handle. Good as long as the file exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Handle {
    kind: i32,
    bytes: Box<[u8]>,
}

/// A mount, as the kernel numbers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct MountId(i32);

/// The kernel's `struct file_handle`, with as many bytes as one may have (MAX_HANDLE_SZ).
#[repr(C)]
struct Raw {
    length: u32,
    kind: i32,
    bytes: [u8; LONGEST],
}

const LONGEST: usize = 128;

/// How often a file is opened again that cannot be for want of memory.
const TRIES: usize = 20;

impl Handle {
    /// The handle of an open file (O_PATH is enough), and the mount that it was opened through.
    pub(super) fn of(file: BorrowedFd<'_>) -> io::Result<(Self, MountId)> {
        let mut raw = Raw { length: LONGEST as u32, kind: 0, bytes: [0; LONGEST] };
        let mut mount = 0i32;
        // SAFETY: an empty name means the descriptor itself; both structures are ours, as long as said, and outlive the call.
        let result = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                file.as_raw_fd(),
                c"".as_ptr(),
                &raw mut raw,
                &raw mut mount,
                libc::AT_EMPTY_PATH,
            )
        };
        if result < 0 {
            return Err(io::Error::last_os_error());
        }
        let bytes = raw.bytes.get(..raw.length as usize).ok_or(io::ErrorKind::InvalidData)?.into();
        Ok((Self { kind: raw.kind, bytes }, MountId(mount)))
    }

    /// The file, opened only as a place. `mount` is anything open on its file system. Takes CAP_DAC_READ_SEARCH.
    ///
    /// # Errors
    /// `ESTALE` when the file has been deleted, `EOPNOTSUPP` when the file system has no way back from handles.
    pub(super) fn open(&self, mount: &File) -> io::Result<OwnedFd> {
        patiently(|| self.try_open(mount))
    }

    fn try_open(&self, mount: &File) -> io::Result<OwnedFd> {
        let mut raw = Raw { length: self.bytes.len() as u32, kind: self.kind, bytes: [0; LONGEST] };
        raw.bytes[..self.bytes.len()].copy_from_slice(&self.bytes);
        let flags = libc::O_PATH | libc::O_CLOEXEC;
        // SAFETY: the structure is ours, as long as it says, and outlives the call.
        let fd = unsafe {
            libc::syscall(libc::SYS_open_by_handle_at, mount.as_fd().as_raw_fd(), &raw const raw, flags)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: new and ours.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
    }
}

/// While a deleted file's number is being given to a new one, the kernel finds no inode, and takes that for want of memory (Linux 6.18, ext4).
fn patiently<T>(mut open: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    for _ in 0..TRIES {
        match open() {
            Err(error) if error.raw_os_error() == Some(libc::ENOMEM) => {
                std::thread::sleep(Duration::from_millis(1));
            }
            opened => return opened,
        }
    }
    open()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::fs;

    #[test]
    fn a_handle_leads_to_the_file_until_it_is_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let (one, other) = (folder.path().join("one"), folder.path().join("other"));
        let handle = Handle::of(File::create(&one).unwrap().as_fd()).unwrap().0;
        let mount = File::open(folder.path()).unwrap();
        fs::rename(&one, &other).unwrap();
        let found = handle.open(&mount).unwrap();
        assert_eq!(fs::read_link(format!("/proc/self/fd/{}", found.as_raw_fd())).unwrap(), other);
        drop(found);
        fs::remove_file(&other).unwrap();
        assert_eq!(handle.open(&mount).unwrap_err().raw_os_error(), Some(libc::ESTALE));
    }

    #[test]
    fn want_of_memory_may_be_a_number_that_is_given_away() {
        let mut answers = [libc::ENOMEM, libc::ENOMEM, libc::ESTALE, libc::ENOMEM].into_iter();
        let opened = patiently(|| Err::<(), _>(io::Error::from_raw_os_error(answers.next().unwrap())));
        assert_eq!(opened.unwrap_err().raw_os_error(), Some(libc::ESTALE));
        assert_eq!(answers.len(), 1);
        let opened = patiently(|| Err::<(), _>(io::Error::from_raw_os_error(libc::ENOMEM)));
        assert_eq!(opened.unwrap_err().raw_os_error(), Some(libc::ENOMEM));
    }
}
