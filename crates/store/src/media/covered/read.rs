//! An encrypted file being read: only the blocks that are asked for.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use image::FormatError;
use image::cover::{self, BLOCK, HEADER_LEN, SEALED_BLOCK, TAG};

use super::seal::FileKey;
use crate::key::Secret;
use crate::media::MediaRead;

/// Reads shorter than this are of somebody who reads on from there: what was decrypted for them is kept.
const SHORT: usize = BLOCK;
/// So many blocks are read at once for who goes on reading.
const AHEAD: u64 = 16;

/// A file under its cover.
#[derive(Debug)]
pub(super) struct CoveredRead {
    inner: Box<dyn MediaRead>,
    key: FileKey,
    /// How many plain bytes it has, by its length; true when its last block opens.
    len: u64,
    /// What was decrypted last for a short read.
    recent: Mutex<Recent>,
    spare: Arc<Spare>,
}

/// No more than so many buffers are kept, and none that is larger: what is kept counts for nobody's limit of memory.
const SPARE: usize = 8;
/// Room for a whole chunk, at any offset.
const SPARE_LEN: usize = (image::CHUNK_SIZE / BLOCK + 2) * SEALED_BLOCK;

/// Room for blocks that nobody is reading into, of all files of a medium.
pub(super) type Spare = Mutex<Vec<Vec<u8>>>;

/// Keeps a buffer for the next, if there are not enough.
fn keep(spare: &Spare, buffer: Vec<u8>) {
    let mut spare = lock(spare);
    if spare.len() < SPARE && buffer.capacity() <= SPARE_LEN {
        spare.push(buffer);
    }
}

/// Plain bytes of neighbouring blocks.
#[derive(Debug, Default)]
struct Recent {
    /// Number of the first block.
    first: u64,
    /// Number of the block behind them.
    end: u64,
    plain: Vec<u8>,
}

impl CoveredRead {
    pub(super) fn open(inner: Box<dyn MediaRead>, secret: &Secret, spare: Arc<Spare>) -> io::Result<Self> {
        let bad = |error: FormatError| io::Error::new(io::ErrorKind::InvalidData, error);
        let file_len = inner.len()?;
        let mut header = [0; HEADER_LEN];
        if file_len >= HEADER_LEN as u64 {
            inner.read_exact_at(&mut header, 0)?;
            // Before the length: who finds a file that is not encrypted should hear that.
            cover::check_header(&header).map_err(bad)?;
        }
        let len = cover::plain_len(file_len).map_err(bad)?;
        let key = FileKey::of(secret, &header)?;
        Ok(Self { inner, key, len, recent: Mutex::default(), spare })
    }

    /// How many blocks there are.
    fn blocks(&self) -> u64 {
        self.len.div_ceil(BLOCK as u64).max(1)
    }

    /// How many plain bytes a block has.
    fn block_len(&self, number: u64) -> usize {
        let left = self.len.saturating_sub(number.saturating_mul(BLOCK as u64));
        usize::try_from(left).map_or(BLOCK, |left| left.min(BLOCK))
    }

    /// Decrypts the blocks from `first` up to `end`, and hands on each.
    fn open_blocks(&self, first: u64, end: u64, mut take: impl FnMut(u64, &[u8])) -> io::Result<()> {
        let last_len = self.block_len(end.saturating_sub(1)) + TAG;
        let before =
            usize::try_from((end - first).saturating_sub(1)).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut sealed = lock(&self.spare).pop().unwrap_or_default();
        let sealed_len = before.saturating_mul(SEALED_BLOCK).saturating_add(last_len);
        // No more than it takes, or it would be too large to be kept.
        sealed.reserve_exact(sealed_len.saturating_sub(sealed.len()));
        sealed.resize(sealed_len, 0);
        let opened = self.inner.read_exact_at(&mut sealed, cover::block_at(first)).and_then(|()| {
            (first..end).zip(sealed.chunks_mut(SEALED_BLOCK)).try_for_each(|(number, block)| {
                take(number, self.key.open(number, number + 1 == self.blocks(), block)?);
                Ok(())
            })
        });
        keep(&self.spare, sealed);
        opened
    }

    /// Reads a few bytes out of the blocks from `first` up to `end`, or of more, which are kept.
    fn read_short(&self, buffer: &mut [u8], offset: u64, first: u64, end: u64) -> io::Result<()> {
        let mut recent = lock(&self.recent);
        if first < recent.first || end > recent.end {
            // Who has read up to here goes on.
            let goes_on = recent.end > 0 && (first == recent.end || first + 1 == recent.end);
            let end = if goes_on { (first + AHEAD).min(self.blocks()).max(end) } else { end };
            let mut plain = std::mem::take(&mut recent.plain);
            *recent = Recent::default();
            plain.clear();
            self.open_blocks(first, end, |_, block| plain.extend_from_slice(block))?;
            *recent = Recent { first, end, plain };
        }
        let from = usize::try_from(offset - recent.first * BLOCK as u64).unwrap_or(usize::MAX);
        let found = recent.plain.get(from..).and_then(|bytes| bytes.get(..buffer.len()));
        buffer.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl MediaRead for CoveredRead {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let end = offset.checked_add(buffer.len() as u64).filter(|end| *end <= self.len);
        let end = end.ok_or(io::ErrorKind::UnexpectedEof)?;
        if buffer.is_empty() {
            return Ok(());
        }
        let (first, end) = (offset / BLOCK as u64, end.div_ceil(BLOCK as u64));
        if buffer.len() < SHORT {
            return self.read_short(buffer, offset, first, end);
        }
        let mut skip = usize::try_from(offset % BLOCK as u64).unwrap_or(BLOCK);
        let mut rest = buffer;
        self.open_blocks(first, end, |_, block| {
            let wanted = block.get(std::mem::take(&mut skip)..).unwrap_or_default();
            let len = wanted.len().min(rest.len());
            let (place, after) = std::mem::take(&mut rest).split_at_mut(len);
            place.copy_from_slice(wanted.split_at(len).0);
            rest = after;
        })
    }

    fn will_read(&self, offset: u64, len: u64) {
        let (first, end) = (offset / BLOCK as u64, offset.saturating_add(len).div_ceil(BLOCK as u64));
        let (from, to) = (cover::block_at(first), cover::block_at(end));
        // The last block is shorter.
        let to = self.inner.len().map_or(to, |len| to.min(len));
        self.inner.will_read(from, to.saturating_sub(from));
    }
}

/// Locks; what a panicking thread left behind is whole, since every change is one step.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_buffers_are_kept_and_none_that_is_large() {
        let spare = Spare::default();
        keep(&spare, Vec::with_capacity(SPARE_LEN + 1));
        assert!(lock(&spare).is_empty());
        (0..2 * SPARE).for_each(|_| keep(&spare, Vec::with_capacity(BLOCK)));
        assert_eq!(lock(&spare).len(), SPARE);
    }
}
