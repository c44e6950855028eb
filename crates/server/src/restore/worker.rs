//! What the threads that fill device memory do.

use super::filling::{FillError, Filling, Part, Plan};
use super::hasher::Hasher;
use super::proof::{Claim, Judged, Prover, is_provable};
use crate::buffers::BufferPool;
use crate::transfer::{OwnStream, Target, Writer};
use backend::{LoadError, Range};
use image::{Extent, Object};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use store::{ChunkReader, Proof, ReadError};

/// What all threads fill from and through.
pub(super) struct Worker {
    image: store::Image,
    buffers: Arc<BufferPool>,
    streams: Vec<OwnStream>,
    /// What proves chunks in each of the streams, as soon as it is there.
    hashers: Vec<OnceLock<Arc<Hasher>>>,
}

/// What a thread has spent its time on.
#[derive(Debug, Default)]
pub(super) struct Spent {
    bytes: u64,
    /// Those that the device has proven.
    proven: u64,
    /// Waiting for room to read into.
    waiting: Duration,
    /// Reading and checking chunks.
    reading: Duration,
    /// Giving them to the device.
    giving: Duration,
    /// Asking for proofs, and waiting for them.
    proving: Duration,
}

/// A writer, and what it has been given that may not be complete.
struct Hand {
    writer: Writer,
    /// One for each write; none where a claim says the same.
    ranges: VecDeque<Option<Range>>,
    prover: Option<Prover>,
}

/// What one thread has.
struct Thread<'a> {
    worker: &'a Worker,
    filling: &'a Filling,
    reader: ChunkReader,
    hands: BTreeMap<usize, Hand>,
    spent: Spent,
}

impl Worker {
    /// Who carries a plan out, and what of it is to be handed out part by part.
    pub(super) fn of(plan: Plan) -> (Self, Vec<Part>) {
        let Plan { image, buffers, streams, parts, checks: _ } = plan;
        let hashers = streams.iter().map(|_| OnceLock::new()).collect();
        (Self { image, buffers, streams, hashers }, parts)
    }

    /// Makes what proves chunks on the device, as long as there are any; until then, and where it cannot be had, the processor checks them.
    pub(super) fn compile(&self, filling: &Filling) {
        for (stream, place) in self.streams.iter().zip(&self.hashers) {
            let begun = Instant::now();
            match self.hasher(stream, filling) {
                Ok(Some(hasher)) => {
                    tracing::debug!(took = ?begun.elapsed(), "the device can prove chunks");
                    // Nobody else makes any.
                    let _ = place.set(Arc::new(hasher));
                }
                Ok(None) => return,
                Err(error) => tracing::info!(?error, "the processor checks all chunks"),
            }
        }
    }

    /// None when nobody needs it any more.
    fn hasher(&self, stream: &OwnStream, filling: &Filling) -> Result<Option<Hasher>, LoadError> {
        if filling.is_over() {
            return Ok(None);
        }
        let code = Hasher::compile(&**self.buffers.backend(), stream)?;
        if filling.is_over() {
            return Ok(None);
        }
        Hasher::load(&self.buffers, stream, &code).map(Some)
    }

    /// Fills parts until there are no more.
    ///
    /// # Errors
    /// [`FillError`].
    pub(super) fn work(&self, filling: &Filling) -> Result<Spent, FillError> {
        let begun = Instant::now();
        let (reader, hands, spent) = (self.image.chunks(), BTreeMap::new(), Spent::default());
        let mut thread = Thread { worker: self, filling, reader, hands, spent };
        while let Some((part, awaited)) = filling.next() {
            if awaited {
                // It may be something that only has to arrive.
                thread.finish()?;
            }
            thread.fill(part)?;
            thread.tell()?;
        }
        thread.finish()?;
        let Spent { bytes, proven, waiting, reading, giving, proving } = &thread.spent;
        let all = begun.elapsed();
        tracing::debug!(
            bytes,
            proven,
            ?waiting,
            ?reading,
            ?giving,
            ?proving,
            ?all,
            "a thread has filled memory"
        );
        Ok(thread.spent)
    }

