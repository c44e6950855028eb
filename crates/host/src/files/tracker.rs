//! Which files a job has written, whether they are still open or not: fanotify on the job's own mounts, which nobody else uses.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

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

/// Collects the names of files that the job has closed after writing.
#[derive(Debug)]
pub(crate) struct Tracker {
    shared: Arc<Shared>,
    wake: OwnedFd,
}

#[derive(Debug)]
struct Shared {
    events: OwnedFd,
    written: Mutex<BTreeSet<PathBuf>>,
}

impl Tracker {
    /// Starts to watch the mounts of the job of which `init` is pid 1. `before` are files it wrote in an earlier life.
    pub(crate) fn start(init: OuterPid, mounts: &[Mount], before: BTreeSet<PathBuf>) -> io::Result<Self> {
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
        for mount in mounts {
            if !PSEUDO.contains(&mount.fs_type.as_str()) && Some(&mount.device) != job_device {
                // One that cannot be watched (unreachable below another) cannot be written by name either.
                if let Err(error) = watch(&events, init, &mount.target) {
                    tracing::debug!(mount = %mount.target.display(), %error, "not watched for written files");
                }
            }
        }
        let shared = Arc::new(Shared { events, written: Mutex::new(before) });
        let wake = eventfd(0, EventfdFlags::CLOEXEC)?;
        let (theirs, waker) = (Arc::clone(&shared), wake.try_clone()?);
        std::thread::Builder::new().name("written-files".into()).spawn(move || run(&theirs, &waker))?;
        Ok(Self { shared, wake })
    }

    /// Every file closed after writing so far, whether it still exists or not.
    pub(crate) fn written(&self) -> BTreeSet<PathBuf> {
        self.shared.take_events().clone()
    }
}

impl Drop for Tracker {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

fn watch(events: &OwnedFd, init: OuterPid, mount: &Path) -> io::Result<()> {
    // Seen from within the job, so that it is the job's mount and not the machine's.
    let path = PathBuf::from(format!("/proc/{init}/root")).join(mount.strip_prefix("/").unwrap_or(mount));
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
    loop {
        let mut fds = [PollFd::new(wake, PollFlags::IN), PollFd::new(&shared.events, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) if fds[0].revents().is_empty() => drop(shared.take_events()),
            Err(rustix::io::Errno::INTR) => {}
            _ => return,
        }
    }
}

impl Shared {
    /// Notes all that has happened up to now.
    fn take_events(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
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
            let Ok(length @ 1..) = usize::try_from(length) else { return written };
            for fd in descriptors(&buffer, length) {
                if let Ok(path) = fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())) {
                    written.insert(path);
                }
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
