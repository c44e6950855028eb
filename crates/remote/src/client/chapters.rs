//! The trait's chapters, asked of the far end.

use super::RemoteBackend;
use crate::messages as ask;
use backend::{
    Conditions, CopyBox, Partitions, RawArray, RawBlock, RawContext, RawEvent, RawGreen, RawMipmap,
    RawPhysical, RawStream, RawTemplate, RawTexture, Result, SharedEvent, Sharing, StreamArg,
    StreamAttributes, Textures,
};
use std::os::fd::OwnedFd;
use wire::{ArrayDesc, CuError, LaunchValue, SmCount, SmSplit, SmStep, TensorMap, TensorMapRequest};

/// Descriptors mean nothing on another machine.
impl Sharing for RemoteBackend {
    fn block_physical(&self, _block: RawBlock) -> Result<RawPhysical> {
        Err(CuError::NOT_SUPPORTED)
    }

    fn physical_export(&self, _physical: RawPhysical) -> Result<OwnedFd> {
        Err(CuError::NOT_SUPPORTED)
    }

    fn physical_import(&self, _device: usize, _file: OwnedFd, _bytes: u64) -> Result<RawPhysical> {
        Err(CuError::NOT_SUPPORTED)
    }

    fn event_export(&self, _ctx: RawContext, _event: RawEvent) -> Result<SharedEvent> {
        Err(CuError::NOT_SUPPORTED)
    }

    fn event_import(&self, _ctx: RawContext, _shared: SharedEvent) -> Result<RawEvent> {
        Err(CuError::NOT_SUPPORTED)
    }
}

impl Textures for RemoteBackend {
    fn array_create(&self, ctx: RawContext, desc: &ArrayDesc) -> Result<RawArray> {
        let array = RawArray(self.link.name());
        self.link.ask(&ask::ArrayCreate { ctx, array, desc: *desc })?;
        Ok(array)
    }

    fn array_destroy(&self, ctx: RawContext, array: RawArray) -> Result<()> {
        self.link.ask(&ask::ArrayDestroy { ctx, array })
    }

    fn mipmap_create(&self, ctx: RawContext, desc: &ArrayDesc, levels: u32) -> Result<RawMipmap> {
        let mipmap = RawMipmap(self.link.name());
        self.link.ask(&ask::MipmapCreate { ctx, mipmap, desc: *desc, levels })?;
        Ok(mipmap)
    }

    fn mipmap_level(&self, ctx: RawContext, mipmap: RawMipmap, level: u32) -> Result<RawArray> {
        let array = RawArray(self.link.name());
        self.link.ask(&ask::MipmapLevel { ctx, mipmap, level, array })?;
        Ok(array)
    }

    fn mipmap_destroy(&self, ctx: RawContext, mipmap: RawMipmap) -> Result<()> {
        self.link.ask(&ask::MipmapDestroy { ctx, mipmap })
    }

    fn copy_box(&self, ctx: RawContext, stream: StreamArg, copy: &CopyBox) -> Result<()> {
        self.link.copy_boxes(ctx, stream, copy)
    }

    fn texture_create(&self, ctx: RawContext, texture: &RawTexture) -> Result<u64> {
        if let Some((address, bytes)) = texture.resource.memory() {
            self.link.reachable(address, bytes)?;
        }
        self.link.ask(&ask::TextureCreate { ctx, texture: ask::Texture(*texture) })
    }

    fn texture_destroy(&self, ctx: RawContext, texture: u64) -> Result<()> {
        self.link.ask(&ask::TextureDestroy { ctx, texture })
    }

    fn surface_create(&self, ctx: RawContext, array: RawArray) -> Result<u64> {
        self.link.ask(&ask::SurfaceCreate { ctx, array })
    }

    fn surface_destroy(&self, ctx: RawContext, surface: u64) -> Result<()> {
        self.link.ask(&ask::SurfaceDestroy { ctx, surface })
    }

    fn linear_texture_width(&self, device: usize, format: u32, channels: u32) -> Result<u64> {
        self.link.ask(&ask::LinearTextureWidth { device: self.link.number(device)?, format, channels })
    }

    fn tensor_map(&self, ctx: RawContext, request: &TensorMapRequest) -> Result<TensorMap> {
        self.link.ask(&ask::TensorMapMake { ctx, request: request.clone() })
    }
}

impl Conditions for RemoteBackend {
    fn template_create(&self, ctx: RawContext) -> Result<RawTemplate> {
        let template = RawTemplate(self.link.name());
        self.link.ask(&ask::TemplateCreate { ctx, template })?;
        Ok(template)
    }

    fn template_condition(
        &self,
        ctx: RawContext,
        template: RawTemplate,
        initial: Option<u32>,
    ) -> Result<u64> {
        self.link.ask(&ask::TemplateCondition { ctx, template, initial })
    }

    fn template_destroy(&self, ctx: RawContext, template: RawTemplate) -> Result<()> {
        self.link.ask(&ask::TemplateDestroy { ctx, template })
    }
}

impl StreamAttributes for RemoteBackend {
    fn stream_attribute(&self, ctx: RawContext, stream: StreamArg, attribute: u32) -> Result<LaunchValue> {
        self.link.ask(&ask::StreamAttribute { ctx, stream, attribute })
    }

    fn stream_set_attribute(
        &self,
        ctx: RawContext,
        stream: StreamArg,
        attribute: u32,
        value: LaunchValue,
    ) -> Result<()> {
        self.link.ask(&ask::StreamSetAttribute { ctx, stream, attribute, value })
    }
}

impl Partitions for RemoteBackend {
    fn sm_count(&self, device: usize, of: &[SmStep]) -> Result<SmCount> {
        self.link.ask(&ask::SmCountAsk { device: self.link.number(device)?, of: of.to_vec() })
    }

    fn sm_split(&self, device: usize, of: &[SmStep], split: SmSplit) -> Result<(Vec<SmCount>, SmCount)> {
        self.link.ask(&ask::SmSplitAsk { device: self.link.number(device)?, of: of.to_vec(), split })
    }

    fn green_create(&self, device: usize, of: &[SmStep]) -> Result<RawGreen> {
        let green = RawGreen(self.link.name());
        self.link.ask(&ask::GreenCreate { device: self.link.number(device)?, of: of.to_vec(), green })?;
        Ok(green)
    }

    fn green_destroy(&self, green: RawGreen) -> Result<()> {
        self.link.ask(&ask::GreenDestroy { green })
    }

    fn green_stream_create(&self, ctx: RawContext, green: RawGreen, priority: i32) -> Result<RawStream> {
        let stream = RawStream(self.link.name());
        self.link.ask(&ask::GreenStreamCreate { ctx, green, stream, priority })?;
        Ok(stream)
    }
}
