//! What the threads that fill device memory do.

use super::filling::{FillError, Filling, Part};
use crate::buffers::BufferPool;
use crate::transfer::{OwnStream, Target, Writer};
use backend::Range;
use image::{Extent, Object};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::ChunkReader;

/// What all threads fill from and through.
pub(super) struct Worker {
    image: store::Image,
    buffers: Arc<BufferPool>,
    streams: Vec<Arc<OwnStream>>,
}

/// What a thread has spent its time on.
#[derive(Default)]
struct Spent {
    bytes: u64,
    /// Waiting for room to read into.
    waiting: Duration,
    /// Reading and checking chunks.
    reading: Duration,
    /// Giving them to the device.
    giving: Duration,
}

/// A writer, and what it has been given that may not be complete.
struct Hand {
    writer: Writer,
    ranges: VecDeque<Range>,
}

impl Worker {
    pub(super) fn of(image: store::Image, buffers: Arc<BufferPool>, streams: Vec<Arc<OwnStream>>) -> Self {
        Self { image, buffers, streams }
    }

    /// Fills parts until there are no more.
    ///
    /// # Errors
    /// [`FillError`].
    pub(super) fn work(&self, filling: &Filling) -> Result<(), FillError> {
        let mut reader = self.image.chunks();
        let mut hands: BTreeMap<usize, Hand> = BTreeMap::new();
        let (mut spent, begun) = (Spent::default(), Instant::now());
        while let Some((part, awaited)) = filling.next() {
            if awaited {
                // It may be something that only has to arrive.
                hands.values_mut().try_for_each(|hand| hand.finish(filling))?;
            }
            self.fill(&mut reader, &mut hands, part, &mut spent)?;
            hands.values_mut().for_each(|hand| hand.tell(filling));
        }
        hands.values_mut().try_for_each(|hand| hand.finish(filling))?;
        let Spent { bytes, waiting, reading, giving } = spent;
        tracing::debug!(bytes, ?waiting, ?reading, ?giving, all = ?begun.elapsed(), "a thread has filled memory");
        Ok(())
    }

    fn fill(
        &self,
        reader: &mut ChunkReader,
        hands: &mut BTreeMap<usize, Hand>,
        part: Part,
        spent: &mut Spent,
    ) -> Result<(), FillError> {
        let Part { range, stream, object, offset, extent } = part;
        let hand = match hands.entry(stream) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let writer = Writer::in_stream(&self.buffers, &self.streams[stream])?;
                new.insert(Hand { writer, ranges: VecDeque::new() })
            }
        };
        let object: &Object = &self.image.manifest().objects[object];
        let target = Target::Memory(range.base);
        match extent {
            Extent::Zero { len } => hand.writer.zeros(target, len)?,
            Extent::Chunk { id, len } => {
                // Straight to where the device copies it from.
                let begun = Instant::now();
                let room = hand.writer.buffer()?;
                let waited = Instant::now();
                let bytes = (len as usize).min(room.len());
                reader.read(object, offset, &id, &mut room[..bytes])?;
                let read = Instant::now();
                hand.writer.write_buffer(target, bytes)?;
                spent.bytes += bytes as u64;
                spent.waiting += waited - begun;
                spent.reading += read - waited;
                spent.giving += read.elapsed();
            }
        }
        hand.ranges.push_back(range);
        Ok(())
    }
}

impl Hand {
    /// Tells of what is complete.
    fn tell(&mut self, filling: &Filling) {
        let complete = self.ranges.len().saturating_sub(self.writer.left());
        self.ranges.drain(..complete).for_each(|range| filling.filled(range));
    }

    fn finish(&mut self, filling: &Filling) -> Result<(), FillError> {
        self.writer.finish()?;
        self.tell(filling);
        Ok(())
    }
}
