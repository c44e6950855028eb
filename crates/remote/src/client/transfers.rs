//! Contents of memory that come from the device: where they go, and the threads that put them there.
//!
//! Pieces come by several streams, so those of two transfers in no order. Where two write to the same bytes (a program that copies each result into one buffer), the
//! pieces of the later one are held until all of the earlier is there, or until the far end says that the later one is complete: all that was complete
//! before it has come by then.

use crate::frame::{BULK_WINDOW, INLINE_MAX, PIECE, PieceHeader, invalid};
use crate::{lock, packing};
use backend::{Pitched, Range};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

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
    /// Threads that read a piece of it, or write to its memory, right now.
    writers: u32,
    /// Nothing comes any more.
    ended: bool,
    /// Earlier ones that write to the same bytes, as far as they had not come.
    after: Vec<u64>,
    /// Pieces that have come before those.
    held: Vec<Piece>,
}

impl Transfer {
    /// Whether all of it is where it belongs.
    fn is_written(&self) -> bool {
        self.arrived == self.to.bytes() && self.writers == 0 && self.held.is_empty()
    }
}

/// What of a transfer begins at an offset.
type Piece = (u64, Vec<u8>);

/// Where a piece goes that comes now.
enum Turn {
    /// To its place.
    Now(Destination),
    /// It is kept until those before it have come.
    Later,
    /// Nowhere: its transfer is over.
    Never,
}

#[derive(Default)]
struct State {
    /// By name, which grows.
    transfers: BTreeMap<u64, Transfer>,
    /// Bytes asked for that have not come.
    pending: u64,
    /// The most pieces in bulk streams that all that was ever asked for makes.
    asked: u64,
    /// Transfers that hold pieces.
    holding: BTreeSet<u64>,
    lost: bool,
}

impl State {
    /// Those that write to a range, the last that was begun first.
    fn overlapping(&self, range: Range) -> impl Iterator<Item = (u64, &Transfer)> {
        let overlaps = move |to: Range| to.base < range.end() && range.base < to.end();
        let all = self.transfers.iter().rev().map(|(name, transfer)| (*name, transfer));
        all.filter(move |(_, transfer)| overlaps(transfer.to.range()))
    }

    fn writes_into(&self, range: Range) -> bool {
        self.overlapping(range).next().is_some()
    }

    /// Whom a new transfer has to wait for: one that writes to all of its bytes waits for those before that.
    fn earlier(&self, range: Range) -> Vec<u64> {
        let mut names = Vec::new();
        for (name, earlier) in self.overlapping(range).filter(|(_, earlier)| !earlier.is_written()) {
            names.push(name);
            let all = earlier.to.range();
            if all.base <= range.base && range.end() <= all.end() {
                break;
            }
        }
        names
    }

    /// Whether a transfer need not wait for earlier ones any more.
    fn is_next(&self, transfer: &Transfer) -> bool {
        transfer.after.iter().all(|earlier| self.transfers.get(earlier).is_none_or(Transfer::is_written))
    }

    /// A transfer that holds pieces for which it is time.
    fn ready(&self) -> Option<u64> {
        let is_next = |name: &u64| self.transfers.get(name).is_some_and(|transfer| self.is_next(transfer));
        self.holding.iter().copied().find(is_next)
    }

    /// Takes a transfer's held pieces; whoever does writes them, and is one of its writers until then. There are none once the session is lost: the program hears of that, and may give
    /// its memory back.
    fn take_held(&mut self, name: u64) -> Option<(Destination, Vec<Piece>)> {
        self.holding.remove(&name);
        let is_lost = self.lost;
        let holds = |transfer: &&mut Transfer| !is_lost && !transfer.held.is_empty();
        let transfer = self.transfers.get_mut(&name).filter(holds)?;
        transfer.writers += 1;
        Some((transfer.to, std::mem::take(&mut transfer.held)))
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
            let after = state.earlier(to.range());
            let new = Transfer { to, arrived: 0, writers: 0, ended: false, after, held: Vec::new() };
            state.transfers.insert(transfer, new);
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
        let names: Vec<u64> = lock(&self.state).overlapping(range).map(|(name, _)| name).collect();
        for name in names {
            if let Some(transfer) = lock(&self.state).transfers.get_mut(&name) {
                transfer.held.clear();
            }
            self.end(name);
        }
    }

