//! One image, open for a restart.

use std::fs::File;
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use image::{CHUNK_SIZE, ChunkId, Codec, Extent, ImageId, Machine, Manifest, Object, ObjectKind};

use super::arrival::Arrival;
use super::fetch::{Fetcher, Scratch};
use crate::chunk_map::ChunkMap;
use crate::error::describe;
use crate::media::MediaLock;
use crate::{ReadError, Store};

/// An image, open. Every byte that comes out of it is checked against its chunk's identity first, unless it is [trusted](Self::trusted), or
/// whoever reads does that himself ([`ChunkReader::read_unproven`]).
/// Cheap to clone.
#[derive(Debug, Clone)]
pub struct Image {
    manifest: Arc<Manifest>,
    fetcher: Arc<Fetcher>,
    threads: usize,
    trusted: bool,
    /// Held as long as the image is open: its chunks stay. None where that cannot be had: what is written anew meanwhile is looked for.
    _share: Option<Arc<MediaLock>>,
}

/// Reads an image's chunks one at a time, in whatever order they are asked for; for one thread.
#[derive(Debug)]
pub struct ChunkReader {
    image: Image,
    scratch: Scratch,
}

impl ChunkReader {
    /// Fills `plain`, which is as long, with the chunk of `object` at `offset`.
    ///
    /// # Errors
    /// [`ReadError::Chunk`].
    pub fn read(
        &mut self,
        object: &Object,
        offset: u64,
        id: &ChunkId,
        plain: &mut [u8],
    ) -> Result<(), ReadError> {
        let fetched = self.image.fetcher.fetch(id, plain, &mut self.scratch);
        fetched.map(drop).map_err(|problem| bad_chunk(object, offset, problem))
    }

    /// The same, but a chunk that is stored as it is may come as it is read: then whoever asks has to [compare](Proof::Owed) it.
    ///
    /// # Errors
    /// [`ReadError::Chunk`].
    pub fn read_unproven(
        &mut self,
        object: &Object,
        offset: u64,
        id: &ChunkId,
        plain: &mut [u8],
    ) -> Result<Proof, ReadError> {
        self.scratch.trusting = true;
        let fetched = self.image.fetcher.fetch(id, plain, &mut self.scratch);
        self.scratch.trusting = self.image.trusted;
        let entry = fetched.map_err(|problem| bad_chunk(object, offset, problem))?;
        let is_checked = entry.codec != Codec::Plain || self.image.trusted;
        Ok(if is_checked { Proof::Given } else { Proof::Owed })
    }
}

/// Whether bytes are known to be the chunk that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Proof {
    /// They are.
    Given,
    /// They are what one copy in the store holds, and as many. What does not have the chunk's identity is of no use: [`ChunkReader::read`] looks for a
    /// better copy.
    Owed,
}

/// A part of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// These bytes, at most [`CHUNK_SIZE`] of them.
    Bytes(&'a [u8]),
    /// So many zeros.
    Zeros(u64),
}

impl Store {
    /// Opens an image for a restart on this machine.
    ///
    /// # Errors
    /// As [`Store::manifest`], and [`ReadError::WrongMachine`].
    pub fn open_image(&self, id: &ImageId) -> Result<Image, ReadError> {
        self.open_foreign_image(id)?.of_this_machine()
    }

    /// Opens an image for a restart on this machine that may still be on its way here, by a [`Delivery`](crate::Delivery): what has not come is waited for.
    ///
    /// # Errors
    /// As [`Store::open_image`].
    pub fn open_arriving(&self, id: &ImageId) -> Result<Image, ReadError> {
        let share = self.share_to_read()?.map(Arc::new);
        let Some((arrival, manifest)) = Arrival::find(self, id)? else { return self.open_image(id) };
        let fetcher = Fetcher::new(self.clone(), ChunkMap::load(self)?).awaiting(arrival);
        Image::of(manifest, fetcher, share).of_this_machine()
    }

    /// Opens an image of whatever machine, to look into it.
    ///
    /// # Errors
    /// As [`Store::manifest`].
    pub fn open_foreign_image(&self, id: &ImageId) -> Result<Image, ReadError> {
        let share = self.share_to_read()?.map(Arc::new);
        let manifest = self.manifest(id)?;
        // After the manifest: the indexes are then at least as new.
        Ok(Image::of(manifest, Fetcher::new(self.clone(), ChunkMap::load(self)?), share))
    }
}

