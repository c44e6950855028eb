//! Arrays, textures and surfaces in a session's state: how they are told, and made again.

use crate::failure::{Failure, Result};
use crate::memory::Packed;
use crate::memory::arena::ArenaState;
use crate::objects::{
    Array, ArrayRecord, Behind, Context, LevelRecord, Making, Mipmap, MipmapRecord, Origin, Placeholders,
    Table, Texel, TexelDesc, TexelRecord, insert,
};
use crate::session::Session;
use crate::write;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use wire::{ArrayId, CuError, MipmapId, Resource};

/// A record, and whether the application still has a handle of what it makes: an array may live on behind a texture.
pub type Named<T> = (T, bool);

/// Everything of a session that has to do with arrays.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct TextureState {
    /// Arrays.
    pub arrays: Vec<Named<ArrayRecord>>,
    /// Mipmapped arrays.
    pub mipmaps: Vec<Named<MipmapRecord>>,
    /// Levels of mipmapped arrays.
    pub levels: Vec<Named<LevelRecord>>,
    /// Texture and surface objects.
    pub texels: Vec<TexelRecord>,
}

/// What the arrays of a session are, with those that only a texture keeps.
#[derive(Default)]
struct Live {
    arrays: BTreeMap<ArrayId, Arc<Array>>,
    mipmaps: BTreeMap<MipmapId, Arc<Mipmap>>,
}

impl Live {
    fn of(table: &Table) -> Self {
        let mut live = Self::default();
        table.arrays.values().for_each(|array| live.add_array(array));
        table.mipmaps.values().for_each(|mipmap| live.add_mipmap(mipmap));
        for texel in table.texels.values() {
            match &texel.behind {
                Resource::Array(array) => live.add_array(array),
                Resource::Mipmap(mipmap) => live.add_mipmap(mipmap),
                Resource::Linear { .. } | Resource::Pitch2D { .. } => {}
            }
        }
        live
    }

    fn add_array(&mut self, array: &Arc<Array>) {
        self.arrays.insert(array.id(), Arc::clone(array));
        if let Origin::Level(mipmap, _) = &array.origin {
            self.add_mipmap(mipmap);
        }
    }

    fn add_mipmap(&mut self, mipmap: &Arc<Mipmap>) {
        self.mipmaps.insert(mipmap.record.id, Arc::clone(mipmap));
    }

    /// The contents that an image keeps, each with its context.
    fn packed(&self) -> Vec<(Arc<Context>, Packed)> {
        let arrays = self.arrays.values().filter_map(|array| Some((Arc::clone(&array.ctx), array.packed()?)));
        let mipmaps = self.mipmaps.values();
        arrays.chain(mipmaps.map(|mipmap| (Arc::clone(&mipmap.ctx), mipmap.packed()))).collect()
    }
}

impl TextureState {
    /// What a restart has to make.
    pub(crate) fn of(table: &Table) -> Self {
        let live = Live::of(table);
        let mut state = Self::default();
        for array in live.arrays.values() {
            let named = table.arrays.contains_key(&array.id());
            match &array.origin {
                Origin::Own(record) => state.arrays.push((record.clone(), named)),
                Origin::Level(_, record) => state.levels.push((record.clone(), named)),
            }
        }
        for mipmap in live.mipmaps.values() {
            let named = table.mipmaps.contains_key(&mipmap.record.id);
            state.mipmaps.push((mipmap.record.clone(), named));
        }
        state.texels = table.texels.values().map(|texel| texel.record.clone()).collect();
        state
    }

    /// Bytes of contents.
    pub(crate) fn bytes(&self) -> u64 {
        let of = |desc: &wire::ArrayDesc| desc.shape().map_or(0, |shape| shape.bytes());
        let arrays = self.arrays.iter().map(|(record, _)| of(&record.desc));
        let levels = self
            .mipmaps
            .iter()
            .flat_map(|(record, _)| (0..record.levels).map(|level| of(&record.desc.level(level))));
        arrays.chain(levels).sum()
    }

    /// What is made in its turn.
    pub(crate) fn steps(&self) -> impl Iterator<Item = (u64, TextureStep<'_>)> {
        let arrays =
            self.arrays.iter().map(|(record, _)| (record.placement.turn, TextureStep::Array(record)));
        let mipmaps =
            self.mipmaps.iter().map(|(record, _)| (record.placement.turn, TextureStep::Mipmap(record)));
        let texels = self.texels.iter().map(|record| (record.placement.turn, TextureStep::Texel(record)));
        arrays.chain(mipmaps).chain(texels)
    }

