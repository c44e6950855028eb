//! Copying images from one store into another: what the other lacks, in the frames in which it is stored.
//!
//! An image keeps its id and its manifest, byte for byte. So a copy of it that is there is the same, and a copy that was cut off goes on
//! where it was: each pack is published with an index as soon as it is full, and only then the next one is begun. Draft and index have an id
//! of their own: what another copier of the same image does, or has left, is in nobody's way.

use std::collections::{BTreeMap, HashSet};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, PoisonError};

use image::{ChunkId, Codec, Entry, ImageId, Index, Manifest, PackIndex};
use serde::Serialize;

use super::Draft;
use super::draft::check_chunks;
use super::pack::OpenPack;
use crate::chunk_map::{ChunkMap, Place};
use crate::media::MediaLock;
use crate::read::{Fetcher, Scratch, chunk_error};
use crate::{CopyError, ReadError, Store, WriteError, layout};

/// How images are copied.
#[derive(Debug, Clone)]
pub struct CopyOptions {
    /// How many threads read and check; at least one. Memory used is about 8 MiB for each.
    pub threads: usize,
    /// Length at which a pack is closed and published, in bytes; at most 3 GiB.
    pub pack_len: u64,
}

impl Default for CopyOptions {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self { threads: cpus.min(8), pack_len: 256 << 20 }
    }
}

/// What copying came to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CopyReport {
    /// The images that are in the other store now, in the order in which they came there.
    pub images: Vec<CopiedImage>,
    /// Those that are not, because they cannot be read.
    pub damaged: Vec<UncopiedImage>,
}

/// An image that is in the other store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CopiedImage {
    /// Its id, in both stores.
    pub image: ImageId,
    /// Its job.
    pub job: String,
    /// Whether it was there before, and nothing of it was missing.
    pub there: bool,
    /// How many chunks it brought that the other store did not have.
    pub chunks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// What they take there, compressed as they are.
    pub written: u64,
}

/// An image that could not be copied.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct UncopiedImage {
    /// Its id.
    pub image: ImageId,
    /// What is wrong with it.
    pub problem: String,
}

impl Store {
    /// What [`Store::copy_to`] would do to `to`, which need not exist yet. Changes nothing.
    ///
    /// # Errors
    /// [`CopyError::Source`] where an index or a folder cannot be read.
    pub fn would_copy_to(&self, to: Option<&Store>, images: &[ImageId]) -> Result<CopyReport, CopyError> {
        let map = ChunkMap::load(self).map_err(CopyError::Source)?;
        let mut there = match to {
            Some(to) => ChunkMap::load(to).map_err(WriteError::from)?.usable(to).map_err(WriteError::from)?,
            None => HashSet::new(),
        };
        let mut report = CopyReport::default();
        for image in images {
            let (manifest, _) = match self.manifest_file(image) {
                Ok(found) => found,
                Err(error) => {
                    report.damaged.push(UncopiedImage { image: *image, problem: error.to_string() });
                    continue;
                }
            };
            let mut copied = CopiedImage::of(&manifest);
            for (chunk, len) in lacking(&manifest, &there) {
                // One that no index knows will be damage; it is not known how long its frame was.
                copied.count(len, map.places(&chunk).next().map_or(0, |place| place.entry.frame_len));
                there.insert(chunk);
            }
            copied.there = copied.chunks == 0 && to.is_some_and(|to| to.manifest(image).is_ok());
            report.images.push(copied);
        }
        Ok(report)
    }

    /// Copies images into another store, in this order. Of one that is there already, what is missing is copied. One that cannot be read is
    /// told of, and the others are copied all the same. `progress` is told of each frame's length.
    ///
    /// Both stores may be in use: what is removed meanwhile, on either side, is not freed before this ends.
    ///
    /// # Errors
    /// [`CopyError::Source`] where a folder cannot be read, [`CopyError::Target`] where the other store cannot be written. Images that have
    /// been copied before that are there.
    pub fn copy_to(
        &self,
        to: &Store,
        images: &[ImageId],
        options: &CopyOptions,
        progress: &mut dyn FnMut(u64),
    ) -> Result<CopyReport, CopyError> {
        let mut copier = Copier::new(self, to, options)?;
        let mut report = CopyReport::default();
        for image in images {
            match copier.copy(image, progress) {
                Ok(copied) => report.images.push(copied),
                Err(CopyError::Source(error)) => {
                    tracing::warn!("image {image} cannot be copied: {error}");
                    report.damaged.push(UncopiedImage { image: *image, problem: error.to_string() });
                }
                Err(error) => return Err(error),
            }
        }
        Ok(report)
    }

