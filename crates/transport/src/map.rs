//! Mapping the shared files.

use crate::fence::Fence;
use crate::layout::{
    CONTROL_BYTES, ControlShared, LANE_STRIDE, LANES, LaneShared, RING_STRIDE, Ring, RingIndex, SESSION_BYTES,
};
use crate::trace::Side;
use crate::{Result, TransportError};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ops::Range;
use std::path::Path;
use std::ptr::NonNull;

/// A shared mapping of a whole file of a known size.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is memory; what is in it is only accessed as atomics or through raw pointers by code that says why.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Makes the file, `len` bytes of nothing, and maps it.
    pub(crate) fn create(path: &Path, len: usize) -> Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)
            .map_err(TransportError::io("cannot create", path))?;
        rustix::fs::ftruncate(&file, len as u64).map_err(TransportError::io("cannot size", path))?;
        Self::map(&file, path, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps an existing file, which must have at least `len` bytes.
    pub(crate) fn open(path: &Path, len: usize) -> Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Self::map(&Self::opened(path, flags, len)?, path, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps an existing file to be read, which must have at least `len` bytes: it may belong to another user.
    pub(crate) fn open_to_read(path: &Path, len: usize) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        Self::map(&Self::opened(path, flags, len)?, path, len, ProtFlags::READ)
    }

    fn opened(path: &Path, flags: OFlags, len: usize) -> Result<rustix::fd::OwnedFd> {
        let file =
            rustix::fs::open(path, flags, Mode::empty()).map_err(TransportError::io("cannot open", path))?;
        let size = rustix::fs::fstat(&file).map_err(TransportError::io("cannot stat", path))?.st_size;
        let size = u64::try_from(size).unwrap_or(0);
        if size < len as u64 {
            return Err(TransportError::NotASession { path: path.to_owned(), what: "size", value: size });
        }
        Ok(file)
    }

    fn map(file: &rustix::fd::OwnedFd, path: &Path, len: usize, protection: ProtFlags) -> Result<Self> {
        // SAFETY: the kernel chooses the address, so no existing mapping is touched.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                protection,
                MapFlags::SHARED | MapFlags::NORESERVE,
                file,
                0,
            )
        }
        .map_err(TransportError::io("cannot map", path))?;
        let base = NonNull::new(base.cast()).ok_or(TransportError::Io {
            operation: "cannot map",
            path: path.to_owned(),
            source: rustix::io::Errno::NOMEM,
        })?;
        Ok(Self { base, len })
    }

    /// Keeps the mapping out of children and of core dumps.
    pub(crate) fn keep_private(&self, path: &Path) -> Result<()> {
        for advice in [Advice::LinuxDontFork, Advice::LinuxDontDump] {
            // SAFETY: the range is this mapping's own, and neither advice changes its contents.
            unsafe { rustix::mm::madvise(self.base.as_ptr().cast(), self.len, advice) }
                .map_err(TransportError::io("cannot advise on", path))?;
        }
        Ok(())
    }

    /// Takes room in the file for a part of the mapping: an access there that met a full file system would be a SIGBUS. What is in it
    /// stays.
    ///
    /// # Errors
    /// [`TransportError::NoRoom`].
    pub(crate) fn make_room(&self, part: Range<usize>) -> Result<()> {
        if part.is_empty() || part.end > self.len {
            return Err(TransportError::OutOfBounds { what: "part of a mapping", value: part.end });
        }
        // SAFETY: the part is inside of the mapping, and the advice changes nothing in it.
        let advised = unsafe {
            let first = self.base.as_ptr().add(part.start).cast();
            rustix::mm::madvise(first, part.len(), Advice::LinuxPopulateWrite)
        };
        match advised {
            Err(Errno::FAULT | Errno::NOMEM) => Err(TransportError::NoRoom),
            // Kernels before 5.14 do not know it: there, the first access tells.
            Ok(()) | Err(_) => Ok(()),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping's own, and whoever borrowed from it has returned the borrow.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// The mapped `session` file.
pub(crate) struct SessionMap(Mapping);

impl SessionMap {
    pub(crate) fn new(mapping: Mapping) -> Self {
        debug_assert!(mapping.len() >= SESSION_BYTES);
        Self(mapping)
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.0
    }

    pub(crate) fn control(&self) -> &ControlShared {
        // SAFETY: the mapping is page-aligned, longer than a `ControlShared` (asserted in `layout`), lives as long as `self`,
        // and the type is made of atomics only, for which every bit pattern is valid.
        unsafe { self.0.base().cast().as_ref() }
    }

    /// Makes room for the control page.
    ///
    /// # Errors
    /// [`TransportError::NoRoom`].
    pub(crate) fn make_room(&self) -> Result<()> {
        self.0.make_room(0..CONTROL_BYTES)
    }

    /// The fence of a ring.
    pub(crate) fn fence(&self, index: RingIndex) -> Fence<'_> {
        Fence::new(&self.control().fences.0[index.get()].0)
    }

    /// Makes room for a ring.
    ///
    /// # Errors
    /// [`TransportError::NoRoom`].
    pub(crate) fn make_ring_room(&self, index: RingIndex) -> Result<()> {
        let offset = ring_offset(index);
        self.0.make_room(offset..offset + size_of::<Ring>())
    }

    /// Makes room for both lanes of a ring.
    ///
    /// # Errors
    /// [`TransportError::NoRoom`].
    pub(crate) fn make_lane_room(&self, index: RingIndex) -> Result<()> {
        Side::ALL.into_iter().try_for_each(|side| {
            let offset = LANES + side.lane(index) * LANE_STRIDE;
            self.0.make_room(offset..offset + LANE_STRIDE)
        })
    }

    pub(crate) fn ring(&self, index: RingIndex) -> &Ring {
        let offset = ring_offset(index);
        // SAFETY: as for `control`; `offset` is a multiple of the page size, and below `SESSION_BYTES` with a whole stride
        // left, because a `RingIndex` is below `MAX_RINGS`.
        unsafe { self.0.base().add(offset).cast().as_ref() }
    }

    pub(crate) fn lane(&self, ring: RingIndex, side: Side) -> &LaneShared {
        let offset = LANES + side.lane(ring) * LANE_STRIDE;
        // SAFETY: as for `ring`; there are two lanes for each ring.
        unsafe { self.0.base().add(offset).cast().as_ref() }
    }
}

fn ring_offset(index: RingIndex) -> usize {
    CONTROL_BYTES + index.get() * RING_STRIDE
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn room_is_made_and_what_is_there_stays() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("file");
        let mapping = Mapping::create(&path, 1 << 20).unwrap();
        // SAFETY: the mapping has these bytes, and nobody else has it.
        unsafe { mapping.base().as_ptr().add(8192).write(7) };
        let taken = || std::fs::metadata(&path).unwrap().blocks() * 512;
        assert!(taken() < 64 << 10);
        mapping.make_room(4096..256 << 10).unwrap();
        assert!(taken() >= 252 << 10);
        // SAFETY: as above.
        assert_eq!(unsafe { mapping.base().as_ptr().add(8192).read() }, 7);
        for outside in [0..(1 << 20) + 1, 5..5] {
            assert!(mapping.make_room(outside).is_err());
        }
    }
}
