//! What of device memory is as it was at the last checkpoint, or zero: that is neither copied nor read. The device hashes its memory itself, in chunks (`hash.ptx`,
//! `docs/capture.md`); what a chunk is called in the store comes from its bytes, when they have been read once.

use super::hash::{self, Hash, Key, THREADS};
use super::{Content, Item};
use crate::buffers::Buffers;
use crate::lock;
use crate::objects::Context;
use crate::session::Session;
use crate::transfer::await_marker;
use backend::{Backend, Launch, Range, RawFunction, StreamArg};
use image::{CHUNK_SIZE, ChunkId, DeviceOrdinal, Extent, MemoryKind, Object, ObjectKind};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, OnceLock};
use store::ChunkWriter;
use wire::ContextId;

/// `CU_JIT_INPUT_PTX`.
pub(crate) const PTX: u32 = 1;
const CHUNK: u64 = CHUNK_SIZE as u64;
/// What is smaller is copied without asking, bytes.
const WORTH: u64 = 256 << 10;

const HASH_BYTES: usize = size_of::<Hash>();

/// What an object is called, whatever number its session has.
type Name = (DeviceOrdinal, MemoryKind, u64);

fn name_of(kind: &ObjectKind) -> Option<Name> {
    match kind {
        ObjectKind::DeviceMemory { device, memory, base, .. } => Some((*device, *memory, *base)),
        _ => None,
    }
}

/// A part of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Span {
    /// In the store, or zeros.
    Known(Extent),
    /// To be read: so many bytes, from this one of the object on. Chunks end where it does.
    Read { offset: u64, bytes: u64 },
}

impl Span {
    /// Those of an object of so many bytes of which nothing is known but what of it is live: chunks without anything are zeros.
    pub(super) fn of(bytes: u64, live: Option<&[Range]>) -> Vec<Self> {
        let Some(live) = live else { return vec![Self::Read { offset: 0, bytes }] };
        let mut spans = Vec::new();
        let mut at = 0;
        // Each begins where a chunk does, behind the one before.
        for part in live {
            let first = (part.base / CHUNK * CHUNK).max(at);
            let end = part.end().next_multiple_of(CHUNK).min(bytes);
            if first >= end {
                continue;
            }
            if first > at {
                spans.push(Self::Known(Extent::Zero { len: first - at }));
            }
            match spans.last_mut() {
                Some(Self::Read { bytes, .. }) => *bytes += end - first,
                _ => spans.push(Self::Read { offset: first, bytes: end - first }),
            }
            at = end;
        }
        if at < bytes {
            spans.push(Self::Known(Extent::Zero { len: bytes - at }));
        }
        spans
    }

