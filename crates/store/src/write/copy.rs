//! Copying images from one store into another: what the other lacks, in the frames in which it is stored.
//!
//! An image keeps its id and its manifest, byte for byte. So a copy of it that is there is the same, and a copy that was cut off goes on
//! where it was: each pack is published with an index as soon as it is full, and only then whoever wrote it begins the next one. Draft and index have an id
//! of their own: what another copier of the same image does, or has left, is in nobody's way.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::channel;

use image::{ChunkId, Entry, ImageId, Index, Manifest, PackIndex};
use serde::Serialize;

use super::Draft;
use super::carry::{Carrying, Unread};
use super::draft::check_chunks;
use super::packing::WORTH_ANOTHER;
use crate::chunk_map::{ChunkMap, Place, Usable};
use crate::condemned::Barred;
use crate::media::MediaLock;
use crate::read::{Fetcher, chunk_error};
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
    /// Those that are not, because somebody has removed them meanwhile.
    pub gone: Vec<ImageId>,
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
            Some(to) => {
                let map = ChunkMap::load(to).map_err(WriteError::from)?;
                map.usable(to, &Barred::none()).map_err(WriteError::from)?
            }
            None => Usable::new(),
        };
        let mut report = CopyReport::default();
        for image in images {
            let (manifest, _) = match self.manifest_file(image) {
                Ok(found) => found,
                Err(error) => {
                    report.leave_out(self, *image, &error);
                    continue;
                }
            };
            let mut copied = CopiedImage::of(&manifest);
            for (chunk, len) in lacking(&manifest, &there) {
                // One that no index knows will be damage; it is not known how long its frame was.
                copied.count(len, map.places(&chunk).next().map_or(0, |place| place.entry.frame_len));
                there.insert(chunk, len);
            }
            copied.there = copied.chunks == 0 && to.is_some_and(|to| to.manifest(image).is_ok());
            report.images.push(copied);
        }
        Ok(report)
    }

    /// Copies images into another store, in this order. Of one that is there already, what is missing is copied. One that cannot be read, or has gone, is
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
                Err(CopyError::Source(error)) => report.leave_out(self, *image, &error),
                Err(error) => return Err(error),
            }
        }
        Ok(report)
    }

    /// A manifest, and the bytes that it is read from.
    pub(super) fn manifest_file(&self, image: &ImageId) -> Result<(Manifest, Vec<u8>), ReadError> {
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

impl CopyReport {
    /// Notes an image that is not copied.
    fn leave_out(&mut self, from: &Store, image: ImageId, error: &ReadError) {
        // One that has gone while it was read looks like damage.
        match from.manifest(&image) {
            Err(ReadError::NoImage { .. }) => self.gone.push(image),
            _ => self.damaged.push(UncopiedImage { image, problem: error.to_string() }),
        }
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
fn lacking(manifest: &Manifest, there: &Usable) -> BTreeMap<ChunkId, u32> {
    manifest.chunks().filter(|(chunk, _)| !there.contains_key(chunk)).collect()
}

/// Two stores, between which images are copied.
pub(super) struct Copier {
    pub(super) from: Store,
    pub(super) to: Store,
    options: CopyOptions,
    pub(super) fetcher: Fetcher,
    pub(super) target: Target,
    /// Held as long: what is there stays there. None of the first where that cannot be had.
    _shares: (Option<MediaLock>, MediaLock),
}

/// What the other store has: what its indexes said at first, and what was copied since.
#[derive(Default)]
pub(super) struct Target {
    pub(super) map: ChunkMap,
    /// Those of its chunks that can be used.
    pub(super) there: Usable,
}

/// Chunks that are to be copied, with their lengths and a place of each.
pub(super) type Wanted = Vec<(ChunkId, u32, Place)>;

impl Target {
    fn load(store: &Store) -> Result<Self, WriteError> {
        let map = ChunkMap::load(store)?;
        let there = map.usable(store, &Barred::none())?;
        Ok(Self { map, there })
    }

    pub(super) fn add(&mut self, pack: PackIndex) {
        self.there.extend(pack.entries.iter().map(|entry| (entry.id, entry.plain_len)));
        self.map.add(pack);
    }
}

impl Copier {
    pub(super) fn new(from: &Store, to: &Store, options: &CopyOptions) -> Result<Self, CopyError> {
        let shares = (
            from.share_to_read().map_err(|error| CopyError::Source(error.into()))?,
            to.share().map_err(WriteError::from)?,
        );
        let fetcher = Fetcher::new(from.clone(), ChunkMap::load(from).map_err(CopyError::Source)?);
        let (target, options) = (Target::load(to)?, options.clone());
        Ok(Self { from: from.clone(), to: to.clone(), options, fetcher, target, _shares: shares })
    }

    /// For who copies within a store as if nothing were there.
    pub(super) fn within(store: &Store, options: &CopyOptions) -> Result<Self, WriteError> {
        Ok(Self {
            from: store.clone(),
            to: store.clone(),
            options: options.clone(),
            fetcher: Fetcher::new(store.clone(), ChunkMap::default()),
            target: Target::default(),
            _shares: (None, store.share()?),
        })
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
        let mut index = Index { image: draft.id(), packs: Vec::new() };
        let told = &mut |entry: &Entry| {
            copied.count(entry.plain_len, entry.frame_len);
            progress(entry.frame_len.into());
        };
        self.copy_all((&draft, &mut index), &manifest, wanted, told)?;
        if is_listed {
            draft.sync_folder(layout::IMAGES)?;
        } else {
            draft.write_manifest(&file)?;
            draft.complete_copy(&manifest, &self.target.map)?;
            // If that fails it is not taken back: it may be another copier's, and is whole.
            draft.name_manifest(*image)?;
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

    /// The chunks of an image that the other store lacks, in the order in which they lie in packs.
    pub(super) fn wanted(&self, manifest: &Manifest) -> Result<Wanted, CopyError> {
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

    /// Copies chunks of an image, all of which can be read.
    pub(super) fn copy_all(
        &mut self,
        draft: (&Draft, &mut Index),
        manifest: &Manifest,
        wanted: Wanted,
        told: &mut dyn FnMut(&Entry),
    ) -> Result<(), CopyError> {
        let damaged =
            |chunk: &ChunkId, problem| Err(CopyError::Source(chunk_error(manifest, chunk, problem)));
        self.copy_chunks(draft, wanted, (&damaged, &AtomicBool::new(false)), told)
    }

    /// Lets threads read and check chunks, until they are to stop, and publishes what they have read.
    pub(super) fn copy_chunks(
        &mut self,
        (draft, index): (&Draft, &mut Index),
        wanted: Wanted,
        (unread, stop): (&Unread<'_>, &AtomicBool),
        told: &mut dyn FnMut(&Entry),
    ) -> Result<(), CopyError> {
        if wanted.is_empty() {
            return Ok(());
        }
        let Self { to, options, fetcher, target, .. } = self;
        let pack_len = options.pack_len.min(3 << 30);
        let bytes: u64 = wanted.iter().map(|(.., place)| u64::from(place.entry.frame_len)).sum();
        // What is little goes into one.
        let beside = to.media().side_by_side().saturating_sub(1).min((bytes / WORTH_ANOTHER) as usize);
        let (carrying, read) =
            Carrying::new((to, draft, pack_len), (index, target), wanted, (options.threads, unread, stop));
        let (tell, others) = channel();
        std::thread::scope(|scope| {
            let (carrying, fetcher) = (&carrying, &*fetcher);
            for read in read {
                scope.spawn(move || carrying.read(fetcher, &read));
            }
            for _ in 0..beside {
                let tell = tell.clone();
                scope.spawn(move || {
                    carrying.write(&mut |entry| {
                        // Whoever is told ends after this.
                        let _ = tell.send(*entry);
                    });
                });
            }
            carrying.write(&mut |entry| {
                told(entry);
                others.try_iter().for_each(|entry| told(&entry));
            });
        });
        drop(tell);
        others.iter().for_each(|entry| told(&entry));
        carrying.outcome()
    }
}

impl Draft {
    /// Publishes more packs, and the index that names them with those before. Where that fails the index has them no more, and must not be published again: some of
    /// these may be named.
    pub(super) fn add_packs(&self, packs: &[PackIndex], index: &mut Index) -> Result<(), WriteError> {
        let before = index.packs.len();
        index.packs.extend_from_slice(packs);
        let published = self.publish_more(packs, index);
        if published.is_err() {
            index.packs.truncate(before);
        }
        published
    }

    fn publish_more(&self, packs: &[PackIndex], index: &Index) -> Result<(), WriteError> {
        let image = index.image;
        let bytes = index.to_bytes().map_err(|error| WriteError::Format { what: "index", image, error })?;
        self.write_durably(&layout::draft_index(image), &bytes)?;
        self.check_packs(packs)?;
        self.publish_index(packs)
    }

    /// Writes the manifest of an image of another store.
    pub(super) fn write_manifest(&self, file: &[u8]) -> Result<(), WriteError> {
        self.write_durably(&layout::draft_manifest(self.id()), file)
    }

    /// Looks whether all chunks of an image of another store are `stored`, and will be: after that it can have its name.
    pub(super) fn complete_copy(&self, manifest: &Manifest, stored: &ChunkMap) -> Result<(), WriteError> {
        check_chunks(&manifest.objects, &[], |chunk| stored.plain_len(chunk))?;
        // What was found there may be in an index that nobody has synced yet.
        self.sync_folder(layout::INDEX)
    }
}
