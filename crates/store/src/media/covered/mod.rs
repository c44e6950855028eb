//! A medium all of whose files are encrypted: what is written through it another medium stores under a *cover* (§10 of
//! `docs/image-format.md`). Names, locks and the store's `config` are as they are without.

mod read;
mod seal;
mod write;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use image::cover;

use super::{Around, Media, MediaFile, MediaRead};
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

impl Around for Covered {
    fn inner(&self) -> &dyn Media {
        &*self.inner
    }

    fn create(&self, path: &str) -> io::Result<Box<dyn MediaFile>> {
        let header = cover::header(&crate::store::random()?);
        let mut file = self.inner.create(path)?;
        file.write_all(&header)?;
        Ok(Box::new(CoveredFile::new(file, FileKey::of(&self.secret, &header)?)))
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn MediaRead>> {
        Ok(Box::new(CoveredRead::open(self.inner.open(path)?, &self.secret, self.spare.clone())?))
    }

    /// A file of a length that none has is left out, as one that cannot be opened.
    fn lengths(&self, folder: &str) -> io::Result<HashMap<String, u64>> {
        let stored = self.inner.lengths(folder)?.into_iter();
        Ok(stored.filter_map(|(name, len)| Some((name, cover::plain_len(len).ok()?))).collect())
    }
}
