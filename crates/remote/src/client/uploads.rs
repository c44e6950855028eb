//! Contents of memory that go to the device.

use crate::frame::{BULK_WINDOW, PIECE, PieceHeader};
use crate::lanes::{Lanes, Piece};
use crate::lock;
use backend::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// How many pieces of some memory are still to be read.
#[derive(Default)]
pub(super) struct Latch(Mutex<u64>, Condvar);

impl Latch {
    fn add(&self) {
        *lock(&self.0) += 1;
    }

    pub(super) fn wait(&self) {
        let mut left = lock(&self.0);
        while *left > 0 {
            left = self.1.wait(left).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn is_open(&self) -> bool {
        *lock(&self.0) == 0
    }
}

/// Memory that somebody else owns, until the latch is told.
struct Borrowed(usize, usize, Arc<Latch>);

impl Piece for Borrowed {
    fn bytes(&self) -> &[u8] {
        // SAFETY: whoever gave it waits for the latch before the memory goes.
        unsafe { std::slice::from_raw_parts(std::ptr::with_exposed_provenance(self.0), self.1) }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        *lock(&self.2.0) -= 1;
        self.2.1.notify_all();
    }
}

/// A packed box.
struct Packed(Vec<u8>);

impl Piece for Packed {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
}

#[derive(Default)]
struct Window {
    given: u64,
    used: u64,
    lost: bool,
}

/// The client's bulk streams.
pub(super) struct Uploads {
    lanes: Lanes,
    /// Whoever gives pieces, until their call is on its way: room that is taken is room that the far end will use.
    turn: Mutex<()>,
    window: Mutex<Window>,
    room: Condvar,
    /// Registered memory that is read after the call has returned.
    borrowed: Mutex<Vec<(Range, Arc<Latch>)>>,
}

impl Uploads {
    pub(super) fn new(lanes: Lanes) -> Self {
        Self {
            lanes,
            turn: Mutex::default(),
            window: Mutex::default(),
            room: Condvar::new(),
            borrowed: Mutex::default(),
        }
    }

    pub(super) fn turn(&self) -> MutexGuard<'_, ()> {
        lock(&self.turn)
    }

    /// Every piece takes a whole buffer at the far end.
    fn take_room(&self) -> bool {
        let bytes = PIECE as u64;
        let mut window = lock(&self.window);
        while window.given + bytes - window.used > BULK_WINDOW && !window.lost {
            window = self.room.wait(window).unwrap_or_else(PoisonError::into_inner);
        }
        window.given += bytes;
        !window.lost
    }

    /// Gives memory to the bulk streams, to be read where it lies; the latch opens when it has been.
    pub(super) fn give(&self, transfer: u64, memory: Range, latch: &Arc<Latch>) {
        for offset in (0..memory.bytes).step_by(PIECE) {
            let bytes = (memory.bytes - offset).min(PIECE as u64);
            if !self.take_room() {
                return;
            }
            latch.add();
            let piece = Borrowed((memory.base + offset) as usize, bytes as usize, Arc::clone(latch));
            let head = PieceHeader { transfer, offset, bytes: bytes as usize };
            self.lanes.give(head, Box::new(piece));
        }
    }

    /// Gives one packed piece.
    pub(super) fn give_packed(&self, transfer: u64, bytes: Vec<u8>) {
        if self.take_room() {
            let head = PieceHeader { transfer, offset: 0, bytes: bytes.len() };
            self.lanes.give(head, Box::new(Packed(bytes)));
        }
    }

    /// Remembers that registered memory is still read.
    pub(super) fn lend(&self, range: Range, latch: Arc<Latch>) {
        let mut borrowed = lock(&self.borrowed);
        borrowed.retain(|(_, latch)| !latch.is_open());
        borrowed.push((range, latch));
    }

    /// Waits until nothing of a range is still to be read.
    pub(super) fn wait_for(&self, range: Range) {
        self.of(range).iter().for_each(|latch| latch.wait());
    }

    /// Whether nothing of a range is still to be read.
    pub(super) fn have_left(&self, range: Range) -> bool {
        self.of(range).iter().all(|latch| latch.is_open())
    }

    fn of(&self, range: Range) -> Vec<Arc<Latch>> {
        let borrowed = lock(&self.borrowed);
        let overlaps = |other: &Range| other.base < range.end() && range.base < other.end();
        borrowed.iter().filter(|(other, _)| overlaps(other)).map(|(_, latch)| Arc::clone(latch)).collect()
    }

    /// The far end has used so much; `false` where that cannot be.
    pub(super) fn used(&self, bytes: u64) -> bool {
        let mut window = lock(&self.window);
        let right = (window.used..=window.given).contains(&bytes);
        if right {
            window.used = bytes;
            self.room.notify_all();
        }
        right
    }

    pub(super) fn lose(&self) {
        lock(&self.window).lost = true;
        self.room.notify_all();
        self.lanes.end();
    }
}