    fn object(&self, part: &Part) -> &Object {
        &self.image.manifest().objects[part.object]
    }
}

impl Thread<'_> {
    fn fill(&mut self, part: Part) -> Result<(), FillError> {
        let Self { worker, reader, hands, spent, .. } = self;
        let hand = match hands.entry(part.stream) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let writer = Writer::in_stream(&worker.buffers, &worker.streams[part.stream])?;
                new.insert(Hand { writer, ranges: VecDeque::new(), prover: None })
            }
        };
        let id = match part.extent {
            Extent::Zero { len } => {
                hand.writer.zeros(Target::Memory(part.range.base), len)?;
                hand.ranges.push_back(Some(part.range));
                return Ok(());
            }
            Extent::Chunk { id, .. } => id,
        };
        let object = worker.object(&part);
        let provable = is_provable(object, &part);
        if provable && hand.prover.is_none() {
            hand.prover = worker.hashers[part.stream].get().and_then(Prover::of);
        }
        let is_proven = provable && hand.prover.as_ref().is_some_and(Prover::is_usable);
        let proof = hand.copy(part.range, spent, |room| {
            if is_proven {
                reader.read_unproven(object, part.offset, &id, room)
            } else {
                reader.read(object, part.offset, &id, room).map(|()| Proof::Given)
            }
        })?;
        match (proof, &mut hand.prover) {
            (Proof::Owed, Some(prover)) => {
                hand.ranges.push_back(None);
                let begun = Instant::now();
                prover.take(Claim { part, id })?;
                spent.proving += begun.elapsed();
            }
            // It was checked: without a prover all are.
            _ => hand.ranges.push_back(Some(part.range)),
        }
        Ok(())
    }

    /// Tells of what is complete.
    fn tell(&mut self) -> Result<(), FillError> {
        let Self { worker, filling, reader, hands, spent } = self;
        for hand in hands.values_mut() {
            hand.tell(filling);
            let judged = hand.prover.as_mut().map(Prover::judged).unwrap_or_default();
            let Judged { proven, unproven } = judged;
            for range in proven {
                spent.proven += range.bytes;
                filling.filled(range);
            }
            for Claim { part, id } in unproven {
                // Another copy may be good. Who waits for this one waits until it is here.
                let read = |room: &mut [u8]| reader.read(worker.object(&part), part.offset, &id, room);
                hand.copy(part.range, spent, read)?;
                hand.ranges.push_back(Some(part.range));
            }
        }
        Ok(())
    }

    /// Waits until everything is complete that was begun.
    fn finish(&mut self) -> Result<(), FillError> {
        for prover in self.hands.values_mut().filter_map(|hand| hand.prover.as_mut()) {
            let begun = Instant::now();
            prover.finish()?;
            self.spent.proving += begun.elapsed();
        }
        self.tell()?;
        for hand in self.hands.values_mut() {
            hand.writer.finish()?;
            hand.tell(self.filling);
        }
        Ok(())
    }
}

impl Hand {
    /// Has a chunk copied to the device, read straight to where that copies it from.
    fn copy<T>(
        &mut self,
        range: Range,
        spent: &mut Spent,
        read: impl FnOnce(&mut [u8]) -> Result<T, ReadError>,
    ) -> Result<T, FillError> {
        let begun = Instant::now();
        let room = self.writer.buffer()?;
        let waited = Instant::now();
        let bytes = room.len().min(usize::try_from(range.bytes).unwrap_or(usize::MAX));
        let answer = read(&mut room[..bytes])?;
        let read = Instant::now();
        self.writer.write_buffer(Target::Memory(range.base), bytes)?;
        spent.bytes += bytes as u64;
        spent.waiting += waited - begun;
        spent.reading += read - waited;
        spent.giving += read.elapsed();
        Ok(answer)
    }

