//! Contents of memory that come from the device: where they go, and the threads that put them there.

use crate::frame::{BULK_WINDOW, INLINE_MAX, PIECE, PieceHeader, invalid};
use crate::{lock, packing};
use backend::{Pitched, Range};
use std::collections::HashMap;
use std::io::{self, Read};
use std::sync::{Condvar, Mutex, PoisonError};

/// Where the bytes of a transfer go: rows of the host's memory.
#[derive(Clone, Copy)]
pub(super) struct Destination {
    pub(super) memory: Pitched,
    /// Bytes of a row, rows, slices.
    pub(super) size: [u64; 3],
}

impl Destination {
    pub(super) fn linear(address: u64, bytes: u64) -> Self {
        Self { memory: Pitched { address, pitch: bytes, rows: 1 }, size: [bytes, 1, 1] }
    }

    fn bytes(&self) -> u64 {
        self.size.iter().product()
    }

    /// What the buffers that it takes at the far end have.
    fn cost(&self) -> u64 {
        let bytes = self.bytes();
        if bytes <= INLINE_MAX as u64 { INLINE_MAX as u64 } else { bytes.next_multiple_of(PIECE as u64) }
    }

    /// All that lies between its first byte and its last.
    fn range(&self) -> Range {
        let Pitched { address, pitch, rows } = self.memory;
        let [width, height, depth] = self.size;
        Range { base: address, bytes: pitch * rows * (depth - 1) + pitch * (height - 1) + width }
    }

    /// Puts bytes that lie packed at `offset` of the transfer where they belong.
    ///
    /// # Safety
    /// The destination is writable, and `offset` and `bytes` lie inside.
    pub(super) unsafe fn put(&self, offset: u64, bytes: &[u8]) {
        let Pitched { address, pitch, rows } = self.memory;
        let [width, height, _] = self.size;
        let (mut at, mut bytes) = (offset, bytes);
        while !bytes.is_empty() {
            let (row, column) = (at / width, at % width);
            let place = address + row / height * pitch * rows + row % height * pitch + column;
            let (now, rest) = bytes.split_at(bytes.len().min((width - column) as usize));
            let to = std::ptr::with_exposed_provenance_mut::<u8>(place as usize);
            // SAFETY: a part of a row of the destination that the caller vouches for.
            unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), to, now.len()) };
            (at, bytes) = (at + now.len() as u64, rest);
        }
    }
}

struct Transfer {
    to: Destination,
    arrived: u64,
    /// Threads that write to its memory right now.
    writers: u32,
    /// Nothing is written any more.
    ended: bool,
}

#[derive(Default)]
struct State {
    transfers: HashMap<u64, Transfer>,
    /// Bytes asked for that have not come.
    pending: u64,
    /// The most pieces in bulk streams that all that was ever asked for makes.
    asked: u64,
    lost: bool,
}

impl State {
    fn writes_into(&self, range: Range) -> bool {
        self.transfers.values().any(|transfer| {
            let to = transfer.to.range();
            to.base < range.end() && range.base < to.end()
        })
    }
}

/// What a thread reads pieces into that do not go where they belong at once.
#[derive(Default)]
pub(super) struct Spare {
    piece: Vec<u8>,
    packed: Vec<u8>,
}

/// Every transfer that is under way.
#[derive(Default)]
pub(super) struct Transfers {
    state: Mutex<State>,
    changed: Condvar,
}

