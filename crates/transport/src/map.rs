//! Mapping the shared files.

use crate::layout::{
    CONTROL_BYTES, ControlShared, LANE_STRIDE, LANES, LaneShared, RING_STRIDE, Ring, RingIndex, SESSION_BYTES,
};
use crate::trace::Side;
use crate::{Result, TransportError};
use rustix::fs::{Mode, OFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::path::Path;
use std::ptr::NonNull;

/// A shared, writable mapping of a whole file of a known size.
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
        Self::map(&file, path, len)
    }

    /// Maps an existing file, which must have at least `len` bytes.
    pub(crate) fn open(path: &Path, len: usize) -> Result<Self> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file =
            rustix::fs::open(path, flags, Mode::empty()).map_err(TransportError::io("cannot open", path))?;
        let size = rustix::fs::fstat(&file).map_err(TransportError::io("cannot stat", path))?.st_size;
        let size = u64::try_from(size).unwrap_or(0);
        if size < len as u64 {
            return Err(TransportError::NotASession { path: path.to_owned(), what: "size", value: size });
        }
        Self::map(&file, path, len)
    }

    fn map(file: &rustix::fd::OwnedFd, path: &Path, len: usize) -> Result<Self> {
        // SAFETY: the kernel chooses the address, so no existing mapping is touched.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
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

    pub(crate) fn ring(&self, index: RingIndex) -> &Ring {
        let offset = CONTROL_BYTES + index.get() * RING_STRIDE;
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
