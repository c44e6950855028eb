//! The kernel's userfaultfd: who touches pages that are missing or write-protected is told here, and waits.

use crate::pages::Fault;
use crate::{Range, lock};
use linux_raw_sys::general as sys;
use linux_raw_sys::ioctl;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, Updater};
use rustix::mm::UserfaultfdFlags;
use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::time::{Duration, Instant};

// What bindgen cannot read in <linux/userfaultfd.h>, since the values are casts there.
const MAP_PROTECTED: u64 = 1 << 1;
const PROTECT: u64 = 1 << 0;

/// What must be had: faults of pages of tmpfs that are missing, or there and not mapped, and of protected ones that are written
/// (Linux 5.19). A mapping that is moved would be registered no more, and its holes zeros, if that were not to be told.
const FEATURES: u32 = sys::UFFD_FEATURE_MISSING_SHMEM
    | sys::UFFD_FEATURE_MINOR_SHMEM
    | sys::UFFD_FEATURE_PAGEFAULT_FLAG_WP
    | sys::UFFD_FEATURE_WP_HUGETLBFS_SHMEM
    | sys::UFFD_FEATURE_EVENT_REMAP
    | sys::UFFD_FEATURE_THREAD_ID;
/// A kernel that has this (Linux 6.4) can map pages protected, too.
const FEATURE_MAP_PROTECTED: u32 = sys::UFFD_FEATURE_WP_UNPOPULATED;

/// How long a move of a mapping is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Waits for another thread to hear that the application is moving a mapping: until then the kernel maps and protects nothing.
#[derive(Default)]
struct Patience(Option<Instant>);

impl Patience {
    /// Waits a little; true when that has been tried for long enough.
    fn is_over(&mut self) -> bool {
        let begun = *self.0.get_or_insert_with(Instant::now);
        std::thread::sleep(Duration::from_millis(1));
        begun.elapsed() >= PATIENCE
    }
}

/// What the kernel tells.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// Somebody waits for a page.
    Fault(Touch),
    /// The application has moved or doubled a mapping (`mremap`), and waits until this is heard.
    Moved {
        /// Where it was.
        from: u64,
        /// Where it is.
        to: u64,
    },
}

/// A fault that somebody waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Touch {
    /// Where.
    pub(crate) address: u64,
    /// What was tried.
    pub(crate) fault: Fault,
    /// What the page lacked.
    pub(crate) lack: Lack,
    /// By which thread, as it is numbered where it runs.
    pub(crate) thread: u32,
}

/// Why a page could not be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lack {
    /// The file has no such page.
    Page,
    /// The application has it not mapped.
    Mapping,
    /// It is protected.
    Right,
}

/// The faults of one process's memory. It works on the memory of the process that has made it, whoever holds it.
#[derive(Debug)]
pub struct Userfault {
    fd: OwnedFd,
    /// Whether pages can be mapped so that writing them faults.
    maps_protected: bool,
    /// The last move that somebody has asked for by [`Self::is_moving`].
    moved: Mutex<Option<(u64, u64)>>,
}

impl Userfault {
    /// Makes one of this process's own memory, for faults of system calls too.
    ///
    /// # Errors
    /// `PermissionDenied` without `CAP_SYS_PTRACE` where `vm.unprivileged_userfaultfd` is 0.
    pub fn create() -> io::Result<OwnedFd> {
        Self::make(UserfaultfdFlags::empty())
    }

    /// The same for faults of the program's own code only, which every process may have (Linux 5.11): a system call fails where it touches a page that is
    /// not there.
    ///
    /// # Errors
    /// The kernel's, if it has none, or a filter of system calls says so.
    pub fn create_for_user_mode() -> io::Result<OwnedFd> {
        Self::make(UserfaultfdFlags::from_bits_retain(sys::UFFD_USER_MODE_ONLY))
    }

    fn make(which: UserfaultfdFlags) -> io::Result<OwnedFd> {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK | which;
        // SAFETY: it takes effect on memory only when that is registered.
        Ok(unsafe { rustix::mm::userfaultfd(flags) }?)
    }

