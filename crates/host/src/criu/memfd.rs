//! Files in memory that the kernel keeps apart, shared anonymous memory among them, in CRIU's images (`memfd.img`; CRIU's `images/memfd.proto`).

use std::collections::BTreeMap;

use prost::Message;

use super::pagemap::{MAGIC, message};

#[derive(Clone, PartialEq, Message)]
struct Entry {
    /// Bytes: what a restart makes of it, and looks at none behind.
    #[prost(uint64, required, tag = "4")]
    size: u64,
    /// By which its page map is named.
    #[prost(uint32, required, tag = "5")]
    shmid: u32,
}

/// How long each of them is, by the number that its page map has; `None` when it is no such image.
#[must_use]
pub fn sizes(image: &[u8]) -> Option<BTreeMap<u64, u64>> {
    let mut rest = image.get(MAGIC..)?;
    let mut sizes = BTreeMap::new();
    while !rest.is_empty() {
        let (entry, behind) = message(rest)?;
        let entry = Entry::decode(entry).ok()?;
        sizes.insert(u64::from(entry.shmid), entry.size);
        rest = behind;
    }
    Some(sizes)
}

#[cfg(test)]
mod tests {
    use super::super::pagemap::append;
    use super::*;

    #[test]
    fn sizes_are_read_and_damage_is_none() {
        let mut image = vec![7; MAGIC];
        append(&mut image, &Entry { size: 5000, shmid: 7 });
        let first = image.len();
        append(&mut image, &Entry { size: 1 << 40, shmid: u32::MAX });
        assert_eq!(sizes(&image), Some([(7, 5000), (u64::from(u32::MAX), 1 << 40)].into()));
        for length in (0..image.len()).filter(|length| ![MAGIC, first].contains(length)) {
            assert_eq!(sizes(&image[..length]), None, "{length}");
        }
    }
}
