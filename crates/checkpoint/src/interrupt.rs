//! The end of a restart that only prepares, when its user wants it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// How soon a signal is noticed.
const NAP: Duration = Duration::from_millis(50);

/// While this lives, a signal that asks this process to end does so, in the way of that signal. They are blocked, for the job that
/// is to get them ([`host::signals::Forwarder`]); one that comes too late is the job's.
#[derive(Debug)]
pub struct Preparing {
    left: Arc<Mutex<Vec<PathBuf>>>,
    over: Option<Sender<()>>,
    watching: Option<JoinHandle<()>>,
}

impl Preparing {
    /// Begins to watch.
    ///
    /// # Errors
    /// When no thread can be started.
    pub fn begin(_: &host::signals::Forwarder) -> io::Result<Self> {
        let left = Arc::new(Mutex::new(Vec::new()));
        let (over, is_over) = channel();
        let theirs = Arc::clone(&left);
        let watching = std::thread::Builder::new().name("preparing".into()).spawn(move || {
            while is_over.recv_timeout(NAP) == Err(RecvTimeoutError::Timeout) {
                end_if_asked(&lock(&theirs));
            }
        })?;
        Ok(Self { left, over: Some(over), watching: Some(watching) })
    }

    /// Has `path` removed if it comes to an end: all else goes with this process.
    pub fn leaves(&self, path: &Path) {
        lock(&self.left).push(path.to_owned());
    }
}

impl Drop for Preparing {
    fn drop(&mut self) {
        drop(self.over.take());
        // Either it is over for good, or this process is.
        let _ = self.watching.take().map(JoinHandle::join);
        // What came in time counts, even if it was not noticed yet.
        end_if_asked(&lock(&self.left));
    }
}

fn lock(left: &Mutex<Vec<PathBuf>>) -> MutexGuard<'_, Vec<PathBuf>> {
    left.lock().unwrap_or_else(PoisonError::into_inner)
}

fn end_if_asked(left: &[PathBuf]) {
    let Some(signal) = host::signals::asked_to_end() else { return };
    for path in left {
        let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
        if let Err(error) = removed {
            tracing::debug!("{}: {error}", path.display());
        }
    }
    host::Ending::by_signal(signal).exit_like_it()
}
