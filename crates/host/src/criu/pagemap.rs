//! Which pages of a process, or of shared memory, are in CRIU's images (`pagemap-*.img`; CRIU's `images/pagemap.proto`), and which a dump with lazy
//! pages has left out, or has not heard of: those are read from where they are ([`crate::cut`]), and said to be in the images.

use std::ops::Range;

use prost::Message;

/// Two magic numbers.
pub(super) const MAGIC: usize = 8;
/// Bytes of a page.
pub const PAGE: u64 = 4096;

/// CRIU's `PE_LAZY`: may be brought after the process goes on.
const LAZY: u32 = 1 << 1;
/// CRIU's `PE_PRESENT`: lies in the file of pages, behind those of the entries before.
const PRESENT: u32 = 1 << 2;

#[derive(Clone, PartialEq, Message)]
struct Head {
    #[prost(uint32, required, tag = "1")]
    pages_id: u32,
}

#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(uint64, required, tag = "1")]
    address: u64,
    #[prost(uint32, required, tag = "2")]
    compat_pages: u32,
    #[prost(bool, optional, tag = "3")]
    in_parent: Option<bool>,
    #[prost(uint32, optional, tag = "4")]
    flags: Option<u32>,
    /// Where there is none, `compat_pages` tells.
    #[prost(uint64, optional, tag = "5")]
    pages: Option<u64>,
}

/// Pages side by side in a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Where they are.
    pub address: u64,
    /// How many bytes.
    pub bytes: u64,
    /// Whether they have been left out.
    pub left_out: bool,
}

impl Run {
    /// Where they are, and where they end.
    #[must_use]
    pub fn addresses(&self) -> Range<u64> {
        self.address..self.address + self.bytes
    }
}

/// An image of this kind.
#[derive(Debug, PartialEq)]
pub struct Pagemap {
    magic: Vec<u8>,
    head: Head,
    entries: Vec<Entry>,
}

impl Pagemap {
    /// What the image holds; `None` when it is no image, or of something else than one process alone.
    #[must_use]
    pub fn of(image: &[u8]) -> Option<Self> {
        let (magic, rest) = image.split_at_checked(MAGIC)?;
        let (head, mut rest) = message(rest)?;
        let head = Head::decode(head).ok()?;
        let mut entries = Vec::new();
        while !rest.is_empty() {
            let (entry, behind) = message(rest)?;
            let entry = Entry::decode(entry).ok()?;
            entry.count().checked_mul(PAGE)?.checked_add(entry.address)?;
            entries.push(entry);
            rest = behind;
        }
        Some(Self { magic: magic.to_vec(), head, entries })
    }

    /// Adds pages that have been left out and that nobody has noted, in order; `None` when some are noted already.
    #[must_use]
    pub fn with_left_out(mut self, more: &[Range<u64>]) -> Option<Self> {
        if more.is_empty() {
            return Some(self);
        }
        let more = more.iter().map(left_out).collect::<Option<Vec<_>>>()?;
        // The order is that of the pages in their file.
        if !self.entries.is_sorted_by_key(|entry| entry.address) {
            return None;
        }
        self.entries.extend(more);
        self.entries.sort_by_key(|entry| entry.address);
        let mut pairs = self.entries.windows(2);
        let is_apart = pairs.all(|pair| pair[0].address + pair[0].count() * PAGE <= pair[1].address);
        is_apart.then_some(self)
    }

    /// The name of the file that the pages lie in.
    #[must_use]
    pub fn pages_file(&self) -> String {
        format!("pages-{}.img", self.head.pages_id)
    }

    /// What lies in the file of pages, or is to lie there, in that order.
    pub fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        let there = self.entries.iter().filter(|entry| entry.flags() & (LAZY | PRESENT) != 0);
        there.map(|entry| Run {
            address: entry.address,
            bytes: entry.count() * PAGE,
            left_out: entry.is_left_out(),
        })
    }

    /// The image that says that all of it is in the file of pages.
    #[must_use]
    pub fn completed(mut self) -> Vec<u8> {
        for entry in self.entries.iter_mut().filter(|entry| entry.is_left_out()) {
            entry.flags = Some(PRESENT);
        }
        let mut image = self.magic;
        append(&mut image, &self.head);
        self.entries.iter().for_each(|entry| append(&mut image, entry));
        image
    }
}

impl Entry {
    fn count(&self) -> u64 {
        self.pages.unwrap_or(u64::from(self.compat_pages))
    }

    fn is_left_out(&self) -> bool {
        self.flags() & (LAZY | PRESENT) == LAZY
    }
}

/// Entries for pages that have been left out.
fn left_out(range: &Range<u64>) -> Option<Entry> {
    let pages = range.end.checked_sub(range.start)? / PAGE;
    // Whoever reads images of an older CRIU knows no other number.
    let compat_pages = u32::try_from(pages).ok()?;
    Some(Entry { address: range.start, compat_pages, in_parent: None, flags: Some(LAZY), pages: None })
}

