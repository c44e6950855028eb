//! Copies: what lies here travels, what lies at the far end is copied there.

use super::Link;
use super::mirrors::Registered;
use super::progress::{Ticket, key};
use super::transfers::Destination;
use super::uploads::Latch;
use crate::frame::{INLINE_MAX, PIECE};
use crate::messages::{
    BoxIn, BoxInBulk, BoxOut, Copy, CopyBoxes, CopyIn, CopyInBulk, CopyOut, StreamSynchronize,
};
use backend::{BoxSide, CopyBox, Pitched, Range, RawContext, Result, StreamArg};
use std::sync::{Arc, PoisonError};
use wire::{Bytes, CuError};

/// Bytes of a transfer to the device; what is longer is several of them: one is looked through for addresses while those before it travel.
const UPLOAD_MAX: u64 = 8 << 20;
/// The same from the device.
const DOWNLOAD_MAX: u64 = 32 << 20;

/// Where memory lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// At the far end; what is mirrored is copied there too.
    Far { mirrored: bool },
    /// Here, and registered.
    Registered,
    /// Here.
    Plain,
}

impl Place {
    fn is_far(self) -> bool {
        matches!(self, Self::Far { .. })
    }

    fn is_mirrored(self) -> bool {
        matches!(self, Self::Far { mirrored: true })
    }
}

/// All that lies between the first and the last byte of some rows.
fn extent(memory: &Pitched, [width, height, depth]: [u64; 3]) -> Result<u64> {
    let last = |pitch: u64, count: u64| pitch.checked_mul(count - 1);
    let slices = memory.pitch.checked_mul(memory.rows).and_then(|slice| last(slice, depth));
    let rows = last(memory.pitch, height);
    let all = slices.zip(rows).and_then(|(slices, rows)| slices.checked_add(rows)?.checked_add(width));
    all.ok_or(CuError::INVALID_VALUE)
}

/// A part of a box: where it begins, and its size.
type Part = ([u64; 3], [u64; 3]);

/// Parts of a box that are pieces.
fn parts([width, height, depth]: [u64; 3]) -> Vec<Part> {
    let most = PIECE as u64;
    let wide = width.min(most);
    let high = if wide < width { 1 } else { (most / wide).clamp(1, height) };
    let deep = if high < height { 1 } else { (most / (wide * high)).clamp(1, depth) };
    let mut parts = Vec::new();
    for z in (0..depth).step_by(deep as usize) {
        for y in (0..height).step_by(high as usize) {
            for x in (0..width).step_by(wide as usize) {
                parts.push(([x, y, z], [wide.min(width - x), high.min(height - y), deep.min(depth - z)]));
            }
        }
    }
    parts
}

/// Where each transfer of a copy of so many bytes to `dst` begins, and how many it has: no word of the destination is in two of them.
fn transfers(dst: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let most = UPLOAD_MAX - dst.wrapping_add(at) % 8;
        let part = (at, most.min(bytes - at));
        at += part.1;
        (part.1 > 0).then_some(part)
    })
}

fn shifted(side: BoxSide, [x, y, z]: [u64; 3]) -> BoxSide {
    match side {
        BoxSide::Memory(memory) => BoxSide::Memory(moved(memory, [x, y, z])),
        BoxSide::Array(array, at) => {
            BoxSide::Array(array, [at[0].saturating_add(x), at[1].saturating_add(y), at[2].saturating_add(z)])
        }
    }
}

fn moved(memory: Pitched, [x, y, z]: [u64; 3]) -> Pitched {
    let address = memory.address + x + y * memory.pitch + z * memory.pitch * memory.rows;
    Pitched { address, ..memory }
}

fn row(address: u64, bytes: u64) -> Vec<u8> {
    let mut row = vec![0; bytes as usize];
    let from = std::ptr::with_exposed_provenance::<u8>(address as usize);
    // SAFETY: the caller of the trait vouches for the host's side of a copy.
    unsafe { std::ptr::copy_nonoverlapping(from, row.as_mut_ptr(), row.len()) };
    row
}

/// The rows of a box of the host's memory, one behind the other.
fn pack(memory: &Pitched, [width, height, depth]: [u64; 3]) -> Vec<u8> {
    let at = |z: u64, y: u64| memory.address + z * memory.pitch * memory.rows + y * memory.pitch;
    (0..depth)
        .flat_map(|z| (0..height).map(move |y| at(z, y)))
        .flat_map(|address| row(address, width))
        .collect()
}

