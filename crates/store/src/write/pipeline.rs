//! The writer's threads: several that hash and compress, a few that write packs, one that makes them durable. Between them are
//! bounded queues: the slowest sets the pace, and memory stays within a few chunks per thread.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::File;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use image::chunk::{Encoder, is_zero};
use image::{CHUNK_SIZE, ChunkId, Codec, Entry, Extent, ImageId, Object, ObjectKind, PackIndex, StoredBytes};

use super::pace::Pace;
use super::pack::abandoned;
use super::packing::Packing;
use super::room::{Room, Ticket};
use super::{ObjectWriter, Receipt, WriteOptions};
use crate::chunk_map::{self, ChunkMap, Usable};
use crate::condemned::Barred;
use crate::read::{Fetcher, Scratch};
use crate::{Store, WriteError, layout};

/// Writes objects into a draft. Any number of writers, in any number of processes, may join one draft; each has packs of its own.
///
/// Several threads may write objects at once. What one of them waits for is only room in the queues.
pub struct ChunkWriter {
    image: ImageId,
    in_memory: bool,
    shared: Arc<Shared>,
    /// There until the writer ends.
    threads: Option<Threads>,
}

struct Threads {
    chunks: SyncSender<Chunk>,
    hashers: Vec<JoinHandle<()>>,
    packing: Packing,
}

/// Room for one chunk.
pub(super) struct Buffer {
    bytes: Box<[u8]>,
    filled: usize,
}

/// A chunk with its place: the object's number, and the extent's in the object.
struct Chunk {
    object: usize,
    extent: usize,
    plain: Buffer,
    ticket: Ticket,
}

/// A frame on its way into a pack.
pub(super) enum Frame {
    Plain(Entry, Buffer),
    Compressed(Entry, Vec<u8>),
}

/// Holds the ticket of its chunk until it is written.
pub(super) type Ticketed = (Frame, Ticket);

/// An object whose chunks may still be under way.
struct OpenObject {
    /// None of what is only written ahead.
    kind: Option<ObjectKind>,
    /// From which byte of the object on.
    at: u64,
    extents: Vec<Option<Extent>>,
}

/// Chunks that need not be written, beside those that the store had when this writer began.
struct Known {
    /// Those that this writer has seen.
    seen: HashSet<ChunkId>,
    /// Of them, those that this writer has written ahead, and no object has used yet.
    ahead: HashSet<ChunkId>,
    /// Of them, those that the store had and that are to be read before they are used.
    unread: HashSet<ChunkId>,
}

/// What is known of a chunk when it comes by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sighting {
    /// Nothing: it is to be written.
    First,
    /// It was written ahead for whoever comes first, who is this.
    Awaited,
    /// The store has it, if it can be read.
    Unread,
    /// The store has it, or this writer has seen it.
    Again,
}

pub(super) struct Shared {
    /// What the store had when this writer began.
    usable: Arc<Usable>,
    known: Mutex<Known>,
    /// What reads chunks again.
    fetcher: Option<Fetcher>,
    objects: Mutex<Vec<OpenObject>>,
    stored: Mutex<StoredBytes>,
    /// The first thing that went wrong, until somebody was told.
    failure: Mutex<Option<WriteError>>,
    pub(super) failed: AtomicBool,
    /// Buffers to use again.
    spare: Mutex<Vec<Buffer>>,
    spare_frames: Mutex<Vec<Vec<u8>>>,
    room: Arc<Room>,
    /// Of each thread that writes packs.
    pub(super) pace: Mutex<Pace>,
    /// How many those are.
    pub(super) packers: AtomicUsize,
}