    /// Ends one, if it has not been abandoned; whether all of it has come. When it returns, that is where it belongs, and nobody writes to its memory.
    pub(super) fn end(&self, name: u64) -> bool {
        let mut state = lock(&self.state);
        loop {
            let Some(transfer) = state.transfers.get_mut(&name) else { return true };
            transfer.ended = true;
            if let Some(held) = state.take_held(name) {
                state = self.write(state, name, held);
                continue;
            }
            if state.transfers.get(&name).is_none_or(|transfer| transfer.writers == 0) {
                break;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let Some(transfer) = state.transfers.remove(&name) else { return true };
        state.pending -= transfer.to.cost();
        drop(self.write_ready(state));
        self.changed.notify_all();
        transfer.is_written()
    }

    /// Writes held pieces, and is no writer of their transfer any more.
    fn write<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        name: u64,
        (to, held): (Destination, Vec<Piece>),
    ) -> MutexGuard<'a, State> {
        drop(state);
        for (offset, piece) in held {
            // SAFETY: the piece lies inside, and the memory stays until the transfer has ended, which this thread holds up.
            unsafe { to.put(offset, &piece) };
        }
        let mut state = lock(&self.state);
        if let Some(transfer) = state.transfers.get_mut(&name) {
            transfer.writers -= 1;
        }
        state
    }

