//! What a stream waits for in memory, so that whoever finds it busy can say so.

use super::Marker;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use wire::{MemoryOperation, Until, Word};

/// How many waits are named.
const TOLD_MAX: usize = 4;

/// A wait for a word of memory.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    word: Word,
    until: Until,
}

impl Wait {
    fn among(operations: &[MemoryOperation]) -> impl Iterator<Item = Self> + '_ {
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

/// The waits of a stream that are not known to be over, oldest first, each batch of them with a marker behind it.
#[derive(Default)]
pub struct Waits(VecDeque<(Marker, Batch)>);

/// Waits that were submitted together: any of them may be the one that holds the stream.
#[derive(Clone, Debug)]
pub struct Batch(Arc<[Wait]>);

impl Batch {
    /// The waits among operations, if there are any.
    #[must_use]
    pub fn among(operations: &[MemoryOperation]) -> Option<Self> {
        let waits: Arc<[Wait]> = Wait::among(operations).collect();
        (!waits.is_empty()).then_some(Self(waits))
    }
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, wait) in self.0.iter().take(TOLD_MAX).enumerate() {
            if at > 0 {
                write!(f, ", or ")?;
            }
            write!(f, "{wait}")?;
        }
        match self.0.len().checked_sub(TOLD_MAX) {
            None | Some(0) => Ok(()),
            Some(more) => write!(f, ", or {more} more"),
        }
    }
}

impl Waits {
    /// Adds what was just submitted.
    pub fn push(&mut self, marker: Marker, waits: Batch) {
        self.prune();
        self.0.push_back((marker, waits));
    }

    /// The waits that hold the stream, or that it has yet to come to.
    pub fn first(&mut self) -> Option<Batch> {
        self.prune();
        self.0.front().map(|(_, waits)| waits.clone())
    }

    fn prune(&mut self) {
        while self.0.front().is_some_and(|(marker, _)| marker.is_complete()) {
            self.0.pop_front();
        }
    }
}