impl Image {
    fn of(manifest: Manifest, fetcher: Fetcher, share: Option<Arc<MediaLock>>) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(16);
        let (manifest, fetcher) = (Arc::new(manifest), Arc::new(fetcher));
        Self { manifest, fetcher, threads, trusted: false, _share: share }
    }

    fn of_this_machine(self) -> Result<Self, ReadError> {
        match self.manifest.machine {
            Machine::HOST => Ok(self),
            found => Err(ReadError::WrongMachine { image: self.manifest.id, found, host: Machine::HOST }),
        }
    }

    /// Waits until an image that was [on its way](Store::open_arriving) is there, whole and with its name.
    ///
    /// # Errors
    /// [`ReadError::NotCome`].
    pub fn await_arrival(&self) -> Result<(), ReadError> {
        self.fetcher.arrival().map_or(Ok(()), Arrival::await_name)
    }

    /// Everything about the image but its bytes.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The object of kind `kind`.
    ///
    /// # Errors
    /// [`ReadError::NoObject`].
    pub fn object(&self, kind: &ObjectKind) -> Result<&Object, ReadError> {
        let none = || ReadError::NoObject { image: self.manifest.id, kind: kind.clone() };
        self.manifest.object(kind).ok_or_else(none)
    }

    /// A whole small object: its bytes, of which there are at most `limit`.
    ///
    /// # Errors
    /// [`ReadError::NoObject`], [`ReadError::ObjectLength`], [`ReadError::Chunk`].
    pub fn read_to_vec(&self, kind: &ObjectKind, limit: usize) -> Result<Vec<u8>, ReadError> {
        let object = self.object(kind)?;
        let found = object.len();
        match usize::try_from(found) {
            Ok(len) if len <= limit => {
                let mut bytes = vec![0; len];
                self.read_into(kind, &mut bytes)?;
                Ok(bytes)
            }
            _ => Err(self.wrong_length(kind, limit as u64, found)),
        }
    }

    /// Fills `bytes`, which must be exactly as long as the object, several threads at a time.
    ///
    /// # Errors
    /// [`ReadError::NoObject`], [`ReadError::ObjectLength`], [`ReadError::Chunk`].
    pub fn read_into(&self, kind: &ObjectKind, bytes: &mut [u8]) -> Result<(), ReadError> {
        let object = self.object(kind)?;
        if object.len() != bytes.len() as u64 {
            return Err(self.wrong_length(kind, bytes.len() as u64, object.len()));
        }
        let mut rest = bytes;
        let parts = object.placed_extents().map(|(offset, extent)| {
            let len = usize::try_from(extent.len()).unwrap_or(usize::MAX).min(rest.len());
            let (part, after) = std::mem::take(&mut rest).split_at_mut(len);
            rest = after;
            (offset, *extent, part)
        });
        self.in_parallel(object, parts, |scratch, _, (offset, extent, part)| match extent {
            Extent::Zero { .. } => {
                part.fill(0);
                Ok(())
            }
            Extent::Chunk { id, .. } => {
                self.fetcher
                    .fetch(&id, part, scratch)
                    .map_err(|problem| bad_chunk(object, offset, problem))?;
                Ok(())
            }
        })
    }

    /// Hands the object's pieces to `sink`, each with its offset, in no order and from several threads at a time.
    ///
    /// # Errors
    /// [`ReadError::NoObject`], [`ReadError::Chunk`], and [`ReadError::Sink`] with what `sink` said.
    pub fn for_each_piece(
        &self,
        kind: &ObjectKind,
        sink: impl Fn(u64, Piece<'_>) -> io::Result<()> + Sync,
    ) -> Result<(), ReadError> {
        let object = self.object(kind)?;
        let parts = object.placed_extents().map(|(offset, extent)| (offset, *extent));
        self.in_parallel(object, parts, |scratch, plain, (offset, extent)| {
            let piece = self.piece(object, (offset, &extent), plain, scratch)?;
            sink(offset, piece).map_err(|error| sink_error(object, offset, error))
        })
    }

    /// Has the medium get what `wanted` names ready, in order, for whoever reads it later: so many bytes at most. May take as long as reading it, and
    /// ends at once when nobody else has the image open any more.
    pub fn read_ahead(&self, wanted: impl Fn(&ObjectKind) -> bool, mut most: u64) {
        let objects = self.manifest.objects.iter().filter(|object| wanted(&object.kind));
        for extent in objects.flat_map(|object| &object.extents) {
            let Extent::Chunk { id, .. } = extent else { continue };
            if Arc::strong_count(&self.fetcher) == 1 {
                return;
            }
            let Some(left) = most.checked_sub(self.fetcher.will_fetch(id)) else { return };
            most = left;
        }
    }

    /// A reader of single chunks. The image stays open as long as it lives.
    #[must_use]
    pub fn chunks(&self) -> ChunkReader {
        ChunkReader { image: self.clone(), scratch: Scratch::trusting(self.trusted) }
    }

    /// The same image, whose uncompressed chunks a [`ChunkReader`] takes as they are: for a store in memory that nobody else has had.
    #[must_use]
    pub fn trusted(self) -> Self {
        Self { trusted: true, ..self }
    }

    /// Whether it is [trusted](Self::trusted).
    #[must_use]
    pub fn is_trusted(&self) -> bool {
        self.trusted
    }

    /// How many threads are good for reading on this machine.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Makes `file`'s content the object's, with holes where that is zero, several threads at a time. `advance` is told of each
    /// piece that is not how long it is.
    ///
    /// # Errors
    /// As [`Image::for_each_piece`].
    pub fn copy_to_file(
        &self,
        kind: &ObjectKind,
        file: &File,
        advance: impl Fn(u64) + Sync,
    ) -> Result<u64, ReadError> {
        let object = self.object(kind)?;
        let len = object.len();
        let sized = file.set_len(0).and_then(|()| file.set_len(len));
        sized.map_err(|error| sink_error(object, 0, error))?;
        self.for_each_piece(kind, |offset, piece| match piece {
            Piece::Bytes(bytes) => {
                file.write_all_at(bytes, offset)?;
                advance(bytes.len() as u64);
                Ok(())
            }
            Piece::Zeros(_) => Ok(()),
        })?;
        Ok(len)
    }

    /// Writes the object to `sink` from front to back, and says how many bytes that were. A few chunks at a time are read ahead.
    ///
    /// # Errors
    /// As [`Image::for_each_piece`].
    pub fn copy_to(&self, kind: &ObjectKind, sink: impl Write) -> Result<u64, ReadError> {
        self.copy_range_to(kind, 0..u64::MAX, sink)
    }

    /// As [`Image::copy_to`], of what the object has in `range` only. Other chunks are not read; of one that is damaged all before it has been written.
    ///
    /// # Errors
    /// As [`Image::for_each_piece`].
    pub fn copy_range_to(
        &self,
        kind: &ObjectKind,
        range: Range<u64>,
        mut sink: impl Write,
    ) -> Result<u64, ReadError> {
        let object = self.object(kind)?;
        let cut = |(offset, extent): (u64, &Extent)| {
            let wanted = range.start.max(offset)..range.end.min(offset.saturating_add(extent.len()));
            (wanted.start < wanted.end).then_some((offset, *extent, wanted))
        };
        let extents: Vec<_> = object.placed_extents().filter_map(cut).collect();
        let mut written = 0;
        let mut window: Vec<(Vec<u8>, Result<(), ReadError>)> = Vec::new();
        window.resize_with(2 * self.threads_for(object), || (Vec::new(), Ok(())));
        for extents in extents.chunks(window.len()) {
            let parts = extents.iter().zip(&mut window).enumerate();
            // The first that cannot be read: what is behind it nobody needs, what is before it is read to the end.
            let end = AtomicUsize::new(usize::MAX);
            self.in_parallel(object, parts, |scratch, _, (number, ((offset, extent, _), (plain, read)))| {
                if let Extent::Chunk { id, len } = extent
                    && number < end.load(Ordering::Relaxed)
                {
                    *read = self.chunk(object, *offset, id, *len, plain, scratch).map(drop);
                    if read.is_err() {
                        end.fetch_min(number, Ordering::Relaxed);
                    }
                }
                Ok(())
            })?;
            for ((offset, extent, wanted), (plain, read)) in extents.iter().zip(&mut window) {
                std::mem::replace(read, Ok(()))?;
                let len = wanted.end - wanted.start;
                let done = match extent {
                    Extent::Zero { .. } => io::copy(&mut io::repeat(0).take(len), &mut sink).map(drop),
                    Extent::Chunk { .. } => {
                        // Within a chunk, so it fits.
                        let part = (wanted.start - offset) as usize..(wanted.end - offset) as usize;
                        sink.write_all(plain.get(part).unwrap_or_default())
                    }
                };
                done.map_err(|error| sink_error(object, wanted.start, error))?;
                written += len;
            }
        }
        Ok(written)
    }

    /// Runs `work` on every part, with a thread's scratch memory, until one fails. (`host::by_threads` does so for files and memory; the two crates have
    /// no other in common.)
    fn in_parallel<T: Send>(
        &self,
        object: &Object,
        parts: impl Iterator<Item = T> + Send,
        work: impl Fn(&mut Scratch, &mut Vec<u8>, T) -> Result<(), ReadError> + Sync,
    ) -> Result<(), ReadError> {
        let (parts, stop, failure) = (Mutex::new(parts), AtomicBool::new(false), Mutex::new(None));
        let run = || {
            let (mut scratch, mut plain) = (Scratch::default(), Vec::new());
            while let Some(part) = next(&parts, &stop) {
                if let Err(error) = work(&mut scratch, &mut plain, part) {
                    stop.store(true, Ordering::Relaxed);
                    failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 1..self.threads_for(object) {
                // Where there may be no more threads, those that there are do it.
                let _ = std::thread::Builder::new().spawn_scoped(scope, run);
            }
            run();
        });
        failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// No more threads than there are parts.
    fn threads_for(&self, object: &Object) -> usize {
        self.threads.min(object.extents.len()).max(1)
    }

    /// Fetches a piece, into `plain` if it has bytes.
    fn piece<'a>(
        &self,
        object: &Object,
        (offset, extent): (u64, &Extent),
        plain: &'a mut Vec<u8>,
        scratch: &mut Scratch,
    ) -> Result<Piece<'a>, ReadError> {
        Ok(match extent {
            Extent::Zero { len } => Piece::Zeros(*len),
            Extent::Chunk { id, len } => Piece::Bytes(self.chunk(object, offset, id, *len, plain, scratch)?),
        })
    }

    /// Fetches a chunk into `plain`.
    fn chunk<'a>(
        &self,
        object: &Object,
        offset: u64,
        id: &image::ChunkId,
        len: u32,
        plain: &'a mut Vec<u8>,
        scratch: &mut Scratch,
    ) -> Result<&'a [u8], ReadError> {
        let len = (len as usize).min(CHUNK_SIZE);
        if plain.len() < len {
            *plain = vec![0; len];
        }
        let plain = &mut plain[..len];
        self.fetcher.fetch(id, plain, scratch).map_err(|problem| bad_chunk(object, offset, problem))?;
        Ok(plain)
    }

    fn wrong_length(&self, kind: &ObjectKind, expected: u64, found: u64) -> ReadError {
        ReadError::ObjectLength { image: self.manifest.id, kind: kind.clone(), expected, found }
    }
}

