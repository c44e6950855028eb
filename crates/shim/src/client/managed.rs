//! Managed memory: memory that application and device have in common, as pinned memory is, with what the application has said of it.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use cuda_abi::{CuError, CuResult};
use transport::TransportError;
use transport::hello::{self, Faults};
use wire::{ContextId, ManagedAlloc, ManagedHint, ManagedKeep, ManagedLeave, MemFree, Notice, PinnedId};

use super::advice::{Advised, Home};
use super::context::{Context, Owner};
use super::memory::{ARENAS, DEVICE, File, Holder, Kind, PINNED};
use super::thread::Call;
use super::{fork, pinned, reserved};

/// Shadows are whole pages.
const PAGE: u64 = 4096;

/// What is known of managed memory with shadow pages.
#[derive(Default)]
pub struct Shadowed {
    /// Whether the server has the userfaultfd.
    given: bool,
    /// Allocations of up to so many bytes are coherent.
    coherent: u64,
    /// In which generation of the session that is so: a restart may choose anew.
    generation: u32,
}

/// Bytes of one managed allocation.
pub struct Managed {
    advice: Arc<Mutex<Advised>>,
    bytes: Range<u64>,
}

impl Managed {
    /// Looks at what has been said of the allocation, and at which bytes of it these are.
    pub fn with_advice<T>(&self, look: impl FnOnce(&mut Advised, Range<u64>) -> T) -> T {
        look(&mut self.advice.lock().unwrap_or_else(PoisonError::into_inner), self.bytes.clone())
    }

    /// Whether it is the whole allocation.
    pub fn is_whole(&self, allocation: u64) -> bool {
        self.bytes == (0..allocation)
    }
}

fn file(kind: &Kind) -> Option<File> {
    match kind {
        Kind::Managed { file, .. } => Some(*file),
        _ => None,
    }
}

/// What is said of memory that `--managed=exclusive` does not allow to be had in another way.
fn refused(reason: &str) -> String {
    format!("managed memory is refused, since --managed=exclusive allows it with shadow pages only: {reason}")
}

/// Whether the C library's functions get at managed memory whose faults the kernel itself may not wait for (`crates/bounce`).
fn bounces() -> bool {
    // SAFETY: a name that ends with a zero.
    !unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"dormouse_bounces".as_ptr()) }.is_null()
}

/// What to do where there may be no userfaultfd.
fn remedy() -> &'static str {
    if bounces() {
        ": a filter of system calls (seccomp) allows not even one of user mode"
    } else {
        ". On the device it needs CAP_SYS_PTRACE in the process, or vm.unprivileged_userfaultfd = 1, or that the job is run with --user-faults and the program keeps the LD_PRELOAD that this sets"
    }
}

/// Has nobody touch shadow pages that are about to go, or whoever likes touch them again: when they are kept no more they read as zeros.
pub(super) fn guard(address: u64, bytes: u64, is_guarded: bool) {
    let rights = if is_guarded { libc::PROT_NONE } else { libc::PROT_READ | libc::PROT_WRITE };
    let pages = bytes.next_multiple_of(PAGE) as usize;
    // SAFETY: a region's pages, as long as they are. What the program has unmapped of them ends it; what it has put over a part goes with the region.
    unsafe { libc::mprotect(std::ptr::without_provenance_mut(address as usize), pages, rights) };
}

/// Takes shadow pages away; addresses that were reserved stay so.
///
/// # Safety
/// Nobody may use the memory any more.
pub(super) unsafe fn unmap(address: u64, bytes: u64) {
    let pages = bytes.next_multiple_of(PAGE);
    if !reserved::are_kept(address, pages) {
        // SAFETY: as the caller says; what the program has put over a part goes with the region (`docs/managed-memory.md`).
        return unsafe { pinned::unmap(address, pages) };
    }
    // SAFETY: whole pages of a region at kept addresses, which nobody uses any more.
    unsafe { reserved::keep_again(address, pages) };
}

