//! How much memory a heap takes, and where in it is what.

/// A page: what slots of one size share, or a part of a larger allocation.
const PAGE: u64 = 4096;
/// Counters and hints, at the beginning.
const HEAD: u64 = 1024;
/// A page's word.
const WORD: u64 = 4;
/// A page's bits.
const BITS: u64 = 32;
/// What the parts may leave between them, to be aligned.
const GAPS: u64 = BITS + PAGE;
/// The most pages that are counted.
const MOST: u64 = (1 << 27) - 1;

/// A heap's place, as kernels are told it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    base: u64,
    pages: u64,
}

impl Layout {
    /// Bytes of a heap in which a kernel can allocate `limit` bytes in one piece.
    #[must_use]
    pub fn bytes(limit: u64) -> u64 {
        limit.div_ceil(PAGE).clamp(1, MOST) * (WORD + BITS + PAGE) + HEAD + GAPS
    }

    /// The heap in so many bytes at an address. It has to begin with [zeros](Self::zeros).
    #[must_use]
    pub fn new(base: u64, bytes: u64) -> Self {
        let pages = bytes.saturating_sub(HEAD + GAPS) / (WORD + BITS + PAGE);
        Self { base, pages: pages.min(MOST) }
    }

    fn words_at(&self) -> u64 {
        self.base + HEAD
    }

    fn bits_at(&self) -> u64 {
        (self.words_at() + self.pages * WORD).next_multiple_of(BITS)
    }

    fn pages_at(&self) -> u64 {
        (self.bits_at() + self.pages * BITS).next_multiple_of(PAGE)
    }

    /// How many bytes at its beginning have to be zeros: the bookkeeping. What kernels allocate has no contents.
    #[must_use]
    pub fn zeros(&self) -> u64 {
        self.pages_at() - self.base
    }

    /// The value of [`VARIABLE`](crate::VARIABLE): `Heap` in `allocator.cu`.
    #[must_use]
    pub fn variable(&self) -> Vec<u8> {
        [self.base, self.words_at(), self.bits_at(), self.pages_at(), self.pages]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heap_has_room_for_what_was_asked_for_and_ends_where_its_memory_does() {
        for limit in [0, 1, 4096, 4097, 8 << 20, 1 << 30] {
            for base in [0x2000_0000_0000, 0x2000_0000_0200, 0x2000_0000_1e00] {
                let bytes = Layout::bytes(limit);
                let variable = Layout::new(base, bytes).variable();
                let words: Vec<u64> =
                    variable.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
                let [head, pages_words, bits, pages, count] = *words.as_slice() else { panic!("{words:x?}") };
                assert!(count * PAGE >= limit.max(1), "{limit}");
                assert_eq!(head, base);
                assert!(head + HEAD <= pages_words && pages_words + count * WORD <= bits);
                assert!(bits + count * BITS <= pages && pages.is_multiple_of(PAGE));
                assert!(pages + count * PAGE <= base + bytes, "{limit} at {base:#x}");
            }
        }
    }
}
