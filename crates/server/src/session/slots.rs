//! What the server keeps for one ring's bulk copies: who still uses each staging slot, and a buffer for small answers.

use super::{Caller, Session};
use crate::failure::{Failure, Result};
use crate::objects::{Context, Marker, Stream};
use backend::{Backend, Range};
use rustix::mm::{MapFlags, ProtFlags};
use std::ffi::c_void;
use std::sync::Arc;
use transport::{SLOT_BYTES, SLOTS};
use wire::{CuError, INLINE_MAX};

/// Slots that are made known to the device together.
const GROUP: usize = 4;

/// One ring's slots.
#[derive(Default)]
pub(crate) struct Slots {
    /// Which groups of [`GROUP`] slots the device knows: small copies use the first only.
    registered: [bool; SLOTS / GROUP],
    used_by: [Option<User>; SLOTS],
    bounce: Option<Bounce>,
}

/// What still uses a slot.
enum User {
    /// What its stream has been given.
    Work(Marker),
    /// A copy, of whose end the device library knows.
    Copy(Arc<Context>),
}

impl Session {
    /// Address of the first `bytes` bytes of a staging slot of the caller, made known to the device at first use.
    pub(super) fn slot(&self, caller: &mut Caller, slot: u32, bytes: u32) -> Result<u64> {
        let invalid =
            || Failure::new(CuError::INVALID_VALUE, format!("slot {slot} does not have {bytes} bytes"));
        if bytes as usize > SLOT_BYTES {
            return Err(invalid());
        }
        let found = self.link.slot(caller.ring, slot as usize).map_err(|_| invalid())?;
        let group = slot as usize / GROUP;
        if !caller.slots.registered[group] {
            self.backend().register_host(self.group(caller, group).ok_or_else(invalid)?)?;
            caller.slots.registered[group] = true;
        }
        Ok(found.address().as_ptr() as u64)
    }

    /// Where a slot of the caller's lies.
    fn slot_range(&self, caller: &Caller, slot: u32) -> Option<Range> {
        let slot = self.link.slot(caller.ring, slot as usize).ok()?;
        Some(Range { base: slot.address().as_ptr() as u64, bytes: SLOT_BYTES as u64 })
    }

    /// Where a group of the caller's slots lies.
    fn group(&self, caller: &Caller, group: usize) -> Option<Range> {
        let first = self.link.slot(caller.ring, group * GROUP).ok()?;
        // A ring's slots lie side by side.
        Some(Range { base: first.address().as_ptr() as u64, bytes: (GROUP * SLOT_BYTES) as u64 })
    }

    /// Notes that everything `stream` has been given so far may use the slot.
    pub(super) fn slot_used(&self, caller: &mut Caller, slot: u32, stream: &Stream) -> Result<()> {
        let told = self.slot_range(caller, slot).is_some_and(|range| self.backend().tells_of_copies(range));
        let user = match told {
            true => User::Copy(Arc::clone(&stream.ctx)),
            false => User::Work(stream.ctx.mark(stream.arg())?),
        };
        if let Some(used_by) = caller.slots.used_by.get_mut(slot as usize) {
            *used_by = Some(user);
        }
        Ok(())
    }

    /// Waits until nothing uses the slot.
    pub(super) fn slot_wait(&self, caller: &mut Caller, slot: u32) -> Result<()> {
        let used_by = caller.slots.used_by.get_mut(slot as usize);
        let used_by = used_by
            .ok_or_else(|| Failure::new(CuError::INVALID_VALUE, format!("there is no slot {slot}")))?;
        let user = used_by.take();
        match (user, self.slot_range(caller, slot)) {
            (Some(User::Work(marker)), _) => self.wait(|| marker.poll()),
            (Some(User::Copy(ctx)), Some(range)) => self.wait(|| self.backend().has_copied(ctx.raw, range)),
            (Some(User::Copy(_)), None) | (None, _) => Ok(()),
        }
    }

    /// The caller's buffer for small copies to the host.
    pub(super) fn bounce<'a>(&self, caller: &'a mut Caller) -> Result<&'a Bounce> {
        match &mut caller.slots.bounce {
            Some(bounce) => Ok(bounce),
            none => Ok(none.insert(Bounce::new(&self.placer.backend)?)),
        }
    }

    /// Lets go of everything kept for a ring whose thread has ended.
    pub(super) fn release_slots(&self, caller: &mut Caller) {
        for slot in 0..SLOTS as u32 {
            // A failure here is the context's, and is told where somebody can hear it.
            let _ = self.slot_wait(caller, slot);
        }
        for group in (0..SLOTS / GROUP).filter(|group| caller.slots.registered[*group]) {
            if let Some(range) = self.group(caller, group) {
                let _ = self.backend().unregister_host(range);
            }
        }
        caller.slots = Slots::default();
    }
}

/// [`INLINE_MAX`] bytes of host memory of our own that a device copies into without anybody waiting in the driver.
pub(crate) struct Bounce {
    address: *mut c_void,
    backend: Arc<dyn Backend>,
}

// SAFETY: the memory belongs to the `Bounce` alone and has no ties to a thread.
unsafe impl Send for Bounce {}

impl Bounce {
    fn new(backend: &Arc<dyn Backend>) -> Result<Self> {
        // SAFETY: a new mapping, wherever there is room.
        let address = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                INLINE_MAX,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .map_err(|error| Failure::new(CuError::OUT_OF_MEMORY, format!("no copy buffer: {error}")))?;
        let bounce = Self { address, backend: Arc::clone(backend) };
        backend.register_host(bounce.range())?;
        Ok(bounce)
    }

    fn range(&self) -> Range {
        Range { base: self.address as u64, bytes: INLINE_MAX as u64 }
    }

    /// Its address.
    pub(super) fn address(&self) -> u64 {
        self.address as u64
    }

    /// Its first `bytes` bytes (no more than it has); the copy into it is complete.
    pub(super) fn read(&self, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes.min(INLINE_MAX)];
        // SAFETY: the mapping has `INLINE_MAX` readable bytes, `out` has no more, and no device writes to it now.
        unsafe { std::ptr::copy_nonoverlapping(self.address.cast::<u8>(), out.as_mut_ptr(), out.len()) };
        out
    }
}

impl Drop for Bounce {
    fn drop(&mut self) {
        let _ = self.backend.unregister_host(self.range());
        // SAFETY: the mapping is ours, and nothing refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.address, INLINE_MAX) };
    }
}
