//! The threads that write packs, one at first, and the one that makes packs durable.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use image::{Entry, ImageId, PackIndex};

use super::pack::OpenPack;
use super::pipeline::{Frame, Shared, Ticketed, join, lock};
use crate::{Store, WriteError};

/// A thread that has written so many bytes is worth another beside it: small images have one pack.
pub(super) const WORTH_ANOTHER: u64 = 64 << 20;

/// Both kinds of threads.
pub(super) struct Packing {
    packer: JoinHandle<()>,
    sealer: JoinHandle<Vec<PackIndex>>,
}

/// What threads that write packs have in common.
struct Packs {
    shared: Arc<Shared>,
    frames: Mutex<Receiver<Ticketed>>,
    full: SyncSender<OpenPack>,
    store: Store,
    image: ImageId,
    pack_len: u64,
}

impl Packing {
    /// Begins to write what comes out of a queue.
    pub(super) fn begin(
        shared: Arc<Shared>,
        frames: Receiver<Ticketed>,
        store: &Store,
        image: ImageId,
        pack_len: u64,
    ) -> Result<Self, WriteError> {
        let (full, queue) = sync_channel(0);
        let sealer = {
            let shared = shared.clone();
            Builder::new().spawn(move || seal(&shared, &queue)).map_err(WriteError::NoThread)?
        };
        let more = store.media().side_by_side().saturating_sub(1);
        let packs = Packs { shared, frames: Mutex::new(frames), full, store: store.clone(), image, pack_len };
        let packs = Arc::new(packs);
        // The sealer ends without it.
        let packer = Builder::new().spawn(move || packs.write(more)).map_err(WriteError::NoThread)?;
        Ok(Self { packer, sealer })
    }

    /// Waits until the queue has ended and all of it is durable.
    pub(super) fn join(self) -> Vec<PackIndex> {
        join(self.packer);
        join(self.sealer)
    }
}

impl Packs {
    /// Writes packs, and begins as many more threads that do as are worth it.
    fn write(self: Arc<Self>, mut more: usize) {
        let mut open: Option<OpenPack> = None;
        let (mut bytes, mut beside) = (0, None);
        loop {
            let next = lock(&self.frames).recv();
            let Ok((frame, _ticket)) = next else { break };
            bytes += self.write_one(&mut open, frame);
            if let Some(full) = open.take_if(|pack| pack.is_full(self.pack_len)) {
                // The sealer ends only after these threads.
                let _ = self.full.send(full);
            }
            if more > 0 && bytes >= WORTH_ANOTHER {
                let (this, rest) = (self.clone(), more - 1);
                // Where there may be no more threads, this one goes on alone.
                beside = Builder::new().spawn(move || this.write(rest)).ok();
                self.shared.packers.fetch_add(usize::from(beside.is_some()), Ordering::Relaxed);
                more = 0;
            }
        }
        if let Some(last) = open {
            let _ = self.full.send(last);
        }
        // The sealer waits for who holds this.
        drop(self);
        if let Some(beside) = beside {
            join(beside);
        }
    }

    /// Writes a frame into the open pack, or a new one; answers of how many bytes it was.
    fn write_one(&self, open: &mut Option<OpenPack>, frame: Frame) -> u64 {
        let begun = Instant::now();
        let (entry, bytes) = match &frame {
            Frame::Plain(entry, plain) => (entry, plain.bytes()),
            Frame::Compressed(entry, frame) => (entry, &frame[..]),
        };
        let len = u64::from(entry.frame_len);
        if !self.shared.failed.load(Ordering::Acquire)
            && let Err(error) = self.append(open, *entry, bytes)
        {
            self.shared.fail(error);
        }
        lock(&self.shared.pace).add(len, begun.elapsed());
        match frame {
            Frame::Plain(_, plain) => self.shared.recycle(plain),
            Frame::Compressed(_, frame) => self.shared.recycle_frame(frame),
        }
        len
    }

    fn append(&self, open: &mut Option<OpenPack>, entry: Entry, frame: &[u8]) -> Result<(), WriteError> {
        let pack = match open {
            Some(pack) => pack,
            none => none.insert(OpenPack::create(&self.store, self.image)?),
        };
        pack.append(entry, frame)
    }
}

/// The thread that makes packs durable while the next ones are being written.
fn seal(shared: &Shared, queue: &Receiver<OpenPack>) -> Vec<PackIndex> {
    let mut sealed = Vec::new();
    for pack in queue {
        if shared.failed.load(Ordering::Acquire) {
            continue;
        }
        match pack.seal() {
            Ok(pack) => sealed.push(pack),
            Err(error) => shared.fail(error),
        }
    }
    sealed
}
