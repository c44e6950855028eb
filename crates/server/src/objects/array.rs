//! Arrays and mipmapped arrays.

use super::{Context, Making, Placement, Placer};
use crate::failure::{Failure, Result};
use crate::memory::Packed;
use backend::{Backend, RawArray, RawMipmap};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use wire::{ArrayDesc, ArrayId, ArrayShape, ContextId, CuError, MipmapId};

/// What it takes to make an array again.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ArrayRecord {
    /// Its handle.
    pub id: ArrayId,
    /// Its context.
    pub ctx: ContextId,
    /// What it is.
    pub desc: ArrayDesc,
    /// When it was made, and what the device library took.
    pub placement: Placement,
}

/// What it takes to make a mipmapped array again.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct MipmapRecord {
    /// Its handle.
    pub id: MipmapId,
    /// Its context.
    pub ctx: ContextId,
    /// What its first level is.
    pub desc: ArrayDesc,
    /// Levels.
    pub levels: u32,
    /// When it was made, and what the device library took.
    pub placement: Placement,
}

/// A handle of a level.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct LevelRecord {
    /// Its handle.
    pub id: ArrayId,
    /// Of which mipmapped array.
    pub mipmap: MipmapId,
    /// Which.
    pub level: u32,
}

/// Whose memory an array is.
pub enum Origin {
    /// Its own; with what the device library took for it.
    Own(ArrayRecord),
    /// A mipmapped array's.
    Level(Arc<Mipmap>, LevelRecord),
}

/// A live array, or a level of a mipmapped one; ended when the last user lets go.
pub struct Array {
    /// Whose memory it is.
    pub origin: Origin,
    /// Its context.
    pub ctx: Arc<Context>,
    /// The backend's handle.
    pub raw: RawArray,
    /// How its bytes lie.
    pub shape: ArrayShape,
    backend: Arc<dyn Backend>,
}

fn shape_of(desc: &ArrayDesc) -> Result<ArrayShape> {
    desc.check()?;
    desc.shape().ok_or_else(|| CuError::INVALID_VALUE.into())
}

impl Array {
    /// Makes the array and completes its record.
    ///
    /// # Errors
    /// The backend's.
    pub fn make(
        placer: &Placer,
        ctx: &Arc<Context>,
        mut record: ArrayRecord,
        making: Making,
    ) -> Result<Arc<Self>> {
        let backend = &placer.backend;
        let shape = shape_of(&record.desc)?;
        let desc = record.desc;
        let raw =
            placer.place_unseen(&mut record.placement, making, || backend.array_create(ctx.raw, &desc))?;
        let (ctx, backend) = (Arc::clone(ctx), Arc::clone(backend));
        Ok(Arc::new(Self { origin: Origin::Own(record), ctx, raw, shape, backend }))
    }

    /// Its handle.
    #[must_use]
    pub fn id(&self) -> ArrayId {
        match &self.origin {
            Origin::Own(record) => record.id,
            Origin::Level(_, record) => record.id,
        }
    }

    /// Its bytes, as an image keeps them; a level's are its mipmapped array's.
    pub(crate) fn packed(&self) -> Option<Packed> {
        match &self.origin {
            Origin::Own(record) => {
                Some(Packed { handle: record.id.handle(), levels: vec![(self.raw, self.shape)] })
            }
            Origin::Level(..) => None,
        }
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        if matches!(self.origin, Origin::Own(_))
            && let Err(error) = self.backend.array_destroy(self.ctx.raw, self.raw)
        {
            tracing::warn!(array = self.id().0, %error, "array not destroyed");
        }
    }
}

/// A live mipmapped array; ended when the last user lets go.
pub struct Mipmap {
    /// Its constructor.
    pub record: MipmapRecord,
    /// Its context.
    pub ctx: Arc<Context>,
    /// The backend's handle.
    pub raw: RawMipmap,
    /// Its levels, and how the bytes of each lie.
    levels: Vec<(RawArray, ArrayShape)>,
    backend: Arc<dyn Backend>,
}

impl Mipmap {
    /// Makes the mipmapped array, with all its levels, and completes its record.
    ///
    /// # Errors
    /// The backend's; `INVALID_VALUE` for more levels than there can be.
    pub fn make(
        placer: &Placer,
        ctx: &Arc<Context>,
        mut record: MipmapRecord,
        making: Making,
    ) -> Result<Arc<Self>> {
        let backend = &placer.backend;
        record.desc.check()?;
        if record.levels == 0 || record.levels > record.desc.levels_max() {
            let detail = format!("{} levels of {:?}", record.levels, record.desc);
            return Err(Failure::new(CuError::INVALID_VALUE, detail));
        }
        let (desc, count) = (record.desc, record.levels);
        let shapes = (0..count).map(|level| shape_of(&desc.level(level))).collect::<Result<Vec<_>>>()?;
        let raw = placer
            .place_unseen(&mut record.placement, making, || backend.mipmap_create(ctx.raw, &desc, count))?;
        let (ctx, backend) = (Arc::clone(ctx), Arc::clone(backend));
        // Whatever happens from here on, it is destroyed when it is dropped.
        let mut made = Self { record, ctx, raw, levels: Vec::new(), backend };
        for (level, shape) in (0..).zip(shapes) {
            made.levels.push((made.backend.mipmap_level(made.ctx.raw, raw, level)?, shape));
        }
        Ok(Arc::new(made))
    }

    /// A level as an array.
    ///
    /// # Errors
    /// `INVALID_VALUE` when there is none.
    pub fn level(self: &Arc<Self>, record: LevelRecord) -> Result<Arc<Array>> {
        let (raw, shape) = *self.levels.get(record.level as usize).ok_or(CuError::INVALID_VALUE)?;
        let (ctx, backend) = (Arc::clone(&self.ctx), Arc::clone(&self.backend));
        Ok(Arc::new(Array { origin: Origin::Level(Arc::clone(self), record), ctx, raw, shape, backend }))
    }

    /// Its bytes, as an image keeps them.
    pub(crate) fn packed(&self) -> Packed {
        Packed { handle: self.record.id.handle(), levels: self.levels.clone() }
    }
}

impl Drop for Mipmap {
    fn drop(&mut self) {
        if let Err(error) = self.backend.mipmap_destroy(self.ctx.raw, self.raw) {
            tracing::warn!(mipmap = self.record.id.0, %error, "mipmapped array not destroyed");
        }
    }
}
