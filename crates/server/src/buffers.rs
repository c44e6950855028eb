//! Registered host memory for copies, and what becomes of it when nobody needs it: to unregister memory the driver waits for all work of the context, and
//! all else that is asked of it waits behind that (measured, driver 580). So it is done only when no device has work.

use crate::lock;
use crate::transfer::TransferError;
use backend::{Backend, Range};
use image::CHUNK_SIZE;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Where buffers are asked for. Programs have nothing there, mostly: what one registers has its own address in the server, too.
const WINDOW: std::ops::Range<u64> = 0x6000_0000_0000..0x6800_0000_0000;

/// A session's buffers that are not in use, all of them registered.
pub(crate) struct BufferPool {
    backend: Arc<dyn Backend>,
    spare: Mutex<Vec<Memory>>,
}

impl BufferPool {
    /// With none yet.
    pub(crate) fn new(backend: &Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self { backend: Arc::clone(backend), spare: Mutex::default() })
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
    pub(crate) fn register(self: &Arc<Self>, mut memory: Memory) -> Result<Buffers, TransferError> {
        let range = memory.range();
        self.backend.register_host(range).map_err(|code| TransferError::Device { range, code })?;
        memory.registered = true;
        Ok(self.own(memory))
    }

    fn own(self: &Arc<Self>, memory: Memory) -> Buffers {
        Buffers { memory: ManuallyDrop::new(memory), pool: Arc::clone(self) }
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
}

/// Registered host memory of one chunk for each buffer; spare when this is dropped.
pub(crate) struct Buffers {
    memory: ManuallyDrop<Memory>,
    pool: Arc<BufferPool>,
}

impl Deref for Buffers {
    type Target = Memory;

    fn deref(&self) -> &Memory {
        &self.memory
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        // SAFETY: it is taken here only, and nobody looks at it after this.
        let memory = unsafe { ManuallyDrop::take(&mut self.memory) };
        lock(&self.pool.spare).push(memory);
    }
}

/// Host memory of so many chunks.
pub(crate) struct Memory {
    address: *mut c_void,
    count: usize,
    registered: bool,
    backend: Arc<dyn Backend>,
}

// SAFETY: the memory belongs to the value alone and has no ties to a thread.
unsafe impl Send for Memory {}

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
        let memory = Self { address, count, registered: false, backend: Arc::clone(backend) };
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

impl Drop for Memory {
    fn drop(&mut self) {
        if self.registered {
            let _ = self.backend.unregister_host(self.range());
        }
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
    fn what_was_not_registered_is_not_kept() {
        let backend: Arc<dyn Backend> = Arc::new(backend_soft::SoftBackend::default());
        let pool = BufferPool::new(&backend);
        drop(pool.map(1).unwrap());
        assert_eq!(pool.spare_bytes(), 0);
    }
}
