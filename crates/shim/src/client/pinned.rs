//! Pinned memory: files that the server makes, mapped at the address that it says; small allocations have one in common (`slabs.rs`).

use std::ffi::CString;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, PoisonError};

use cuda_abi::{CuError, CuResult};
use wire::{ContextId, Notice, PinnedAlloc, PinnedId, PinnedPlace};

use super::context::Owner;
use super::memory::{File, Kind, PINNED};
use super::slabs;
use super::thread::Call;
use crate::log::{self, Level};

/// `cuMemHostGetFlags` says this of every allocation: with unified addressing all of it is mapped.
const DEVICEMAP: u32 = 2;

impl Call<'_> {
    /// Allocates pinned memory in the current context.
    ///
    /// # Errors
    /// What the server says; `MAP_FAILED`.
    pub fn allocate_pinned(&mut self, bytes: u64, flags: u32) -> CuResult<u64> {
        let context = Arc::clone(self.context()?);
        self.allocate_shared(context.id, Owner::new(&context), (bytes, flags), |file| Kind::Pinned {
            file,
            flags: flags | DEVICEMAP,
        })
    }

    /// Allocates memory that application and device have in common, in a context or in none: of the kind that is made of its file.
    ///
    /// # Errors
    /// What the server says; `MAP_FAILED`.
    pub(super) fn allocate_shared(
        &mut self,
        ctx: ContextId,
        owner: Owner,
        (bytes, flags): (u64, u32),
        kind: impl FnOnce(File) -> Kind,
    ) -> CuResult<u64> {
        let id = PinnedId(self.session.next_id());
        let _placing = self.session.placing.read().unwrap_or_else(PoisonError::into_inner);
        let PinnedPlace { address, slab } = self.ask(&PinnedAlloc { ctx, pinned: id, bytes, flags })?;
        let mapped = match slab {
            Some(slab) => slabs::map(self.session, slab, (address, bytes)),
            None => map(&self.session.folder.join(format!("pinned-{}", id.0)), address, bytes),
        };
        if let Err(error) = mapped {
            let (address, bytes) = slab.unwrap_or((address, bytes));
            let text =
                taken(address, bytes).map(|text| format!("pinned or managed memory cannot be had: {text}"));
            let told = text.map(|text| self.submit(&Notice { text }));
            self.free_file(id)?;
            told.transpose()?;
            return Err(error);
        }
        let file = File { id, is_piece: slab.is_some() };
        self.session.add_allocation((address, bytes), owner, kind(file));
        Ok(address)
    }

    /// Frees pinned memory, when nothing uses it any more.
    ///
    /// # Errors
    /// `INVALID_VALUE` for an address that is none; what the server says.
    pub fn free_pinned(&mut self, address: u64) -> CuResult {
        let pinned = |kind: &Kind| match kind {
            Kind::Pinned { file, .. } => Some(*file),
            _ => None,
        };
        self.free_shared(address, pinned)
    }

    /// Frees memory that application and device have in common; `file` is its file where it is of the right kind.
    ///
    /// # Errors
    /// `INVALID_VALUE` for an address that is none; what the server says, and then the memory is gone all the same.
    pub(super) fn free_shared(&mut self, address: u64, file: impl Fn(&Kind) -> Option<File>) -> CuResult {
        // Out of the table first, so that of two threads that free the same memory one is told.
        let allocation = self.session.memory.remove(address, |kind| file(kind).is_some());
        let allocation = allocation.ok_or(CuError::INVALID_VALUE)?;
        let File { id, is_piece } = file(&allocation.kind).ok_or(CuError::INVALID_VALUE)?;
        if !is_piece {
            // Before the server gives the address to the next one.
            // SAFETY: whoever has it gives it up.
            unsafe { unmap(allocation.base, allocation.bytes) };
        }
        self.free_file(id)
    }
}

/// Maps the whole file at exactly `address`, shared, and not in children.
///
/// # Errors
/// `MAP_FAILED` when the address is taken or not one for pinned memory, `OUT_OF_MEMORY` when the process can have no more mappings.
pub fn map(path: &Path, address: u64, bytes: u64) -> CuResult {
    // SAFETY: MAP_FIXED_NOREPLACE replaces no mapping.
    unsafe { map_within(&PINNED, path, (address, bytes), libc::MAP_FIXED_NOREPLACE) }
}

