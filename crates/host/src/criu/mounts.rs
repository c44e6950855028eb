//! The mounts in CRIU's images (`mountpoints-*.img`; CRIU's `images/mnt.proto`).

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;

use prost::Message;

/// Two magic numbers.
const MAGIC: usize = 8;
/// No image is longer, bytes: some hundred thousand mounts.
const LONGEST: u64 = 16 << 20;

/// What of `mnt_entry` is of interest.
#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(string, optional, tag = "18")]
    external_key: Option<String>,
}

/// Takes the external mounts with these keys out of all images of a folder. Nothing of the job may lie on one of them, nor
/// another mount below it.
///
/// # Errors
/// When an image cannot be read or written.
pub(crate) fn leave_out(images: &Path, keys: &[String]) -> io::Result<()> {
    if keys.is_empty() {
        return Ok(());
    }
    for entry in fs::read_dir(images)? {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(|name| name.starts_with("mountpoints-")) {
            let mut image = Vec::new();
            File::open(entry.path())?.take(LONGEST + 1).read_to_end(&mut image)?;
            let left = if image.len() as u64 > LONGEST { None } else { without(&image, keys) };
            let left = left.ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, format!("{} is damaged", entry.path().display()))
            })?;
            fs::write(entry.path(), left)?;
        }
    }
    Ok(())
}

/// The image without the entries of `keys`; `None` when it is no image.
#[must_use]
pub fn without(image: &[u8], keys: &[String]) -> Option<Vec<u8>> {
    let (magic, mut rest) = image.split_at_checked(MAGIC)?;
    let mut left = magic.to_vec();
    while !rest.is_empty() {
        let (length, behind) = rest.split_first_chunk::<4>()?;
        let (message, behind) = behind.split_at_checked(u32::from_le_bytes(*length) as usize)?;
        let key = Entry::decode(message).ok()?.external_key;
        if !key.is_some_and(|key| keys.contains(&key)) {
            left.extend_from_slice(length);
            left.extend_from_slice(message);
        }
        rest = behind;
    }
    Some(left)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[derive(Clone, PartialEq, Message)]
    struct Mount {
        #[prost(uint32, tag = "2")]
        id: u32,
        #[prost(string, tag = "7")]
        target: String,
        #[prost(string, optional, tag = "18")]
        key: Option<String>,
    }

    fn image(mounts: &[(u32, Option<&str>)]) -> Vec<u8> {
        let mut image = vec![7; MAGIC];
        for (id, key) in mounts {
            let mount = Mount { id: *id, target: "/mnt".into(), key: key.map(str::to_owned) };
            let message = mount.encode_to_vec();
            image.extend((message.len() as u32).to_le_bytes());
            image.extend(message);
        }
        image
    }

    #[test]
    fn only_what_is_named_goes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mountpoints-13.img");
        let all = image(&[(1, None), (2, Some("dormouse-1")), (3, Some("dormouse-10")), (4, None)]);
        fs::write(&path, &all).unwrap();
        leave_out(folder.path(), &[]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), all);
        leave_out(folder.path(), &["dormouse-1".into()]).unwrap();
        assert_eq!(fs::read(&path).unwrap(), image(&[(1, None), (3, Some("dormouse-10")), (4, None)]));
    }

    #[test]
    fn a_damaged_image_is_named() {
        let whole = image(&[(1, Some("dormouse-1"))]);
        for length in (0..MAGIC).chain(MAGIC + 1..whole.len()) {
            assert_eq!(without(&whole[..length], &[]), None, "{length}");
        }
    }

    #[test]
    fn one_that_is_too_long_is_named_and_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mountpoints-13.img");
        // Holes cost whoever made the image nothing.
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        let error = leave_out(folder.path(), &["dormouse-1".into()]).unwrap_err().to_string();
        assert!(error.contains("mountpoints-13.img is damaged"), "{error}");
    }

    proptest::proptest! {
        /// The property of the fuzz target.
        #[test]
        fn anything_is_refused_or_has_less(
            mounts in proptest::collection::vec((0..9u32, proptest::option::of("dormouse-[12]")), 0..9),
            flipped in proptest::option::of(0..2000usize),
        ) {
            let mounts: Vec<_> = mounts.iter().map(|(id, key)| (*id, key.as_deref())).collect();
            let mut bytes = image(&mounts);
            let bits = bytes.len() * 8;
            flipped.into_iter().for_each(|bit| bytes[bit % bits / 8] ^= 1 << (bit % 8));
            let keys = ["dormouse-1".to_owned()];
            if let Some(same) = without(&bytes, &[]) {
                assert_eq!(same, bytes);
            }
            if let Some(left) = without(&bytes, &keys) {
                assert!(left.len() <= bytes.len());
                assert_eq!(without(&left, &keys), Some(left));
            }
        }
    }
}
