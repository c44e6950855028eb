//! A medium all of whose files are encrypted: what is written through it another medium stores under a *cover* (§10 of
//! `docs/image-format.md`). Names, locks and the store's `config` are as they are without.

mod read;
mod seal;
mod write;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use image::cover;

use super::{Media, MediaFile, MediaLock, MediaRead};
use crate::key::Secret;
use read::{CoveredRead, Spare};
use seal::FileKey;
use write::CoveredFile;

/// Another medium, encrypted.
#[derive(Debug)]
pub struct Covered {
    inner: Arc<dyn Media>,
    secret: Secret,
    spare: Arc<Spare>,
}

impl Covered {
    /// Encrypts what is written to `inner`, and decrypts what is read from it.
    #[must_use]
    pub fn new(inner: Arc<dyn Media>, secret: Secret) -> Self {
        Self { inner, secret, spare: Arc::default() }
    }
}

impl Media for Covered {
    fn create(&self, path: &str) -> io::Result<Box<dyn MediaFile>> {
        let header = cover::header(&crate::store::random()?);
        let mut file = self.inner.create(path)?;
        file.write_all(&header)?;
        Ok(Box::new(CoveredFile::new(file, FileKey::of(&self.secret, &header)?)))
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn MediaRead>> {
        Ok(Box::new(CoveredRead::open(self.inner.open(path)?, &self.secret, self.spare.clone())?))
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        self.inner.list(folder)
    }

    /// A file of a length that none has is left out, as one that cannot be opened.
    fn lengths(&self, folder: &str) -> io::Result<HashMap<String, u64>> {
        let stored = self.inner.lengths(folder)?.into_iter();
        Ok(stored.filter_map(|(name, len)| Some((name, cover::plain_len(len).ok()?))).collect())
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.inner.remove(path)
    }

    fn create_folder(&self, folder: &str) -> io::Result<()> {
        self.inner.create_folder(folder)
    }

    fn remove_folder(&self, folder: &str) -> io::Result<()> {
        self.inner.remove_folder(folder)
    }

    fn sync_folder(&self, folder: &str) -> io::Result<()> {
        self.inner.sync_folder(folder)
    }

    fn lock(&self, path: &str, create: bool) -> io::Result<Option<MediaLock>> {
        self.inner.lock(path, create)
    }

    fn share(&self, path: &str) -> io::Result<MediaLock> {
        self.inner.share(path)
    }

    fn end_uploads(&self) -> io::Result<()> {
        self.inner.end_uploads()
    }

    fn full_path(&self, path: &str) -> PathBuf {
        self.inner.full_path(path)
    }
}
