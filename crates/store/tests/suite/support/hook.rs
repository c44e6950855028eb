//! A medium on which something happens between two operations of whoever uses it.

use std::fmt;
use std::io;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};

use store::media::{Around, Media, MediaFile, MediaLock, MediaRead};

/// Runs something once: before an operation on a path, or behind a list.
pub struct Hook {
    inner: Arc<dyn Media>,
    /// Any operation, where none is named.
    before: Option<(&'static str, String)>,
    /// How often it is let pass.
    skip: AtomicU32,
    run: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl Hook {
    /// The operation is one of those below.
    pub fn new(
        inner: Arc<dyn Media>,
        operation: &'static str,
        path: &str,
        run: impl FnOnce() + Send + 'static,
    ) -> Arc<Self> {
        Self::nth(inner, operation, path, 0, run)
    }

    /// The same, when the operation has been done so many times.
    pub fn nth(
        inner: Arc<dyn Media>,
        operation: &'static str,
        path: &str,
        times: u32,
        run: impl FnOnce() + Send + 'static,
    ) -> Arc<Self> {
        Self::made(inner, Some((operation, path.to_owned())), times, run)
    }

    /// Before whatever is done when so much has been done.
    pub fn any(inner: Arc<dyn Media>, times: u32, run: impl FnOnce() + Send + 'static) -> Arc<Self> {
        Self::made(inner, None, times, run)
    }

    fn made(
        inner: Arc<dyn Media>,
        before: Option<(&'static str, String)>,
        times: u32,
        run: impl FnOnce() + Send + 'static,
    ) -> Arc<Self> {
        let run = Mutex::new(Some(Box::new(run) as Box<_>));
        Arc::new(Self { inner, before, skip: AtomicU32::new(times), run })
    }

    /// Whether it has been run.
    pub fn has_run(&self) -> bool {
        self.run.lock().unwrap().is_none()
    }

    fn at(&self, operation: &str, path: &str) {
        let is_it = self.before.as_ref().is_none_or(|(what, at)| *what == operation && at == path);
        if is_it && self.skip.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_err() {
            let run = self.run.lock().unwrap().take();
            run.into_iter().for_each(|run| run());
        }
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Hook").field(&self.before).finish()
    }
}

impl Around for Hook {
    fn inner(&self) -> &dyn Media {
        &*self.inner
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let names = self.inner.list(folder);
        // Behind it: what was listed may have gone.
        self.at("list", folder);
        names
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn MediaRead>> {
        self.at("open", path);
        self.inner.open(path)
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn MediaFile>> {
        self.at("create", path);
        self.inner.create(path)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.at("rename", to);
        self.inner.rename(from, to)
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        self.at("sync_folder", folder);
        self.inner.sync_folder(folder)
    }

    fn rename_new(&self, from: &str, to: &str) -> io::Result<()> {
        self.at("rename_new", to);
        self.inner.rename_new(from, to)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.at("remove", path);
        self.inner.remove(path)
    }

    fn remove_folder(&self, folder: &str) -> io::Result<()> {
        self.at("remove_folder", folder);
        self.inner.remove_folder(folder)
    }

    fn lock(&self, path: &str, create: bool) -> io::Result<Option<MediaLock>> {
        self.at("lock", path);
        self.inner.lock(path, create)
    }
}
