//! Texture and surface objects, and tensor maps.

use super::dispatch::Execute;
use super::{Caller, Session};
use crate::failure::{Failure, Result};
use crate::objects::{Texel, TexelDesc, TexelKey, TexelKind, TexelRecord};
use crate::{lock, read, write};
use wire::{ContextId, CuError, Resource, TensorMap, TextureDesc};

impl Session {
    fn make_texel(&self, ctx: ContextId, desc: TexelDesc) -> Result<u64> {
        let context = self.context(ctx)?;
        let behind = desc.behind(&read(&self.table))?;
        let record = TexelRecord { ctx, desc, value: 0, placement: Default::default() };
        let texel = Texel::make(&self.placer, &context, record, behind)?;
        let key = texel.record.key();
        let mut table = write(&self.table);
        table.changes += 1;
        // The device library gives no value twice at a time, so nothing is replaced.
        table.texels.insert(key, texel);
        Ok(key.value)
    }

    fn destroy_texel(&self, key: TexelKey) -> Result<()> {
        let mut table = write(&self.table);
        let texel = table.texels.remove(&key);
        table.changes += 1;
        drop(table);
        match texel {
            Some(_) => Ok(()),
            None => Err(Failure::new(CuError::INVALID_VALUE, format!("there is no {key}"))),
        }
    }

    /// Sentences about objects that a restart could not make again: what they read is not there, or not yet.
    pub(crate) fn texel_refusals(&self) -> Vec<String> {
        let texels: Vec<_> = read(&self.table).texels.values().map(|texel| texel.record.clone()).collect();
        let refusal = |record: &TexelRecord| {
            let (address, bytes) = record.memory()?;
            let why = if self.check_memory(address, 1).is_err() {
                "has been freed"
            } else if lock(&self.pinned).contains(address, bytes) {
                "is the host's, which a restart has only after its objects"
            } else {
                return None;
            };
            Some(format!("{}: the memory at {address:#x} that it reads {why}", record.key()))
        };
        texels.iter().filter_map(refusal).collect()
    }
}

impl Execute for wire::TextureCreate {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<u64> {
        let TextureDesc { resource, .. } = self.texture;
        if let Resource::Linear { .. } | Resource::Pitch2D { .. } = resource {
            let (address, _) = resource.memory().ok_or(CuError::INVALID_VALUE)?;
            // A driver takes one that reaches beyond its allocation, as a sample of NVIDIA's has it.
            session.check_memory(address, 1)?;
        }
        session.make_texel(self.ctx, TexelDesc::Texture(self.texture))
    }
}

impl Execute for wire::TextureDestroy {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        session.destroy_texel(TexelKey { ctx: self.ctx, kind: TexelKind::Texture, value: self.texture })
    }
}

impl Execute for wire::SurfaceCreate {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<u64> {
        session.make_texel(self.ctx, TexelDesc::Surface(self.array))
    }
}

impl Execute for wire::SurfaceDestroy {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<()> {
        session.destroy_texel(TexelKey { ctx: self.ctx, kind: TexelKind::Surface, value: self.surface })
    }
}

impl Execute for wire::TensorMapEncode {
    fn execute(self, session: &Session, _: &mut Caller) -> Result<TensorMap> {
        let ctx = session.context(self.ctx)?;
        Ok(session.backend().tensor_map(ctx.raw, &self.request)?)
    }
}