    /// Whether a texture reads memory by an address outside of all arenas: then a rehearsal needs more than their blocks.
    pub(crate) fn reads_outside(&self, arenas: &[Option<ArenaState>]) -> bool {
        let blocks: Vec<_> =
            arenas.iter().flatten().flat_map(|arena| &arena.blocks).map(|block| block.range).collect();
        let mut read = self.texels.iter().filter_map(TexelRecord::memory);
        read.any(|(address, bytes)| !blocks.iter().any(|block| block.contains(address, bytes)))
    }

    /// Of an arena, the blocks that textures read by address: a rehearsal, which has no memory else, needs them.
    pub(crate) fn blocks_of(&self, arena: &ArenaState) -> ArenaState {
        let is_read = |block: &backend::Range| {
            let inside = |(address, bytes)| block.contains(address, bytes);
            self.texels.iter().filter_map(TexelRecord::memory).any(inside)
        };
        let mut part = arena.clone();
        part.blocks.retain(|block| is_read(&block.range));
        let blocks = &part.blocks;
        let in_part =
            |range: backend::Range| blocks.iter().any(|block| block.range.contains(range.base, range.bytes));
        part.allocations.retain(|allocation| in_part(allocation.range));
        part
    }
}

/// What is made in its turn.
pub(crate) enum TextureStep<'a> {
    Array(&'a ArrayRecord),
    Mipmap(&'a MipmapRecord),
    Texel(&'a TexelRecord),
}

/// What is made so far.
#[derive(Default)]
pub(crate) struct MadeTextures {
    live: Live,
    placeholders: Placeholders,
}

impl TextureStep<'_> {
    /// What it makes, for people.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Array(record) => format!("array {:#x}", record.id.handle()),
            Self::Mipmap(record) => format!("mipmapped array {:#x}", record.id.handle()),
            Self::Texel(record) => record.key().to_string(),
        }
    }
}

impl Session {
    /// The contents of arrays that an image keeps.
    pub(crate) fn packed_arrays(&self) -> Vec<(Arc<Context>, Packed)> {
        Live::of(&crate::read(&self.table)).packed()
    }

    /// Makes an array or an object again.
    pub(crate) fn restore_texture(
        &self,
        step: &TextureStep<'_>,
        state: &TextureState,
        made: &mut MadeTextures,
    ) -> Result<()> {
        match step {
            TextureStep::Array(record) => {
                let ctx = self.context(record.ctx)?;
                let array = Array::make(&self.placer, &ctx, (*record).clone(), Making::Again)?;
                made.live.arrays.insert(record.id, array);
            }
            TextureStep::Mipmap(record) => {
                let ctx = self.context(record.ctx)?;
                let mipmap = Mipmap::make(&self.placer, &ctx, (*record).clone(), Making::Again)?;
                for (level, _) in state.levels.iter().filter(|(level, _)| level.mipmap == record.id) {
                    made.live.arrays.insert(level.id, mipmap.level(level.clone())?);
                }
                made.live.mipmaps.insert(record.id, mipmap);
            }
            TextureStep::Texel(record) => {
                let ctx = self.context(record.ctx)?;
                let behind = made.live.behind(&record.desc)?;
                let placeholders = &mut made.placeholders;
                let texel = Texel::make_again(&self.placer, &ctx, (*record).clone(), behind, placeholders)?;
                insert(&mut write(&self.table).texels, record.key(), texel)?;
            }
        }
        Ok(())
    }

    /// Gives the application's handles to what has been made.
    pub(crate) fn name_arrays(&self, state: &TextureState, made: MadeTextures) -> Result<()> {
        let mut table = write(&self.table);
        let arrays = state.arrays.iter().map(|(record, named)| (record.id, named));
        let levels = state.levels.iter().map(|(record, named)| (record.id, named));
        for (id, _) in arrays.chain(levels).filter(|(_, named)| **named) {
            insert(&mut table.arrays, id, made.live.array(id)?)?;
        }
        for (record, _) in state.mipmaps.iter().filter(|(_, named)| *named) {
            insert(&mut table.mipmaps, record.id, made.live.mipmap(record.id)?)?;
        }
        Ok(())
    }
}

impl Live {
    fn array(&self, id: ArrayId) -> Result<Arc<Array>> {
        self.arrays.get(&id).cloned().ok_or_else(|| missing(id))
    }

    fn mipmap(&self, id: MipmapId) -> Result<Arc<Mipmap>> {
        self.mipmaps.get(&id).cloned().ok_or_else(|| missing(id))
    }

    fn behind(&self, desc: &TexelDesc) -> Result<Behind> {
        match desc {
            TexelDesc::Texture(texture) => {
                texture.resource.try_map(|array| self.array(array), |mipmap| self.mipmap(mipmap))
            }
            TexelDesc::Surface(array) => Ok(Resource::Array(self.array(*array)?)),
        }
    }
}

fn missing(id: impl std::fmt::Debug) -> Failure {
    Failure::new(CuError::INVALID_HANDLE, format!("the session state has no {id:?}"))
}
