//! Copies and fills.

use super::dispatch::Execute;
use super::fences::is_in_order;
use super::{Caller, Session};
use crate::failure::{Failure, Result};
use crate::objects::Stream;
use crate::read;
use backend::{Copy3D, Fill, Pitched};
use wire::{Bytes, CuError, INLINE_MAX};

/// The bytes between the first and the last that a pitched access touches; `None` when they do not fit in an address.
pub(super) fn span(pitch: u64, rows: u64, (width, height, depth): Shape) -> Option<u64> {
    if width == 0 || height == 0 || depth == 0 {
        return Some(0);
    }
    let slices = (depth - 1).checked_mul(pitch.checked_mul(rows)?)?;
    let rows = (height - 1).checked_mul(pitch)?;
    slices.checked_add(rows)?.checked_add(width)
}

fn too_large() -> Failure {
    Failure::new(CuError::INVALID_VALUE, "the copy does not fit in the address space")
}

/// A box of bytes: width, height, depth.
pub(super) type Shape = (u64, u64, u64);

impl Session {
    /// Checks that a pitched access touches nothing but memory of this session.
    pub(super) fn check_pitched(&self, side: &wire::Pitched, shape: Shape) -> Result<()> {
        self.is_pitched_here(side, shape).map(drop)
    }

    /// The same, and whether it is memory that [this process reaches](Self::is_here).
    fn is_pitched_here(&self, side: &wire::Pitched, shape: Shape) -> Result<bool> {
        let (width, height, depth) = shape;
        let rows_overlap = height > 1 && side.pitch < width;
        if rows_overlap || (depth > 1 && side.rows < height) {
            let detail =
                format!("{height} rows of {width} bytes do not fit a pitch of {}, {}", side.pitch, side.rows);
            return Err(Failure::new(CuError::INVALID_VALUE, detail));
        }
        let bytes = span(side.pitch, side.rows, shape).ok_or_else(too_large)?;
        self.is_here(side.address, bytes)
    }

    /// Checks that a fill is one, and touches nothing but memory of this session.
    pub(super) fn check_fill(
        &self,
        dst: u64,
        pitch: u64,
        element: u8,
        width: u64,
        height: u64,
    ) -> Result<()> {
        if !matches!(element, 1 | 2 | 4) {
            return Err(Failure::new(CuError::INVALID_VALUE, format!("no element has {element} bytes")));
        }
        let row = width.checked_mul(element.into()).ok_or_else(too_large)?;
        let bytes = span(pitch, 1, (row, height, 1)).ok_or_else(too_large)?;
        self.check_memory(dst, bytes)
    }

    /// Has a copy made in a stream. Where both of its sides are `here` (see [`Self::is_here`]) and the stream has work, the driver would wait for that before it answers, and
    /// so would all that the program asks for next: a host function makes it then.
    fn copy_box(&self, stream: &Stream, here: bool, copy: Copy3D) -> Result<()> {
        let _work = stream.begin_work()?;
        let (backend, ctx, arg) = (self.backend(), stream.ctx.raw, stream.arg());
        if here && self.is_busy(stream)? {
            // SAFETY: the caller has checked both sides; nothing of them is unmapped, and no slot used again, before the stream has done this.
            let run = move |()| unsafe { copy_rows(&copy) };
            return Ok(backend.host_function(ctx, arg, Box::new(move |status| status.map_or((), run)))?);
        }
        let Copy3D { dst, src, width, height, depth } = copy;
        if height == 1 && depth == 1 {
            return Ok(backend.copy(ctx, arg, dst.address, src.address, width)?);
        }
        Ok(backend.copy_3d(ctx, arg, &copy)?)
    }

    /// The same of bytes that lie side by side.
    fn copy_bytes(&self, stream: &Stream, here: bool, (dst, src, bytes): (u64, u64, u64)) -> Result<()> {
        let side = |address| Pitched { address, pitch: bytes, rows: 1 };
        let copy = Copy3D { dst: side(dst), src: side(src), width: bytes, height: 1, depth: 1 };
        self.copy_box(stream, here, copy)
    }

    /// Whether something comes before what a stream is given now: in it, or in one that it is in order with.
    fn is_busy(&self, stream: &Stream) -> Result<bool> {
        let backend = self.backend();
        if !backend.reaches_host() {
            return Ok(false);
        }
        // Asked without `Stream::poll`, which waits for whoever gives it work: this message.
        let has_work = |each: &Stream| Ok(!backend.stream_query(each.ctx.raw, each.arg())?);
        if has_work(stream)? {
            return Ok(true);
        }
        let table = read(&self.table);
        let before = table.streams.values().filter(|other| is_in_order(stream, other) && other.may_be_busy());
        before.map(|other| has_work(other)).find(|busy| !matches!(busy, Ok(false))).unwrap_or(Ok(false))
    }