    /// What of these is to be read: from which byte on, and how many.
    pub(super) fn reads(spans: &[Self]) -> impl Iterator<Item = (u64, u64)> + '_ {
        spans.iter().filter_map(|span| match span {
            Self::Read { offset, bytes } => Some((*offset, *bytes)),
            Self::Known(_) => None,
        })
    }

    /// How many bytes [`Self::read_late`] would have read.
    pub(super) fn late_bytes(spans: &[Self], mut at: u64, chunks: &BTreeSet<u64>) -> u64 {
        let mut late = 0;
        for span in spans {
            let end = at + span.bytes();
            if matches!(span, Self::Known(_)) {
                late += chunks.range(at..end).map(|chunk| CHUNK.min(end - chunk)).sum::<u64>();
            }
            at = end;
        }
        late
    }

    /// Has chunks read, of those that begin there, which were not to be: each of them becomes a span of its own. The first span begins at byte `at` of the object.
    /// Answers where they begin, and how long they are.
    pub(super) fn read_late(spans: &mut Vec<Self>, mut at: u64, chunks: &BTreeSet<u64>) -> Vec<Range> {
        let mut late = Vec::new();
        for span in std::mem::take(spans) {
            let end = at + span.bytes();
            let begun = std::mem::replace(&mut at, end);
            let Self::Known(extent) = span else {
                spans.push(span);
                continue;
            };
            let mut known = begun;
            let zeros =
                |from: u64, to: u64| (from < to).then(|| Self::Known(Extent::Zero { len: to - from }));
            for &offset in chunks.range(begun..end) {
                let chunk = Range { base: offset, bytes: CHUNK.min(end - offset) };
                spans.extend(zeros(known, offset));
                spans.push(Self::Read { offset, bytes: chunk.bytes });
                late.push(chunk);
                known = chunk.end();
            }
            // What is in the store is one chunk, and all of it or nothing.
            spans.extend(if known == begun { Some(Self::Known(extent)) } else { zeros(known, end) });
        }
        late
    }

    /// Its bytes.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Known(extent) => extent.len(),
            Self::Read { bytes, .. } => *bytes,
        }
    }

    /// Takes away what comes after so many bytes that are read.
    pub(super) fn split_off(spans: &mut Vec<Self>, mut reads: u64) -> Vec<Self> {
        let mut rest = Vec::new();
        for (number, span) in spans.iter_mut().enumerate() {
            let Self::Read { offset, bytes } = span else { continue };
            if let Some(left) = reads.checked_sub(*bytes) {
                reads = left;
                continue;
            }
            rest.push(Self::Read { offset: *offset + reads, bytes: *bytes - reads });
            *bytes = reads;
            let kept = number + usize::from(reads > 0);
            rest.extend(spans.drain(number + 1..));
            spans.truncate(kept);
            break;
        }
        rest
    }
}

/// An object of device memory, chunk by chunk.
#[derive(Clone, Default)]
struct Chunks {
    /// What is live of it, from its base on.
    live: Vec<Range>,
    chunks: Vec<(Option<Hash>, Extent)>,
}

/// The hashes of a capture, until it is known what became of it; none of what was written afterwards.
#[derive(Default)]
pub(super) struct Hashes(BTreeMap<Name, (Vec<Range>, Vec<Option<Hash>>)>);

impl Hashes {
    /// What these chunks of an object have now is not what was hashed.
    pub(super) fn forget(&mut self, kind: &ObjectKind, chunks: &BTreeSet<u64>) {
        let Some((_, hashes)) = name_of(kind).and_then(|name| self.0.get_mut(&name)) else { return };
        for offset in chunks {
            if let Some(hash) = hashes.get_mut((offset / CHUNK) as usize) {
                *hash = None;
            }
        }
    }
}

/// A session's memory at its last checkpoint.
#[derive(Default)]
pub(crate) struct Changes {
    /// Of the hash, drawn for each session; none without random bytes, and then nothing is hashed.
    key: OnceLock<Option<Key>>,
    /// The kernel's machine code for each device, if it can be compiled.
    code: Mutex<BTreeMap<usize, Option<Arc<[u8]>>>>,
    kernels: Mutex<BTreeMap<ContextId, RawFunction>>,
    last: Mutex<BTreeMap<Name, Chunks>>,
}

impl Changes {
    fn key(&self) -> Option<Key> {
        *self.key.get_or_init(Key::draw)
    }

    /// The kernel, in a context that has no work.
    fn kernel(&self, backend: &dyn Backend, ctx: &Context) -> backend::Result<Option<RawFunction>> {
        let mut kernels = lock(&self.kernels);
        if let Some(kernel) = kernels.get(&ctx.id()) {
            return Ok(Some(*kernel));
        }
        let Some(code) = lock(&self.code).get(&ctx.device()).cloned().flatten() else { return Ok(None) };
        let module = backend.module_load(ctx.raw, &code, &[], &[]).map_err(|error| error.code)?.code;
        let kernel = backend.function(ctx.raw, module, "hash")?;
        kernels.insert(ctx.id(), kernel);
        Ok(Some(kernel))
    }

