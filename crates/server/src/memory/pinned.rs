//! Pinned memory: files of the session's folder, mapped at the same address here and in the application, and registered
//! with the device. What the application allocates lies in a window of its own, small allocations together in slabs; what it registers,
//! where the application has it.

use super::PAGE;
use super::claims::Claims;
use super::slabs::{SlabRecord, Slabs, piece_bytes};
use crate::failure::{Failure, Result};
use crate::objects::{Marker, in_use, insert, take_out};
use backend::{Backend, Range};
use rustix::fs::{FallocateFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use transport::Room;
use wire::{ContextId, CuError, PinnedId, PinnedPlace};

/// What sessions give out (`ARCHITECTURE.md`, addresses).
const GIVEN: std::ops::Range<u64> = 0x2000_0000_0000..0x5400_0000_0000;
/// From this size on an allocation is held against what the machine has to spare.
const LARGE: u64 = 64 << 20;
/// From this size on an allocation begins where a huge page could.
const HUGE: u64 = 2 << 20;

/// One allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PinnedRecord {
    /// Its handle, and the number in its file's name if it has one of its own.
    pub id: PinnedId,
    /// The context that it belongs to.
    pub ctx: ContextId,
    /// Address, and the bytes asked for.
    pub range: Range,
    /// As it was allocated or registered.
    pub flags: u32,
    /// Whether it is memory of the application's own that it has registered.
    pub registered: bool,
}

impl PinnedRecord {
    /// What is mapped, or its piece of a slab: whole pages.
    pub(crate) fn pages(&self) -> Range {
        let base = self.range.base / PAGE * PAGE;
        let bytes = (self.range.end() - base).checked_next_multiple_of(PAGE);
        // What cannot be is refused where it is used.
        Range { base, bytes: bytes.unwrap_or(u64::MAX - PAGE) }
    }
}

/// A file that is mapped and registered.
#[derive(Clone, Copy)]
enum File {
    /// Of one allocation, or of memory of the application's own.
    Whole(PinnedRecord),
    /// Of small allocations.
    Slab(Range),
}

impl File {
    fn pages(&self) -> Range {
        match self {
            Self::Whole(record) => record.pages(),
            Self::Slab(range) => *range,
        }
    }

    /// Whether it lies where the application has memory of its own.
    fn is_registered(&self) -> bool {
        matches!(self, Self::Whole(PinnedRecord { registered: true, .. }))
    }

    fn name(&self) -> String {
        match self {
            Self::Whole(record) => format!("pinned-{}", record.id.0),
            Self::Slab(range) => format!("slab-{:x}", range.base),
        }
    }
}

/// Forgets what is complete; whether that is all.
fn is_over(markers: &mut Vec<Marker>) -> bool {
    markers.retain(|marker| !marker.is_complete());
    markers.is_empty()
}

/// Whether a program can have memory of its own there: not among the addresses that sessions give out.
fn is_application_memory(range: Range) -> bool {
    const END: u64 = 1 << 47;
    let Some(end) = range.base.checked_add(range.bytes) else { return false };
    range.base >= PAGE
        && range.bytes > 0
        && end <= END - PAGE
        && (end <= GIVEN.start || range.base >= GIVEN.end)
}

/// The pinned memory of a session.
pub struct PinnedMemory {
    backend: Arc<dyn Backend>,
    dir: PathBuf,
    window: Range,
    reserved: bool,
    live: BTreeMap<PinnedId, PinnedRecord>,
    /// Bytes of each live allocation, by its address.
    by_address: BTreeMap<u64, u64>,
    /// Whatever has its addresses still, by the first of its pages.
    files: BTreeMap<u64, File>,
    slabs: Slabs,
    /// Up to here no page of the window is free.
    full_to: u64,
    /// What is freed, in order, and what has to be complete before it goes.
    freed: VecDeque<(PinnedRecord, Vec<Marker>)>,
    /// Addresses of registered memory, taken before it is restored.
    claims: Claims,
}

impl PinnedMemory {
    /// None yet; files will be in `dir`, addresses in `window`, which is claimed at first use and stays claimed.
    #[must_use]
    pub fn new(backend: Arc<dyn Backend>, dir: PathBuf, window: Range) -> Self {
        Self {
            backend,
            dir,
            window,
            reserved: false,
            live: BTreeMap::new(),
            by_address: BTreeMap::new(),
            files: BTreeMap::new(),
            slabs: Slabs::default(),
            full_to: window.base,
            freed: VecDeque::new(),
            claims: Claims::default(),
        }
    }