    /// The caller's slot as the side of a pitched copy: rows lie packed in it.
    pub(super) fn packed_slot(
        &self,
        caller: &mut Caller,
        slot: u32,
        (width, height, depth): Shape,
    ) -> Result<Pitched> {
        let bytes = width.checked_mul(height).and_then(|plane| plane.checked_mul(depth));
        let bytes = bytes.and_then(|bytes| u32::try_from(bytes).ok()).ok_or_else(too_large)?;
        Ok(Pitched { address: self.slot(caller, slot, bytes)?, pitch: width, rows: height })
    }
}

/// Copies a box of bytes, whose sides may overlap.
///
/// # Safety
/// Both sides must be memory that this process may read and write.
unsafe fn copy_rows(copy: &Copy3D) {
    let Copy3D { dst, src, width, height, depth } = *copy;
    let row = |side: &Pitched, slice: u64, row: u64| {
        (side.address + (slice * side.rows + row) * side.pitch) as *mut u8
    };
    for (slice, number) in (0..depth).flat_map(|slice| (0..height).map(move |number| (slice, number))) {
        // SAFETY: a row of each side, as the caller says.
        unsafe { std::ptr::copy(row(&src, slice, number), row(&dst, slice, number), width as usize) };
    }
}

pub(super) fn pitched(side: wire::Pitched) -> Pitched {
    Pitched { address: side.address, pitch: side.pitch, rows: side.rows }
}

impl Execute for wire::CopyFromInline {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<()> {
        let stream = session.stream(caller, self.ctx, self.stream)?;
        let Bytes(data) = self.data;
        let (dst, bytes) = (self.dst, data.len());
        let here = session.is_here(dst, bytes as u64)?;
        let _work = stream.begin_work()?;
        let (backend, ctx, arg) = (session.backend(), stream.ctx.raw, stream.arg());
        if here && session.is_busy(&stream)? {
            // As in `copy_box`.
            let data = data.to_vec();
            // SAFETY: the bytes at `dst` are memory of the session that this process reaches, and stay so until the stream has done this.
            let put =
                move |()| unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), dst as *mut u8, bytes) };
            backend.host_function(ctx, arg, Box::new(move |status| status.map_or((), put)))?;
        } else {
            // Plain host memory: read when the call returns.
            backend.copy(ctx, arg, dst, data.as_ptr() as u64, bytes as u64)?;
        }
        Ok(stream.ctx.host_copy().note(&stream)?)
    }
}

impl Execute for wire::CopyFromSlot {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<()> {
        let stream = session.stream(caller, self.ctx, self.stream)?;
        let here = session.is_here(self.dst, self.bytes.into())?;
        let src = session.slot(caller, self.slot, self.bytes)?;
        session.copy_bytes(&stream, here, (self.dst, src, self.bytes.into()))?;
        stream.ctx.host_copy().note(&stream)?;
        session.slot_used(caller, self.slot, &stream)
    }
}

impl Execute for wire::SlotWait {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<()> {
        session.slot_wait(caller, self.slot)
    }
}

impl Execute for wire::CopyToInline {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<Bytes> {
        let bytes = self.bytes as usize;
        if bytes > INLINE_MAX {
            let detail = format!("{bytes} bytes are more than a reply carries");
            return Err(Failure::new(CuError::INVALID_VALUE, detail));
        }
        let stream = session.stream(caller, self.ctx, self.stream)?;
        let here = session.is_here(self.src, self.bytes.into())?;
        let bounce = session.bounce(caller)?;
        session.copy_bytes(&stream, here, (bounce.address(), self.src, self.bytes.into()))?;
        session.wait(|| stream.poll())?;
        let data = bounce.read(bytes);
        session.hand_over_output(&stream)?;
        Ok(Bytes(data))
    }
}

impl Execute for wire::CopyToSlot {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<()> {
        let stream = session.stream(caller, self.ctx, self.stream)?;
        let here = session.is_here(self.src, self.bytes.into())?;
        let dst = session.slot(caller, self.slot, self.bytes)?;
        session.copy_bytes(&stream, here, (dst, self.src, self.bytes.into()))?;
        session.slot_used(caller, self.slot, &stream)
    }
}