    /// Takes one into use, whether another process, which is gone, has had it in use or not.
    ///
    /// # Errors
    /// The kernel's, if it has not what is needed or the descriptor is something else.
    pub fn open(fd: OwnedFd) -> io::Result<Self> {
        let new = |fd| Self { fd, maps_protected: false, moved: Mutex::default() };
        let mut this = new(fd);
        let api = || sys::uffdio_api { api: sys::UFFD_API.into(), features: FEATURES.into(), ioctls: 0 };
        let answer = match this.ask::<{ ioctl::UFFDIO_API }, _>(api()) {
            // It can be done once, and what is answered is the kernel's affair, not the descriptor's.
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                let other = new(Self::create_for_user_mode()?);
                other.ask::<{ ioctl::UFFDIO_API }, _>(api())?
            }
            answer => answer?,
        };
        this.maps_protected = answer.features & u64::from(FEATURE_MAP_PROTECTED) != 0;
        Ok(this)
    }

    /// From now on faults of these pages are told. They must be a mapping of a file on a tmpfs.
    pub(crate) fn register(&self, range: Range) -> io::Result<()> {
        let mode = sys::UFFDIO_REGISTER_MODE_MISSING
            | sys::UFFDIO_REGISTER_MODE_MINOR
            | sys::UFFDIO_REGISTER_MODE_WP;
        let register = sys::uffdio_register { range: raw(range), mode: mode.into(), ioctls: 0 };
        self.ask::<{ ioctl::UFFDIO_REGISTER }, _>(register).map(drop)
    }

    /// From now on none is; who waits goes on.
    pub(crate) fn unregister(&self, range: Range) -> io::Result<()> {
        self.ask::<{ ioctl::UFFDIO_UNREGISTER }, _>(raw(range)).map(drop)
    }

    /// Who waits for one of these pages tries again.
    pub(crate) fn wake(&self, range: Range) -> io::Result<()> {
        self.ask::<{ ioctl::UFFDIO_WAKE }, _>(raw(range)).map(drop)
    }

    /// Whether these pages fault when they are written; who waits for that goes on if they don't.
    pub(crate) fn protect(&self, range: Range, protect: bool) -> io::Result<()> {
        let mode = if protect { PROTECT } else { 0 };
        let protect = || sys::uffdio_writeprotect { range: raw(range), mode };
        let mut waiting = Patience::default();
        loop {
            match self.ask::<{ ioctl::UFFDIO_WRITEPROTECT }, _>(protect()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !waiting.is_over() => {}
                asked => return asked.map(drop),
            }
        }
    }

    /// Whether [`Self::map`] can map pages so that writing them faults.
    pub(crate) fn maps_protected(&self) -> bool {
        self.maps_protected
    }

    /// Maps pages that the file has, and wakes who waits for them. The answer is how many bytes it got to, and why no further.
    pub(crate) fn map(&self, range: Range, protect: bool) -> (usize, io::Result<()>) {
        let (mut done, mut waiting) = (0, Patience::default());
        while done < range.bytes {
            let rest = Range { base: range.base + done, bytes: range.bytes - done };
            let mode = if protect { MAP_PROTECTED } else { 0 };
            let mut map = sys::uffdio_continue { range: raw(rest), mode, mapped: 0 };
            let asked = self.update::<{ ioctl::UFFDIO_CONTINUE }, _>(&mut map);
            // Some pages may have been mapped before one failed.
            let mapped = u64::try_from(map.mapped).unwrap_or(0);
            done += mapped;
            match asked {
                Err(Errno::AGAIN) if mapped == 0 && waiting.is_over() => {
                    return (done as usize, Err(Errno::AGAIN.into()));
                }
                Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return (done as usize, Err(error.into())),
            }
        }
        (done as usize, Ok(()))
    }

    /// Where the application is moving a mapping, if it waits for that to be heard, or did so when another thread asked. What else is told
    /// meanwhile is lost: for who ends it.
    pub(crate) fn is_moving(&self) -> Option<(u64, u64)> {
        let mut moved = lock(&self.moved);
        let heard = std::iter::from_fn(|| self.next().ok().flatten()).find_map(|event| match event {
            Event::Moved { from, to } => Some((from, to)),
            Event::Fault(_) => None,
        });
        *moved = heard.or(*moved);
        *moved
    }

    /// The next that is told; `None` when there is nothing now, or somebody else has it.
    pub(crate) fn next(&self) -> io::Result<Option<Event>> {
        let mut message = MaybeUninit::<sys::uffd_msg>::uninit();
        // SAFETY: its bytes, which need not be initialised to be written.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(
                message.as_mut_ptr().cast::<MaybeUninit<u8>>(),
                size_of::<sys::uffd_msg>(),
            )
        };
        match rustix::io::read(&self.fd, bytes) {
            Ok((read, _)) if read.len() == size_of::<sys::uffd_msg>() => {}
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        // SAFETY: every byte of it was read, and all are valid.
        let message = unsafe { message.assume_init() };
        match u32::from(message.event) {
            sys::UFFD_EVENT_PAGEFAULT => {}
            sys::UFFD_EVENT_REMAP => {
                // SAFETY: what this event carries.
                let moved = unsafe { message.arg.remap };
                return Ok(Some(Event::Moved { from: moved.from, to: moved.to }));
            }
            _ => return Ok(None),
        }
        // SAFETY: what this event carries.
        let (address, flags) = unsafe { (message.arg.pagefault.address, message.arg.pagefault.flags) };
        // SAFETY: the same, of a descriptor that tells threads.
        let thread = unsafe { message.arg.pagefault.feat.ptid };
        let has = |flag: u32| flags & u64::from(flag) != 0;
        let wrote = has(sys::UFFD_PAGEFAULT_FLAG_WRITE) || has(sys::UFFD_PAGEFAULT_FLAG_WP);
        let fault = if wrote { Fault::Write } else { Fault::Read };
        let lack = match () {
            () if has(sys::UFFD_PAGEFAULT_FLAG_WP) => Lack::Right,
            () if has(sys::UFFD_PAGEFAULT_FLAG_MINOR) => Lack::Mapping,
            () => Lack::Page,
        };
        Ok(Some(Event::Fault(Touch { address, fault, lack, thread })))
    }

    /// The same on a kernel before Linux 6.4, for tests: no page is mapped protected.
    #[doc(hidden)]
    #[must_use]
    pub fn before_linux_6_4(mut self) -> Self {
        self.maps_protected = false;
        self
    }

    fn ask<const OPCODE: Opcode, T>(&self, mut argument: T) -> io::Result<T> {
        self.update::<OPCODE, T>(&mut argument)?;
        Ok(argument)
    }

    /// `OPCODE` must be one of a userfaultfd's that takes a `T`.
    fn update<const OPCODE: Opcode, T>(&self, argument: &mut T) -> rustix::io::Result<()> {
        // SAFETY: each caller names the opcode with its own structure of the kernel's headers. What the kernel changes beside that are
        // registered pages, which are the application's alone.
        unsafe { rustix::ioctl::ioctl(&self.fd, Updater::<OPCODE, T>::new(argument)) }
    }
}

impl AsFd for Userfault {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn raw(range: Range) -> sys::uffdio_range {
    sys::uffdio_range { start: range.base, len: range.bytes }
}
