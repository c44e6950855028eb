//! A capture that has begun while the application could still write managed memory.

use super::changes::{Span, inside};
use super::places::CopyRoom;
use super::shortage::Shortage;
use super::{CaptureError, Copied, Item, Taken, UnderWay, pair, write};
use crate::memory::Views;
use crate::session::Session;
use crate::transfer::{Readers, Source, TransferError};
use backend::{Range, StreamArg};
use image::CHUNK_SIZE;
use std::collections::BTreeSet;
use store::ChunkWriter;

const CHUNK: u64 = CHUNK_SIZE as u64;

/// A session of which everything that found room is copied, as it was when that was done.
pub struct Begun {
    pub(super) taken: Taken,
    /// What found none.
    pub(super) left: Vec<Item>,
    /// Through which some of that is read.
    pub(super) views: Views,
}

impl Begun {
    /// How many bytes found no room.
    #[must_use]
    pub fn bytes_left(&self) -> u64 {
        self.left.iter().map(|item| item.planned().bytes).sum()
    }

    /// How many bytes have to go to the host's memory now, since they were not to be copied before they were `written`.
    #[must_use]
    pub fn late_bytes(&self, written: &Written) -> u64 {
        let late = |object: &Copied| {
            let stale = written.chunks(object.range, object.live.as_deref());
            Span::late_bytes(&object.spans, 0, &stale)
        };
        self.taken.copied.iter().map(late).sum()
    }

    /// Gives back the room that its copies took.
    #[must_use]
    pub fn give_up(self) -> CopyRoom {
        self.taken.room
    }
}

/// Ranges of addresses that have been written.
#[derive(Default)]
pub struct Written(Vec<Range>);

impl Written {
    /// Those, in any order.
    #[must_use]
    pub fn of(mut ranges: Vec<Range>) -> Self {
        ranges.sort_by_key(|range| range.base);
        ranges.dedup_by(|next, range| {
            let meets = next.base <= range.end();
            if meets {
                range.bytes = range.end().max(next.end()) - range.base;
            }
            meets
        });
        Self(ranges)
    }

    /// The chunks of an object at `range` in which something was written, by where they begin in it; not those in which nothing is live.
    fn chunks(&self, range: Range, live: Option<&[Range]>) -> BTreeSet<u64> {
        let first = self.0.partition_point(|part| part.end() <= range.base);
        let mut chunks = BTreeSet::new();
        for part in self.0[first..].iter().take_while(|part| part.base < range.end()) {
            let first = part.base.saturating_sub(range.base) / CHUNK * CHUNK;
            let end = part.end().min(range.end()) - range.base;
            chunks.extend((first..end).step_by(CHUNK_SIZE));
        }
        if let Some(live) = live.filter(|_| !chunks.is_empty()) {
            let is_live =
                |base: &u64| inside(live, Range { base: range.base + base, bytes: CHUNK }).next().is_some();
            chunks.retain(is_live);
        }
        chunks
    }
}