    /// Remembers what is in the store, as these objects.
    pub(super) fn remember<'a>(&self, hashes: Hashes, objects: impl Iterator<Item = &'a Object>) {
        let mut hashes = hashes.0;
        let known = objects.filter_map(|object| {
            let name = name_of(&object.kind)?;
            let (live, hashes) = hashes.remove(&name)?;
            let chunks = hashes.into_iter().zip(by_chunk(&object.extents)?).collect();
            Some((name, Chunks { live, chunks }))
        });
        *lock(&self.last) = known.collect();
    }
}

impl Session {
    /// Compiles what hashes memory, for devices with work. Not in the cut: it takes time, and waits for nothing.
    pub fn prepare_comparison(&self) {
        for device in 0..self.devices.len() {
            let Some(ctx) = self.context_on(device) else { continue };
            let mut code = lock(&self.changes.code);
            code.entry(device).or_insert_with(|| {
                let linked = self.backend().link(ctx.raw, &[hash::input(&hash::code())], &[]);
                linked
                    .inspect_err(|error| {
                        tracing::warn!(
                            ?error,
                            "device memory is not compared: each checkpoint reads all of it"
                        );
                    })
                    .ok()
                    .map(|linked| linked.code.into())
            });
        }
    }

    /// Divides items into what is to be read and what the store has; without a `writer` all is read.
    pub(super) fn compare(&self, items: &mut [Item], writer: Option<&ChunkWriter>) -> Hashes {
        let hashed = self.hash(items).unwrap_or_else(|error| {
            // Whoever reads it next is told again, and tells.
            tracing::debug!(%error, "device memory is not compared");
            BTreeMap::new()
        });
        let last = lock(&self.changes.last);
        let mut hashes = Hashes::default();
        for (index, found) in hashed {
            let Some(item) = items.get_mut(index) else { continue };
            let Some(name) = name_of(&item.kind) else { continue };
            let range = item.range();
            let live = item.live_within();
            if let Some(writer) = writer {
                item.spans = spans(range.bytes, &live, &found, last.get(&name), |id| writer.has(id));
            }
            hashes.0.insert(name, (live, found.into_iter().map(Some).collect()));
        }
        hashes
    }

    /// The hashes of those items that have any, by their number.
    fn hash(&self, items: &[Item]) -> backend::Result<BTreeMap<usize, Vec<Hash>>> {
        let backend = self.backend();
        let none = BTreeMap::new;
        let Some(key) = self.changes.key() else { return Ok(none()) };
        let Ok(room) = self.buffers.take(1) else { return Ok(none()) };
        let (mut hashed, mut contexts, mut used) = (Vec::new(), BTreeMap::new(), 0);
        let launched = items.iter().enumerate().try_for_each(|(index, item)| {
            let Some(range) = comparable(item) else { return Ok(()) };
            let count = range.bytes.div_ceil(CHUNK) as usize;
            let fits = used + count * HASH_BYTES <= room.range().bytes as usize;
            if !fits {
                return Ok(());
            }
            let Some(kernel) = self.changes.kernel(backend, &item.ctx)? else { return Ok(()) };
            let out = room.range().base + used as u64;
            let params = key.params(range.base, range.bytes, out);
            backend.launch(item.ctx.raw, &launch(kernel, count as u32, &params))?;
            contexts.entry(item.ctx.id()).or_insert(&item.ctx);
            hashed.push((index, used, count));
            used += count * HASH_BYTES;
            Ok(())
        });
        // What has been launched writes into the room: all are heard out before anybody else gets that.
        let wait = |ctx: &&Arc<Context>| await_marker(&ctx.mark(StreamArg::Legacy)?);
        let waited: Vec<_> = contexts
            .values()
            .map(|ctx| wait(ctx).or_else(|_| backend.context_synchronize(ctx.raw)))
            .collect();
        waited.into_iter().collect::<Result<(), _>>()?;
        launched?;
        Ok(hashed.into_iter().map(|(index, at, count)| (index, read(&room, at, count))).collect())
    }
}

