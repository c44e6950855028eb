//! A file that is encrypted while it is written.

use std::io;

use image::cover::{BLOCK, SEALED_BLOCK, TAG};
use rayon::prelude::*;

use super::seal::FileKey;
use crate::media::MediaFile;

/// So much is gathered, and then encrypted by several threads at once: one alone would be slower than some disks.
const GATHER: usize = 16 * BLOCK;
/// Fewer blocks than this are not worth waking others for.
const FEW: usize = 4;

/// A file being written under its cover; the header has been.
#[derive(Debug)]
pub(super) struct CoveredFile {
    inner: Box<dyn MediaFile>,
    key: FileKey,
    /// Plain bytes. The last block is known only at the end, so some are always left for that, unless the file is empty.
    gathered: Vec<u8>,
    sealed: Vec<u8>,
    /// Number of the next block.
    next: u64,
    ended: bool,
}

impl CoveredFile {
    pub(super) fn new(inner: Box<dyn MediaFile>, key: FileKey) -> Self {
        Self { inner, key, gathered: Vec::new(), sealed: Vec::new(), next: 0, ended: false }
    }

    /// Encrypts and writes what is gathered: whole blocks, or the end.
    fn flush(&mut self, end: bool) -> io::Result<()> {
        let Self { key, gathered, sealed, next, .. } = self;
        // An empty file has one block too: that it is empty must be provable.
        let blocks = gathered.len().div_ceil(BLOCK).max(1);
        sealed.resize(gathered.len() + blocks * TAG, 0);
        let seal = |(number, block): (usize, &mut [u8])| {
            let plain = gathered.chunks(BLOCK).nth(number).unwrap_or_default();
            block.split_at_mut(plain.len()).0.copy_from_slice(plain);
            key.seal(*next + number as u64, end && number + 1 == blocks, block)
        };
        if blocks < FEW {
            sealed.chunks_mut(SEALED_BLOCK).enumerate().try_for_each(seal)?;
        } else {
            sealed.par_chunks_mut(SEALED_BLOCK).enumerate().try_for_each(seal)?;
        }
        *next += blocks as u64;
        gathered.clear();
        self.inner.write_all(&self.sealed)
    }
}

impl MediaFile for CoveredFile {
    fn write_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        if self.ended {
            return Err(io::Error::other("an encrypted file ends where it is synced"));
        }
        while !bytes.is_empty() {
            // Only when there is more: then no block in it is the last.
            if self.gathered.len() == GATHER {
                self.flush(false)?;
            }
            let (now, later) = bytes.split_at(bytes.len().min(GATHER - self.gathered.len()));
            self.gathered.extend_from_slice(now);
            bytes = later;
        }
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        if !self.ended {
            self.flush(true)?;
            self.ended = true;
        }
        self.inner.sync()
    }
}
