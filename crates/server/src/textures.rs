//! Arrays, textures and surfaces in a session's state: how they are told, and made again.

use crate::failure::Result;
use crate::memory::Packed;
use crate::memory::arena::ArenaState;
use crate::objects::{
    Array, ArrayRecord, Context, Ground, LevelRecord, Making, Mipmap, MipmapRecord, Origin, Placeholders,
    Table, Texel, TexelRecord, insert,
};
use crate::session::Session;
use crate::{read, write};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A texture or surface object.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct TexelState {
    /// Its constructor.
    pub record: TexelRecord,
    /// What kind of array it was made over, when that is gone: what it reads is undefined, but its value is taken.
    pub lost: Option<Ground>,
}

/// Everything of a session that has to do with arrays.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct TextureState {
    /// Arrays.
    pub arrays: Vec<ArrayRecord>,
    /// Mipmapped arrays.
    pub mipmaps: Vec<MipmapRecord>,
    /// Levels of mipmapped arrays.
    pub levels: Vec<LevelRecord>,
    /// Texture and surface objects.
    pub texels: Vec<TexelState>,
}

impl TextureState {
    /// What a restart has to make.
    pub(crate) fn of(table: &Table) -> Self {
        let mut state = Self::default();
        for array in table.arrays.values() {
            match &array.origin {
                Origin::Own(record) => state.arrays.push(record.clone()),
                Origin::Level(_, record) => state.levels.push(record.clone()),
            }
        }
        state.mipmaps = table.mipmaps.values().map(|mipmap| mipmap.record.clone()).collect();
        let texel = |texel: &Arc<Texel>| TexelState { record: texel.record.clone(), lost: texel.lost(table) };
        state.texels = table.texels.values().map(texel).collect();
        state
    }

    /// Bytes of contents.
    pub(crate) fn bytes(&self) -> u64 {
        let of = |desc: &wire::ArrayDesc| desc.shape().map_or(0, |shape| shape.bytes());
        let arrays = self.arrays.iter().map(|record| of(&record.desc));
        let levels = self
            .mipmaps
            .iter()
            .flat_map(|record| (0..record.levels).map(|level| of(&record.desc.level(level))));
        arrays.chain(levels).sum()
    }

    /// What is made in its turn.
    pub(crate) fn steps(&self) -> impl Iterator<Item = (u64, TextureStep<'_>)> {
        let arrays = self.arrays.iter().map(|record| (record.placement.turn, TextureStep::Array(record)));
        let mipmaps = self.mipmaps.iter().map(|record| (record.placement.turn, TextureStep::Mipmap(record)));
        let texels = self.texels.iter().map(|texel| (texel.record.placement.turn, TextureStep::Texel(texel)));
        arrays.chain(mipmaps).chain(texels)
    }

    /// The memory that textures read by address.
    fn reads(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.texels.iter().filter_map(|texel| texel.record.memory())
    }

    /// Whether a texture reads memory by an address outside of all arenas: then a rehearsal needs more than their blocks.
    pub(crate) fn reads_outside(&self, arenas: &[Option<ArenaState>]) -> bool {
        let blocks: Vec<_> =
            arenas.iter().flatten().flat_map(|arena| &arena.blocks).map(|block| block.range).collect();
        self.reads().any(|(address, bytes)| !blocks.iter().any(|block| block.contains(address, bytes)))
    }

    /// Of an arena, the blocks that textures read by address: a rehearsal, which has no memory else, needs them.
    pub(crate) fn blocks_of(&self, arena: &ArenaState) -> ArenaState {
        let is_read = |block: &backend::Range| {
            let inside = |(address, bytes)| block.contains(address, bytes);
            self.reads().any(inside)
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
    Texel(&'a TexelState),
}

impl TextureStep<'_> {
    /// What it makes, for people.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Array(record) => format!("array {:#x}", record.id.handle()),
            Self::Mipmap(record) => format!("mipmapped array {:#x}", record.id.handle()),
            Self::Texel(texel) => texel.record.key().to_string(),
        }
    }
}

impl Session {
    /// The contents of arrays that an image keeps, each with its context.
    pub(crate) fn packed_arrays(&self) -> Vec<(Arc<Context>, Packed)> {
        let table = read(&self.table);
        let arrays =
            table.arrays.values().filter_map(|array| Some((Arc::clone(&array.ctx), array.packed()?)));
        let mipmaps = table.mipmaps.values();
        arrays.chain(mipmaps.map(|mipmap| (Arc::clone(&mipmap.ctx), mipmap.packed()))).collect()
    }

    /// Makes an array or an object again.
    pub(crate) fn restore_texture(
        &self,
        step: &TextureStep<'_>,
        state: &TextureState,
        placeholders: &mut Placeholders,
    ) -> Result<()> {
        match step {
            TextureStep::Array(record) => {
                let ctx = self.context(record.ctx)?;
                let array = Array::make(&self.placer, &ctx, (*record).clone(), Making::Again)?;
                insert(&mut write(&self.table).arrays, record.id, array)
            }
            TextureStep::Mipmap(record) => {
                let ctx = self.context(record.ctx)?;
                let mipmap = Mipmap::make(&self.placer, &ctx, (*record).clone(), Making::Again)?;
                let mut table = write(&self.table);
                for level in state.levels.iter().filter(|level| level.mipmap == record.id) {
                    insert(&mut table.arrays, level.id, mipmap.level(level.clone())?)?;
                }
                insert(&mut table.mipmaps, record.id, mipmap)
            }
            TextureStep::Texel(TexelState { record, lost }) => {
                let ctx = self.context(record.ctx)?;
                let behind = match lost {
                    None => record.desc.behind(&read(&self.table))?,
                    Some(ground) => ground.stand_in(&self.placer, &ctx)?,
                };
                let texel = Texel::make_again(&self.placer, &ctx, record.clone(), behind, placeholders)?;
                insert(&mut write(&self.table).texels, record.key(), texel)
            }
        }
    }
}
