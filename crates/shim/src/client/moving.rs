//! Moving pages of the application to a file and back, while its other threads stand still: what they wrote meanwhile would be lost. A
//! thread of its own does it, since the caller's stack may be among the pages; from the moment on in which the others stand still it
//! allocates nothing and takes no lock, which they may have.

use std::ffi::{CStr, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::ptr::null_mut;

use cuda_abi::{CuError, CuResult};
use transport::hello::{Stillness, ask_still};

use super::callbacks::without_signals;
use super::registered::Place;
use super::thread::forbid_calls;
use crate::log::{self, Level};

const PAGE: u64 = 4096;
const READ_WRITE: i32 = libc::PROT_READ | libc::PROT_WRITE;

/// Whole pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pages {
    start: u64,
    bytes: usize,
}

impl Pages {
    /// Those in which some bytes lie; `None` for what is no memory of a process.
    pub fn around(base: u64, bytes: u64) -> Option<Self> {
        let end = base.checked_add(bytes)?.checked_next_multiple_of(PAGE)?;
        let start = base / PAGE * PAGE;
        Some(Self { start, bytes: usize::try_from(end - start).ok()? })
    }

    /// The first address.
    pub fn start(self) -> u64 {
        self.start
    }

    /// The first address behind them.
    pub fn end(self) -> u64 {
        self.start + self.bytes as u64
    }

    /// How many bytes they have.
    pub fn bytes(self) -> usize {
        self.bytes
    }

    pub(super) fn address(self) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.start as usize)
    }
}

/// A mapping that the kernel has placed, taken away at the end unless it has been moved.
pub(super) struct Aside {
    address: usize,
    bytes: usize,
}

impl Aside {
    /// Of a file, shared, from its beginning; or else fresh.
    pub(super) fn of(file: Option<&OwnedFd>, bytes: usize) -> CuResult<Self> {
        let flags = if file.is_some() { libc::MAP_SHARED } else { libc::MAP_PRIVATE | libc::MAP_ANONYMOUS };
        let file = file.map_or(-1, AsRawFd::as_raw_fd);
        // SAFETY: a new mapping, where the kernel likes.
        let address = unsafe { libc::mmap(null_mut(), bytes, READ_WRITE, flags, file, 0) };
        match address == libc::MAP_FAILED {
            true => Err(failed("map", &std::io::Error::last_os_error())),
            false => Ok(Self { address: address.expose_provenance(), bytes }),
        }
    }

    pub(super) fn address(&self) -> *mut c_void {
        std::ptr::with_exposed_provenance_mut(self.address)
    }

    /// Takes the place of other pages, as many, in one step.
    pub(super) fn replace(&mut self, pages: Pages) -> std::io::Result<()> {
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: this mapping is nobody else's, and holds what those pages hold; whoever has addresses in them finds it there.
        let moved = unsafe { libc::mremap(self.address(), self.bytes, pages.bytes, flags, pages.address()) };
        if moved == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        self.bytes = 0;
        Ok(())
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        if self.bytes > 0 {
            // SAFETY: the mapping made above, which nobody else knows.
            unsafe { libc::munmap(self.address(), self.bytes) };
        }
    }
}

/// Moves pages, which are private memory, to a file that is as long.
///
/// # Errors
/// `MAP_FAILED`: nothing has moved.
pub(super) fn move_in(pages: Pages, place: &Place) -> CuResult {
    let file = open(&place.file)?;
    on_a_thread(|| {
        let mut aside = Aside::of(Some(&file), pages.bytes)?;
        keep_stack(pages);
        exchange(pages, &mut aside, &place.hello)
    })
}

/// Moves pages back to private memory.
///
/// # Errors
/// `MAP_FAILED`: nothing has moved.
pub(super) fn move_out(pages: Pages, hello: &Path) -> CuResult {
    on_a_thread(|| exchange(pages, &mut Aside::of(None, pages.bytes)?, hello))
}

/// Copies pages elsewhere, and has the copy take their place.
fn exchange(pages: Pages, aside: &mut Aside, hello: &Path) -> CuResult {
    let still = stillness(hello)?;
    // SAFETY: the pages are the application's, and mapped; the copy is ours and as long.
    unsafe {
        std::ptr::copy_nonoverlapping(pages.address().cast::<u8>(), aside.address().cast(), pages.bytes)
    };
    let moved = aside.replace(pages);
    drop(still);
    moved.map_err(|error| failed("move", &error))
}

/// Has all other threads stand still.
///
/// # Errors
/// `MAP_FAILED`; the reason is in the log.
pub(super) fn stillness(hello: &Path) -> CuResult<Stillness> {
    // SAFETY: cannot fail.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) };
    ask_still(hello, u32::try_from(thread).unwrap_or(0)).map_err(|error| {
        log::message(Level::Error, format_args!("registered memory is not moved: {error}"));
        CuError::MAP_FAILED
    })
}

/// Runs something on a thread of its own, which takes no signals, and waits for it.
pub(super) fn on_a_thread<T: Send>(body: impl FnOnce() -> CuResult<T> + Send) -> CuResult<T> {
    let work = || {
        forbid_calls();
        body()
    };
    std::thread::scope(|scope| {
        let thread =
            || std::thread::Builder::new().name("dormouse-move".to_owned()).spawn_scoped(scope, work);
        let thread = without_signals(thread).map_err(|_| CuError::MAP_FAILED)?;
        thread.join().unwrap_or(Err(CuError::UNKNOWN))
    })
}

/// A stack grows below its lowest page: one has to be left where that is moved. Touching what is below makes the stack longer.
fn keep_stack(pages: Pages) {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    let begins = format!("{:x}-", pages.start);
    if maps.lines().any(|line| line.starts_with(&begins) && line.ends_with("[stack]")) {
        let below = std::ptr::with_exposed_provenance::<u8>((pages.start - PAGE) as usize);
        // SAFETY: the kernel puts a page there, the stack's.
        unsafe { below.read_volatile() };
    }
}

/// The file of a registration.
pub(super) fn open(path: &CStr) -> CuResult<OwnedFd> {
    // SAFETY: a NUL-terminated name.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC | libc::O_NOFOLLOW) };
    if file < 0 {
        return Err(failed("open", &std::io::Error::last_os_error()));
    }
    // SAFETY: the descriptor just opened.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}

fn failed(what: &str, error: &std::io::Error) -> CuError {
    log::message(Level::Error, format_args!("cannot {what} registered memory: {error}"));
    CuError::MAP_FAILED
}
