//! Anonymous memory: what stands for registered memory at the far end, and what either end last knew of it.

use backend::Range;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::ptr::NonNull;

/// A page: what memory is compared and mapped in.
pub(crate) const PAGE: usize = 4096;

/// A mapping of anonymous memory. Pages that nobody has written cost nothing.
pub(crate) struct Area {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it owns its mapping as a box owns its memory.
unsafe impl Send for Area {}
// SAFETY: it gives out no reference by a shared one.
unsafe impl Sync for Area {}

impl Area {
    /// Anywhere.
    pub(crate) fn new(bytes: usize) -> rustix::io::Result<Self> {
        Self::map(0, bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE)
    }

    /// Exactly there, where nothing is yet.
    pub(crate) fn at(range: Range) -> rustix::io::Result<Self> {
        Self::exactly(range, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// The same, which nobody can read or write: so that nothing else comes to lie there.
    pub(crate) fn claim(range: Range) -> rustix::io::Result<Self> {
        Self::exactly(range, ProtFlags::empty())
    }

    fn exactly(range: Range, rights: ProtFlags) -> rustix::io::Result<Self> {
        let bytes = usize::try_from(range.bytes).map_err(|_| rustix::io::Errno::NOMEM)?;
        if range.base == 0 {
            return Err(rustix::io::Errno::INVAL);
        }
        Self::map(
            range.base as usize,
            bytes,
            rights,
            MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE,
        )
    }

    fn map(address: usize, bytes: usize, rights: ProtFlags, flags: MapFlags) -> rustix::io::Result<Self> {
        let wanted = std::ptr::with_exposed_provenance_mut::<c_void>(address);
        // SAFETY: a new mapping that replaces none.
        let got = unsafe { mmap_anonymous(wanted, bytes, rights, flags) }?;
        let base = NonNull::new(got.cast::<u8>()).ok_or(rustix::io::Errno::NOMEM)?;
        let area = Self { base, bytes };
        // A kernel that does not know the flag takes the address for a hint.
        if address != 0 && area.address() != address as u64 {
            return Err(rustix::io::Errno::EXIST);
        }
        Ok(area)
    }

    pub(crate) fn address(&self) -> u64 {
        self.base.as_ptr() as u64
    }

    pub(crate) fn as_mut_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is `bytes` long, initialised with zeros, and borrowed mutably with `self`.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.bytes) }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: the mapping is this area's own, and nobody has a reference into it any more.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}