impl Call<'_> {
    /// Allocates managed memory in the current context: for the application, or for variables of a module.
    ///
    /// # Errors
    /// What the server says; `MAP_FAILED`.
    pub fn allocate_managed(&mut self, bytes: u64, holder: Holder) -> CuResult<u64> {
        let context = Arc::clone(self.context()?);
        let session = self.session;
        // Held, so that one thread finds out.
        let mut known = session.shadowed.lock().unwrap_or_else(PoisonError::into_inner);
        let control = session.transport.control();
        let (exclusive, generation) = (control.is_exclusive(), control.generation());
        if known.generation != generation {
            (known.coherent, known.generation) = (0, generation);
        }
        if bytes > known.coherent || exclusive {
            match self.allocate_shadowed(&context, bytes, holder, (&mut known, exclusive)) {
                Ok(Some(address)) => return Ok(address),
                Ok(None) if exclusive => return Err(CuError::NOT_SUPPORTED),
                Ok(None) => {}
                // What finds no room on the device is in the host's memory.
                Err(CuError::OUT_OF_MEMORY) if !exclusive => {}
                Err(error) => return Err(error),
            }
        }
        drop(known);
        self.allocate_shared(context.id, Owner::new(&context), (bytes, 0), |file| Kind::Managed {
            file,
            holder,
            advice: Arc::default(),
        })
    }

    /// Allocates managed memory for variables of a library: where there is no context yet, and for all that there will be.
    /// Application and device have the same bytes, wherever the application's own managed memory is.
    ///
    /// # Errors
    /// What the server says; `MAP_FAILED`.
    pub fn allocate_for_library(&mut self, bytes: u64) -> CuResult<u64> {
        let owner = Owner::new(&self.session.device(0)?.primary);
        self.allocate_shared(ContextId::NONE, owner, (bytes, 0), |file| Kind::Managed {
            file,
            holder: Holder::Library,
            advice: Arc::default(),
        })
    }

    /// Allocates managed memory with shadow pages; `None` where it cannot have any, or is not to.
    fn allocate_shadowed(
        &mut self,
        context: &Arc<Context>,
        bytes: u64,
        holder: Holder,
        (known, exclusive): (&mut Shadowed, bool),
    ) -> CuResult<Option<u64>> {
        let id = PinnedId(self.session.next_id());
        let _placing = self.session.placing.read().unwrap_or_else(PoisonError::into_inner);
        let address = self.ask(&ManagedAlloc { ctx: context.id, managed: id, bytes })?;
        if address == 0 {
            known.coherent = bytes;
            if exclusive {
                self.submit(&Notice { text: refused("the devices do not reach one another's memory") })?;
            }
            return Ok(None);
        }
        let kept = match self.give_userfault(known) {
            Ok(faults) => self.tell_of(faults).and_then(|()| self.keep_shadow(id, address, bytes)),
            Err(reason) => Ok(Err(reason)),
        };
        let refused = match kept {
            Ok(Ok(())) => {
                let file = File { id, is_piece: false };
                let kind = Kind::Managed { file, holder, advice: Arc::default() };
                self.session.add_allocation((address, bytes), Owner::new(context), kind);
                return Ok(Some(address));
            }
            Ok(Err(reason)) => {
                known.coherent = u64::MAX;
                let text = if exclusive {
                    refused(&reason)
                } else {
                    format!(
                        "managed memory is coherent from now on, as with --managed=coherent: on the host's side of the bus, over which kernels reach it at some 50 GB/s: {reason}"
                    )
                };
                self.submit(&Notice { text })
            }
            Err(error) => Err(error),
        };
        // What was made goes again.
        self.submit(&MemFree { address })?;
        refused.map(|()| None)
    }

    /// Has the server told of the faults of this process's memory, and answers of which; `None` where it has been told before. Or tells why it cannot be.
    fn give_userfault(&self, known: &mut Shadowed) -> Result<Option<Faults>, String> {
        if known.given {
            return Ok(None);
        }
        let path = self.session.folder.with_file_name("hello.sock");
        // A child would have it, if it came before it is given away.
        let given = fork::with_own_descriptors(|| Ok(hello::give_userfault(&path, bounces())));
        let given = given.map_err(|_| "there is no thread to make a userfaultfd".to_owned())?;
        let given = given.map_err(|error| {
            let is_denied =
                matches!(&error, TransportError::Io { source, .. } if source.raw_os_error() == libc::EPERM);
            format!("{error}{}", if is_denied { remedy() } else { "" })
        })?;
        known.given = true;
        Ok(Some(given))
    }

    /// What a user should know of the faults that are told.
    fn tell_of(&mut self, faults: Option<Faults>) -> CuResult {
        if faults != Some(Faults::UserMode) {
            return Ok(());
        }
        let text = "managed memory has shadow pages by the program's own faults only (--user-faults): reading and writing by the C library's functions works, \
                    and other system calls that are given managed memory may fail with EFAULT (docs/managed-memory.md)";
        self.submit(&Notice { text: text.to_owned() })
    }

    /// Maps a region's shadow, and has it kept; or tells what the program has there.
    fn keep_shadow(&mut self, id: PinnedId, address: u64, bytes: u64) -> CuResult<Result<(), String>> {
        let file = self.session.folder.join(format!("shadow-{}", id.0));
        let pages = bytes.checked_next_multiple_of(PAGE).ok_or(CuError::MAP_FAILED)?;
        reserved::keep_for_shadows();
        let reserved = reserved::are_kept(address, pages);
        let fixed = if reserved { libc::MAP_FIXED } else { libc::MAP_FIXED_NOREPLACE };
        // SAFETY: what is replaced, if anything, is this library's own reservation, in which the server has just allocated these addresses.
        let mapped = unsafe { pinned::map_within(&DEVICE, &file, (address, pages), fixed) };
        if let Err(error) = mapped {
            let taken = if reserved { None } else { pinned::taken(address, pages) };
            return taken.map_or(Err(error), |reason| Ok(Err(reason)));
        }
        let kept = self.ask(&ManagedKeep { address });
        if kept.is_err() {
            // SAFETY: nobody knows it yet.
            unsafe { unmap(address, pages) };
        }
        kept.map(Ok)
    }

    /// Whether a managed allocation of the application's begins there.
    pub fn is_managed(&self, address: u64) -> bool {
        let found = self.session.memory.find(address);
        found.is_some_and(|found| {
            found.base == address && matches!(found.kind, Kind::Managed { holder: Holder::Application, .. })
        })
    }

    /// Frees managed memory, when nothing uses it any more.
    ///
    /// # Errors
    /// `INVALID_VALUE` for an address that is none; what the server says.
    pub fn free_managed(&mut self, address: u64) -> CuResult {
        if PINNED.contains(&address) {
            return self.free_shared(address, file);
        }
        let allocation = self.session.memory.remove(address, |kind| file(kind).is_some());
        let allocation = allocation.ok_or(CuError::INVALID_VALUE)?;
        guard(address, allocation.bytes, true);
        if let Err(error) = self.ask(&ManagedLeave { address }) {
            guard(address, allocation.bytes, false);
            self.session.memory.insert(allocation);
            return Err(error);
        }
        // SAFETY: whoever has it gives it up.
        unsafe { unmap(address, allocation.bytes) };
        self.submit(&MemFree { address })
    }

    /// Tells the server where managed memory is wanted, if it can lie in several places.
    ///
    /// # Errors
    /// What the server says.
    pub fn hint(&mut self, address: u64, home: Home) -> CuResult {
        let device = match home {
            Home::Nowhere => return Ok(()),
            Home::Device(ordinal) => Some(wire::Device(ordinal)),
            Home::Host | Home::Numa(_) => None,
        };
        // What lies elsewhere is coherent, and stays.
        if ARENAS.contains(&address) { self.submit(&ManagedHint { address, device }) } else { Ok(()) }
    }

    /// Managed memory.
    ///
    /// # Errors
    /// `INVALID_VALUE` for no bytes, or some that are not all of one managed allocation.
    pub fn managed(&self, address: u64, bytes: u64) -> CuResult<Managed> {
        let found = self.session.memory.find(address).ok_or(CuError::INVALID_VALUE)?;
        let first = address - found.base;
        match found.kind {
            Kind::Managed { advice, .. } if bytes > 0 && bytes <= found.bytes - first => {
                Ok(Managed { advice, bytes: first..first + bytes })
            }
            _ => Err(CuError::INVALID_VALUE),
        }
    }
}