impl ChunkWriter {
    /// Joins the draft of `image`. It must be alive, and stay so until its supervisor has this writer's receipt.
    ///
    /// # Errors
    /// [`WriteError::Abandoned`] where there is no such draft, [`WriteError::Read`] where the store's indexes cannot be read.
    pub fn join(store: &Store, image: ImageId, options: &WriteOptions) -> Result<Self, WriteError> {
        let folder = layout::draft(image);
        store.on("list", &folder, |media| media.list(&folder)).map_err(|error| abandoned(image, error))?;
        let (threads, most) = options.within_memory();
        let barred = Barred::for_draft(store, image)?;
        let (usable, unread, fetcher) = if options.reread {
            // What is barred may go: that it is good there proves nothing.
            let map = ChunkMap::load_without(store, &barred)?;
            let usable = map.usable(store, &barred)?;
            let unread = usable.keys().copied().collect();
            (usable, unread, Some(Fetcher::new(store.clone(), map)))
        } else {
            (chunk_map::usable(store, &barred)?, HashSet::new(), None)
        };
        let shared = Arc::new(Shared {
            usable: Arc::new(usable),
            known: Mutex::new(Known { seen: HashSet::new(), ahead: HashSet::new(), unread }),
            fetcher,
            objects: Mutex::default(),
            stored: Mutex::default(),
            failure: Mutex::default(),
            failed: AtomicBool::new(false),
            spare: Mutex::default(),
            spare_frames: Mutex::default(),
            room: Room::new(most),
            pace: Mutex::default(),
            packers: AtomicUsize::new(1),
        });
        let (chunks, chunk_queue) = sync_channel(threads);
        let (frames, frame_queue) = sync_channel(threads);
        let chunk_queue = Arc::new(Mutex::new(chunk_queue));
        let compress = options.compress;
        let hashers = (0..threads).map(|_| {
            let (shared, queue, frames) = (shared.clone(), chunk_queue.clone(), frames.clone());
            let hash = move || hash(&shared, (&queue, threads), &frames, Encoder::new(compress));
            std::thread::Builder::new().spawn(hash).map_err(WriteError::NoThread)
        });
        // Those that have begun end with their queue.
        let hashers = hashers.collect::<Result<_, _>>()?;
        let packing =
            Packing::begin(shared.clone(), frame_queue, store, image, options.pack_len.min(3 << 30))?;
        let in_memory = store.media().is_memory();
        Ok(Self { image, in_memory, shared, threads: Some(Threads { chunks, hashers, packing }) })
    }

    /// Whether what it writes lies in this machine's memory.
    #[must_use]
    pub fn is_in_memory(&self) -> bool {
        self.in_memory
    }