    /// Tells of what is complete.
    fn tell(&mut self, filling: &Filling) {
        let complete = self.ranges.len().saturating_sub(self.writer.left());
        self.ranges.drain(..complete).flatten().for_each(|range| filling.filled(range));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::restore::proof::Checks;
    use crate::restore::testing::{Rig, noise};
    use image::{CHUNK_SIZE, Compress, DeviceOrdinal, ImageId, Manifest, MemoryKind, ObjectKind, SessionId};
    use std::path::{Path, PathBuf};
    use store::{Store, WriteOptions};

    const CHUNK: u64 = CHUNK_SIZE as u64;
    /// Of those in [`contents`].
    const SHORT: usize = 4096 + 16;

    /// Chunks that are stored as they are, one of zeros, one that is compressed, and a short one.
    fn contents() -> Vec<u8> {
        let text = b"all work and no play ".iter().copied().cycle().take(CHUNK_SIZE).collect();
        [noise(1, CHUNK_SIZE), vec![0; CHUNK_SIZE], text, noise(2, CHUNK_SIZE), noise(3, SHORT)].concat()
    }

    /// Where all of it is, and what is filled from it.
    struct Setting {
        rig: Rig,
        folder: tempfile::TempDir,
        range: Range,
        contents: Vec<u8>,
    }

    impl Setting {
        fn new() -> Self {
            Self::of(contents())
        }

        fn of(contents: Vec<u8>) -> Self {
            let rig = Rig::new();
            let range = Range { bytes: contents.len() as u64, ..rig.memory(contents.len()) };
            Self { rig, folder: tempfile::tempdir().unwrap(), range, contents }
        }

        /// So many images that are written at once, so that none rests on another.
        fn images<const N: usize>(&self) -> [ImageId; N] {
            let store = Store::open_or_create(self.folder.path()).unwrap();
            let drafts = [(); N].map(|()| store.begin().unwrap());
            let receipts = drafts.each_ref().map(|draft| {
                let options = WriteOptions { compress: Compress::Zstd, ..WriteOptions::default() };
                let writer = draft.writer(&options).unwrap();
                let (session, device, memory) = (SessionId(1), DeviceOrdinal(0), MemoryKind::Allocation);
                let base = self.range.base;
                let mut object = writer.object(ObjectKind::DeviceMemory { session, device, memory, base });
                object.copy_from(&self.contents[..]).unwrap();
                object.finish().unwrap();
                writer.finish().unwrap()
            });
            let published = drafts.into_iter().zip(receipts);
            let ids = published.map(|(draft, receipt)| draft.publish(Manifest::new("job"), vec![receipt]));
            ids.map(|published| published.unwrap().id).collect::<Vec<_>>().try_into().unwrap()
        }

        fn plan(&self, image: &ImageId) -> Plan {
            let image = Store::open_or_create(self.folder.path()).unwrap().open_image(image).unwrap();
            let parts = image.manifest().objects[0].placed_extents().map(|(offset, extent)| {
                let range = Range { base: self.range.base + offset, bytes: extent.len() };
                Part { range, stream: 0, object: 0, offset, extent: *extent }
            });
            let parts = parts.collect();
            let (buffers, streams) = (Arc::clone(&self.rig.pool), vec![self.rig.stream.clone()]);
            Plan { image, buffers, streams, parts, checks: Checks::OnDevice }
        }

        /// Fills it on this thread, when the kernel is there.
        fn fill(&self, image: &ImageId) -> Result<Spent, FillError> {
            self.fill_with(image, |_| {})
        }

        /// The same, after something has been done to the kernel.
        fn fill_with(&self, image: &ImageId, change: impl Fn(&Hasher)) -> Result<Spent, FillError> {
            let (worker, parts) = Worker::of(self.plan(image));
            let filling = Filling::of(parts);
            worker.compile(&filling);
            change(worker.hashers[0].get().unwrap());
            let spent = worker.work(&filling)?;
            assert!(filling.is_over(), "{:?}", filling.progress());
            assert!(self.rig.read(self.range) == self.contents);
            Ok(spent)
        }

        /// Every pack that has these bytes, and where.
        fn packs(&self, bytes: &[u8]) -> Vec<(PathBuf, usize)> {
            let packs = files(&self.folder.path().join("packs"));
            let at = |path: &PathBuf| {
                let pack = std::fs::read(path).unwrap();
                pack.windows(bytes.len()).position(|window| window == bytes)
            };
            packs.into_iter().filter_map(|path| at(&path).map(|at| (path, at))).collect()
        }

        /// Changes a bit in the first chunk, as it is in a pack.
        fn damage(&self, (pack, at): &(PathBuf, usize)) {
            let mut bytes = std::fs::read(pack).unwrap();
            bytes[at + CHUNK_SIZE / 2] ^= 0x10;
            std::fs::write(pack, bytes).unwrap();
        }

        /// Where the first chunk is stored.
        fn places(&self) -> Vec<(PathBuf, usize)> {
            self.packs(&self.contents[..64])
        }
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
    }

    #[test]
    fn whole_chunks_as_they_are_stored_are_proven_and_all_else_is_checked() {
        let setting = Setting::new();
        let [image] = setting.images();
        let spent = setting.fill(&image).unwrap();
        assert_eq!((spent.bytes, spent.proven), (3 * CHUNK + SHORT as u64, 2 * CHUNK));
        // The writer's three and the hasher's, beside the eight of whoever looked at the memory.
        assert_eq!(setting.rig.pool.spare_bytes(), (3 + 1 + 8) * CHUNK, "what it had is there for the next");
    }

    /// More launches than there may be at a time, and one of a few chunks.
    #[test]
    fn launches_follow_each_other() {
        let two = [noise(1, CHUNK_SIZE), noise(2, CHUNK_SIZE)];
        let chunks = 3 * crate::restore::hasher::CHUNKS + 3;
        let contents = two.into_iter().cycle().take(chunks).flatten().collect();
        let setting = Setting::of(contents);
        let [image] = setting.images();
        assert_eq!(setting.fill(&image).unwrap().proven, chunks as u64 * CHUNK);
    }

    #[test]
    fn what_a_device_refuses_to_prove_is_read_again_and_checked() {
        let setting = Setting::new();
        let [image] = setting.images();
        let spent = setting.fill_with(&image, Hasher::unload).unwrap();
        assert_eq!((spent.bytes, spent.proven), (5 * CHUNK + SHORT as u64, 0));
        let [place] = &setting.places()[..] else { panic!("it is stored once") };
        setting.damage(place);
        assert!(setting.fill_with(&image, Hasher::unload).is_err());
    }

    #[test]
    fn threads_fill_the_same() {
        let setting = Setting::new();
        let [image] = setting.images();
        let filling = Filling::begin(setting.plan(&image));
        let mut last = 0;
        filling.finish(|progress| last = progress.done).unwrap();
        assert_eq!(last, setting.range.bytes);
        assert!(filling.is_over() && setting.rig.read(setting.range) == setting.contents);
    }

    #[test]
    fn a_damaged_chunk_is_named_wherever_it_is_checked() {
        let setting = Setting::new();
        let [image] = setting.images();
        let [place] = &setting.places()[..] else { panic!("it is stored once") };
        setting.damage(place);
        let on_device = setting.fill(&image).unwrap_err().to_string();
        let plan = Plan { checks: Checks::OnProcessor, ..setting.plan(&image) };
        let checked = Filling::begin(plan).finish(|_| {}).unwrap_err().to_string();
        assert_eq!(on_device, checked);
        assert!(checked.contains(place.0.to_str().unwrap()), "{checked}");
    }

    /// Whichever is read first.
    #[test]
    fn a_good_copy_mends_a_damaged_one() {
        let setting = Setting::new();
        let [image, _] = setting.images();
        let places = setting.places();
        assert_eq!(places.len(), 2);
        let read: u64 = places
            .iter()
            .map(|place| {
                setting.damage(place);
                let spent = setting.fill(&image).unwrap();
                setting.damage(place);
                spent.bytes
            })
            .sum();
        let once = 3 * CHUNK + SHORT as u64;
        assert_eq!(read, 2 * once + CHUNK, "one chunk was read again");
    }
}
