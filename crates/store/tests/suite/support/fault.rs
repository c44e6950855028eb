//! A medium that fails on command.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use store::media::{Around, Media, MediaFile, MediaLock};

/// Fails the `first`-th operation that changes something, and so many after it.
#[derive(Debug, Clone)]
pub struct Fault {
    inner: Arc<dyn Media>,
    plan: Arc<Plan>,
}

#[derive(Debug)]
struct Plan {
    done: AtomicU64,
    first: u64,
    count: u64,
    error: io::ErrorKind,
}

impl Fault {
    /// Operations count from 1.
    pub fn new(inner: Arc<dyn Media>, first: u64, count: u64, error: io::ErrorKind) -> Self {
        Self { inner, plan: Arc::new(Plan { done: AtomicU64::new(0), first, count, error }) }
    }

    /// Whether the operation that was to fail has been tried.
    pub fn struck(&self) -> bool {
        self.plan.done.load(Ordering::SeqCst) >= self.plan.first
    }
}

impl Plan {
    fn step(&self) -> io::Result<()> {
        let number = self.done.fetch_add(1, Ordering::SeqCst) + 1;
        if number >= self.first && number - self.first < self.count { Err(self.error.into()) } else { Ok(()) }
    }
}

impl Around for Fault {
    fn inner(&self) -> &dyn Media {
        &*self.inner
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn MediaFile>> {
        self.plan.step()?;
        Ok(Box::new(FaultFile { inner: self.inner.create(path)?, plan: self.plan.clone() }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.plan.step()?;
        self.inner.rename(from, to)
    }

    fn rename_new(&self, from: &str, to: &str) -> io::Result<()> {
        self.plan.step()?;
        self.inner.rename_new(from, to)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.plan.step()?;
        self.inner.remove(path)
    }

    fn create_folder(&self, folder: &str) -> io::Result<()> {
        self.plan.step()?;
        self.inner.create_folder(folder)
    }

    fn remove_folder(&self, folder: &str) -> io::Result<()> {
        self.plan.step()?;
        self.inner.remove_folder(folder)
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        self.plan.step()?;
        self.inner.sync_folder(folder)
    }

    fn lock(&self, path: &str, create: bool) -> io::Result<Option<MediaLock>> {
        self.plan.step()?;
        self.inner.lock(path, create)
    }
}

#[derive(Debug)]
struct FaultFile {
    inner: Box<dyn MediaFile>,
    plan: Arc<Plan>,
}

impl MediaFile for FaultFile {
    /// A write that fails has been half done.
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let step = self.plan.step();
        let len = if step.is_ok() { bytes.len() } else { bytes.len() / 2 };
        self.inner.write_all(&bytes[..len])?;
        step
    }

    fn sync(&mut self) -> io::Result<()> {
        self.plan.step()?;
        self.inner.sync()
    }
}
