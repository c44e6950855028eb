//! The state of TCP connections in CRIU's images (`tcp-stream-*.img`; CRIU's `images/tcp-stream.proto`).

use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use prost::encoding::{DecodeContext, WireType, decode_key, skip_field};

/// Two magic numbers and the message's length.
const HEADER: usize = 12;
/// `TcpStreamEntry.unsq_len`: how much of what is queued has never been sent.
const UNSENT: u32 = 12;
/// The message is far shorter; what is queued lies behind it.
const LONGEST: u64 = 64 << 10;

/// Makes what was queued but never sent count as sent and not acknowledged, in all images of a folder.
///
/// CRIU queues unsent bytes with the socket out of repair mode, and the kernel then probes the other end. Between two ends in the
/// job, the other end may not exist yet, and the connection is reset. What counts as sent is queued without a packet, and the
/// kernel retransmits it once both ends are there.
///
/// # Errors
/// When an image cannot be read or written.
pub(crate) fn count_unsent_as_sent(images: &Path) -> io::Result<()> {
    for entry in fs::read_dir(images)? {
        let entry = entry?;
        if !entry.file_name().to_str().is_some_and(|name| name.starts_with("tcp-stream-")) {
            continue;
        }
        let file = OpenOptions::new().read(true).write(true).open(entry.path())?;
        let mut image = Vec::new();
        (&file).take(LONGEST).read_to_end(&mut image)?;
        if let Some(unsent) = unsent(&image) {
            let start = unsent.start as u64;
            zero(&mut image[unsent.clone()]);
            file.write_all_at(&image[unsent], start)?;
        }
    }
    Ok(())
}

/// Where in an image, of which this is the beginning, the count of unsent bytes is; `None` when there is none, or what it says is for CRIU to
/// refuse.
#[must_use]
pub fn unsent(image: &[u8]) -> Option<Range<usize>> {
    let length = u32::from_le_bytes(image.get(HEADER - 4..HEADER)?.try_into().ok()?);
    let message = image.get(HEADER..)?.get(..length as usize)?;
    let mut rest = message;
    while !rest.is_empty() {
        let (tag, wire_type) = decode_key(&mut rest).ok()?;
        let start = HEADER + message.len() - rest.len();
        skip_field(wire_type, tag, &mut rest, DecodeContext::default()).ok()?;
        if tag == UNSENT {
            return (wire_type == WireType::Varint).then(|| start..HEADER + message.len() - rest.len());
        }
    }
    None
}

/// Writes a zero in as many bytes as the number had.
fn zero(varint: &mut [u8]) {
    varint.fill(0x80);
    if let Some(last) = varint.last_mut() {
        *last = 0;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use prost::Message;

    #[derive(Clone, PartialEq, Message)]
    struct Entry {
        #[prost(uint32, tag = "1")]
        received: u32,
        #[prost(uint32, tag = "3")]
        queued: u32,
        #[prost(uint32, optional, tag = "12")]
        unsent: Option<u32>,
        #[prost(bool, tag = "13")]
        after: bool,
    }

    fn image(entry: &Entry) -> Vec<u8> {
        let message = entry.encode_to_vec();
        [&[7; 8][..], &(message.len() as u32).to_le_bytes(), &message, b"queue"].concat()
    }

    #[test]
    fn only_the_unsent_bytes_change() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tcp-stream-1f.img");
        let entry = Entry { received: 3, queued: 70_000, unsent: Some(60_000), after: true };
        let none = Entry { unsent: None, ..entry.clone() };
        for (before, after) in [(&entry, Entry { unsent: Some(0), ..entry.clone() }), (&none, none.clone())] {
            fs::write(&path, image(before)).unwrap();
            count_unsent_as_sent(folder.path()).unwrap();
            let image = fs::read(&path).unwrap();
            assert_eq!(image.len(), self::image(before).len());
            assert_eq!(Entry::decode(&image[HEADER..image.len() - 5]).unwrap(), after);
            assert!(image.ends_with(b"queue"));
        }
    }

    #[test]
    fn a_damaged_image_is_left_to_criu() {
        let whole = image(&Entry { queued: 1, unsent: Some(1), ..Entry::default() });
        assert!(unsent(&whole).is_some());
        for length in 0..whole.len() {
            let _ = unsent(&whole[..length]);
        }
        assert_eq!(unsent(&whole[..HEADER]), None);
    }

    #[test]
    fn of_an_image_of_any_length_the_message_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tcp-stream-1f.img");
        let entry = Entry { queued: 1, unsent: Some(300), ..Entry::default() };
        fs::write(&path, image(&entry)).unwrap();
        // Holes cost whoever made the image nothing.
        OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
        count_unsent_as_sent(folder.path()).unwrap();
        let mut begin = vec![0; image(&entry).len() - b"queue".len()];
        fs::File::open(&path).unwrap().read_exact(&mut begin).unwrap();
        assert_eq!(Entry::decode(&begin[HEADER..]).unwrap(), Entry { unsent: Some(0), ..entry });
        assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 40);
    }

    #[test]
    fn what_is_no_number_is_left_to_criu() {
        let message = [(UNSENT as u8) << 3 | WireType::LengthDelimited as u8, 3, 1, 2, 3];
        let image = [&[7; 8][..], &(message.len() as u32).to_le_bytes(), &message].concat();
        assert_eq!(unsent(&image), None);
    }

    proptest::proptest! {
        /// The property of the fuzz target.
        #[test]
        fn what_is_found_is_a_number_within_the_image(
            length in proptest::prop_oneof![0..64u32, proptest::num::u32::ANY],
            message in proptest::collection::vec(proptest::prop_oneof![proptest::num::u8::ANY, 90..104u8], 0..40),
        ) {
            let image = [&[7; 8][..], &length.to_le_bytes(), &message].concat();
            if let Some(found) = unsent(&image) {
                assert!((1..=10).contains(&image[found].len()));
            }
        }
    }
}
