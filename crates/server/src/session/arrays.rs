//! Arrays and mipmapped arrays, and copies that have one on a side.

use super::dispatch::Execute;
use super::{Caller, Session};
use crate::failure::{Failure, Result};
use crate::objects::{Array, ArrayRecord, LevelRecord, Making, Mipmap, MipmapRecord, Origin, in_use, insert};
use crate::{read, write};
use backend::{BoxSide, CopyBox, Pitched};
use std::sync::Arc;
use wire::{ArrayDesc, CopySide, CuError};

/// A side of a copy, and its array, which lives as long as this.
pub(super) struct Held {
    pub side: BoxSide,
    pub array: Option<Arc<Array>>,
}

impl From<Pitched> for Held {
    fn from(side: Pitched) -> Self {
        Self { side: BoxSide::Memory(side), array: None }
    }
}

impl Session {
    fn box_side(&self, caller: &mut Caller, side: CopySide, extent: [u64; 3]) -> Result<Held> {
        let [width, height, depth] = extent;
        match side {
            CopySide::Slot(slot) => Ok(self.packed_slot(caller, slot, (width, height, depth))?.into()),
            side => self.lasting_side(side, extent),
        }
    }

    /// A side that is no slot: one that is there beyond the call.
    pub(super) fn lasting_side(&self, side: CopySide, extent: [u64; 3]) -> Result<Held> {
        let [width, height, depth] = extent;
        match side {
            CopySide::Memory(side) => {
                self.check_pitched(&side, (width, height, depth))?;
                Ok(super::copies::pitched(side).into())
            }
            CopySide::Slot(slot) => {
                let detail = format!("slot {slot} is the call's alone");
                Err(Failure::new(CuError::INVALID_VALUE, detail))
            }
            CopySide::Array(id, at) => {
                let array = read(&self.table).array(id)?;
                if !array.shape.contains(at, extent) {
                    let detail = format!("{extent:?} at {at:?} is not all inside of {id:?}");
                    return Err(Failure::new(CuError::INVALID_VALUE, detail));
                }
                Ok(Held { side: BoxSide::Array(array.raw, at), array: Some(array) })
            }
        }
    }
}

/// Bytes of an array, or of the levels of a mipmapped one: what a device takes for them is hardly more.
fn bytes_of(desc: &ArrayDesc, levels: u32) -> u64 {
    let shapes = (0..levels.min(64)).filter_map(|level| desc.level(level).shape());
    shapes.map(|shape| shape.bytes()).fold(0, u64::saturating_add)
}

impl Execute for wire::ArrayCreate {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let ctx = session.context(self.ctx)?;
        if read(&session.table).arrays.contains_key(&self.array) {
            return Err(in_use(self.array));
        }
        let record =
            ArrayRecord { id: self.array, ctx: self.ctx, desc: self.desc, placement: Default::default() };
        let make = || Array::make(&session.placer, &ctx, record.clone(), Making::New);
        let array = session.with_room(ctx.device(), bytes_of(&self.desc, 1), make)?;
        let mut table = write(&session.table);
        table.changes += 1;
        insert(&mut table.arrays, self.array, array)
    }
}

impl Execute for wire::ArrayDestroy {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let mut table = write(&session.table);
        let array = table.array(self.array)?;
        if matches!(array.origin, Origin::Level(..)) {
            let detail = format!("{:?} goes with its mipmapped array", self.array);
            return Err(Failure::new(CuError::INVALID_HANDLE, detail));
        }
        table.arrays.remove(&self.array);
        table.changes += 1;
        // What ends is dropped outside of the lock.
        drop(table);
        session.unbuild_graphs_with(&[array]);
        Ok(())
    }
}

impl Execute for wire::MipmapCreate {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let ctx = session.context(self.ctx)?;
        if read(&session.table).mipmaps.contains_key(&self.mipmap) {
            return Err(in_use(self.mipmap));
        }
        let record = MipmapRecord {
            id: self.mipmap,
            ctx: self.ctx,
            desc: self.desc,
            levels: self.levels,
            placement: Default::default(),
        };
        let make = || Mipmap::make(&session.placer, &ctx, record.clone(), Making::New);
        let mipmap = session.with_room(ctx.device(), bytes_of(&self.desc, self.levels), make)?;
        let mut table = write(&session.table);
        table.changes += 1;
        insert(&mut table.mipmaps, self.mipmap, mipmap)
    }
}

impl Execute for wire::MipmapLevel {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let mipmap = read(&session.table).mipmap(self.mipmap)?;
        let record = LevelRecord { id: self.array, mipmap: self.mipmap, level: self.level };
        let level = mipmap.level(record)?;
        insert(&mut write(&session.table).arrays, self.array, level)
    }
}

impl Execute for wire::MipmapDestroy {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        let mut table = write(&session.table);
        let mipmap = table.mipmap(self.mipmap)?;
        table.mipmaps.remove(&self.mipmap);
        let of_it =
            |array: &Arc<Array>| matches!(&array.origin, Origin::Level(of, _) if Arc::ptr_eq(of, &mipmap));
        let levels = crate::objects::take_out(&mut table.arrays, of_it);
        table.changes += 1;
        drop(table);
        session.unbuild_graphs_with(&levels);
        drop((levels, mipmap));
        Ok(())
    }
}

impl Execute for wire::CopyBox {
    fn execute(self, session: &Session, caller: &mut Caller) -> Result<()> {
        let stream = session.stream(caller, self.ctx, self.stream)?;
        let Self { width, height, depth, .. } = self;
        let extent = [width, height, depth];
        let dst = session.box_side(caller, self.dst, extent)?;
        let src = session.box_side(caller, self.src, extent)?;
        let _work = stream.begin_work()?;
        let copy = CopyBox { dst: dst.side, src: src.side, width, height, depth };
        session.backend().copy_box(stream.ctx.raw, stream.arg(), &copy)?;
        if let CopySide::Slot(slot) = self.src {
            stream.ctx.host_copy().note(&stream)?;
            session.slot_used(caller, slot, &stream)?;
        }
        if let CopySide::Slot(slot) = self.dst {
            session.slot_used(caller, slot, &stream)?;
        }
        Ok(())
    }
}
