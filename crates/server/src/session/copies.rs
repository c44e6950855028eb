//! Copies and fills.

use super::dispatch::Execute;
use super::{Caller, Session};
use crate::failure::{Failure, Result};
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
        let (width, height, depth) = shape;
        let rows_overlap = height > 1 && side.pitch < width;
        if rows_overlap || (depth > 1 && side.rows < height) {
            let detail =
                format!("{height} rows of {width} bytes do not fit a pitch of {}, {}", side.pitch, side.rows);
            return Err(Failure::new(CuError::INVALID_VALUE, detail));
        }
        let bytes = span(side.pitch, side.rows, shape).ok_or_else(too_large)?;
        self.check_memory(side.address, bytes)
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

pub(super) fn pitched(side: wire::Pitched) -> Pitched {
    Pitched { address: side.address, pitch: side.pitch, rows: side.rows }
}

impl Execute for wire::CopyFromInline {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<()> {
        let stream = session.stream(caller, self.ctx, self.stream)?;
        let Bytes(data) = self.data;
        session.check_memory(self.dst, data.len() as u64)?;
        let _work = stream.begin_work()?;
        // Plain host memory: read when the call returns.
        let src = data.as_ptr() as u64;
        session.backend().copy(stream.ctx.raw, stream.arg(), self.dst, src, data.len() as u64)?;
        Ok(stream.ctx.host_copy().note(&stream)?)
    }
}

impl Execute for wire::CopyFromSlot {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<()> {
        let stream = session.stream(caller, self.ctx, self.stream)?;
        session.check_memory(self.dst, self.bytes.into())?;
        let src = session.slot(caller, self.slot, self.bytes)?;
        let _work = stream.begin_work()?;
        session.backend().copy(stream.ctx.raw, stream.arg(), self.dst, src, self.bytes.into())?;
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
        session.check_memory(self.src, self.bytes.into())?;
        let bounce = session.bounce(caller)?;
        let work = stream.begin_work()?;
        session.backend().copy(
            stream.ctx.raw,
            stream.arg(),
            bounce.address(),
            self.src,
            self.bytes.into(),
        )?;
        drop(work);
        session.wait(|| stream.poll())?;
        let data = bounce.read(bytes);
        session.hand_over_output(&stream)?;
        Ok(Bytes(data))
    }
}

impl Execute for wire::CopyToSlot {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<()> {
        let stream = session.stream(caller, self.ctx, self.stream)?;
        session.check_memory(self.src, self.bytes.into())?;
        let dst = session.slot(caller, self.slot, self.bytes)?;
        let _work = stream.begin_work()?;
        session.backend().copy(stream.ctx.raw, stream.arg(), dst, self.src, self.bytes.into())?;
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
        session.check_memory(self.dst, self.bytes)?;
        session.check_memory(self.src, self.bytes)?;
        let _work = stream.begin_work()?;
        Ok(session.backend().copy(stream.ctx.raw, stream.arg(), self.dst, self.src, self.bytes)?)
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
        session.check_pitched(&self.dst, shape)?;
        session.check_pitched(&self.src, shape)?;
        let copy = Copy3D {
            dst: pitched(self.dst),
            src: pitched(self.src),
            width: self.width,
            height: self.height,
            depth: self.depth,
        };
        let _work = stream.begin_work()?;
        Ok(session.backend().copy_3d(stream.ctx.raw, stream.arg(), &copy)?)
    }
}

impl Execute for wire::CopyRowsFromSlot {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<()> {
        let stream = session.stream(caller, self.ctx, self.stream)?;
        let shape = (self.width, self.height, self.depth);
        session.check_pitched(&self.dst, shape)?;
        let src = session.packed_slot(caller, self.slot, shape)?;
        let Self { width, height, depth, .. } = self;
        let _work = stream.begin_work()?;
        let copy = Copy3D { dst: pitched(self.dst), src, width, height, depth };
        session.backend().copy_3d(stream.ctx.raw, stream.arg(), &copy)?;
        stream.ctx.host_copy().note(&stream)?;
        session.slot_used(caller, self.slot, &stream)
    }
}

impl Execute for wire::CopyRowsToSlot {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<()> {
        let stream = session.stream(caller, self.ctx, self.stream)?;
        let shape = (self.width, self.height, self.depth);
        session.check_pitched(&self.src, shape)?;
        let dst = session.packed_slot(caller, self.slot, shape)?;
        let Self { width, height, depth, .. } = self;
        let _work = stream.begin_work()?;
        let copy = Copy3D { dst, src: pitched(self.src), width, height, depth };
        session.backend().copy_3d(stream.ctx.raw, stream.arg(), &copy)?;
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
        session.check_memory(self.dst, self.bytes)?;
        session.check_memory(self.src, self.bytes)?;
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