    /// A manifest, and the bytes that it is read from.
    fn manifest_file(&self, image: &ImageId) -> Result<(Manifest, Vec<u8>), ReadError> {
        let manifest = self.manifest(image)?;
        let path = layout::image(*image);
        let bytes = self.on("read", &path, |media| {
            let file = media.open(&path)?;
            let mut bytes = vec![0; usize::try_from(file.len()?).unwrap_or(usize::MAX)];
            file.read_exact_at(&mut bytes, 0)?;
            Ok(bytes)
        })?;
        Ok((manifest, bytes))
    }
}

impl CopiedImage {
    fn of(manifest: &Manifest) -> Self {
        let (image, job) = (manifest.id, manifest.job.clone());
        Self { image, job, there: false, chunks: 0, bytes: 0, written: 0 }
    }

    fn count(&mut self, plain_len: u32, frame_len: u32) {
        self.chunks += 1;
        self.bytes += u64::from(plain_len);
        self.written += u64::from(frame_len);
    }
}

/// The chunks of an image that are not `there`, once each, with their lengths.
fn lacking(manifest: &Manifest, there: &HashSet<ChunkId>) -> BTreeMap<ChunkId, u32> {
    manifest.chunks().filter(|(chunk, _)| !there.contains(chunk)).collect()
}

/// Two stores, between which images are copied.
struct Copier<'a> {
    from: &'a Store,
    to: &'a Store,
    options: &'a CopyOptions,
    fetcher: Fetcher,
    target: Target,
    /// Held as long: what is there stays there. None of the first where its medium cannot lock, where nothing can be removed either.
    _shares: (Option<MediaLock>, MediaLock),
}

/// What the other store has: what its indexes said at first, and what was copied since.
struct Target {
    map: ChunkMap,
    /// Those of its chunks that can be used.
    there: HashSet<ChunkId>,
}

/// A chunk on its way: its entry, and its frame.
type Frame = Result<(Entry, Vec<u8>), ReadError>;

impl Target {
    fn load(store: &Store) -> Result<Self, WriteError> {
        let map = ChunkMap::load(store)?;
        let there = map.usable(store)?;
        Ok(Self { map, there })
    }

    fn add(&mut self, pack: PackIndex) {
        self.there.extend(pack.entries.iter().map(|entry| entry.id));
        self.map.add(pack);
    }
}

impl<'a> Copier<'a> {
    fn new(from: &'a Store, to: &'a Store, options: &'a CopyOptions) -> Result<Self, CopyError> {
        let share = |store: &Store| store.on("lock", layout::CONFIG, |media| media.share(layout::CONFIG));
        let shares = (
            from.share_to_read().map_err(|error| CopyError::Source(error.into()))?,
            share(to).map_err(WriteError::from)?,
        );
        let fetcher = Fetcher::new(from.clone(), ChunkMap::load(from).map_err(CopyError::Source)?);
        Ok(Self { from, to, options, fetcher, target: Target::load(to)?, _shares: shares })
    }

    fn copy(&mut self, image: &ImageId, progress: &mut dyn FnMut(u64)) -> Result<CopiedImage, CopyError> {
        let (manifest, file) = self.from.manifest_file(image).map_err(CopyError::Source)?;
        let mut copied = CopiedImage::of(&manifest);
        let wanted = self.wanted(&manifest)?;
        let is_listed = self.has_manifest(image)?;
        if wanted.is_empty() && is_listed {
            // Who gave it its name may not have made that durable.
            self.to
                .on("sync", layout::IMAGES, |media| media.sync_folder(layout::IMAGES))
                .map_err(WriteError::from)?;
            return Ok(CopiedImage { there: true, ..copied });
        }
        let draft = self.to.begin()?;
        self.copy_chunks(&draft, &manifest, &wanted, &mut |entry: &Entry| {
            copied.count(entry.plain_len, entry.frame_len);
            progress(entry.frame_len.into());
        })?;
        if is_listed {
            draft.sync_folder(layout::IMAGES)?;
        } else {
            draft.publish_copy(&manifest, &file, &self.target.map)?;
        }
        Ok(copied)
    }

