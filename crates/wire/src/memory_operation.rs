//! Operations on a word of memory that a stream carries out (`cuStreamWriteValue`, `cuStreamWaitValue`, `cuStreamBatchMemOp`).

use crate::codec::{DecodeError, Decoder, Encoder, Wire};

/// A word of device or pinned memory, and a value for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Word {
    /// Where; a multiple of its size.
    pub address: u64,
    /// The value, in the low bits.
    pub value: u64,
    /// Whether it has 64 bits rather than 32.
    pub wide: bool,
}

impl Word {
    /// Its size.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        if self.wide { 8 } else { 4 }
    }
}

impl Wire for Word {
    fn encode(&self, to: &mut Encoder<'_>) {
        (self.address, (self.value, self.wide)).encode(to);
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let (address, (value, wide)) = Wire::decode(from)?;
        Ok(Self { address, value, wide })
    }
}

/// What a word in memory must be to its operand for a stream to go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Until {
    /// At least it, as numbers that go round.
    Reached,
    /// Equal.
    Equal,
    /// With a bit in common.
    And,
    /// With a bit that neither has.
    Nor,
}

impl Until {
    /// By the number it has in `CUstreamWaitValue_flags`.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        [Self::Reached, Self::Equal, Self::And, Self::Nor].into_iter().find(|each| each.number() == number)
    }

    /// Its number in `CUstreamWaitValue_flags`.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::Reached => 0,
            Self::Equal => 1,
            Self::And => 2,
            Self::Nor => 3,
        }
    }

    /// Whether a word of that width that holds `found` lets the stream go on.
    #[must_use]
    pub fn holds(self, found: u64, word: &Word) -> bool {
        let (found, wanted) = if word.wide { (found, word.value) } else { (found << 32, word.value << 32) };
        let low = if word.wide { 0 } else { u64::from(u32::MAX) };
        match self {
            Self::Reached => found.wrapping_sub(wanted) as i64 >= 0,
            Self::Equal => found == wanted,
            Self::And => found & wanted != 0,
            Self::Nor => !(found | wanted | low) != 0,
        }
    }
}

/// One operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryOperation {
    /// Writes the word; whoever sees it sees everything before in the stream.
    Write {
        /// Which, and what.
        word: Word,
    },
    /// Waits for the word.
    Wait {
        /// Which, and the operand.
        word: Word,
        /// Until when.
        until: Until,
    },
    /// A memory barrier, for the whole system or (`gpu`) the device alone.
    Barrier {
        /// Whether for the device alone.
        gpu: bool,
    },
}

impl MemoryOperation {
    /// The word it is about, if any.
    #[must_use]
    pub fn word(&self) -> Option<&Word> {
        match self {
            Self::Write { word } | Self::Wait { word, .. } => Some(word),
            Self::Barrier { .. } => None,
        }
    }
}

impl Wire for MemoryOperation {
    fn encode(&self, to: &mut Encoder<'_>) {
        match self {
            Self::Write { word } => (0u8, *word).encode(to),
            Self::Wait { word, until } => (1u8, (*word, until.number())).encode(to),
            Self::Barrier { gpu } => (2u8, *gpu).encode(to),
        }
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let invalid = |what, value| DecodeError::Invalid { what, value };
        match u8::decode(from)? {
            0 => Ok(Self::Write { word: Wire::decode(from)? }),
            1 => {
                let (word, number): (Word, u32) = Wire::decode(from)?;
                let until = Until::from_number(number);
                Ok(Self::Wait { word, until: until.ok_or(invalid("wait condition", number.into()))? })
            }
            2 => Ok(Self::Barrier { gpu: Wire::decode(from)? }),
            other => Err(invalid("memory operation", other.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_hold_as_the_driver_says() {
        let narrow = |value| Word { address: 0, value, wide: false };
        let wide = |value| Word { address: 0, value, wide: true };
        for (until, found, word, holds) in [
            (Until::Reached, 5, narrow(5), true),
            (Until::Reached, 4, narrow(5), false),
            (Until::Reached, 2, narrow(0xffff_fffe), true),
            (Until::Reached, 2, wide(0xffff_fffe), false),
            (Until::Reached, 1, wide(u64::MAX), true),
            (Until::Equal, 7, narrow(0x1_0000_0007), true),
            (Until::Equal, 7, wide(0x1_0000_0007), false),
            (Until::And, 0b110, narrow(0b010), true),
            (Until::And, 0b101, narrow(0b010), false),
            (Until::And, 1 << 40, wide(1 << 40), true),
            (Until::Nor, 0xffff_fff0, narrow(0xf), false),
            (Until::Nor, 0xffff_fff0, narrow(0x7), true),
            (Until::Nor, u64::MAX << 1, wide(1), false),
            (Until::Nor, u64::from(u32::MAX), wide(0), true),
        ] {
            assert_eq!(until.holds(found, &word), holds, "{until:?} {found:#x} {word:?}");
        }
    }
}
