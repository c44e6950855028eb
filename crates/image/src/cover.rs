//! The *cover*: what an encrypted store puts around each of its files; §10 of `docs/image-format.md`. Layout only: the encryption itself
//! is the `store` crate's.

use crate::FormatError;
use crate::sealed::split;

/// The version that is written, and the newest that is read.
pub const VERSION: u16 = 1;
/// Length of the header in bytes.
pub const HEADER_LEN: usize = 64;
/// So many plain bytes are encrypted together; the last block of a file may have fewer.
pub const BLOCK: usize = 64 << 10;
/// What each block gains: the proof that it is what was written there.
pub const TAG: usize = 16;
/// A block as it is stored.
pub const SEALED_BLOCK: usize = BLOCK + TAG;

const MAGIC: [u8; 8] = *b"\x89DMSENC\n";
const WHAT: &str = "an encrypted file";

/// The header of a file with this salt. All of it goes into the file's key: changed, it opens nothing.
#[must_use]
pub fn header(salt: &[u8; 32]) -> [u8; HEADER_LEN] {
    of_version(VERSION, salt)
}

fn of_version(version: u16, salt: &[u8; 32]) -> [u8; HEADER_LEN] {
    let mut start = [0; 16];
    let fields = MAGIC.into_iter().chain(version.to_le_bytes());
    start.iter_mut().zip(fields).for_each(|(place, byte)| *place = byte);
    let bytes = start.into_iter().chain(check(&start, salt)).chain(*salt);
    let mut header = [0; HEADER_LEN];
    header.iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte);
    header
}

/// By which a header that has rotted is told from one of a newer version. It is no proof of anything: the blocks' tags are.
fn check(start: &[u8; 16], salt: &[u8; 32]) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(start).update(salt);
    split::<16>(hasher.finalize().as_bytes()).0
}

/// Looks whether this is the header of an encrypted file of a version that is known.
///
/// # Errors
/// [`FormatError::Magic`], [`FormatError::Checksum`], [`FormatError::Newer`].
pub fn check_header(header: &[u8; HEADER_LEN]) -> Result<(), FormatError> {
    let (start, rest) = split::<16>(header);
    let (magic, version) = split::<8>(&start);
    if magic != MAGIC {
        return Err(FormatError::Magic { expected: WHAT });
    }
    let (found, salt) = split::<16>(rest);
    if found != check(&start, &split::<32>(salt).0) {
        return Err(FormatError::Checksum { what: "the header of an encrypted file" });
    }
    let (version, _) = split::<2>(version);
    match u16::from_le_bytes(version) {
        VERSION => Ok(()),
        found => Err(FormatError::Newer { found, supported: VERSION }),
    }
}

/// How long a file with so many plain bytes is.
#[must_use]
pub fn sealed_len(plain: u64) -> u64 {
    let blocks = plain.div_ceil(BLOCK as u64).max(1);
    plain.saturating_add(blocks * TAG as u64).saturating_add(HEADER_LEN as u64)
}

/// How many plain bytes a file of this length has.
///
/// # Errors
/// [`FormatError::Truncated`] for a length that no file has.
pub fn plain_len(file: u64) -> Result<u64, FormatError> {
    let short =
        |need: u64, have| FormatError::Truncated { what: WHAT, at: file.saturating_sub(have), need, have };
    let least = (HEADER_LEN + TAG) as u64;
    let Some(blocks) = file.checked_sub(HEADER_LEN as u64).filter(|_| file >= least) else {
        return Err(short(least, file));
    };
    let (full, rest) = (blocks / SEALED_BLOCK as u64, blocks % SEALED_BLOCK as u64);
    match rest {
        0 => Ok(full * BLOCK as u64),
        // Only an empty file has an empty block.
        _ if rest > TAG as u64 || full == 0 => Ok(full * BLOCK as u64 + rest - TAG as u64),
        _ => Err(short(TAG as u64 + 1, rest)),
    }
}

/// Where the block with this number begins in the file.
#[must_use]
pub fn block_at(number: u64) -> u64 {
    number.saturating_mul(SEALED_BLOCK as u64).saturating_add(HEADER_LEN as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_each_others() {
        let block = BLOCK as u64;
        for plain in [0, 1, block - 1, block, block + 1, 2 * block, 9 * block + 77, 4 << 30] {
            assert_eq!(plain_len(sealed_len(plain)).unwrap(), plain);
        }
        let mut possible = 0;
        for file in 0..3 * SEALED_BLOCK as u64 {
            match plain_len(file) {
                Ok(plain) => {
                    assert_eq!(sealed_len(plain), file);
                    possible += 1;
                }
                Err(FormatError::Truncated { .. }) => {}
                Err(other) => panic!("{file}: {other}"),
            }
        }
        assert!(possible > 2 * BLOCK);
        assert!(plain_len(u64::MAX).is_ok() || plain_len(u64::MAX).is_err());
    }

    #[test]
    fn a_header_is_told_from_others() {
        let good = header(&[7; 32]);
        check_header(&good).unwrap();
        assert_eq!(good.last_chunk(), Some(&[7; 32]));
        assert!(matches!(check_header(&[0; 64]), Err(FormatError::Magic { .. })));
        for at in 0..HEADER_LEN {
            let mut rotten = good;
            rotten[at] ^= 1;
            assert!(!check_header(&rotten).unwrap_err().is_newer(), "{at}");
        }
        for version in [0, 2] {
            assert!(check_header(&of_version(version, &[7; 32])).unwrap_err().is_newer());
        }
    }
}