    /// Allocates `bytes` bytes of zeros: a piece of a slab if they are few, and a file of their own where there is no room for a slab.
    ///
    /// # Errors
    /// `INVALID_HANDLE` for an id in use, `INVALID_VALUE` for no bytes, `OUT_OF_MEMORY` when the window or the tmpfs is
    /// full, or the backend's.
    pub fn allocate(&mut self, id: PinnedId, ctx: ContextId, bytes: u64, flags: u32) -> Result<PinnedPlace> {
        if self.live.contains_key(&id) {
            return Err(in_use(id));
        }
        if bytes == 0 {
            return Err(CuError::INVALID_VALUE.into());
        }
        self.reserve()?;
        let piece = piece_bytes(bytes).map(|piece| self.take_piece(piece)).transpose()?.flatten();
        let base = match piece {
            Some(base) => base,
            None => {
                self.settle();
                self.gap(bytes)?
            }
        };
        let record = PinnedRecord { id, ctx, range: Range { base, bytes }, flags, registered: false };
        if piece.is_none() {
            self.make(File::Whole(record), bytes)?;
        }
        self.begin(record)?;
        Ok(PinnedPlace { address: base, slab: self.slabs.around(base).map(|slab| (slab.base, slab.bytes)) })
    }

    /// A piece of a slab, a new one if need be; `None` where there is no room for that.
    fn take_piece(&mut self, bytes: u64) -> Result<Option<u64>> {
        self.settle_first();
        if let Some(found) = self.slabs.take(bytes) {
            return Ok(Some(found));
        }
        self.settle();
        if let Some(found) = self.slabs.take(bytes) {
            return Ok(Some(found));
        }
        let size = self.slabs.next_bytes();
        let made = self.gap(size).and_then(|base| {
            let range = Range { base, bytes: size };
            self.make(File::Slab(range), size).map(|()| range)
        });
        match made {
            Ok(range) => self.slabs.add(range),
            Err(failure) if failure.code == CuError::OUT_OF_MEMORY => return Ok(None),
            Err(failure) => return Err(failure),
        }
        Ok(self.slabs.take(bytes))
    }

    /// An allocation is live from now on.
    fn begin(&mut self, record: PinnedRecord) -> Result<()> {
        insert(&mut self.live, record.id, record)?;
        self.by_address.insert(record.range.base, record.range.bytes);
        Ok(())
    }

    /// And from now on it is not; it goes when the markers are complete.
    fn end(&mut self, record: PinnedRecord, markers: Vec<Marker>) {
        self.by_address.remove(&record.range.base);
        if self.is_piece(&record) {
            self.slabs.free(record.range.base);
        }
        self.freed.push_back((record, markers));
    }

    fn is_piece(&self, record: &PinnedRecord) -> bool {
        self.slabs.around(record.range.base).is_some()
    }

    /// Makes a file for memory that the application has registered, at its addresses.
    ///
    /// # Errors
    /// `INVALID_HANDLE` for an id in use, `INVALID_VALUE` for a range that cannot be one, `MAP_FAILED` where this process has something of
    /// its own, `OUT_OF_MEMORY` when the tmpfs is full, or the backend's.
    pub fn register(&mut self, id: PinnedId, ctx: ContextId, range: Range, flags: u32) -> Result<()> {
        if self.live.contains_key(&id) {
            return Err(in_use(id));
        }
        if !is_application_memory(range) {
            return Err(Failure::new(
                CuError::INVALID_VALUE,
                format!("{range} cannot be memory of a program"),
            ));
        }
        self.settle();
        let record = PinnedRecord { id, ctx, range, flags, registered: true };
        self.make(File::Whole(record), range.bytes)?;
        self.begin(record)
    }