    /// Begins an object. Its chunks may still be under way when it is finished; [`ChunkWriter::finish`] waits for all.
    #[must_use = "an object that is dropped unfinished makes the writer fail"]
    pub fn object(&self, kind: ObjectKind) -> ObjectWriter<'_> {
        ObjectWriter::new(self, kind, 0)
    }

    /// Begins a part of an object, from byte `at` of it on, where a chunk begins: what is in parts becomes one object, in whatever order they are written.
    #[must_use = "an object that is dropped unfinished makes the writer fail"]
    pub fn part(&self, kind: ObjectKind, at: u64) -> ObjectWriter<'_> {
        ObjectWriter::new(self, kind, at)
    }

    /// Writes a whole object from memory.
    ///
    /// # Errors
    /// As [`ObjectWriter`]'s functions.
    pub fn put(&self, kind: ObjectKind, bytes: &[u8]) -> Result<(), WriteError> {
        let mut object = self.object(kind);
        object.copy_from(bytes)?;
        object.finish()
    }

    /// Writes the chunks of a file that is to be an object later, when time is short: whatever of it is the same then is found here, and
    /// nothing of it is in the image because of this.
    ///
    /// # Errors
    /// As [`ObjectWriter`]'s functions.
    pub fn ahead(&self, file: &File) -> Result<(), WriteError> {
        let mut chunks = ObjectWriter::ahead(self);
        chunks.copy_file(file)?;
        chunks.finish()
    }

    /// Whether an object may have this chunk without its bytes: the store has it, or this writer has seen it.
    #[must_use]
    pub fn has(&self, id: &ChunkId) -> bool {
        let known = lock(&self.shared.known);
        let has = self.shared.usable.contains_key(id) || known.seen.contains(id);
        has && !known.ahead.contains(id) && !known.unread.contains(id)
    }

    /// What the store had when this writer joined.
    pub(super) fn usable(&self) -> Arc<Usable> {
        self.shared.usable.clone()
    }

    /// How many bytes have come this far, for a progress bar.
    #[must_use]
    pub fn progress(&self) -> StoredBytes {
        *lock(&self.shared.stored)
    }

    /// Waits until everything is durable, and says what there is.
    ///
    /// # Errors
    /// The first thing that went wrong, in whichever thread, unless one of this writer's objects has returned that already:
    /// [`WriteError::Stopped`] then.
    pub fn finish(mut self) -> Result<Receipt, WriteError> {
        let packs = self.threads.take().map(Threads::join).unwrap_or_default();
        self.shared.check()?;
        let objects = std::mem::take(&mut *lock(&self.shared.objects));
        let objects = whole(objects).ok_or(WriteError::Stopped)?;
        let stored = *lock(&self.shared.stored);
        Ok(Receipt { image: self.image, packs, objects, stored })
    }

    /// Without a kind, its chunks are written ahead.
    pub(super) fn begin_object(&self, kind: Option<ObjectKind>, at: u64) -> usize {
        let mut objects = lock(&self.shared.objects);
        objects.push(OpenObject { kind, at, extents: Vec::new() });
        objects.len() - 1
    }

    /// Adds what need not be written to an object.
    pub(super) fn add_extent(&self, object: usize, extent: Extent) -> Result<(), WriteError> {
        self.shared.check()?;
        self.shared.with_object(object, |object| object.extents.push(Some(extent)));
        if !self.shared.is_ahead(object) {
            self.shared.count(|stored| {
                stored.total += extent.len();
                *match extent {
                    Extent::Zero { .. } => &mut stored.zero,
                    Extent::Chunk { .. } => &mut stored.reused,
                } += extent.len();
            });
        }
        Ok(())
    }

    /// Hands a chunk on; waits for room.
    pub(super) fn submit(&self, object: usize, plain: Buffer) -> Result<(), WriteError> {
        self.shared.check()?;
        let mut extent = 0;
        self.shared.with_object(object, |object| {
            extent = object.extents.len();
            object.extents.push(None);
        });
        let threads = self.threads.as_ref().ok_or(WriteError::Stopped)?;
        let ticket = self.shared.room.ticket();
        threads.chunks.send(Chunk { object, extent, plain, ticket }).map_err(|_| WriteError::Stopped)
    }

    pub(super) fn buffer(&self) -> Buffer {
        let spare = lock(&self.shared.spare).pop();
        spare.unwrap_or_else(|| Buffer { bytes: vec![0; CHUNK_SIZE].into_boxed_slice(), filled: 0 })
    }

    pub(super) fn fail(&self, error: WriteError) {
        self.shared.fail(error);
    }
}

/// A writer that is given up stops at once, and leaves no thread that writes into a draft.
impl Drop for ChunkWriter {
    fn drop(&mut self) {
        if let Some(threads) = self.threads.take() {
            self.shared.fail(WriteError::Stopped);
            threads.join();
        }
    }
}

impl Threads {
    /// Lets every thread finish what is in its queue.
    fn join(self) -> Vec<PackIndex> {
        drop(self.chunks);
        for hasher in self.hashers {
            join(hasher);
        }
        self.packing.join()
    }
}

impl fmt::Debug for ChunkWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChunkWriter").field("image", &self.image).finish_non_exhaustive()
    }
}

impl Buffer {
    pub(super) fn filled(&self) -> usize {
        self.filled
    }

