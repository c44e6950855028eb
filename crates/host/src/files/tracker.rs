//! Which files a job has written, whether they are still open or not: fanotify on the job's own mounts, which nobody else uses.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::known::{KnownFiles, Written};
use crate::mounts::Mount;
use crate::tasks::OuterPid;
use crate::tmpfs::JOB_DIR;

/// File systems that hold no files to bring back.
const PSEUDO: [&str; 18] = [
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "proc",
    "pstore",
    "securityfs",
    "sysfs",
    "tracefs",
];

/// The longest that a deleted file may take up room because it is pinned.
const SWEEP: Duration = Duration::from_secs(1);

/// Collects the files that the job has closed after writing.
#[derive(Debug)]
pub(crate) struct Tracker {
    shared: Arc<Shared>,
    wake: OwnedFd,
}

#[derive(Debug)]
struct Shared {
    events: OwnedFd,
    known: Mutex<KnownFiles>,
}

impl Tracker {
    /// Starts to watch the mounts of the job of which `init` is pid 1. `before` are files it wrote in an earlier life.
    pub(crate) fn start(init: OuterPid, mounts: &[Mount], before: &BTreeSet<PathBuf>) -> io::Result<Self> {
        let flags =
            libc::FAN_CLASS_NOTIF | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK | libc::FAN_UNLIMITED_QUEUE;
        let event_flags = libc::O_RDONLY | libc::O_LARGEFILE | libc::O_CLOEXEC | libc::O_NONBLOCK;
        // SAFETY: no memory involved; the answer is a new descriptor or -1.
        let events = match unsafe { libc::fanotify_init(flags, event_flags.cast_unsigned()) } {
            -1 => return Err(io::Error::last_os_error()),
            // SAFETY: new and ours.
            fd => unsafe { OwnedFd::from_raw_fd(fd) },
        };
        let job_device = mounts.iter().find(|m| m.target.as_os_str() == JOB_DIR).map(|m| &m.device);
        let mut known = KnownFiles::new(init);
        for mount in mounts {
            if !PSEUDO.contains(&mount.fs_type.as_str()) && Some(&mount.device) != job_device {
                // One that cannot be watched (unreachable below another) cannot be written by name either.
                if let Err(error) = watch(&events, init, &mount.target) {
                    tracing::debug!(mount = %mount.target.display(), %error, "not watched for written files");
                }
                if let Err(error) = known.try_mount(&mount.target) {
                    tracing::debug!(mount = %mount.target.display(), %error, "no file handles");
                }
            }
        }
        before.iter().for_each(|path| known.note_path(path));
        let shared = Arc::new(Shared { events, known: Mutex::new(known) });
        let wake = eventfd(0, EventfdFlags::CLOEXEC)?;
        let (theirs, waker) = (Arc::clone(&shared), wake.try_clone()?);
        std::thread::Builder::new().name("written-files".into()).spawn(move || run(&theirs, &waker))?;
        Ok(Self { shared, wake })
    }

    /// Every file closed after writing so far that still exists.
    pub(crate) fn written(&self) -> Written {
        self.shared.take_events().find()
    }
}

impl Drop for Tracker {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

fn watch(events: &OwnedFd, init: OuterPid, mount: &Path) -> io::Result<()> {
    // Seen from within the job, so that it is the job's mount and not the machine's.
    let path = KnownFiles::seen(init, mount);
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    let how = libc::FAN_MARK_ADD | libc::FAN_MARK_MOUNT;
    // SAFETY: `path` is a string that outlives the call.
    match unsafe {
        libc::fanotify_mark(events.as_raw_fd(), how, libc::FAN_CLOSE_WRITE, libc::AT_FDCWD, path.as_ptr())
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn run(shared: &Shared, wake: &OwnedFd) {
    let sweep = Timespec::try_from(SWEEP).unwrap_or_default();
    let mut any_pinned = false;
    let mut swept = Instant::now();
    loop {
        let mut fds = [PollFd::new(wake, PollFlags::IN), PollFd::new(&shared.events, PollFlags::IN)];
        match poll(&mut fds, any_pinned.then_some(&sweep)) {
            Ok(_) if fds[0].revents().is_empty() => {
                let mut known = shared.take_events();
                // Not after every event: it looks at every pinned file.
                if any_pinned && swept.elapsed() >= SWEEP {
                    known.forget_deleted();
                    swept = Instant::now();
                }
                any_pinned = known.any_pinned();
            }
            Err(rustix::io::Errno::INTR) => {}
            _ => return,
        }
    }
}

impl Shared {
    /// Notes all that has happened up to now.
    fn take_events(&self) -> MutexGuard<'_, KnownFiles> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        // Aligned for the structures that the kernel writes.
        let mut buffer = [0u64; 1024];
        loop {
            // SAFETY: the buffer is ours and as long as said.
            let length = unsafe {
                libc::read(
                    self.events.as_raw_fd(),
                    buffer.as_mut_ptr().cast(),
                    std::mem::size_of_val(&buffer),
                )
            };
            let Ok(length @ 1..) = usize::try_from(length) else { return known };
            for fd in descriptors(&buffer, length) {
                known.note(fd.as_fd());
            }
        }
    }
}

/// The files that events are about, each a descriptor that is now ours.
fn descriptors(buffer: &[u64], length: usize) -> Vec<OwnedFd> {
    const SIZE: usize = std::mem::size_of::<libc::fanotify_event_metadata>();
    let (mut found, mut at) = (Vec::new(), 0);
    while at + SIZE <= length {
        // SAFETY: `at` is a multiple of 8 within the buffer, with room for the structure, which any bytes are valid for.
        let event = unsafe { buffer.as_ptr().byte_add(at).cast::<libc::fanotify_event_metadata>().read() };
        if event.fd >= 0 {
            // SAFETY: the kernel opened it for us with this event.
            found.push(unsafe { OwnedFd::from_raw_fd(event.fd) });
        }
        match event.event_len as usize {
            step if step >= SIZE && step.is_multiple_of(8) => at += step,
            _ => break,
        }
    }
    found
}
