//! The threads that read chunks of one store, and those that write them into packs of another.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::vec;

use image::{ChunkId, Codec, Entry, Index, PackIndex};

use super::Draft;
use super::copy::{Target, Wanted};
use super::pack::OpenPack;
use crate::chunk_map::Place;
use crate::read::{Fetcher, Scratch};
use crate::{CopyError, Store};

/// What comes of a chunk that cannot be read.
pub(super) type Unread<'a> = dyn Fn(&ChunkId, String) -> Result<(), CopyError> + Sync + 'a;

/// A chunk on its way: its entry, and its frame.
type Frame = Result<(Entry, Vec<u8>), (ChunkId, String)>;

/// Chunks on their way from store to store.
pub(super) struct Carrying<'a> {
    to: &'a Store,
    draft: &'a Draft,
    pack_len: u64,
    wanted: Mutex<vec::IntoIter<(ChunkId, u32, Place)>>,
    frames: Mutex<Receiver<Frame>>,
    /// What frames were in that have been written, to be used again: memory that is new for each costs as much as copying it.
    spare: Mutex<Vec<Vec<u8>>>,
    unread: &'a Unread<'a>,
    /// Nothing more is read from then on.
    stop: &'a AtomicBool,
    /// Packs that are durable and have no name yet.
    sealed: Mutex<Vec<PackIndex>>,
    /// Those that have, and what the target has with them.
    known: Mutex<(&'a mut Index, &'a mut Target)>,
    failed: AtomicBool,
    /// The first thing that went wrong.
    failure: Mutex<Option<CopyError>>,
}

impl<'a> Carrying<'a> {
    /// Chunks on their way, and as many ends as there are to be threads that read.
    pub(super) fn new(
        (to, draft, pack_len): (&'a Store, &'a Draft, u64),
        known: (&'a mut Index, &'a mut Target),
        wanted: Wanted,
        (threads, unread, stop): (usize, &'a Unread<'a>, &'a AtomicBool),
    ) -> (Self, Vec<SyncSender<Frame>>) {
        let threads = threads.max(1);
        let (send, frames) = sync_channel(threads);
        let carrying = Self {
            to,
            draft,
            pack_len,
            wanted: Mutex::new(wanted.into_iter()),
            frames: Mutex::new(frames),
            spare: Mutex::default(),
            unread,
            stop,
            sealed: Mutex::default(),
            known: Mutex::new(known),
            failed: AtomicBool::new(false),
            failure: Mutex::default(),
        };
        (carrying, vec![send; threads])
    }

    /// A thread that reads chunks and checks them whole.
    pub(super) fn read(&self, fetcher: &Fetcher, frames: &SyncSender<Frame>) {
        let (mut scratch, mut plain) = (Scratch::default(), Vec::new());
        let is_over = || self.stop.load(Ordering::Acquire) || self.has_failed();
        let next = || if is_over() { None } else { lock(&self.wanted).next() };
        let spare = || lock(&self.spare).pop().unwrap_or_default();
        while let Some((chunk, len, _)) = next() {
            plain.resize(len as usize, 0);
            let frame = match fetcher.fetch(&chunk, &mut plain, &mut scratch) {
                Ok(entry) if entry.codec == Codec::Plain => Ok((entry, mem::replace(&mut plain, spare()))),
                Ok(entry) => Ok((entry, scratch.exchange_frame(spare()))),
                Err(problem) => Err((chunk, problem)),
            };
            // Somebody takes it as long as anybody reads.
            let _ = frames.send(frame);
        }
    }

    /// A thread that writes what has been read into packs, each of which is the target's before the next is begun.
    pub(super) fn write(&self, told: &mut dyn FnMut(&Entry)) {
        let mut open = None;
        loop {
            let next = lock(&self.frames).recv();
            let Ok(frame) = next else { break };
            // What is left is only taken.
            if !self.has_failed() {
                self.note(self.write_one(&mut open, frame, told));
            }
        }
        if let Some(last) = open.filter(|_| !self.has_failed()) {
            self.note(self.publish(last));
        }
    }

    /// What went wrong first, if anything did.
    pub(super) fn outcome(self) -> Result<(), CopyError> {
        self.failure.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    fn write_one(
        &self,
        open: &mut Option<OpenPack>,
        frame: Frame,
        told: &mut dyn FnMut(&Entry),
    ) -> Result<(), CopyError> {
        let (entry, frame) = match frame {
            Ok(frame) => frame,
            Err((chunk, problem)) => return (self.unread)(&chunk, problem),
        };
        let mut pack = match open.take() {
            Some(pack) => pack,
            None => OpenPack::create(self.to, self.draft.id())?,
        };
        pack.append(entry, &frame)?;
        lock(&self.spare).push(frame);
        told(&entry);
        if pack.is_full(self.pack_len) {
            return self.publish(pack);
        }
        *open = Some(pack);
        Ok(())
    }

    /// Makes a pack the target's, with those that others have made durable meanwhile: on a medium that is far away, an index takes a while.
    fn publish(&self, pack: OpenPack) -> Result<(), CopyError> {
        let sealed = pack.seal()?;
        lock(&self.sealed).push(sealed);
        let mut known = lock(&self.known);
        // What another could not publish may be named all the same: nobody publishes an index without it.
        if self.has_failed() {
            return Ok(());
        }
        let (index, target) = &mut *known;
        let packs = mem::take(&mut *lock(&self.sealed));
        if !packs.is_empty()
            && let Err(error) = self.draft.add_packs(&packs, index)
        {
            self.failed.store(true, Ordering::Release);
            return Err(error.into());
        }
        packs.into_iter().for_each(|pack| target.add(pack));
        Ok(())
    }

    fn note(&self, done: Result<(), CopyError>) {
        if let Err(error) = done {
            lock(&self.failure).get_or_insert(error);
            self.failed.store(true, Ordering::Release);
        }
    }

    fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