impl Session {
    /// Takes what is left, when nothing changes any more, and what has been `written` since it was begun: chunks with any of that are copied once more.
    ///
    /// # Errors
    /// [`CaptureError`].
    pub fn finish_capture(
        &self,
        begun: Begun,
        written: &Written,
        writer: &ChunkWriter,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Taken, CaptureError> {
        let Begun { mut taken, mut left, views: _views } = begun;
        let mut readers = Readers::new(&self.buffers);
        self.copy_again(&mut taken, written, &mut readers)?;
        for item in &mut left {
            let stale = written.chunks(item.range(), item.live.as_deref());
            taken.hashes.forget(&item.kind, &stale);
            let late = Span::read_late(&mut item.spans, item.at, &stale);
            taken.kept.unchanged -= late.iter().map(|chunk| chunk.bytes).sum::<u64>();
        }
        let mut shortage = Shortage::new(taken.kept.on_host, writer);
        for item in &left {
            let reader = readers.of(&item.ctx)?;
            write(
                writer.part(item.kind.clone(), item.at),
                (item.range(), item.live.as_deref()),
                &item.spans,
                &mut |object, offset, bytes, clear| {
                    let mut read = reader.begin(item.source().part(offset, bytes));
                    object.fill(bytes, |within, room| {
                        read.next(room)?;
                        clear(offset + within, room);
                        progress(room.len() as u64);
                        shortage.look()
                    })
                },
            )?;
            taken.kept.written += item.planned().bytes;
        }
        taken.kept.written += self.read_variables(&mut taken.state, &mut readers)?;
        taken.room.settle();
        Ok(taken)
    }

    /// Copies chunks of which something has been written: to where they were copied before, or, if they had not to be, to the host's memory.
    fn copy_again(
        &self,
        taken: &mut Taken,
        written: &Written,
        readers: &mut Readers<'_>,
    ) -> Result<(), CaptureError> {
        let backend = &self.placer.backend;
        let Taken { copied, room, hashes, kept, .. } = taken;
        let mut under_way = UnderWay::on(&**backend);
        for object in copied {
            let stale = written.chunks(object.range, object.live.as_deref());
            if stale.is_empty() {
                continue;
            }
            hashes.forget(&object.kind, &stale);
            under_way.in_context(&object.ctx);
            let source = Source::Memory(object.range);
            for (chunk, to) in self.copies_of(object, &stale, room) {
                let stream = (&*object.ctx, StreamArg::Legacy);
                let copied = source.read(&**backend, stream, chunk.base, chunk.bytes, to);
                copied.map_err(|code| source.failed(code))?;
            }
            for chunk in Span::read_late(&mut object.spans, 0, &stale) {
                let from = Range { base: object.range.base + chunk.base, ..chunk };
                object.late.insert(chunk.base, readers.of(&object.ctx)?.read(from)?);
                kept.on_host += chunk.bytes;
                kept.unchanged -= chunk.bytes;
            }
        }
        under_way.finish().map_err(|code| CaptureError::Transfer(TransferError::Copies(code)))
    }

    /// Those of an object's chunks that have copies, and where those are.
    fn copies_of(&self, object: &Copied, chunks: &BTreeSet<u64>, room: &CopyRoom) -> Vec<(Range, u64)> {
        let mut copies = Vec::new();
        for (first, bytes, place) in pair(Span::reads(&object.spans), &object.parts) {
            for &offset in chunks.range(first..first + bytes) {
                let place = place.further(offset - first);
                let chunk = Range { base: offset, bytes: CHUNK.min(first + bytes - offset) };
                copies.push((chunk, self.address_of(place, object.ctx.device(), room)));
            }
        }
        copies
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(base: u64, bytes: u64) -> Range {
        Range { base, bytes }
    }

    #[test]
    fn what_is_written_is_found_chunk_by_chunk() {
        let base = 100 * CHUNK;
        let object = range(base + 512, 5 * CHUNK);
        let written = Written::of(vec![
            range(base + 4 * CHUNK, 1024),
            range(base, 512),
            range(base + 512 + 2 * CHUNK - 1, 2),
            range(base + 512 + 2 * CHUNK, CHUNK / 2),
            range(base + 512 + 5 * CHUNK, 4096),
        ]);
        assert_eq!(written.0.len(), 4, "two meet");
        let all = [1, 2, 3, 4].map(|chunk| chunk * CHUNK);
        assert_eq!(written.chunks(object, None), all.into());
        let live = [range(object.base, CHUNK), range(object.base + 2 * CHUNK + 7, 1)];
        assert_eq!(written.chunks(object, Some(&live)), [2 * CHUNK].into());
        assert!(written.chunks(range(base + 4096, 4096), None).is_empty());
        assert!(Written::default().chunks(object, None).is_empty());
    }
}