impl Link {
    pub(super) fn place_of(&self, address: u64, bytes: u64) -> Result<Place> {
        match self.mirrors.is(address, bytes) {
            Registered::Mirrored => return Ok(Place::Far { mirrored: true }),
            Registered::Here => return Ok(Place::Registered),
            Registered::No => {}
        }
        let space = self.space.read().unwrap_or_else(PoisonError::into_inner);
        if space.mapped.covers(address, bytes) || space.others.covers(address, bytes) {
            Ok(Place::Far { mirrored: false })
        } else if address == 0 || space.reserved.overlaps(Range { base: address, bytes }) {
            Err(CuError::INVALID_VALUE)
        } else {
            Ok(Place::Plain)
        }
    }

    /// Where a copy's source is read: registered memory from its mirror, where something before the copy may wait for the host, which may
    /// write to it until then. Whatever else the host does there is in no order with the copy, so it is read here, at once.
    fn source(self: &Arc<Self>, address: u64, from: Place) -> Result<Place> {
        if from != Place::Registered || !self.is_held() {
            return Ok(from);
        }
        self.reach(address)?;
        Ok(Place::Far { mirrored: true })
    }

    /// Where what comes from the far end is written: in the mirror of registered memory, where something before the copy may wait for a word. Else a copy from there, which
    /// needs the mirror (above), would wait here until that has come, and who is to write the word with it.
    fn destination(self: &Arc<Self>, address: u64, to: Place) -> Result<Place> {
        if to != Place::Registered || !self.may_wait_for_word() {
            return Ok(to);
        }
        self.reach(address)?;
        Ok(Place::Far { mirrored: true })
    }

    /// Memory that work of the far end is to reach: mirrored if it is the host's.
    pub(super) fn reachable(self: &Arc<Self>, address: u64, bytes: u64) -> Result<()> {
        match self.place_of(address, bytes)? {
            Place::Far { .. } => Ok(()),
            Place::Registered => self.reach(address),
            Place::Plain => Err(CuError::INVALID_VALUE),
        }
    }

