//! What a stream waits for in memory, so that whoever finds it busy can say so.

use super::Marker;
use std::collections::VecDeque;
use std::fmt;
use wire::{MemoryOperation, Until, Word};

/// A wait for a word of memory.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    word: Word,
    until: Until,
}

impl Wait {
    /// The waits among operations.
    pub fn among(operations: &[MemoryOperation]) -> impl Iterator<Item = Self> + '_ {
        operations.iter().filter_map(|operation| match operation {
            MemoryOperation::Wait { word, until } => Some(Self { word: *word, until: *until }),
            MemoryOperation::Write { .. } | MemoryOperation::Barrier { .. } => None,
        })
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Word { address, value, .. } = self.word;
        let bits = 8 * self.word.bytes();
        write!(f, "a wait for the {bits} bits at {address:#x} to ")?;
        match self.until {
            Until::Reached => write!(f, "reach {value}"),
            Until::Equal => write!(f, "be {value}"),
            Until::And => write!(f, "have a bit of {value:#x}"),
            Until::Nor => write!(f, "lack a bit that {value:#x} lacks"),
        }
    }
}

/// The waits of a stream that are not known to be over, oldest first, each with a marker behind it.
#[derive(Default)]
pub struct Waits(VecDeque<(Marker, Wait)>);

impl Waits {
    /// Adds what was just submitted.
    pub fn push(&mut self, marker: Marker, wait: Wait) {
        self.prune();
        self.0.push_back((marker, wait));
    }

    /// The wait that holds the stream, or that it has yet to come to.
    pub fn first(&mut self) -> Option<Wait> {
        self.prune();
        self.0.front().map(|(_, wait)| *wait)
    }

    fn prune(&mut self) {
        while self.0.front().is_some_and(|(marker, _)| marker.is_complete()) {
            self.0.pop_front();
        }
    }
}