/// The first message, and what is behind it.
pub(super) fn message(image: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, behind) = image.split_first_chunk::<4>()?;
    behind.split_at_checked(u32::from_le_bytes(*length) as usize)
}

pub(super) fn append(image: &mut Vec<u8>, message: &impl Message) {
    let length = u32::try_from(message.encoded_len()).unwrap_or(u32::MAX);
    image.extend(length.to_le_bytes());
    image.extend(message.encode_to_vec());
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn entry(address: u64, pages: u32, flags: Option<u32>) -> Entry {
        Entry { address, compat_pages: pages, in_parent: None, flags, pages: None }
    }

    fn image(entries: &[Entry]) -> Vec<u8> {
        let mut image = vec![7; MAGIC];
        append(&mut image, &Head { pages_id: 5 });
        entries.iter().for_each(|entry| append(&mut image, entry));
        image
    }

    #[test]
    fn what_was_left_out_is_completed() {
        let many = Entry { pages: Some(1 << 33), ..entry(0x40_0000, 0, Some(LAZY)) };
        let before = [entry(0x1000, 2, Some(PRESENT)), entry(0x8000, 3, Some(LAZY)), many.clone()];
        let pagemap = Pagemap::of(&image(&before)).unwrap();
        assert_eq!(pagemap.pages_file(), "pages-5.img");
        let runs: Vec<_> = pagemap.runs().map(|run| (run.address, run.bytes / PAGE, run.left_out)).collect();
        assert_eq!(runs, [(0x1000, 2, false), (0x8000, 3, true), (0x40_0000, 1 << 33, true)]);
        let after = [
            entry(0x1000, 2, Some(PRESENT)),
            entry(0x8000, 3, Some(PRESENT)),
            Entry { flags: Some(PRESENT), ..many },
        ];
        assert_eq!(pagemap.completed(), image(&after));
    }

    #[test]
    fn what_nobody_has_noted_is_added_in_its_place() {
        let noted = [entry(0x1000, 2, Some(PRESENT)), entry(0x8000, 3, Some(PRESENT))];
        let pagemap = || Pagemap::of(&image(&noted)).unwrap();
        let added = pagemap().with_left_out(&[0x3000..0x5000, 0xb000..0xc000]).unwrap();
        let left_out = |address, pages| entry(address, pages, Some(LAZY));
        let all = [noted[0].clone(), left_out(0x3000, 2), noted[1].clone(), left_out(0xb000, 1)];
        assert_eq!(added.entries, all);
        for noted_or_too_long in [0x2000..0x3000, 0x7000..0x9000, 0x10_0000..0x10_0000 + (PAGE << 32)] {
            let more = [noted_or_too_long];
            assert_eq!(pagemap().with_left_out(&more), None, "{more:x?}");
        }
    }

    #[test]
    fn what_is_in_the_images_stays_as_it_is() {
        let all = image(&[entry(0x1000, 2, Some(PRESENT | LAZY)), entry(0x8000, 1, None)]);
        let pagemap = Pagemap::of(&all).unwrap();
        assert_eq!(pagemap.runs().filter(|run| run.left_out).count(), 0);
        assert_eq!(pagemap.completed(), all);
    }

    proptest::proptest! {
        #[test]
        fn anything_is_refused_or_completed(
            entries in proptest::collection::vec(
                (0..1u64 << 48, 0..9u32, proptest::option::of(0..16u32), proptest::option::of(0..1u64 << 53)),
                0..20,
            ),
            cut in 0..400usize,
        ) {
            let entry = |(address, compat_pages, flags, pages)| {
                Entry { address, compat_pages, in_parent: None, flags, pages }
            };
            let mut bytes = image(&entries.into_iter().map(entry).collect::<Vec<_>>());
            bytes.truncate(bytes.len().saturating_sub(cut));
            check(&bytes);
        }
    }

    /// The property of the fuzz target.
    fn check(bytes: &[u8]) {
        let Some(pagemap) = Pagemap::of(bytes) else { return };
        let before: Vec<_> = pagemap.runs().map(|run| (run.address, run.bytes)).collect();
        let again = Pagemap::of(&pagemap.completed()).unwrap();
        assert!(again.runs().all(|run| !run.left_out));
        assert_eq!(again.runs().map(|run| (run.address, run.bytes)).collect::<Vec<_>>(), before);
    }

    #[test]
    fn a_damaged_image_is_none() {
        let whole = image(&[entry(0x1000, 1, Some(LAZY))]);
        let head = MAGIC + 4 + Head { pages_id: 5 }.encoded_len();
        for length in (0..whole.len()).filter(|length| *length != head) {
            assert_eq!(Pagemap::of(&whole[..length]), None, "{length}");
        }
        let beyond = Entry { pages: Some(u64::MAX / PAGE), ..entry(PAGE * 2, 0, Some(LAZY)) };
        assert_eq!(Pagemap::of(&image(&[beyond])), None);
    }
}
