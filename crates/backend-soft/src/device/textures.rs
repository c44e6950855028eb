//! Arrays, textures and surfaces of the device.

use std::sync::Arc;

use backend::{
    Backend, BoxSide, CopyBox, Range, RawArray, RawContext, RawMipmap, RawTexture, Result, StreamArg,
    Textures,
};
use wire::{ArrayDesc, CuError, ElementFormat, TensorMap, TensorMapRequest};

use super::backend::{Of, SoftBackend, memory_error, side};
use crate::stream::{Copy3, Side};
use crate::texture::{Array, Mipmap, Surface, TEXTURE_LINEAR, Texture, check};

impl SoftBackend {
    /// Memory for arrays, in its recorded place if there is one.
    fn array_memory(&self, device: usize, bytes: u64) -> Result<u64> {
        let bytes = bytes.next_multiple_of(PAGE);
        let wanted = self.placement.wanted(bytes);
        let base = self.memory.map_module(device, wanted, bytes).map_err(memory_error)?;
        self.placement.tell(Range { base, bytes });
        Ok(base)
    }

    fn box_side(&self, box_side: &BoxSide, extent: [u64; 3]) -> Result<Side> {
        match box_side {
            BoxSide::Memory(pitched) => side(pitched),
            BoxSide::Array(array, at) => self.arrays.get(array.0)?.object.side(*at, extent),
        }
    }

    /// A copy of a box in terms of addresses.
    pub(super) fn copy_of(&self, copy: &CopyBox) -> Result<Copy3> {
        let CopyBox { width, height, depth, .. } = *copy;
        let extent = [width, height, depth];
        let (dst, src) = (self.box_side(&copy.dst, extent)?, self.box_side(&copy.src, extent)?);
        Ok(Copy3 { dst, src, width, height, depth })
    }

    /// Ends what a context has of arrays and objects.
    pub(super) fn end_textures(&self, ctx: RawContext) -> Result<()> {
        self.objects.remove_context(ctx.0);
        for array in self.arrays.drain(|array| array.context == ctx.0) {
            if !array.object.is_level {
                self.memory.unmap_module(array.object.base).map_err(memory_error)?;
            }
        }
        for mipmap in self.mipmaps.drain(|mipmap| mipmap.context == ctx.0) {
            if let Some(first) = mipmap.object.levels.first() {
                self.memory.unmap_module(first.base).map_err(memory_error)?;
            }
        }
        Ok(())
    }
}

/// Memory of modules and arrays comes in pages.
const PAGE: u64 = 4096;

impl Textures for SoftBackend {
    fn array_create(&self, ctx: RawContext, desc: &ArrayDesc) -> Result<RawArray> {
        let device = self.context(ctx)?.context.device;
        check(desc)?;
        let mut object = Array::new(0, *desc, false).ok_or(CuError::INVALID_VALUE)?;
        object.base = self.array_memory(device, object.bytes().ok_or(CuError::INVALID_VALUE)?)?;
        Ok(RawArray(self.arrays.insert(Arc::new(Of { context: ctx.0, object }))))
    }

    fn array_destroy(&self, ctx: RawContext, array: RawArray) -> Result<()> {
        let context = self.context(ctx)?;
        let gone = self.arrays.remove(array.0)?;
        if gone.object.is_level {
            return Ok(());
        }
        // Work that may use it ends first; an execution error is told by the calls that wait.
        let _ = context.context.synchronize_all();
        self.memory.unmap_module(gone.object.base).map_err(memory_error)
    }

    fn mipmap_create(&self, ctx: RawContext, desc: &ArrayDesc, levels: u32) -> Result<RawMipmap> {
        let device = self.context(ctx)?.context.device;
        check(desc)?;
        if levels == 0 || levels > desc.levels_max() {
            return Err(CuError::INVALID_VALUE);
        }
        let (bytes, offsets) = Mipmap::layout(desc, levels).ok_or(CuError::INVALID_VALUE)?;
        let base = self.array_memory(device, bytes)?;
        let of_level = |(level, offset)| Array::new(base + offset, desc.level(level), true);
        let levels = (0..levels).zip(offsets).map(of_level).collect::<Option<_>>();
        let object = Mipmap { levels: levels.ok_or(CuError::INVALID_VALUE)? };
        Ok(RawMipmap(self.mipmaps.insert(Arc::new(Of { context: ctx.0, object }))))
    }

    fn mipmap_level(&self, ctx: RawContext, mipmap: RawMipmap, level: u32) -> Result<RawArray> {
        let mipmap = self.mipmaps.get(mipmap.0)?;
        let object = *mipmap.object.levels.get(level as usize).ok_or(CuError::INVALID_VALUE)?;
        Ok(RawArray(self.arrays.insert(Arc::new(Of { context: ctx.0, object }))))
    }

    fn mipmap_destroy(&self, ctx: RawContext, mipmap: RawMipmap) -> Result<()> {
        let context = self.context(ctx)?;
        let gone = self.mipmaps.remove(mipmap.0)?;
        let _ = context.context.synchronize_all();
        let levels = &gone.object.levels;
        self.arrays.drain(|array| levels.iter().any(|level| level.base == array.object.base));
        match levels.first() {
            Some(first) => self.memory.unmap_module(first.base).map_err(memory_error),
            None => Ok(()),
        }
    }

    fn copy_box(&self, ctx: RawContext, stream: StreamArg, copy: &CopyBox) -> Result<()> {
        let context = self.context(ctx)?;
        context.context.copy(&self.stream(&context, stream)?, self.copy_of(copy)?)
    }

    fn texture_create(&self, ctx: RawContext, texture: &RawTexture) -> Result<u64> {
        self.context(ctx)?;
        let resource = texture.resource.try_map(
            |array| Ok(self.arrays.get(array.0)?.object),
            |mipmap| Ok::<_, CuError>(self.mipmaps.get(mipmap.0)?.object.clone()),
        )?;
        let desc = wire::TextureDesc { resource, sampling: texture.sampling, view: texture.view };
        let texture = Texture::new(&desc, &self.memory.extents())?;
        Ok(self.objects.add_texture(ctx.0, texture))
    }

    fn texture_destroy(&self, ctx: RawContext, texture: u64) -> Result<()> {
        self.context(ctx)?;
        self.objects.remove_texture(texture)
    }

    fn surface_create(&self, ctx: RawContext, array: RawArray) -> Result<u64> {
        self.context(ctx)?;
        let surface = Surface::new(&self.arrays.get(array.0)?.object)?;
        Ok(self.objects.add_surface(ctx.0, surface))
    }

    fn surface_destroy(&self, ctx: RawContext, surface: u64) -> Result<()> {
        self.context(ctx)?;
        self.objects.remove_surface(surface)
    }

    fn linear_texture_width(&self, device: usize, format: u32, channels: u32) -> Result<u64> {
        ElementFormat::new(format, channels)?;
        if device < self.devices().len() { Ok(TEXTURE_LINEAR) } else { Err(CuError::INVALID_DEVICE) }
    }

    fn tensor_map(&self, _ctx: RawContext, _request: &TensorMapRequest) -> Result<TensorMap> {
        // There is no unit that reads them.
        Err(CuError::NOT_SUPPORTED)
    }
}