impl Execute for wire::CopyToSlotWait {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<()> {
        session.slot_wait(caller, self.slot)
    }
}

impl Execute for wire::Copy {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<()> {
        let stream = session.stream(caller, self.ctx, self.stream)?;
        let here = (session.is_here(self.dst, self.bytes)?, session.is_here(self.src, self.bytes)?);
        session.copy_bytes(&stream, here.0 && here.1, (self.dst, self.src, self.bytes))
    }
}

impl Execute for wire::CopyWait {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<()> {
        let Self { ctx, stream, dst, src, bytes } = self;
        wire::Copy { ctx, stream, dst, src, bytes }.execute(session, caller)?;
        let stream = session.stream(caller, ctx, stream)?;
        session.wait(|| stream.poll())?;
        session.hand_over_output(&stream)
    }
}

impl Execute for wire::Copy3D {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<()> {
        let stream = session.stream(caller, self.ctx, self.stream)?;
        let shape = (self.width, self.height, self.depth);
        let here = (session.is_pitched_here(&self.dst, shape)?, session.is_pitched_here(&self.src, shape)?);
        let copy = Copy3D {
            dst: pitched(self.dst),
            src: pitched(self.src),
            width: self.width,
            height: self.height,
            depth: self.depth,
        };
        session.copy_box(&stream, here.0 && here.1, copy)
    }
}

impl Execute for wire::CopyRowsFromSlot {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<()> {
        let stream = session.stream(caller, self.ctx, self.stream)?;
        let shape = (self.width, self.height, self.depth);
        let here = session.is_pitched_here(&self.dst, shape)?;
        let src = session.packed_slot(caller, self.slot, shape)?;
        let Self { width, height, depth, .. } = self;
        session.copy_box(&stream, here, Copy3D { dst: pitched(self.dst), src, width, height, depth })?;
        stream.ctx.host_copy().note(&stream)?;
        session.slot_used(caller, self.slot, &stream)
    }
}

impl Execute for wire::CopyRowsToSlot {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<()> {
        let stream = session.stream(caller, self.ctx, self.stream)?;
        let shape = (self.width, self.height, self.depth);
        let here = session.is_pitched_here(&self.src, shape)?;
        let dst = session.packed_slot(caller, self.slot, shape)?;
        let Self { width, height, depth, .. } = self;
        session.copy_box(&stream, here, Copy3D { dst, src: pitched(self.src), width, height, depth })?;
        session.slot_used(caller, self.slot, &stream)
    }
}

impl Execute for wire::Fill {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<()> {
        let stream = session.stream(caller, self.ctx, self.stream)?;
        session.check_fill(self.dst, self.pitch, self.element, self.width, self.height)?;
        let fill = Fill {
            dst: self.dst,
            pitch: self.pitch,
            element: self.element,
            value: self.value,
            width: self.width,
            height: self.height,
        };
        let _work = stream.begin_work()?;
        Ok(session.backend().fill(stream.ctx.raw, stream.arg(), &fill)?)
    }
}

impl Execute for wire::CopyPeer {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<()> {
        let (dst_ctx, src_ctx) = (session.context(self.dst_ctx)?, session.context(self.src_ctx)?);
        // The stream is the current context's: one of the two.
        let stream = session
            .stream(caller, self.dst_ctx, self.stream)
            .or_else(|_| session.stream(caller, self.src_ctx, self.stream))?;
        if session.is_here(self.dst, self.bytes)? & session.is_here(self.src, self.bytes)? {
            return session.copy_bytes(&stream, true, (self.dst, self.src, self.bytes));
        }
        let _work = stream.begin_work()?;
        let (dst, src) = ((dst_ctx.raw, self.dst), (src_ctx.raw, self.src));
        Ok(session.backend().copy_peer(stream.arg(), dst, src, self.bytes)?)
    }
}

#[cfg(test)]
mod tests {
    use super::span;

    #[test]
    fn a_span_ends_at_the_last_byte_touched() {
        assert_eq!(span(100, 10, (7, 1, 1)), Some(7));
        assert_eq!(span(100, 10, (7, 3, 1)), Some(207));
        assert_eq!(span(100, 10, (7, 3, 2)), Some(1207));
        assert_eq!(span(100, 10, (0, 3, 2)), Some(0));
        assert_eq!(span(u64::MAX, 2, (1, 1, 2)), None);
        assert_eq!(span(u64::MAX / 2, 1, (7, 4, 1)), None);
    }
}
