//! A medium with so much room and no more.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use store::media::{Around, Media, MediaFile, MediaLock};

/// Refuses bytes and files beyond what there was at first and some more; what is removed makes room. Locks take none.
#[derive(Debug, Clone)]
pub struct Quota {
    inner: Arc<dyn Media>,
    bytes: Arc<AtomicU64>,
    files: Arc<AtomicU64>,
    created: Arc<AtomicU64>,
    most: (u64, u64),
}

impl Quota {
    /// With so many more bytes, and files.
    pub fn new(inner: Arc<dyn Media>, (bytes, files): (u64, u64)) -> Self {
        let paths = ["packs", "index", "images"].map(|folder| {
            inner.list(folder).unwrap().into_iter().map(move |name| format!("{folder}/{name}"))
        });
        let paths: Vec<String> = paths.into_iter().flatten().collect();
        let used = (paths.iter().map(|path| len(&*inner, path)).sum(), paths.len() as u64);
        Self {
            inner,
            bytes: Arc::new(AtomicU64::new(used.0)),
            files: Arc::new(AtomicU64::new(used.1)),
            created: Arc::default(),
            most: (used.0.saturating_add(bytes), used.1.saturating_add(files)),
        }
    }

    /// How many bytes there are.
    pub fn used(&self) -> u64 {
        self.bytes.load(SeqCst)
    }

    /// How many files have been begun.
    pub fn created(&self) -> u64 {
        self.created.load(SeqCst)
    }
}

fn len(media: &dyn Media, path: &str) -> u64 {
    media.open(path).and_then(|file| file.len()).unwrap_or(0)
}

impl Around for Quota {
    fn inner(&self) -> &dyn Media {
        &*self.inner
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn MediaFile>> {
        self.created.fetch_add(1, SeqCst);
        if self.files.load(SeqCst) >= self.most.1 {
            return Err(ErrorKind::StorageFull.into());
        }
        let inner = self.inner.create(path)?;
        self.files.fetch_add(1, SeqCst);
        Ok(Box::new(Limited { inner, quota: self.clone() }))
    }

    fn lock(&self, path: &str, create: bool) -> io::Result<Option<MediaLock>> {
        self.inner.lock(path, create)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let replaced = self.inner.open(to).ok().map(|file| file.len().unwrap_or(0));
        self.inner.rename(from, to)?;
        if let Some(len) = replaced {
            self.files.fetch_sub(1, SeqCst);
            self.bytes.fetch_sub(len, SeqCst);
        }
        Ok(())
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        let len = len(&*self.inner, path);
        self.inner.remove(path)?;
        if !path.ends_with("/lock") {
            self.files.fetch_sub(1, SeqCst);
            self.bytes.fetch_sub(len, SeqCst);
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Limited {
    inner: Box<dyn MediaFile>,
    quota: Quota,
}

impl MediaFile for Limited {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let left = self.quota.most.0.saturating_sub(self.quota.used());
        let fits = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        self.inner.write_all(&bytes[..fits])?;
        self.quota.bytes.fetch_add(fits as u64, SeqCst);
        if fits < bytes.len() { Err(ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.inner.sync()
    }
}