/// The memory of an item, if a kernel in any context of its device reaches it: what the session has mapped itself. Variables and heaps are their context's.
fn comparable(item: &Item) -> Option<Range> {
    let ObjectKind::DeviceMemory { memory: MemoryKind::Allocation | MemoryKind::Physical, .. } = item.kind
    else {
        return None;
    };
    let Content::Memory(range) = item.content else { return None };
    let is_aligned = (range.base | range.bytes) % HASH_BYTES as u64 == 0;
    (is_aligned && range.bytes >= WORTH).then_some(range)
}

pub(super) fn launch<'a>(function: RawFunction, blocks: u32, params: &'a [u8]) -> Launch<'a> {
    let (grid, block) = ([blocks, 1, 1], [THREADS, 1, 1]);
    Launch { function, grid, block, shared: 0, stream: StreamArg::Legacy, attributes: &[], params }
}

pub(super) fn read(room: &Buffers, at: usize, count: usize) -> Vec<Hash> {
    let mut bytes = vec![0; count * HASH_BYTES];
    room.read(at, &mut bytes);
    let (hashes, _) = bytes.as_chunks();
    hashes.iter().map(of_bytes).collect()
}

pub(super) fn of_bytes(bytes: &[u8; HASH_BYTES]) -> Hash {
    let whole = u128::from_le_bytes(*bytes);
    [whole as u64, (whole >> 64) as u64]
}

/// `part` of an object at `range`, counted from the object's first byte.
pub(super) fn relative(part: Range, range: Range) -> Range {
    Range { base: part.base.wrapping_sub(range.base), bytes: part.bytes }
}

/// What of an object of so many bytes is to be read, where `has` says which chunks the store has.
fn spans(
    bytes: u64,
    live: &[Range],
    hashes: &[Hash],
    last: Option<&Chunks>,
    has: impl Fn(&ChunkId) -> bool,
) -> Vec<Span> {
    let same_live = last.is_some_and(|last| last.live == live);
    let mut spans = Vec::new();
    for (number, hash) in hashes.iter().enumerate() {
        let offset = number as u64 * CHUNK;
        let chunk = Range { base: offset, bytes: CHUNK.min(bytes - offset) };
        let stored = || {
            let last = last?;
            let (before, extent) = last.chunks.get(number)?;
            // What is not live is stored as zeros.
            let as_live = same_live || inside(&last.live, chunk).eq(inside(live, chunk));
            let there = matches!(extent, Extent::Chunk { id, .. } if has(id));
            (*before == Some(*hash) && extent.len() == chunk.bytes && as_live && there).then_some(*extent)
        };
        let is_zero = *hash == Hash::default() || inside(live, chunk).next().is_none();
        let known = if is_zero { Some(Extent::Zero { len: chunk.bytes }) } else { stored() };
        match (known, spans.last_mut()) {
            (Some(Extent::Zero { len }), Some(Span::Known(Extent::Zero { len: run }))) => *run += len,
            (Some(extent), _) => spans.push(Span::Known(extent)),
            (None, Some(Span::Read { bytes, .. })) => *bytes += chunk.bytes,
            (None, _) => spans.push(Span::Read { offset, bytes: chunk.bytes }),
        }
    }
    spans
}

/// What of `ranges` lies in `chunk`.
pub(super) fn inside(ranges: &[Range], chunk: Range) -> impl Iterator<Item = (u64, u64)> + '_ {
    // They are in order, and apart.
    let first = ranges.partition_point(|range| range.end() <= chunk.base);
    let within =
        ranges.get(first..).unwrap_or_default().iter().take_while(move |range| range.base < chunk.end());
    within.map(move |range| (range.base.max(chunk.base), range.end().min(chunk.end())))
}