    /// The next `len` bytes to fill, or what there is of them.
    pub(super) fn room(&mut self, len: usize) -> &mut [u8] {
        let (_, room) = self.bytes.split_at_mut(self.filled);
        let len = len.min(room.len());
        room.split_at_mut(len).0
    }

    pub(super) fn advance(&mut self, len: usize) {
        self.filled = self.bytes.len().min(self.filled + len);
    }

    pub(super) fn bytes(&self) -> &[u8] {
        self.bytes.split_at(self.filled).0
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("filled", &self.filled).finish_non_exhaustive()
    }
}

/// The objects of what was written, if all chunks have arrived and their parts are all there.
fn whole(mut parts: Vec<OpenObject>) -> Option<Vec<Object>> {
    parts.retain(|part| part.kind.is_some());
    // Those that begin objects first.
    parts.sort_by_key(|part| part.at);
    let mut objects: Vec<Object> = Vec::new();
    let mut of_kind: HashMap<ObjectKind, (usize, u64)> = HashMap::new();
    for OpenObject { kind, at, extents } in parts {
        let kind = kind?;
        if at == 0 {
            of_kind.insert(kind.clone(), (objects.len(), 0));
            objects.push(Object { kind: kind.clone(), extents: Vec::new() });
        }
        let (number, len) = of_kind.get_mut(&kind)?;
        if at != *len {
            return None;
        }
        let all = &mut objects.get_mut(*number)?.extents;
        for extent in extents {
            let extent = extent?;
            *len += extent.len();
            match (extent, all.last_mut()) {
                (Extent::Zero { len }, Some(Extent::Zero { len: run })) => *run += len,
                (extent, _) => all.push(extent),
            }
        }
    }
    Some(objects)
}

impl Known {
    fn see(&mut self, id: ChunkId, is_stored: bool, ahead: bool) -> Sighting {
        if !is_stored && self.seen.insert(id) {
            if ahead {
                self.ahead.insert(id);
            }
            Sighting::First
        } else if !ahead && self.ahead.remove(&id) {
            Sighting::Awaited
        } else if self.unread.remove(&id) {
            Sighting::Unread
        } else {
            Sighting::Again
        }
    }
}

impl Shared {
    pub(super) fn fail(&self, error: WriteError) {
        let mut failure = lock(&self.failure);
        if !self.failed.swap(true, Ordering::AcqRel) {
            *failure = Some(error);
        }
    }

    /// The first thing that went wrong, for the first who asks.
    fn check(&self) -> Result<(), WriteError> {
        if !self.failed.load(Ordering::Acquire) {
            return Ok(());
        }
        Err(lock(&self.failure).take().unwrap_or(WriteError::Stopped))
    }

    /// What is known of a chunk, once the store's copy has been read where it must be.
    fn see(&self, id: ChunkId, ahead: bool, reading: &mut Reading) -> Sighting {
        let is_stored = self.usable.contains_key(&id);
        let sighting = lock(&self.known).see(id, is_stored, ahead);
        match &self.fetcher {
            Some(fetcher) if sighting == Sighting::Unread => match reading.try_chunk(fetcher, &id) {
                Ok(()) => Sighting::Again,
                Err(problem) => {
                    tracing::warn!(%problem, "a chunk of the store cannot be read any more; it is written again");
                    Sighting::First
                }
            },
            _ => sighting,
        }
    }

    fn count(&self, add: impl FnOnce(&mut StoredBytes)) {
        add(&mut lock(&self.stored));
    }

    fn with_object(&self, number: usize, change: impl FnOnce(&mut OpenObject)) {
        if let Some(object) = lock(&self.objects).get_mut(number) {
            change(object);
        }
    }

    fn is_ahead(&self, number: usize) -> bool {
        lock(&self.objects).get(number).is_some_and(|object| object.kind.is_none())
    }

    pub(super) fn recycle(&self, mut buffer: Buffer) {
        buffer.filled = 0;
        let room = self.room.free();
        let mut spare = lock(&self.spare);
        if spare.len() <= room {
            spare.push(buffer);
        }
    }