    /// Whether the other store lists the image. One that is damaged there is not in the way of a good one.
    fn has_manifest(&self, image: &ImageId) -> Result<bool, WriteError> {
        match self.to.manifest(image) {
            Ok(_) => Ok(true),
            Err(ReadError::NoImage { .. }) => Ok(false),
            Err(error) if error.is_newer() => Err(error.into()),
            Err(ReadError::File { .. } | ReadError::WrongName { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// The chunks of an image that the other store lacks, with their lengths and a place of each, in the order in which they lie in packs.
    fn wanted(&self, manifest: &Manifest) -> Result<Vec<(ChunkId, u32, Place)>, CopyError> {
        let place = |(chunk, len)| match self.fetcher.map().places(&chunk).next() {
            Some(place) => Ok((chunk, len, *place)),
            None => Err(chunk_error(manifest, &chunk, self.fetcher.not_indexed(&chunk))),
        };
        let wanted =
            lacking(manifest, &self.target.there).into_iter().map(place).collect::<Result<Vec<_>, _>>();
        let mut wanted = wanted.map_err(CopyError::Source)?;
        wanted.sort_by_key(|(_, _, place)| (place.pack, place.offset));
        Ok(wanted)
    }

    /// Lets threads read and check chunks, and publishes what they have read.
    fn copy_chunks(
        &mut self,
        draft: &Draft,
        manifest: &Manifest,
        wanted: &[(ChunkId, u32, Place)],
        told: &mut dyn FnMut(&Entry),
    ) -> Result<(), CopyError> {
        if wanted.is_empty() {
            return Ok(());
        }
        let Self { to, options, fetcher, target, .. } = self;
        let threads = options.threads.max(1);
        let queue = Mutex::new(wanted.iter());
        let (send, receive) = sync_channel(threads);
        std::thread::scope(|scope| {
            for _ in 0..threads {
                let (send, queue, fetcher) = (send.clone(), &queue, &*fetcher);
                scope.spawn(move || read_chunks(fetcher, manifest, queue, &send));
            }
            drop(send);
            // Where this ends early the threads find nobody who takes what they have, and end too.
            write_packs((to, draft, options.pack_len.min(3 << 30)), target, receive, told)
        })
    }
}

/// A thread that reads chunks and checks them whole.
fn read_chunks<'b>(
    fetcher: &Fetcher,
    manifest: &Manifest,
    queue: &Mutex<impl Iterator<Item = &'b (ChunkId, u32, Place)>>,
    frames: &SyncSender<Frame>,
) {
    let (mut scratch, mut plain) = (Scratch::default(), Vec::new());
    let next = || queue.lock().unwrap_or_else(PoisonError::into_inner).next();
    while let Some((chunk, len, _)) = next() {
        plain.resize(*len as usize, 0);
        let frame = match fetcher.fetch(chunk, &mut plain, &mut scratch) {
            Ok(entry) if entry.codec == Codec::Plain => Ok((entry, plain.clone())),
            Ok(entry) => Ok((entry, scratch.frame().to_owned())),
            Err(problem) => Err(chunk_error(manifest, chunk, problem)),
        };
        if frames.send(frame).is_err() {
            return;
        }
    }
}

/// Writes what has been read into packs, each of which is the target's as soon as it is full.
fn write_packs(
    (to, draft, pack_len): (&Store, &Draft, u64),
    target: &mut Target,
    frames: Receiver<Frame>,
    told: &mut dyn FnMut(&Entry),
) -> Result<(), CopyError> {
    let mut index = Index { image: draft.id(), packs: Vec::new() };
    let mut open: Option<OpenPack> = None;
    for frame in frames {
        let (entry, frame) = frame.map_err(CopyError::Source)?;
        let pack = match &mut open {
            Some(pack) => pack,
            none => none.insert(OpenPack::create(to, draft.id())?),
        };
        pack.append(entry, &frame)?;
        told(&entry);
        if let Some(full) = open.take_if(|pack| pack.is_full(pack_len)) {
            target.add(draft.add_pack(full.seal()?, &mut index)?);
        }
    }
    if let Some(last) = open {
        target.add(draft.add_pack(last.seal()?, &mut index)?);
    }
    Ok(())
}

impl Draft {
    /// Publishes one more pack, and the index that names it with those before it.
    fn add_pack(&self, pack: PackIndex, index: &mut Index) -> Result<PackIndex, WriteError> {
        index.packs.push(pack.clone());
        let image = index.image;
        let bytes = index.to_bytes().map_err(|error| WriteError::Format { what: "index", image, error })?;
        self.write_durably(&layout::draft_index(image), &bytes)?;
        self.check_packs(std::slice::from_ref(&pack))?;
        self.publish_index(std::slice::from_ref(&pack))?;
        Ok(pack)
    }

    /// Publishes the manifest of an image of another store, all of whose chunks are in `stored`.
    fn publish_copy(&self, manifest: &Manifest, file: &[u8], stored: &ChunkMap) -> Result<(), WriteError> {
        check_chunks(&manifest.objects, &[], stored)?;
        self.write_durably(&layout::draft_manifest(self.id()), file)?;
        // What was found there may be in an index that nobody has synced yet.
        self.sync_folder(layout::INDEX)?;
        // If that fails it is not taken back: it may be another copier's, and is whole.
        self.name_manifest(manifest.id)
    }
}
