//! The descriptors that this process was started with.

use std::fs;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::io::FdFlags;

/// A bit for each of the descriptors 0, 1 and 2 that was closed.
static CLOSED: AtomicU8 = AtomicU8::new(0);

/// Run before `main`: the standard library opens `/dev/null` on closed standard descriptors before it calls that.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE_CLOSED: extern "C" fn() = note_closed;

extern "C" fn note_closed() {
    for fd in 0..3 {
        // SAFETY: only asks for a descriptor's flags.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } < 0 {
            CLOSED.fetch_or(1 << fd, Ordering::Relaxed);
        }
    }
}

/// Whether the standard descriptor `fd` was closed when this process was started.
pub(super) fn was_closed(fd: RawFd) -> bool {
    CLOSED.load(Ordering::Relaxed) & (1 << fd) != 0
}

/// Takes over every descriptor above 2 that whoever started this process has left open for it, with its number. None a second time.
pub(super) fn take_others() -> io::Result<Vec<(RawFd, OwnedFd)>> {
    let numbers: Vec<RawFd> = fs::read_dir("/proc/self/fd")?
        .map(|entry| Ok(entry?.file_name().to_str().and_then(|name| name.parse().ok())))
        .collect::<io::Result<Vec<Option<RawFd>>>>()?
        .into_iter()
        .flatten()
        .collect();
    let mut taken = Vec::new();
    for number in numbers.into_iter().filter(|number| *number > 2) {
        // SAFETY: only asks for a descriptor's flags; the folder's own is not open any more.
        let flags = unsafe { libc::fcntl(number, libc::F_GETFD) };
        // What this process has opened itself closes at exec, which what it was started with cannot have done.
        if flags >= 0 && flags & libc::FD_CLOEXEC == 0 {
            // SAFETY: it is open, nothing here has opened it, so nothing else here owns it; marked, it is not taken again.
            let fd = unsafe { OwnedFd::from_raw_fd(number) };
            rustix::io::fcntl_setfd(&fd, FdFlags::CLOEXEC)?;
            taken.push((number, fd));
        }
    }
    taken.sort_by_key(|(number, _)| *number);
    Ok(taken)
}
