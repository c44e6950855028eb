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
    /// Bytes.
    #[prost(uint64, optional, tag = "10")]
    size: Option<u64>,
}

/// A file of whose contents nothing is there yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ghost {
    /// The kernel's number of the file system, as CRIU writes it.
    pub device: u32,
    /// The file's number there.
    pub inode: u64,
    /// Bytes: what a restart makes of it.
    pub size: u64,
}

impl Ghost {
    /// What an image is of that has a head and nothing behind it.
    #[must_use]
    pub fn of(image: &[u8]) -> Option<Self> {
        let (head, rest) = message(image.get(MAGIC..)?)?;
        let head = Head::decode(head).ok().filter(|head| rest.is_empty() && head.in_chunks == Some(true))?;
        Some(Self { device: head.device?, inode: head.inode?, size: head.size? })
    }
}

/// A file system's number as CRIU writes it.
#[must_use]
pub fn device(device: u64) -> u32 {
    rustix::fs::major(device) << 20 | rustix::fs::minor(device)
}

/// Before a part of the contents.
#[derive(Clone, PartialEq, Message)]
struct Chunk {
    #[prost(uint64, required, tag = "1")]
    bytes: u64,
    #[prost(uint64, required, tag = "2")]
    offset: u64,
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
    fn what_is_without_contents_is_known() {
        let image = |head: &Head| {
            let mut image = vec![7; MAGIC];
            append(&mut image, head);
            image
        };
        let head = Head { device: Some(3 << 20 | 700), inode: Some(5), in_chunks: Some(true), size: Some(9) };
        let known = Ghost { device: device(rustix::fs::makedev(3, 700)), inode: 5, size: 9 };
        assert_eq!(Ghost::of(&image(&head)), Some(known));
        assert_eq!(Ghost::of(&image(&Head { in_chunks: None, ..head.clone() })), None);
        let contents = [image(&head), before(&(4096..8192))].concat();
        assert_eq!(Ghost::of(&contents), None);
        for length in 0..image(&head).len() {
            assert_eq!(Ghost::of(&image(&head)[..length]), None, "{length}");
        }
    }
}
