//! One file's key, and its blocks: AES-256-GCM, each block under a nonce that says which it is and whether another follows.

use std::fmt;
use std::io;

use image::FormatError;
use image::cover::{self, HEADER_LEN, TAG};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey};

use crate::key::Secret;

/// What the keys of files are for.
const CONTEXT: &str = "dormouse 2026 store file AES-256-GCM";

/// The key of one file.
pub(super) struct FileKey(LessSafeKey);

impl FileKey {
    /// That of the file which begins with `header`. It is another for each header, and a header is of one file: nonces repeat in no key.
    pub(super) fn of(secret: &Secret, header: &[u8; HEADER_LEN]) -> io::Result<Self> {
        let key = UnboundKey::new(&AES_256_GCM, &*secret.key_for(CONTEXT, header));
        // It refuses keys of a wrong length only.
        key.map(|key| Self(LessSafeKey::new(key))).map_err(|_| io::ErrorKind::InvalidInput.into())
    }

    /// Encrypts block `number`, which is followed by room for its tag.
    pub(super) fn seal(&self, number: u64, last: bool, block: &mut [u8]) -> io::Result<()> {
        let too_long = || io::Error::from(io::ErrorKind::InvalidInput);
        let (plain, tag) = block.split_last_chunk_mut::<TAG>().ok_or_else(too_long)?;
        let sealed = self.0.seal_in_place_separate_tag(nonce(number, last), Aad::empty(), plain);
        tag.copy_from_slice(sealed.map_err(|_| too_long())?.as_ref());
        Ok(())
    }

    /// Decrypts block `number` with its tag, and says what it holds.
    pub(super) fn open<'a>(&self, number: u64, last: bool, block: &'a mut [u8]) -> io::Result<&'a [u8]> {
        let bad = || {
            let error = FormatError::Cover { at: cover::block_at(number) };
            io::Error::new(io::ErrorKind::InvalidData, error)
        };
        let (cipher, tag) = block.split_last_chunk_mut::<TAG>().ok_or_else(bad)?;
        let tag = Tag::from(*tag);
        let opened = self.0.open_in_place_separate_tag(nonce(number, last), Aad::empty(), tag, cipher, 0..);
        opened.map(|plain| &*plain).map_err(|_| bad())
    }
}

/// A block's place, and whether it is the last: one that is moved, or that a cut makes the last, does not open.
fn nonce(number: u64, last: bool) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    let bytes = number.to_le_bytes().into_iter().chain([0, 0, 0, u8::from(last)]);
    nonce.iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte);
    Nonce::assume_unique_for_key(nonce)
}

impl fmt::Debug for FileKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FileKey(…)")
    }
}
