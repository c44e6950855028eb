//! Registered host memory for copies, and what becomes of it when nobody needs it: to unregister memory the driver waits for all work of the context, and
//! all else that is asked of it waits behind that (measured, driver 580). So it is done only when no device has work; or when the application would get no
//! memory otherwise, since a driver takes 2 MiB of the device's for each GiB that is registered (the same, an H200).

use crate::lock;
use crate::transfer::TransferError;
use backend::{Backend, Range};
use image::CHUNK_SIZE;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use wire::CuError;

/// Where buffers are asked for. Programs have nothing there, mostly: what one registers has its own address in the server, too.
const WINDOW: std::ops::Range<u64> = 0x6000_0000_0000..0x6800_0000_0000;

/// With less than this registered the device has no more memory without it, bytes.
const WORTH: u64 = 256 << 20;

/// A session's buffers.
pub(crate) struct BufferPool {
    backend: Arc<dyn Backend>,
    /// Those that are not in use, all of them registered.
    spare: Mutex<Vec<Arc<Memory>>>,
    /// Those to which no copy is made now, as long as somebody has them.
    settled: Mutex<Vec<Weak<Memory>>>,
}

impl BufferPool {
    /// With none yet.
    pub(crate) fn new(backend: &Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self { backend: Arc::clone(backend), spare: Mutex::default(), settled: Mutex::default() })
    }

    /// The device library that copies from and to them.
    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// `count` buffers or more, spare ones or new ones.
    ///
    /// # Errors
    /// [`TransferError`] when they cannot be had.
    pub(crate) fn take(self: &Arc<Self>, count: usize) -> Result<Buffers, TransferError> {
        match self.take_spare(count) {
            Some(buffers) => Ok(buffers),
            None => self.register(self.map(count)?),
        }
    }

    /// The fewest spare ones that are `count` buffers or more, side by side, if there are any.
    pub(crate) fn take_spare(self: &Arc<Self>, count: usize) -> Option<Buffers> {
        let mut spare = lock(&self.spare);
        let enough = spare.iter().enumerate().filter(|(_, memory)| memory.count >= count);
        let (at, _) = enough.min_by_key(|(_, memory)| memory.count)?;
        Some(self.own(spare.swap_remove(at)))
    }

    /// Memory for `count` buffers, which is there.
    ///
    /// # Errors
    /// [`TransferError`] when it cannot be had.
    pub(crate) fn map(&self, count: usize) -> Result<Memory, TransferError> {
        Memory::map(&self.backend, count)
    }

    /// Lets the devices copy from and to it.
    ///
    /// # Errors
    /// The device library's.
    pub(crate) fn register(self: &Arc<Self>, memory: Memory) -> Result<Buffers, TransferError> {
        let range = memory.range();
        memory.register().map_err(|code| TransferError::Device { range, code })?;
        Ok(self.own(Arc::new(memory)))
    }

    /// The same, for copies alone: where no device has memory for that any more they are made without it, a third as fast.
    ///
    /// # Errors
    /// The device library's, but for `OUT_OF_MEMORY`.
    pub(crate) fn register_if_there_is_room(
        self: &Arc<Self>,
        memory: Memory,
    ) -> Result<Buffers, TransferError> {
        let range = memory.range();
        match memory.register() {
            Ok(()) | Err(CuError::OUT_OF_MEMORY) => Ok(self.own(Arc::new(memory))),
            Err(code) => Err(TransferError::Device { range, code }),
        }
    }

    fn own(self: &Arc<Self>, memory: Arc<Memory>) -> Buffers {
        Buffers { memory, pool: Arc::clone(self) }
    }

    /// Bytes of those that are not in use.
    pub(crate) fn spare_bytes(&self) -> u64 {
        lock(&self.spare).iter().map(|memory| memory.range().bytes).sum()
    }

    /// Gives some of those back to the machine; false when there are none. To be called when no device has work.
    pub(crate) fn give_back(&self) -> bool {
        let memory = lock(&self.spare).pop();
        memory.is_some()
    }

    /// Unregisters all that no copy needs, for whoever could have no memory of a device's otherwise; false when that would not help.
    pub(crate) fn let_go(&self) -> bool {
        let mut spare = lock(&self.spare);
        let mut settled = lock(&self.settled);
        let still = settled.iter().filter_map(Weak::upgrade);
        let still: Vec<_> = still.filter(|memory| memory.is_registered()).collect();
        let bytes: u64 = spare.iter().chain(&still).map(|memory| memory.range().bytes).sum();
        if bytes < WORTH {
            return false;
        }
        spare.clear();
        settled.clear();
        still.iter().for_each(|memory| memory.unregister());
        true
    }
}

