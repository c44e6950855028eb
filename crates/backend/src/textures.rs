//! The chapter of [`Backend`](crate::Backend) on arrays, textures, surfaces and tensor maps.

use crate::{Copy3D, Pitched, RawArray, RawContext, RawMipmap, Result, StreamArg};
use wire::{ArrayDesc, TensorMap, TensorMapRequest, TextureDesc};

/// One side of a copy that has an array on a side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BoxSide {
    /// Any address of this process.
    Memory(Pitched),
    /// A box of an array: byte of the row, row, slice.
    Array(RawArray, [u64; 3]),
}

/// A copy that has an array on a side: `depth` slices of `height` rows of `width` bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CopyBox {
    /// To.
    pub dst: BoxSide,
    /// From.
    pub src: BoxSide,
    /// Bytes of a row.
    pub width: u64,
    /// Rows.
    pub height: u64,
    /// Slices.
    pub depth: u64,
}

impl From<Copy3D> for CopyBox {
    fn from(copy: Copy3D) -> Self {
        let Copy3D { dst, src, width, height, depth } = copy;
        Self { dst: BoxSide::Memory(dst), src: BoxSide::Memory(src), width, height, depth }
    }
}

/// A texture, as the backend is told.
pub type RawTexture = TextureDesc<RawArray, RawMipmap>;

/// Arrays, textures, surfaces and tensor maps of a device library.
pub trait Textures {
    /// As `cuArray3DCreate`; [`ArrayDesc::check`] has passed. Its contents are undefined.
    fn array_create(&self, ctx: RawContext, desc: &ArrayDesc) -> Result<RawArray>;
    /// As `cuArrayDestroy`; a level goes with its mipmapped array.
    fn array_destroy(&self, ctx: RawContext, array: RawArray) -> Result<()>;
    /// As `cuMipmappedArrayCreate`.
    fn mipmap_create(&self, ctx: RawContext, desc: &ArrayDesc, levels: u32) -> Result<RawMipmap>;
    /// As `cuMipmappedArrayGetLevel`.
    fn mipmap_level(&self, ctx: RawContext, mipmap: RawMipmap, level: u32) -> Result<RawArray>;
    /// As `cuMipmappedArrayDestroy`.
    fn mipmap_destroy(&self, ctx: RawContext, mipmap: RawMipmap) -> Result<()>;
    /// A copy with an array on a side, which the caller has checked against the array's shape; plain host memory is treated as
    /// [`Backend::copy`](crate::Backend::copy) does.
    fn copy_box(&self, ctx: RawContext, stream: StreamArg, copy: &CopyBox) -> Result<()>;
    /// As `cuTexObjectCreate`: what kernels of this context know the texture by. The device library chooses the value.
    fn texture_create(&self, ctx: RawContext, texture: &RawTexture) -> Result<u64>;
    /// As `cuTexObjectDestroy`.
    fn texture_destroy(&self, ctx: RawContext, texture: u64) -> Result<()>;
    /// As `cuSurfObjectCreate`.
    fn surface_create(&self, ctx: RawContext, array: RawArray) -> Result<u64>;
    /// As `cuSurfObjectDestroy`.
    fn surface_destroy(&self, ctx: RawContext, surface: u64) -> Result<()>;
    /// As `cuDeviceGetTexture1DLinearMaxWidth`: elements.
    fn linear_texture_width(&self, device: usize, format: u32, channels: u32) -> Result<u64>;
    /// As `cuTensorMapEncode*` and `cuTensorMapReplaceAddress`; `NOT_SUPPORTED` where the device has none.
    fn tensor_map(&self, ctx: RawContext, request: &TensorMapRequest) -> Result<TensorMap>;
}