/// The same, with a flag for what may be there already.
///
/// # Errors
/// As [`map`]'s.
///
/// # Safety
/// What the flag has replaced is nobody's.
pub(super) unsafe fn map_within(
    window: &Range<u64>,
    path: &Path,
    (address, bytes): (u64, u64),
    fixed: libc::c_int,
) -> CuResult {
    let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| CuError::MAP_FAILED)?;
    if !(window.contains(&address) && bytes <= window.end - address) {
        log::message(Level::Error, format_args!("the server put memory at {address:#x}+{bytes:#x}"));
        return Err(CuError::MAP_FAILED);
    }
    // SAFETY: a NUL-terminated name.
    let file = unsafe { libc::open(name.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW) };
    if file < 0 {
        return Err(failed("open", path));
    }
    let wanted = std::ptr::without_provenance_mut(address as usize);
    // A child that comes before it is kept from children can touch nothing there either, however it is forked.
    // SAFETY: as the caller says.
    let got =
        unsafe { libc::mmap(wanted, bytes as usize, libc::PROT_NONE, libc::MAP_SHARED | fixed, file, 0) };
    let failure = (got != wanted).then(|| failed("map", path));
    // SAFETY: the descriptor opened above.
    unsafe { libc::close(file) };
    if let Some(failure) = failure {
        if got != libc::MAP_FAILED {
            // SAFETY: a kernel that does not know MAP_FIXED_NOREPLACE put the mapping elsewhere; nobody else knows it.
            unsafe { libc::munmap(got, bytes as usize) };
        }
        return Err(failure);
    }
    // SAFETY: the mapping just made.
    let is_ours = unsafe {
        libc::madvise(got, bytes as usize, libc::MADV_DONTFORK) == 0
            && libc::mprotect(got, bytes as usize, libc::PROT_READ | libc::PROT_WRITE) == 0
    };
    if !is_ours {
        let failure = failed("keep from children", path);
        // SAFETY: the same; nobody knows it yet.
        unsafe { libc::munmap(got, bytes as usize) };
        return Err(failure);
    }
    Ok(())
}

/// Tells, for people, what the program has at addresses where memory could not be mapped, if it has something there.
pub(super) fn taken(address: u64, bytes: u64) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let end = address.saturating_add(bytes);
    let owner = maps.lines().find(|line| {
        let Some((start, last)) = line.split(' ').next().and_then(|range| range.split_once('-')) else {
            return false;
        };
        let number = |text| u64::from_str_radix(text, 16).unwrap_or(0);
        number(start) < end && address < number(last)
    })?;
    let owner = owner.split_whitespace().collect::<Vec<_>>().join(" ");
    Some(format!(
        "it belongs at {address:#x}+{bytes:#x}, where the program has mapped something itself: {owner}"
    ))
}

/// Takes a mapping made by [`map`] away.
///
/// # Safety
/// Nobody may use the memory any more.
pub unsafe fn unmap(address: u64, bytes: u64) {
    // SAFETY: as the caller says.
    unsafe { libc::munmap(std::ptr::without_provenance_mut(address as usize), bytes as usize) };
}

fn failed(what: &str, path: &Path) -> CuError {
    let error = std::io::Error::last_os_error();
    log::message(Level::Error, format_args!("cannot {what} pinned memory {}: {error}", path.display()));
    // The process has as many mappings as it may have.
    let full = error.raw_os_error() == Some(libc::ENOMEM);
    if full { CuError::OUT_OF_MEMORY } else { CuError::MAP_FAILED }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// Forks a child by `fork`, and answers whether it could read what is at an address.
    fn child_reads(address: u64, pipe: libc::c_int, fork: impl Fn() -> libc::c_long) -> bool {
        let child = fork();
        if child == 0 {
            let byte = std::ptr::with_exposed_provenance(address as usize);
            // SAFETY: the kernel refuses to read what is not there; the child ends at once.
            unsafe { libc::_exit(i32::from(libc::write(pipe, byte, 1) == 1)) }
        }
        let mut status = 0;
        // SAFETY: waits for that child.
        assert_eq!(libc::c_long::from(unsafe { libc::waitpid(child as i32, &raw mut status, 0) }), child);
        status != 0
    }

    #[test]
    fn no_child_reads_what_is_being_mapped() {
        const BYTES: u64 = 2 << 20;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pinned");
        std::fs::File::create(&path).unwrap().set_len(BYTES).unwrap();
        let (address, is_over) = (PINNED.start + (1 << 30), AtomicBool::new(false));
        let mut pipe = [0; 2];
        // SAFETY: an array of two.
        assert_eq!(unsafe { libc::pipe(pipe.as_mut_ptr()) }, 0);
        // SAFETY: the children call what may be called there, and end.
        let ways: [fn() -> libc::c_long; 2] = [
            || unsafe { libc::fork().into() },
            || unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) },
        ];
        let read = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    map(&path, address, BYTES).unwrap();
                    // SAFETY: nobody uses it but children, who have it not.
                    unsafe { unmap(address, BYTES) };
                }
            });
            let read = (0..2000).filter(|at| child_reads(address, pipe[1], ways[at % 2])).count();
            is_over.store(true, Ordering::Relaxed);
            read
        });
        assert_eq!(read, 0);
    }
}