    /// Makes a file for so many bytes, and maps it.
    fn make(&mut self, made: File, bytes: u64) -> Result<()> {
        let path = self.path(&made);
        // What the machine does not have the kernel would take from its processes, by ending some.
        let available = if bytes >= LARGE { host::memory::available() } else { 0 };
        if available != 0 && bytes > available {
            let detail =
                format!("{bytes} bytes of pinned or managed memory: this machine has {available} to spare");
            return Err(Failure::new(CuError::OUT_OF_MEMORY, detail));
        }
        let oflags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC;
        let mapped = rustix::fs::open(&path, oflags, Mode::from_raw_mode(0o600))
            .and_then(|file| {
                // Room is taken now, so that no access meets a full tmpfs later.
                rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, made.pages().bytes)?;
                let room = Room::from(rustix::fs::fstatvfs(&file)?);
                if room.has_reserve() { Ok(file) } else { Err(Errno::NOSPC) }
            })
            .map_err(|error| {
                if error != Errno::NOSPC {
                    return Failure::new(CuError::UNKNOWN, format!("{}: {error}", path.display()));
                }
                let detail = format!(
                    "{bytes} bytes of pinned or managed memory find no room in the job's shared memory; `dormouse run --shared-memory SIZE` gives it more"
                );
                Failure::new(CuError::OUT_OF_MEMORY, detail)
            })
            .and_then(|file| self.map(&file, &made));
        if let Err(failure) = mapped {
            let _ = rustix::fs::unlink(&path);
            return Err(failure);
        }
        self.place(made);
        Ok(())
    }

    /// A file has its addresses from now on.
    fn place(&mut self, file: File) {
        self.files.insert(file.pages().base, file);
        while let Some(next) = self.files.get(&self.full_to) {
            self.full_to = next.pages().end();
        }
    }

    /// Registered memory will be restored at these addresses.
    pub fn claim(&mut self, claims: Claims) {
        self.claims = claims;
    }

    /// Maps and registers the restored file of a slab, whose pieces are restored next.
    ///
    /// # Errors
    /// As [`Self::restore`]'s.
    pub fn restore_slab(&mut self, record: SlabRecord) -> Result<()> {
        self.restore_file(File::Slab(record.range))?;
        self.slabs.restore(record);
        Ok(())
    }

    /// Maps and registers a restored file, if the allocation is no piece of a slab.
    ///
    /// # Errors
    /// When it is missing or shorter than it was, its addresses are taken, or the backend refuses it.
    pub fn restore(&mut self, record: PinnedRecord) -> Result<()> {
        if !self.is_piece(&record) {
            self.restore_file(File::Whole(record))?;
        } else if !self.slabs.take_at(record.pages()) {
            let detail = format!("its addresses {} cannot be had", record.range);
            return Err(Failure::new(CuError::MAP_FAILED, detail));
        }
        self.begin(record)
    }

    fn restore_file(&mut self, restored: File) -> Result<()> {
        self.reserve()?;
        let (path, pages) = (self.path(&restored), restored.pages());
        let wrong = |what: String| Failure::new(CuError::MAP_FAILED, format!("{}: {what}", path.display()));
        let there = match restored {
            // Claimed just now, by whoever has read this record.
            File::Whole(record) if record.registered => {
                is_application_memory(record.range) && self.claims.release(pages)
            }
            _ => self.window.contains(pages.base, pages.bytes),
        };
        if !there || !self.is_free(pages) {
            return Err(wrong(format!("its addresses {pages} cannot be had")));
        }
        let file = rustix::fs::open(&path, OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
            .map_err(|error| wrong(error.to_string()))?;
        let size = rustix::fs::fstat(&file).map_err(|error| wrong(error.to_string()))?.st_size;
        if u64::try_from(size).unwrap_or(0) < pages.bytes {
            return Err(wrong(format!("it has {size} bytes instead of {}", pages.bytes)));
        }
        // What was zeros has no room yet.
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, pages.bytes)
            .map_err(|error| wrong(error.to_string()))?;
        self.map(&file, &restored)?;
        self.place(restored);
        Ok(())
    }

    /// Frees an allocation: it goes when all of `markers` are complete. Answers the base of a slab that the application is to unmap, or 0.
    ///
    /// # Errors
    /// `INVALID_VALUE` when there is none.
    pub fn free(&mut self, id: PinnedId, markers: Vec<Marker>) -> Result<u64> {
        let Some(record) = self.live.remove(&id) else {
            return Err(Failure::new(CuError::INVALID_VALUE, format!("there is no {id:?}")));
        };
        self.end(record, markers);
        self.settle_first();
        Ok(self.slabs.spare().unwrap_or(0))
    }

    /// Notes that the application has unmapped a slab, as it was told to; 0 is none. Answers the next, or 0.
    ///
    /// # Errors
    /// `INVALID_VALUE` for a slab of which it was not told.
    pub fn leave(&mut self, slab: u64) -> Result<u64> {
        if slab != 0 {
            let over = self.slabs.leave(slab).map_err(|()| {
                Failure::new(
                    CuError::INVALID_VALUE,
                    format!("no slab that is to be unmapped begins at {slab:#x}"),
                )
            })?;
            if let Some(range) = over {
                self.remove(File::Slab(range));
            }
        }
        Ok(self.slabs.spare().unwrap_or(0))
    }

    /// Frees everything of a context that is ending: nothing can touch it any more.
    pub fn free_context(&mut self, ctx: ContextId) {
        for (_, markers) in &mut self.freed {
            markers.retain(|marker| marker.context().id() != ctx);
        }
        // What was registered is freed by the application, when it has its contents back.
        let gone = take_out(&mut self.live, |record| record.ctx == ctx && !record.registered);
        gone.into_iter().for_each(|record| self.end(record, Vec::new()));
        self.settle();
    }

    /// Forgets what freed allocations wait for: the device is idle.
    pub fn settle_idle(&mut self) {
        self.freed.iter_mut().for_each(|(_, markers)| markers.clear());
        self.settle();
    }

    /// Gives back what is freed and no work uses any more.
    pub fn settle(&mut self) {
        for (record, mut markers) in std::mem::take(&mut self.freed) {
            if is_over(&mut markers) {
                self.give_back(record);
            } else {
                self.freed.push_back((record, markers));
            }
        }
    }

    /// The same, up to the first that work may use still: of thousands not each is looked at each time.
    fn settle_first(&mut self) {
        while let Some((record, markers)) = self.freed.front_mut()
            && is_over(markers)
        {
            let record = *record;
            self.freed.pop_front();
            self.give_back(record);
        }
    }

    fn give_back(&mut self, record: PinnedRecord) {
        if !self.is_piece(&record) {
            return self.remove(File::Whole(record));
        }
        let pages = record.pages();
        // For the next one, and so that no image has what is of no use.
        // SAFETY: pages of a slab, which is mapped; no work uses them any more, and they are nobody's yet.
        unsafe { std::ptr::write_bytes(pages.base as *mut u8, 0, pages.bytes as usize) };
        if let Some(range) = self.slabs.give_back(pages) {
            self.remove(File::Slab(range));
        }
    }

    /// Leaves nothing of a file.
    fn remove(&mut self, file: File) {
        let pages = file.pages();
        let unregistered = self.backend.unregister_host(pages).map_err(Failure::from);
        if let Err(failure) = unregistered.and(self.unmap(&file)) {
            tracing::warn!(%pages, %failure, "pinned memory not freed");
        }
        let _ = rustix::fs::unlink(self.path(&file));
        self.files.remove(&pages.base);
        if !file.is_registered() {
            self.full_to = self.full_to.min(pages.base);
        }
    }

    /// Every live allocation.
    pub fn records(&self) -> impl Iterator<Item = PinnedRecord> + '_ {
        self.live.values().copied()
    }

    /// Every slab.
    pub fn slabs(&self) -> impl Iterator<Item = SlabRecord> + '_ {
        self.slabs.records()
    }

    /// Whether the bytes lie in one live allocation.
    #[must_use]
    pub fn contains(&self, address: u64, bytes: u64) -> bool {
        let before = self.by_address.range(..=address).next_back();
        before.is_some_and(|(&base, &found)| Range { base, bytes: found }.contains(address, bytes))
    }

    /// Whether the bytes lie in one live allocation, and not in memory of the application's that is registered.
    #[must_use]
    pub fn has_made(&self, address: u64, bytes: u64) -> bool {
        self.window.contains(address, bytes) && self.contains(address, bytes)
    }

    /// Puts bytes into an allocation, if they lie in one: what is registered is the application's own.
    pub fn put(&self, address: u64, bytes: &[u8]) -> bool {
        if !self.has_made(address, bytes.len() as u64) {
            return false;
        }
        // SAFETY: the bytes lie in the pages of a live allocation, which are mapped and stay so as long as this is borrowed.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address as *mut u8, bytes.len()) };
        true
    }

    fn path(&self, file: &File) -> PathBuf {
        self.dir.join(file.name())
    }

    fn is_free(&self, pages: Range) -> bool {
        let before = self.files.range(..pages.end()).next_back();
        before.is_none_or(|(_, file)| file.pages().end() <= pages.base)
    }

    /// The lowest address with room for a file.
    fn gap(&self, bytes: u64) -> Result<u64> {
        self.find_gap(bytes).ok_or_else(|| {
            let detail = format!("{bytes} bytes of pinned or managed memory do not fit into {}, where a process has all of either", self.window);
            Failure::new(CuError::OUT_OF_MEMORY, detail)
        })
    }

    fn find_gap(&self, bytes: u64) -> Option<u64> {
        let alignment = if bytes >= HUGE { HUGE } else { PAGE };
        let size = bytes.checked_next_multiple_of(PAGE)?;
        let mut base = self.full_to.checked_next_multiple_of(alignment)?;
        // What is registered lies elsewhere.
        for range in self.files.range(self.full_to..self.window.end()).map(|(_, file)| file.pages()) {
            if range.base >= base.checked_add(size)? {
                break;
            }
            base = base.max(range.end()).checked_next_multiple_of(alignment)?;
        }
        self.window.contains(base, size).then_some(base)
    }

    fn reserve(&mut self) -> Result<()> {
        if self.reserved {
            return Ok(());
        }
        let Range { base, bytes } = self.window;
        // SAFETY: `MAP_FIXED_NOREPLACE` takes only addresses that nothing uses; nothing can be accessed in it yet.
        let got = unsafe {
            rustix::mm::mmap_anonymous(
                base as *mut c_void,
                bytes as usize,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED_NOREPLACE,
            )
        };
        got.map_err(|error| {
            let detail = format!("the addresses {} for pinned memory cannot be had: {error}", self.window);
            Failure::new(CuError::MAP_FAILED, detail)
        })?;
        self.reserved = true;
        Ok(())
    }

    fn map(&self, file: &OwnedFd, mapped: &File) -> Result<()> {
        let pages = mapped.pages();
        // What was registered lies where this process must have nothing.
        let fixed = if mapped.is_registered() { MapFlags::FIXED_NOREPLACE } else { MapFlags::FIXED };
        // SAFETY: the pages lie inside the window, which is ours, and where no file is; or nothing is replaced.
        let got = unsafe {
            rustix::mm::mmap(
                pages.base as *mut c_void,
                pages.bytes as usize,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | fixed,
                file,
                0,
            )
        };
        got.map_err(|error| {
            let code = if error == Errno::NOMEM { CuError::OUT_OF_MEMORY } else { CuError::MAP_FAILED };
            Failure::new(code, format!("pinned memory {pages} cannot be mapped: {error}"))
        })?;
        if let Err(code) = self.backend.register_host(pages) {
            self.unmap(mapped)?;
            return Err(Failure::new(code, format!("pinned memory {pages} cannot be registered")));
        }
        Ok(())
    }

    /// Leaves nothing behind the pages; addresses of the window stay claimed.
    fn unmap(&self, file: &File) -> Result<()> {
        let pages = file.pages();
        if file.is_registered() {
            // SAFETY: what this made at these addresses, which no work uses any more.
            let gone = unsafe { rustix::mm::munmap(pages.base as *mut c_void, pages.bytes as usize) };
            return gone.map_err(|error| {
                Failure::new(
                    CuError::UNKNOWN,
                    format!("registered memory {pages} cannot be unmapped: {error}"),
                )
            });
        }
        // SAFETY: the pages lie inside the window and belong to one file, which no work uses any more.
        let got = unsafe {
            rustix::mm::mmap_anonymous(
                pages.base as *mut c_void,
                pages.bytes as usize,
                ProtFlags::empty(),
                MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED,
            )
        };
        got.map(drop).map_err(|error| {
            Failure::new(CuError::UNKNOWN, format!("pinned memory {pages} cannot be unmapped: {error}"))
        })
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        for file in self.files.values() {
            let _ = self.backend.unregister_host(file.pages());
            if file.is_registered() {
                let _ = self.unmap(file);
            }
        }
        if self.reserved {
            // SAFETY: the window is ours, and whoever could use it is gone with the session.
            let _ =
                unsafe { rustix::mm::munmap(self.window.base as *mut c_void, self.window.bytes as usize) };
        }
    }
}