/// Registered host memory of one chunk for each buffer; spare when this is dropped.
pub(crate) struct Buffers {
    memory: Arc<Memory>,
    pool: Arc<BufferPool>,
}

impl Buffers {
    /// No copy is made from or to it now, so that it need not stay registered.
    pub(crate) fn settle(&self) {
        self.unsettle();
        lock(&self.pool.settled).push(Arc::downgrade(&self.memory));
    }

    /// Copies are made from or to it from now on, though it may not be registered.
    pub(crate) fn unsettle(&self) {
        lock(&self.pool.settled).retain(|settled| !std::ptr::eq(settled.as_ptr(), &*self.memory));
    }
}

impl Deref for Buffers {
    type Target = Memory;

    fn deref(&self) -> &Memory {
        &self.memory
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        let mut spare = lock(&self.pool.spare);
        self.unsettle();
        if self.memory.is_registered() {
            spare.push(Arc::clone(&self.memory));
        }
    }
}

/// Host memory of so many chunks.
pub(crate) struct Memory {
    address: *mut c_void,
    count: usize,
    registered: AtomicBool,
    backend: Arc<dyn Backend>,
}

// SAFETY: the memory belongs to the value alone and has no ties to a thread.
unsafe impl Send for Memory {}
// SAFETY: whoever writes to it has it alone, by agreement: one thread, or copies that somebody waits for.
unsafe impl Sync for Memory {}

impl Memory {
    fn map(backend: &Arc<dyn Backend>, count: usize) -> Result<Self, TransferError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let bytes = count * CHUNK_SIZE;
        let offset = NEXT.fetch_add(bytes as u64, Ordering::Relaxed) % (WINDOW.end - WINDOW.start);
        // SAFETY: a new mapping, there or, where something is in its way, wherever there is room.
        let address = unsafe {
            rustix::mm::mmap_anonymous(
                (WINDOW.start + offset) as *mut c_void,
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .map_err(TransferError::Buffer)?;
        let registered = AtomicBool::new(false);
        let memory = Self { address, count, registered, backend: Arc::clone(backend) };
        // In huge pages, and before the device library's locks are taken.
        // SAFETY: a mapping of our own; neither changes what is in it. Whoever registers it makes what is missing.
        unsafe {
            let _ = rustix::mm::madvise(address, bytes, Advice::LinuxHugepage);
            let _ = rustix::mm::madvise(address, bytes, Advice::LinuxPopulateWrite);
        }
        Ok(memory)
    }

    /// Where the buffers lie, side by side.
    pub(crate) fn range(&self) -> Range {
        Range { base: self.address as u64, bytes: (self.count * CHUNK_SIZE) as u64 }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Fills `room` with the bytes from `offset` on, which no copy is writing; false when there are not as many.
    pub(crate) fn read(&self, offset: usize, room: &mut [u8]) -> bool {
        let fits = offset.checked_add(room.len()).is_some_and(|end| end <= self.count * CHUNK_SIZE);
        if fits {
            // SAFETY: the bytes are within the mapping, which is not `room`, and by agreement nobody writes them.
            unsafe {
                let from = self.address.cast::<u8>().add(offset);
                std::ptr::copy_nonoverlapping(from, room.as_mut_ptr(), room.len());
            }
        }
        fits
    }

    /// Puts `bytes` at `offset`, where no copy reads; false when there is no room for them.
    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> bool {
        let fits = offset.checked_add(bytes.len()).is_some_and(|end| end <= self.count * CHUNK_SIZE);
        if fits {
            // SAFETY: as in `read`, the other way.
            unsafe {
                let to = self.address.cast::<u8>().add(offset);
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len());
            }
        }
        fits
    }

    /// A buffer's first byte; numbers go round.
    pub(crate) fn buffer(&self, number: usize) -> *mut u8 {
        // SAFETY: the mapping has `count` chunks, and the number is taken modulo that.
        unsafe { self.address.cast::<u8>().add(number % self.count * CHUNK_SIZE) }
    }
}

impl Memory {
    /// Whether devices copy from and to it as fast as they can.
    pub(crate) fn is_registered(&self) -> bool {
        self.registered.load(Ordering::Relaxed)
    }