/// The next part, unless all is over.
fn next<T>(parts: &Mutex<impl Iterator<Item = T>>, stop: &AtomicBool) -> Option<T> {
    if stop.load(Ordering::Relaxed) {
        return None;
    }
    parts.lock().unwrap_or_else(PoisonError::into_inner).next()
}

fn bad_chunk(object: &Object, offset: u64, problem: String) -> ReadError {
    ReadError::Chunk { object: describe(&object.kind), offset, problem }
}

/// That a chunk of an image cannot be had, which concerns the first object that has it.
pub(crate) fn chunk_error(manifest: &Manifest, chunk: &ChunkId, problem: String) -> ReadError {
    let places = manifest
        .objects
        .iter()
        .flat_map(|object| object.placed_extents().map(move |(offset, extent)| (object, offset, extent)));
    let is_it = |extent: &Extent| matches!(extent, Extent::Chunk { id, .. } if id == chunk);
    match places.into_iter().find(|(_, _, extent)| is_it(extent)) {
        Some((object, offset, _)) => bad_chunk(object, offset, problem),
        None => ReadError::Chunk { object: "nothing".to_owned(), offset: 0, problem },
    }
}

fn sink_error(object: &Object, offset: u64, error: io::Error) -> ReadError {
    ReadError::Sink { object: describe(&object.kind), offset, error }
}