    pub(super) fn recycle_frame(&self, frame: Vec<u8>) {
        let room = self.room.free();
        let mut spare = lock(&self.spare_frames);
        if spare.len() <= room {
            spare.push(frame);
        }
    }
}

/// A thread's room for reading chunks again.
#[derive(Default)]
struct Reading {
    scratch: Scratch,
    plain: Vec<u8>,
}

impl Reading {
    /// Reads the store's copies of a chunk until one is good.
    fn try_chunk(&mut self, fetcher: &Fetcher, id: &ChunkId) -> Result<(), String> {
        let len = fetcher.map().places(id).next().map_or(0, |place| place.entry.plain_len as usize);
        self.plain.resize(len, 0);
        fetcher.fetch(id, &mut self.plain, &mut self.scratch).map(drop)
    }
}

/// A thread that hashes, compares and compresses.
fn hash(
    shared: &Shared,
    (queue, threads): (&Mutex<Receiver<Chunk>>, usize),
    frames: &SyncSender<Ticketed>,
    mut encoder: Encoder,
) {
    let mut reading = Reading::default();
    loop {
        let next = lock(queue).recv();
        let Ok(Chunk { object, extent, plain, ticket }) = next else { return };
        // All of them share the store.
        let packers = shared.packers.load(Ordering::Relaxed);
        encoder.pace(lock(&shared.pace).ns() * threads as f64 / packers as f64);
        // After a failure the queue is still emptied, so that nobody waits for room in it.
        if shared.failed.load(Ordering::Acquire) {
            shared.recycle(plain);
            continue;
        }
        match hash_one(shared, &mut encoder, &mut reading, plain, shared.is_ahead(object)) {
            Ok((done, frame)) => {
                shared.with_object(object, |object| {
                    if let Some(place) = object.extents.get_mut(extent) {
                        *place = Some(done);
                    }
                });
                // Who writes packs ends only after all of these threads.
                if let Some(frame) = frame {
                    let _ = frames.send((frame, ticket));
                }
            }
            Err(error) => shared.fail(error),
        }
    }
}

/// What a chunk becomes in its object, and the frame to write if it is new.
fn hash_one(
    shared: &Shared,
    encoder: &mut Encoder,
    reading: &mut Reading,
    plain: Buffer,
    ahead: bool,
) -> Result<(Extent, Option<Frame>), WriteError> {
    let len = u32::try_from(plain.filled).unwrap_or(u32::MAX);
    // What is written ahead is counted when an object has it.
    let bytes = if ahead { 0 } else { u64::from(len) };
    if is_zero(plain.bytes()) {
        shared.count(|stored| {
            stored.total += bytes;
            stored.zero += bytes;
        });
        shared.recycle(plain);
        return Ok((Extent::Zero { len: u64::from(len) }, None));
    }
    let id = ChunkId::of(plain.bytes());
    let extent = Extent::Chunk { id, len };
    let sighting = shared.see(id, ahead, reading);
    shared.count(|stored| {
        stored.total += bytes;
        *if sighting == Sighting::Again { &mut stored.reused } else { &mut stored.new } += bytes;
    });
    if sighting != Sighting::First {
        shared.recycle(plain);
        return Ok((extent, None));
    }
    let mut frame = lock(&shared.spare_frames).pop().unwrap_or_default();
    let entry = encoder.encode(id, plain.bytes(), &mut frame)?;
    shared.count(|stored| stored.written += u64::from(entry.frame_len));
    let frame = if entry.codec == Codec::Plain {
        shared.recycle_frame(frame);
        Frame::Plain(entry, plain)
    } else {
        shared.recycle(plain);
        Frame::Compressed(entry, frame)
    };
    Ok((extent, Some(frame)))
}

/// Locks; what a panicking thread left behind is whole, since every change is one step.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a thread; its panic, a bug, goes on here.
pub(super) fn join<T>(thread: JoinHandle<T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
