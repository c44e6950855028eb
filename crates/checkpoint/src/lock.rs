//! Locks that are gone with their process, on files that may be removed by whoever holds them.

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, stat};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a lock may be held by someone who only looks whether it is held.
const GLANCE: Duration = Duration::from_millis(100);
/// Between two tries.
const NAP: Duration = Duration::from_millis(2);

/// The lock of the file or folder at `path`, if nobody holds it. Nothing is made, and whatever somebody has put there, nothing
/// is waited for.
///
/// # Errors
/// As the file system's, also when there is no such file.
pub fn try_existing(path: &Path) -> io::Result<Option<OwnedFd>> {
    try_with(path, OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK)
}

/// The lock of the file at `path`, made if need be; `None` when it is held for longer than it takes to look at it.
///
/// # Errors
/// As the file system's.
pub fn take(path: &Path) -> io::Result<Option<OwnedFd>> {
    let began = Instant::now();
    loop {
        let held = try_with(path, OFlags::RDWR | OFlags::CREATE)?;
        if held.is_some() || began.elapsed() > GLANCE {
            return Ok(held);
        }
        std::thread::sleep(NAP);
    }
}

fn try_with(path: &Path, flags: OFlags) -> io::Result<Option<OwnedFd>> {
    loop {
        let file = rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
        // Whoever held it before may have removed the file in between: a lock of nothing.
        let here = fstat(&file)?;
        match stat(path) {
            Ok(there) if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino) => {
                return Ok(Some(file));
            }
            Ok(_) | Err(rustix::io::Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_lock_is_held_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = take(&path).unwrap().unwrap();
        assert!(take(&path).unwrap().is_none());
        assert!(try_existing(&path).unwrap().is_none());
        drop(held);
        assert!(try_existing(&path).unwrap().is_some());
    }

    #[test]
    fn one_of_many_holds_it_though_each_removes_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let (path, inside) = (dir.path().join("lock"), std::sync::atomic::AtomicU32::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let Some(held) = take(&path).unwrap() else { continue };
                        assert_eq!(inside.fetch_add(1, std::sync::atomic::Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        inside.fetch_sub(1, std::sync::atomic::Ordering::SeqCst);
                        fs::remove_file(&path).unwrap();
                        drop(held);
                    }
                });
            }
        });
    }

    #[test]
    fn what_is_not_there_is_not_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        assert_eq!(try_existing(&path).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(!path.exists());
    }

    #[test]
    fn a_pipe_without_a_writer_holds_nobody_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, Mode::RUSR, 0).unwrap();
        assert!(try_existing(&path).unwrap().is_some());
        std::os::unix::fs::symlink("pipe", dir.path().join("link")).unwrap();
        assert!(try_existing(&dir.path().join("link")).is_err());
    }
}