impl Transfers {
    fn wait_while(&self, busy: impl Fn(&State) -> bool) {
        let mut state = lock(&self.state);
        while busy(&state) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Begins one once there is room for it; whoever begins it makes sure that its memory stays until it has ended.
    pub(super) fn begin(&self, transfer: u64, to: Destination) {
        let cost = to.cost();
        let mut state = lock(&self.state);
        while state.pending > 0 && state.pending + cost > BULK_WINDOW && !state.lost {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if !state.lost {
            state.pending += cost;
            state.asked += to.bytes().div_ceil(PIECE as u64);
            state.transfers.insert(transfer, Transfer { to, arrived: 0, writers: 0, ended: false });
        }
    }

    /// The most pieces that can have been on their way since the beginning.
    pub(super) fn asked(&self) -> u64 {
        lock(&self.state).asked
    }

    /// Waits until nothing that is still to come is written into a range.
    pub(super) fn wait_for(&self, range: Range) {
        self.wait_while(|state| state.writes_into(range) && !state.lost);
    }

    /// Whether nothing that is still to come is written into a range.
    pub(super) fn have_left(&self, range: Range) -> bool {
        !lock(&self.state).writes_into(range)
    }

    /// Ends those that write into a range: their memory may go.
    pub(super) fn abandon(&self, range: Range) {
        let names: Vec<u64> = {
            let state = lock(&self.state);
            let inside = |to: &Destination| to.range().base < range.end() && range.base < to.range().end();
            state
                .transfers
                .iter()
                .filter(|(_, transfer)| inside(&transfer.to))
                .map(|(name, _)| *name)
                .collect()
        };
        for name in names {
            self.end(name);
        }
    }

    /// Ends one, if it has not been abandoned; whether all of it has come. When it returns, nobody writes to its memory.
    pub(super) fn end(&self, name: u64) -> bool {
        let mut state = lock(&self.state);
        loop {
            let Some(transfer) = state.transfers.get_mut(&name) else { return true };
            transfer.ended = true;
            if transfer.writers == 0 {
                break;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let Some(transfer) = state.transfers.remove(&name) else { return true };
        let bytes = transfer.to.bytes();
        state.pending -= transfer.to.cost();
        self.changed.notify_all();
        transfer.arrived == bytes
    }

    /// Lets one write to the memory of a transfer; `None` where there is none any more.
    fn enter(&self, head: PieceHeader) -> io::Result<Option<Destination>> {
        let mut state = lock(&self.state);
        let Some(transfer) = state.transfers.get_mut(&head.transfer).filter(|transfer| !transfer.ended)
        else {
            return Ok(None);
        };
        let (all, bytes) = (transfer.to.bytes(), head.bytes as u64);
        if head.offset > all || bytes > all - head.offset || transfer.arrived + bytes > all {
            return Err(invalid("more came of a transfer than was asked for"));
        }
        transfer.writers += 1;
        transfer.arrived += bytes;
        Ok(Some(transfer.to))
    }

    fn leave(&self, name: u64) {
        if let Some(transfer) = lock(&self.state).transfers.get_mut(&name) {
            transfer.writers -= 1;
        }
        self.changed.notify_all();
    }

    /// A piece that came with the control stream.
    pub(super) fn put(&self, transfer: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let head = PieceHeader { transfer, offset, bytes: bytes.len() };
        if let Some(to) = self.enter(head)? {
            // SAFETY: the piece lies inside, and the memory stays until the transfer has ended.
            unsafe { to.put(offset, bytes) };
            self.leave(transfer);
        }
        Ok(())
    }

    /// Takes one piece out of a bulk stream.
    pub(super) fn receive(&self, stream: &mut (dyn Read + Send), spare: &mut Spare) -> io::Result<()> {
        let (head, held) = PieceHeader::read(stream)?;
        spare.piece.resize(PIECE, 0);
        let piece = &mut spare.piece[..head.bytes];
        let Some(to) = self.enter(head)? else { return stream.read_exact(&mut piece[..held]) };
        let read = if to.size[1..] == [1, 1] {
            let place =
                std::ptr::with_exposed_provenance_mut::<u8>((to.memory.address + head.offset) as usize);
            // SAFETY: the piece lies inside, and the memory stays until the transfer has ended, which this thread holds up.
            let place = unsafe { std::slice::from_raw_parts_mut(place, head.bytes) };
            packing::receive(stream, held, place, &mut spare.packed)
        } else {
            packing::receive(stream, held, piece, &mut spare.packed).inspect(|()| {
                // SAFETY: as above.
                unsafe { to.put(head.offset, piece) };
            })
        };
        self.leave(head.transfer);
        read
    }

    pub(super) fn lose(&self) {
        lock(&self.state).lost = true;
        self.changed.notify_all();
    }
}