    /// Writes all pieces for which it is time.
    fn write_ready<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while let Some(name) = state.ready() {
            if let Some(held) = state.take_held(name) {
                state = self.write(state, name, held);
            }
        }
        state
    }

    /// Lets one take a piece of a transfer, as one of its writers, until it leaves.
    fn enter(&self, head: PieceHeader) -> io::Result<Turn> {
        let mut state = lock(&self.state);
        if state.lost {
            return Ok(Turn::Never);
        }
        let Some(transfer) = state.transfers.get_mut(&head.transfer).filter(|transfer| !transfer.ended)
        else {
            return Ok(Turn::Never);
        };
        let (all, bytes) = (transfer.to.bytes(), head.bytes as u64);
        if head.offset > all || bytes > all - head.offset || transfer.arrived + bytes > all {
            return Err(invalid("more came of a transfer than was asked for"));
        }
        transfer.writers += 1;
        transfer.arrived += bytes;
        let to = transfer.to;
        let is_next = state.transfers.get(&head.transfer).is_none_or(|transfer| state.is_next(transfer));
        Ok(if is_next { Turn::Now(to) } else { Turn::Later })
    }

    /// With a piece that is to be held, if it is.
    fn leave(&self, name: u64, held: Option<Piece>) {
        let mut state = lock(&self.state);
        if let Some(transfer) = state.transfers.get_mut(&name) {
            transfer.writers -= 1;
            if let Some(piece) = held {
                transfer.held.push(piece);
                state.holding.insert(name);
            }
        }
        drop(self.write_ready(state));
        self.changed.notify_all();
    }

    /// A piece that came with the control stream.
    pub(super) fn put(&self, transfer: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let head = PieceHeader { transfer, offset, bytes: bytes.len() };
        let held = match self.enter(head)? {
            Turn::Never => return Ok(()),
            Turn::Later => Some((offset, bytes.to_vec())),
            Turn::Now(to) => {
                // SAFETY: the piece lies inside, and the memory stays until the transfer has ended.
                unsafe { to.put(offset, bytes) };
                None
            }
        };
        self.leave(transfer, held);
        Ok(())
    }

    /// Takes one piece out of a bulk stream.
    pub(super) fn receive(&self, stream: &mut (dyn Read + Send), spare: &mut Spare) -> io::Result<()> {
        let (head, packed) = PieceHeader::read(stream)?;
        spare.piece.resize(PIECE, 0);
        let piece = &mut spare.piece[..head.bytes];
        let mut held = None;
        let read = match self.enter(head)? {
            Turn::Never => return stream.read_exact(&mut piece[..packed]),
            Turn::Later => {
                let piece = &mut held.insert((head.offset, vec![0; head.bytes])).1;
                packing::receive(stream, packed, piece, &mut spare.packed)
            }
            Turn::Now(to) if to.size[1..] == [1, 1] => {
                let place =
                    std::ptr::with_exposed_provenance_mut::<u8>((to.memory.address + head.offset) as usize);
                // SAFETY: the piece lies inside, and the memory stays until the transfer has ended, which this thread holds up.
                let place = unsafe { std::slice::from_raw_parts_mut(place, head.bytes) };
                packing::receive(stream, packed, place, &mut spare.packed)
            }
            Turn::Now(to) => packing::receive(stream, packed, piece, &mut spare.packed).inspect(|()| {
                // SAFETY: as above.
                unsafe { to.put(head.offset, piece) };
            }),
        };
        self.leave(head.transfer, held.filter(|_| read.is_ok()));
        read
    }

    /// Nothing more is put into the program's memory than what is being read right now.
    pub(super) fn lose(&self) {
        lock(&self.state).lost = true;
        self.changed.notify_all();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicU8, Ordering};

    const ROOM: usize = 64;

    /// Memory that transfers write to.
    struct Room([AtomicU8; ROOM]);

    impl Room {
        fn new() -> Self {
            Self([const { AtomicU8::new(0) }; ROOM])
        }

        fn base(&self) -> u64 {
            self.0.as_ptr().expose_provenance() as u64
        }

        fn get(&self, at: usize) -> u8 {
            self.0[at].load(Ordering::Relaxed)
        }

        fn first<const COUNT: usize>(&self) -> [u8; COUNT] {
            std::array::from_fn(|at| self.get(at))
        }
    }

    /// Rows of bytes inside of the room: where they begin, and how wide, high and far apart they are.
    fn rows() -> impl Strategy<Value = [usize; 4]> {
        (0..ROOM, 1..ROOM, 1..4usize, 0..4usize).prop_map(|(begin, width, height, gap)| {
            let width = width.min(ROOM - begin);
            let height = height.min(1 + (ROOM - begin - width) / (width + gap));
            [begin, width, height, width + gap]
        })
    }

    proptest! {
        /// Whatever pieces come first, what was begun last is there in the end, and what is told to be complete is there by then.
        #[test]
        fn the_last_one_is_there(all in prop::collection::vec((rows(), 1..9usize), 1..8), turns: Vec<u16>) {
            let (room, mut expected) = (Room::new(), [0u8; ROOM]);
            let transfers = Transfers::default();
            let mut pieces = Vec::new();
            let mut states = Vec::new();
            for (index, ([begin, width, height, pitch], piece)) in all.iter().copied().enumerate() {
                let memory = Pitched { address: room.base() + begin as u64, pitch: pitch as u64, rows: height as u64 };
                let size = [width as u64, height as u64, 1];
                transfers.begin(index as u64, Destination { memory, size });
                let offsets = (0..width * height).step_by(piece);
                pieces.extend(offsets.map(|at| (index, at, piece.min(width * height - at))));
                (0..height).for_each(|row| expected[begin + row * pitch..][..width].fill(index as u8 + 1));
                states.push(expected);
            }
            let mut turns = turns.into_iter().map(usize::from).cycle();
            let mut told = 0;
            while told < all.len() {
                if !pieces.is_empty() {
                    let next = turns.next().unwrap_or(7) % pieces.len();
                    let (index, at, bytes) = pieces.swap_remove(next);
                    transfers.put(index as u64, at as u64, &[index as u8 + 1; ROOM][..bytes]).unwrap();
                }
                // Complete in turn, some time after the last piece has come.
                let open = pieces.iter().map(|(index, ..)| *index).min().unwrap_or(all.len());
                while told < open && (pieces.is_empty() || turns.next().unwrap_or(0) % 2 == 0) {
                    prop_assert!(transfers.end(told as u64), "all of it has come");
                    let [begin, width, height, pitch] = all[told].0;
                    for at in (0..height).flat_map(|row| begin + row * pitch..begin + row * pitch + width) {
                        let found = room.get(at);
                        let may_be = states[told..].iter().any(|state| state[at] == found);
                        prop_assert!(may_be, "{told} is complete, and {at} is {found}");
                    }
                    told += 1;
                }
            }
            for (at, expected) in expected.into_iter().enumerate() {
                prop_assert_eq!(room.get(at), expected, "byte {}", at);
            }
            let state = lock(&transfers.state);
            prop_assert!(state.holding.is_empty() && state.pending == 0);
        }
    }

    /// Somebody waits for the host between two copies to one place, and is begun before the other: it is complete behind it.
    #[test]
    fn what_is_told_to_be_complete_does_not_wait() {
        let room = Room::new();
        let transfers = Transfers::default();
        let to = Destination::linear(room.base(), 8);
        transfers.begin(1, to);
        transfers.begin(2, to);
        transfers.put(2, 0, &[2; 8]).unwrap();
        assert_eq!(room.first(), [0; 8], "the first one may come before it");
        assert!(transfers.end(2));
        assert_eq!(room.first(), [2; 8]);
        transfers.put(1, 0, &[1; 8]).unwrap();
        assert!(transfers.end(1));
        assert_eq!(room.first(), [1; 8]);
    }

    /// Who hears that the session is lost may give memory back.
    #[test]
    fn nothing_is_written_once_the_session_is_lost() {
        let room = Room::new();
        let transfers = Transfers::default();
        let to = Destination::linear(room.base(), 8);
        (1..=3).for_each(|name| transfers.begin(name, to));
        transfers.put(2, 0, &[2; 8]).unwrap();
        transfers.lose();
        transfers.put(1, 0, &[1; 8]).unwrap();
        transfers.put(3, 0, &[3; 8]).unwrap();
        let told = [2, 1, 3].map(|name| transfers.end(name));
        assert_eq!(told, [false; 3]);
        assert_eq!(room.first(), [0; 8]);
    }

    #[test]
    fn nobody_waits_for_one_that_was_abandoned() {
        let room = Room::new();
        let transfers = Transfers::default();
        let base = room.base();
        transfers.begin(1, Destination::linear(base, 8));
        transfers.begin(2, Destination::linear(base + 4, 8));
        transfers.put(2, 0, &[2; 8]).unwrap();
        transfers.abandon(Range { base, bytes: 4 });
        assert_eq!(room.first(), [0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2, 0, 0, 0, 0]);
        assert!(transfers.end(2));
    }
}