    /// The same for a side of a copy.
    pub(super) fn side_reachable(self: &Arc<Self>, side: &BoxSide, size: [u64; 3]) -> Result<()> {
        match side {
            BoxSide::Memory(memory) if !size.contains(&0) => {
                self.reachable(memory.address, extent(memory, size)?)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn copy_bytes(
        self: &Arc<Self>,
        ctx: RawContext,
        stream: StreamArg,
        dst: u64,
        src: u64,
        bytes: u64,
    ) -> Result<()> {
        if bytes == 0 {
            return self.progress.check(ctx);
        }
        let (mut to, mut from) = (self.place_of(dst, bytes)?, self.place_of(src, bytes)?);
        if to.is_far() {
            from = self.source(src, from)?;
        } else if from.is_far() {
            to = self.destination(dst, to)?;
        }
        if to.is_mirrored() || from.is_mirrored() || self.is_held() {
            // What the host has written there is older than what the copy reads or writes, and than what a copy may let go.
            self.push_changes();
        }
        match (to, from) {
            (Place::Far { .. }, Place::Far { .. }) => {
                self.submit(ctx, stream, &Copy { ctx, stream, dst, src, bytes })
            }
            (Place::Far { .. }, _) => self.copy_in(ctx, stream, dst, Range { base: src, bytes }, from),
            (_, Place::Far { .. }) => self.copy_out(ctx, stream, Range { base: dst, bytes }, src, to),
            _ => {
                let side = |address| BoxSide::Memory(Pitched { address, pitch: bytes, rows: 1 });
                let copy = CopyBox { dst: side(dst), src: side(src), width: bytes, height: 1, depth: 1 };
                self.copy_here(ctx, stream, &copy)
            }
        }
    }

    fn copy_in(
        self: &Arc<Self>,
        ctx: RawContext,
        stream: StreamArg,
        dst: u64,
        src: Range,
        from: Place,
    ) -> Result<()> {
        self.progress.check(ctx)?;
        if from == Place::Registered {
            self.transfers.wait_for(src);
            self.progress.wait_words(src);
        }
        if src.bytes <= INLINE_MAX as u64 {
            let data = row(src.base, src.bytes);
            self.reach_all(data.get(dst.wrapping_neg() as usize % 4..).unwrap_or_default(), 4)?;
            return self.submit(ctx, stream, &CopyIn { ctx, stream, dst, data: Bytes(data) });
        }
        let (latch, mut sent) = (Arc::<Latch>::default(), Ok(()));
        for (offset, bytes) in transfers(dst, src.bytes) {
            let part = Range { base: src.base + offset, bytes };
            let from = std::ptr::with_exposed_provenance::<u8>(part.base as usize);
            // SAFETY: the caller of the trait vouches for the host's side of a copy.
            let data = unsafe { std::slice::from_raw_parts(from, part.bytes as usize) };
            let to_word = (dst + offset).wrapping_neg() as usize % 8;
            sent = self
                .reach_all_of_many(data.get(to_word..).unwrap_or_default())
                .and_then(|()| self.progress.check(ctx));
            if sent.is_ok() {
                let _turn = self.uploads.turn();
                let transfer = self.name();
                self.uploads.give(transfer, part, &latch);
                let dst = dst + offset;
                self.submit_checked(ctx, stream, &CopyInBulk { ctx, stream, dst, bytes, transfer });
            }
            if sent.is_err() {
                break;
            }
        }
        match from {
            Place::Registered => self.uploads.lend(src, latch),
            _ => latch.wait(),
        }
        sent
    }

    fn copy_out(
        self: &Arc<Self>,
        ctx: RawContext,
        stream: StreamArg,
        dst: Range,
        src: u64,
        to: Place,
    ) -> Result<()> {
        let awaited = to == Place::Plain;
        let mut transfers = Vec::new();
        let mut asked = Ok(());
        for offset in (0..dst.bytes).step_by(DOWNLOAD_MAX as usize) {
            let bytes = (dst.bytes - offset).min(DOWNLOAD_MAX);
            asked = self.progress.check(ctx);
            if asked.is_err() {
                break;
            }
            let transfer = self.progress.ticket(Ticket::Transfer(key(ctx, stream), awaited));
            self.transfers.begin(transfer, Destination::linear(dst.base + offset, bytes));
            transfers.push(transfer);
            let src = src + offset;
            asked = self.submit(ctx, stream, &CopyOut { ctx, stream, src, bytes, transfer });
        }
        if dst.bytes > INLINE_MAX as u64 {
            // What it brings takes longer than the writing, and somebody is going to wait for it.
            self.flush();
        }
        if awaited { self.collect(&transfers).and(asked) } else { asked }
    }

    /// Waits for transfers to plain memory. When it returns, nobody writes there any more.
    fn collect(&self, transfers: &[u64]) -> Result<()> {
        if !transfers.is_empty() {
            self.flush();
        }
        let mut all = Ok(());
        for transfer in transfers {
            let one = self.progress.wait_transfer(*transfer);
            self.transfers.end(*transfer);
            all = all.and(one);
        }
        all
    }

    pub(super) fn copy_boxes(
        self: &Arc<Self>,
        ctx: RawContext,
        stream: StreamArg,
        copy: &CopyBox,
    ) -> Result<()> {
        let CopyBox { dst, src, width, height, depth } = *copy;
        let size = [width, height, depth];
        if size.contains(&0) {
            return self.progress.check(ctx);
        }
        let place = |side: &BoxSide| match side {
            BoxSide::Memory(memory) => self.place_of(memory.address, extent(memory, size)?),
            BoxSide::Array(..) => Ok(Place::Far { mirrored: false }),
        };
        let (mut to, mut from) = (place(&dst)?, place(&src)?);
        match (dst, src) {
            (_, BoxSide::Memory(memory)) if to.is_far() => from = self.source(memory.address, from)?,
            (BoxSide::Memory(memory), _) if from.is_far() => to = self.destination(memory.address, to)?,
            _ => {}
        }
        if to.is_mirrored() || from.is_mirrored() || self.is_held() {
            self.push_changes();
        }
        match (dst, src) {
            _ if to.is_far() && from.is_far() => {
                self.submit(ctx, stream, &CopyBoxes { ctx, stream, copy: *copy })
            }
            (_, BoxSide::Memory(memory)) if to.is_far() => {
                self.progress.check(ctx)?;
                if from == Place::Registered {
                    self.transfers.wait_for(Range { base: memory.address, bytes: extent(&memory, size)? });
                }
                for (at, size) in parts(size) {
                    let from = moved(memory, at);
                    let data = pack(&from, size);
                    let dst = shifted(dst, at);
                    self.reach_all(&data, 4)?;
                    let rest = width - at[0] - size[0];
                    if rest >= 4 {
                        // A word of which half is in the next part of the row.
                        self.reach_all(&row(from.address + size[0] - 4, 8), 4)?;
                    }
                    if data.len() <= INLINE_MAX {
                        self.submit(ctx, stream, &BoxIn { ctx, stream, dst, size, data: Bytes(data) })?;
                    } else {
                        let transfer = self.name();
                        self.progress.check(ctx)?;
                        let _turn = self.uploads.turn();
                        self.uploads.give_packed(transfer, data);
                        self.submit_checked(ctx, stream, &BoxInBulk { ctx, stream, dst, size, transfer });
                    }
                }
                Ok(())
            }
            (BoxSide::Memory(memory), _) if from.is_far() => {
                let awaited = to == Place::Plain;
                let (mut transfers, mut asked) = (Vec::new(), Ok(()));
                for (at, size) in parts(size) {
                    asked = self.progress.check(ctx);
                    if asked.is_err() {
                        break;
                    }
                    let transfer = self.progress.ticket(Ticket::Transfer(key(ctx, stream), awaited));
                    self.transfers.begin(transfer, Destination { memory: moved(memory, at), size });
                    transfers.push(transfer);
                    let src = shifted(src, at);
                    asked = self.submit(ctx, stream, &BoxOut { ctx, stream, src, size, transfer });
                }
                if awaited { self.collect(&transfers).and(asked) } else { asked }
            }
            _ => self.copy_here(ctx, stream, copy),
        }
    }

    /// From the host to the host. With registered memory it happens in the stream, at the far end; else it is done at once, when the
    /// stream has come here.
    fn copy_here(self: &Arc<Self>, ctx: RawContext, stream: StreamArg, copy: &CopyBox) -> Result<()> {
        let size = [copy.width, copy.height, copy.depth];
        let (BoxSide::Memory(dst), BoxSide::Memory(src)) = (copy.dst, copy.src) else {
            return Err(CuError::INVALID_VALUE);
        };
        let mut mirrored = false;
        for side in [dst, src] {
            if self.place_of(side.address, extent(&side, size)?)? == Place::Registered {
                self.reach(side.address)?;
                mirrored = true;
            }
        }
        if mirrored {
            return self.copy_boxes(ctx, stream, copy);
        }
        self.progress.check(ctx)?;
        self.ask(&StreamSynchronize { ctx, stream })?;
        let to = Destination { memory: dst, size };
        // SAFETY: the caller of the trait vouches for the host's sides of a copy.
        unsafe { to.put(0, &pack(&src, size)) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_make_up_the_copy_and_part_no_word() {
        for (dst, bytes) in [(0, 1), (4, UPLOAD_MAX), (7, 3 * UPLOAD_MAX + 5), (8, 2 * UPLOAD_MAX), (3, 0)] {
            let mut next = 0;
            for (at, part) in transfers(dst, bytes) {
                assert!(at == next && (1..=UPLOAD_MAX).contains(&part), "{dst}, {bytes}");
                assert!(at == 0 || (dst + at).is_multiple_of(8), "{dst}, {bytes}");
                next += part;
            }
            assert_eq!(next, bytes);
        }
    }

    #[test]
    fn parts_are_pieces_and_make_up_the_box() {
        let piece = PIECE as u64;
        for size in
            [[1, 1, 1], [100, 3, 5], [piece, 2, 2], [piece + 1, 2, 1], [3 * piece, 1, 1], [4096, 4096, 3]]
        {
            let parts = parts(size);
            let bytes = |size: &[u64; 3]| size.iter().product::<u64>();
            assert_eq!(parts.iter().map(|(_, size)| bytes(size)).sum::<u64>(), bytes(&size));
            assert!(parts.iter().all(|(_, size)| bytes(size) <= piece && bytes(size) > 0), "{size:?}");
            assert!(parts.iter().all(|(at, part)| (0..3).all(|axis| at[axis] + part[axis] <= size[axis])));
        }
    }
}
