//! Events that several processes record and wait for: a page of memory that they share.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const BYTES: usize = 4096;
/// As many records can be under way at a time before one that is behind is taken to be complete.
const SLOTS: usize = BYTES / 8 - 1;

/// What is in the page. Zeros are an event that was never recorded.
#[repr(C)]
struct Page {
    /// Number of the last record, counted from 1.
    latest: AtomicU64,
    /// The last record that is complete, of those whose number leaves this remainder.
    complete: [AtomicU64; SLOTS],
}

const _: () = assert!(size_of::<Page>() == BYTES);

/// One process's view of such an event.
pub struct Interprocess {
    page: NonNull<Page>,
    file: File,
}

// SAFETY: the page is mapped as long as this lives, and all of it are atomics.
unsafe impl Send for Interprocess {}
// SAFETY: as above.
unsafe impl Sync for Interprocess {}

impl Interprocess {
    /// An event that was never recorded.
    ///
    /// # Errors
    /// When there is no memory for it.
    pub fn new() -> io::Result<Self> {
        // SAFETY: a NUL-terminated name.
        let raw = unsafe {
            libc::memfd_create(c"soft-event".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
        };
        if raw < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor just made, which nobody else has.
        let file = unsafe { File::from_raw_fd(raw) };
        file.set_len(BYTES as u64)?;
        // SAFETY: a descriptor of ours. Nobody can make the file shorter under another process's mapping from now on.
        if unsafe {
            libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK | libc::F_SEAL_GROW)
        } != 0
        {
            return Err(io::Error::last_os_error());
        }
        Self::map(file)
    }

    /// Another process's event.
    ///
    /// # Errors
    /// When the descriptor is not of one.
    pub fn import(file: OwnedFd) -> io::Result<Self> {
        let file = File::from(file);
        // SAFETY: a descriptor of ours.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 || file.metadata()?.len() != BYTES as u64 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Self::map(file)
    }

    fn map(file: File) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping of a file that has as many bytes and keeps them.
        let at = unsafe {
            libc::mmap(std::ptr::null_mut(), BYTES, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        match NonNull::new(at.cast()) {
            Some(page) if at != libc::MAP_FAILED => Ok(Self { page, file }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// What another process needs for [`Self::import`].
    ///
    /// # Errors
    /// When there is no descriptor to be had.
    pub fn export(&self) -> io::Result<OwnedFd> {
        self.file.try_clone().map(OwnedFd::from)
    }

    fn page(&self) -> &Page {
        // SAFETY: mapped, aligned to a page, and shared with atomics only.
        unsafe { self.page.as_ref() }
    }

    /// Begins a record.
    pub fn begin(self: &Arc<Self>) -> Signal {
        let number = self.page().latest.fetch_add(1, Ordering::AcqRel) + 1;
        Signal { of: Arc::clone(self), number }
    }

    /// The last record; 0 when there was none.
    pub fn latest(&self) -> u64 {
        self.page().latest.load(Ordering::Acquire)
    }

    /// Whether a record is complete.
    pub fn is_complete(&self, number: u64) -> bool {
        number == 0 || self.page().complete[number as usize % SLOTS].load(Ordering::Acquire) >= number
    }
}

/// A record that is under way, and complete when this is dropped: whoever waits for it does so also when the work is never done.
pub struct Signal {
    of: Arc<Interprocess>,
    number: u64,
}

impl Drop for Signal {
    fn drop(&mut self) {
        self.of.page().complete[self.number as usize % SLOTS].fetch_max(self.number, Ordering::AcqRel);
    }
}

impl Drop for Interprocess {
    fn drop(&mut self) {
        // SAFETY: the mapping that this value made, and nobody else knows.
        unsafe { libc::munmap(self.page.as_ptr().cast(), BYTES) };
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_see_the_same() {
        let ours = Arc::new(Interprocess::new().unwrap());
        let theirs = Arc::new(Interprocess::import(ours.export().unwrap()).unwrap());
        assert_eq!((theirs.latest(), theirs.is_complete(0)), (0, true));
        let (first, second) = (ours.begin(), theirs.begin());
        assert_eq!((first.number, second.number, ours.latest()), (1, 2, 2));
        drop(second);
        assert!(ours.is_complete(2) && !theirs.is_complete(1), "each by itself");
        drop(first);
        assert!(theirs.is_complete(1));
    }

    #[test]
    fn another_file_is_no_event() {
        let file = File::open("/dev/zero").unwrap();
        assert!(Interprocess::import(file.into()).is_err());
    }
}