/// An object's extents, one for each chunk; `None` where they do not end where chunks do.
fn by_chunk(extents: &[Extent]) -> Option<Vec<Extent>> {
    let mut chunks = Vec::new();
    let mut end = 0_u64;
    for extent in extents {
        let mut left = extent.len();
        while left > 0 {
            let len = left.min(CHUNK);
            // Only the last one is shorter.
            if !end.is_multiple_of(CHUNK) {
                return None;
            }
            chunks.push(match extent {
                Extent::Zero { .. } => Extent::Zero { len },
                chunk => *chunk,
            });
            end += len;
            left -= len;
        }
    }
    Some(chunks)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn id(number: u8) -> ChunkId {
        ChunkId::of(&[number])
    }

    fn range(base: u64, bytes: u64) -> Range {
        Range { base, bytes }
    }

    /// Four chunks and a half: stored, zeros, stored with something dead in it, stored, stored.
    fn before() -> (u64, Vec<Hash>, Chunks) {
        let bytes = 4 * CHUNK + 4096;
        let hashes: Vec<Hash> = vec![[1, 1], [0, 0], [3, 3], [4, 4], [5, 5]];
        let extent = |(number, hash): (usize, &Hash)| {
            let len = CHUNK.min(bytes - number as u64 * CHUNK);
            match hash {
                [0, 0] => (Some(*hash), Extent::Zero { len }),
                _ => (Some(*hash), Extent::Chunk { id: id(number as u8), len: len as u32 }),
            }
        };
        let live = vec![range(0, 2 * CHUNK + 512), range(2 * CHUNK + 1024, bytes - 2 * CHUNK - 1024)];
        let chunks = hashes.iter().enumerate().map(extent).collect();
        (bytes, hashes, Chunks { live, chunks })
    }

    #[test]
    fn what_changes_late_is_read_all_the_same() {
        let zeros = |chunks| Span::Known(Extent::Zero { len: chunks * CHUNK });
        let stored = Span::Known(Extent::Chunk { id: id(1), len: CHUNK as u32 });
        let read = |chunk, chunks| Span::Read { offset: chunk * CHUNK, bytes: chunks * CHUNK };
        let end = |bytes| Span::Known(Extent::Zero { len: bytes });
        let before = vec![read(2, 2), zeros(3), stored, zeros(1), end(512)];
        let late = |chunks: &[u64]| {
            let mut spans = before.clone();
            let chunks = chunks.iter().map(|chunk| chunk * CHUNK).collect();
            let bytes = Span::late_bytes(&spans, 2 * CHUNK, &chunks);
            let late = Span::read_late(&mut spans, 2 * CHUNK, &chunks);
            assert_eq!(late.iter().map(|chunk| chunk.bytes).sum::<u64>(), bytes);
            assert!(late.iter().all(|chunk| chunk.bytes == CHUNK || chunk.base == 9 * CHUNK));
            (spans, late.iter().map(|chunk| chunk.base / CHUNK).collect::<Vec<_>>())
        };
        assert_eq!(late(&[0, 1, 2, 3]), (before.clone(), vec![]), "they are read, or not of this part");
        let found = vec![read(2, 2), zeros(1), read(5, 1), zeros(1), read(7, 1), zeros(1), end(512)];
        assert_eq!(late(&[5, 7]), (found, vec![5, 7]));
        let last = Span::Read { offset: 9 * CHUNK, bytes: 512 };
        let found = vec![read(2, 2), read(4, 1), read(5, 1), read(6, 1), stored, read(8, 1), last];
        assert_eq!(late(&[3, 4, 5, 6, 8, 9]), (found, vec![4, 5, 6, 8, 9]));
    }

    #[test]
    fn what_has_no_room_is_the_end() {
        let zeros = Span::Known(Extent::Zero { len: CHUNK });
        let read = |offset, bytes| Span::Read { offset, bytes };
        let all = [read(0, 2 * CHUNK), zeros, read(3 * CHUNK, 2 * CHUNK), zeros];
        for (reads, front, rest) in [
            (4, &all[..], &[][..]),
            (3, &[all[0], zeros, read(3 * CHUNK, CHUNK)], &[read(4 * CHUNK, CHUNK), zeros]),
            (2, &[all[0], zeros], &[all[2], zeros]),
            (1, &[read(0, CHUNK)], &[read(CHUNK, CHUNK), zeros, all[2], zeros]),
            (0, &[], &all),
        ] {
            let mut spans = all.to_vec();
            assert_eq!(Span::split_off(&mut spans, reads * CHUNK), rest, "{reads}");
            assert_eq!(spans, front, "{reads}");
        }
    }

    #[test]
    fn chunks_with_nothing_live_are_zeros() {
        let zeros = |chunks: u64| Span::Known(Extent::Zero { len: chunks * CHUNK });
        let read = |first: u64, chunks: u64| Span::Read { offset: first * CHUNK, bytes: chunks * CHUNK };
        let bytes = 6 * CHUNK;
        let live = [range(CHUNK + 5, 10), range(2 * CHUNK - 1, 2), range(5 * CHUNK - 1, 1)];
        assert_eq!(Span::of(bytes, Some(&live)), [zeros(1), read(1, 2), zeros(1), read(4, 1), zeros(1)]);
        assert_eq!(Span::of(bytes, Some(&[range(0, bytes)])), [read(0, 6)]);
        assert_eq!(Span::of(bytes, Some(&[])), [zeros(6)]);
        assert_eq!(Span::of(bytes + 7, None), [Span::Read { offset: 0, bytes: bytes + 7 }]);
        let tail = Span::of(CHUNK + 7, Some(&[range(CHUNK, 7)]));
        assert_eq!(tail, [zeros(1), Span::Read { offset: CHUNK, bytes: 7 }]);
    }

    /// What was excluded is in no store, whatever its hash says when it is included.
    #[test]
    fn what_was_excluded_is_read_when_it_is_not_any_more() {
        let (bytes, hashes, mut last) = before();
        let without = [range(0, 2 * CHUNK), range(3 * CHUNK, bytes - 3 * CHUNK)];
        let found = spans(bytes, &without, &hashes, Some(&last), |_| true);
        assert_eq!(found[1], Span::Known(Extent::Zero { len: 2 * CHUNK }));
        (last.live, last.chunks[2].1) = (without.to_vec(), Extent::Zero { len: CHUNK });
        let found = spans(bytes, &[range(0, bytes)], &hashes, Some(&last), |_| true);
        assert_eq!(found[2], Span::Read { offset: 2 * CHUNK, bytes: CHUNK });
    }

    #[test]
    fn what_is_as_it_was_is_not_read() {
        let (bytes, hashes, last) = before();
        let known = |live: &[Range], hashes: &[Hash], has: fn(&ChunkId) -> bool| {
            let spans = spans(bytes, live, hashes, Some(&last), has);
            spans.iter().filter(|span| matches!(span, Span::Known(Extent::Chunk { .. }))).count()
        };
        assert_eq!(known(&last.live, &hashes, |_| true), 4);
        assert_eq!(known(&last.live, &hashes, |_| false), 0, "the store has them no more");
        assert_eq!(known(&[range(0, bytes)], &hashes, |_| true), 3, "something has come alive in the third");
        let mut changed = hashes.clone();
        changed[3] = [4, 5];
        changed[4] = [6, 5];
        let found = spans(bytes, &last.live, &changed, Some(&last), |_| true);
        assert_eq!(found.last(), Some(&Span::Read { offset: 3 * CHUNK, bytes: CHUNK + 4096 }));
        assert_eq!(found.len(), 4);
    }

    #[test]
    fn zeros_are_never_read_and_all_else_is_the_first_time() {
        let (bytes, hashes, last) = before();
        let found = spans(bytes, &last.live, &hashes, None, |_| true);
        let wanted = [
            Span::Read { offset: 0, bytes: CHUNK },
            Span::Known(Extent::Zero { len: CHUNK }),
            Span::Read { offset: 2 * CHUNK, bytes: 2 * CHUNK + 4096 },
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn extents_are_told_chunk_by_chunk() {
        let stored = |number| Extent::Chunk { id: id(number), len: CHUNK as u32 };
        let zero = |len| Extent::Zero { len };
        let found = by_chunk(&[stored(1), zero(2 * CHUNK + 512)]).unwrap();
        assert_eq!(found, [stored(1), zero(CHUNK), zero(CHUNK), zero(512)]);
        assert_eq!(by_chunk(&[zero(512), stored(1)]), None);
    }
}