    fn register(&self) -> backend::Result<()> {
        self.backend.register_host(self.range())?;
        self.registered.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn unregister(&self) {
        if self.registered.swap(false, Ordering::Relaxed) {
            let _ = self.backend.unregister_host(self.range());
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.unregister();
        // SAFETY: the mapping is ours, and no copy uses it: whoever made one has waited for it.
        let _ = unsafe { rustix::mm::munmap(self.address, self.count * CHUNK_SIZE) };
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_let_go_of_is_there_for_the_next_until_it_is_given_back() {
        let backend: Arc<dyn Backend> = Arc::new(backend_soft::SoftBackend::default());
        let pool = BufferPool::new(&backend);
        assert!(pool.take_spare(2).is_none() && !pool.give_back());
        let buffers = pool.take(2).unwrap();
        let range = buffers.range();
        assert!(WINDOW.contains(&range.base), "{range}");
        drop(buffers);
        assert_eq!(pool.spare_bytes(), 2 * CHUNK_SIZE as u64);
        assert!(pool.take_spare(3).is_none(), "so many are not there");
        drop(pool.take(5).unwrap());
        assert_eq!(pool.take(1).unwrap().range(), range, "the fewest that will do");
        assert!(pool.give_back() && pool.give_back() && !pool.give_back());
        assert_eq!(pool.spare_bytes(), 0);
        assert!(backend.unregister_host(range).is_err(), "it is not registered any more");
    }

    #[test]
    fn what_no_copy_needs_is_let_go_and_can_still_be_read() {
        let backend: Arc<dyn Backend> = Arc::new(backend_soft::SoftBackend::default());
        let pool = BufferPool::new(&backend);
        let (copied, in_use) = (pool.take(120).unwrap(), pool.take(1).unwrap());
        assert!(copied.write(5, &[7; 3]) && !pool.let_go(), "copies may be made still");
        copied.settle();
        drop(pool.take(5).unwrap());
        assert!(!pool.let_go() && pool.spare_bytes() > 0, "so little is not worth it");
        drop(pool.take(10).unwrap());
        assert!(pool.let_go() && !pool.let_go());
        assert_eq!(pool.spare_bytes(), 0);
        assert!(backend.unregister_host(copied.range()).is_err(), "it is not registered any more");
        let mut read = [0; 3];
        assert!(copied.read(5, &mut read) && read == [7; 3]);
        drop(copied);
        assert_eq!(pool.spare_bytes(), 0, "nobody could copy to it");
        drop(in_use);
        assert_eq!(pool.spare_bytes(), CHUNK_SIZE as u64);
    }

    #[test]
    fn what_was_let_go_of_before_copies_are_made_is_used_all_the_same() {
        let backend: Arc<dyn Backend> = Arc::new(backend_soft::SoftBackend::default());
        let pool = BufferPool::new(&backend);
        let slices = [pool.take(100).unwrap(), pool.take(100).unwrap()];
        for _ in 0..2 {
            slices.iter().for_each(Buffers::settle);
        }
        assert!(pool.let_go());
        slices.iter().for_each(Buffers::settle);
        assert!(!pool.let_go(), "nothing is registered any more");
        slices.iter().for_each(Buffers::unsettle);
        assert!(slices.iter().all(|slice| !slice.is_registered() && slice.write(7, &[1; 2])));
        drop(slices);
        assert_eq!(pool.spare_bytes(), 0);
    }

    #[test]
    fn what_was_not_registered_is_not_kept() {
        let backend: Arc<dyn Backend> = Arc::new(backend_soft::SoftBackend::default());
        let pool = BufferPool::new(&backend);
        drop(pool.map(1).unwrap());
        assert_eq!(pool.spare_bytes(), 0);
    }
}
