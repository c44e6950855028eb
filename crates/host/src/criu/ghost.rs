//! Files without names in CRIU's images (`ghost-file-*.img`; CRIU's `images/ghost-file.proto`), of whose contents a dump has not heard: they are added
//! by [`crate::cut`].

use std::ops::Range;

use prost::Message;

use super::pagemap::{MAGIC, append, message};

/// What is known of the file.
#[derive(Clone, PartialEq, Message)]
struct Head {
    /// As the kernel has it within: the major number above 20 bits of the minor one.
    #[prost(uint32, optional, tag = "4")]
    device: Option<u32>,
    #[prost(uint64, optional, tag = "5")]
    inode: Option<u64>,
    /// Whether its contents are chunks, each with its place; before CRIU 3.15 they lie there as they are.
    #[prost(bool, optional, tag = "9")]
    in_chunks: Option<bool>,
}

/// Before a part of the contents.
#[derive(Clone, PartialEq, Message)]
struct Chunk {
    #[prost(uint64, required, tag = "1")]
    bytes: u64,
    #[prost(uint64, required, tag = "2")]
    offset: u64,
}

/// Whether this is the image of that file, with its head and nothing behind it.
#[must_use]
pub fn is_without_contents(image: &[u8], (device, inode): (u64, u64)) -> bool {
    let head = || {
        let (head, rest) = message(image.get(MAGIC..)?)?;
        Head::decode(head).ok().filter(|_| rest.is_empty())
    };
    let inner = rustix::fs::major(device) << 20 | rustix::fs::minor(device);
    head().is_some_and(|head| {
        head.in_chunks == Some(true) && head.inode == Some(inode) && head.device == Some(inner)
    })
}

/// What stands before these bytes of the file.
#[must_use]
pub fn before(range: &Range<u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    append(&mut bytes, &Chunk { bytes: range.end - range.start, offset: range.start });
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_known_by_its_numbers() {
        let image = |head: &Head| {
            let mut image = vec![7; MAGIC];
            append(&mut image, head);
            image
        };
        let device = rustix::fs::makedev(3, 700);
        let head = Head { device: Some(3 << 20 | 700), inode: Some(5), in_chunks: Some(true) };
        assert!(is_without_contents(&image(&head), (device, 5)));
        assert!(!is_without_contents(&image(&head), (device, 6)));
        assert!(!is_without_contents(&image(&head), (device + 1, 5)));
        assert!(!is_without_contents(&image(&Head { in_chunks: None, ..head.clone() }), (device, 5)));
        let contents = [image(&head), before(&(4096..8192))].concat();
        assert!(!is_without_contents(&contents, (device, 5)));
        for length in 0..image(&head).len() {
            assert!(!is_without_contents(&image(&head)[..length], (device, 5)), "{length}");
        }
    }
}
