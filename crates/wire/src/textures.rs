//! Texture and surface objects, and tensor maps.

use crate::arrays::{ChannelKind, ElementFormat};
use crate::codec::{DecodeError, Decoder, Encoder, Wire};
use crate::{ArrayId, CuError, MipmapId};
use cuda_abi::sys;
use serde::{Deserialize, Serialize};

/// What a texture reads, as `CUDA_RESOURCE_DESC`; `A` and `M` name arrays and mipmapped arrays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Resource<A = ArrayId, M = MipmapId> {
    /// An array, or a level of a mipmapped one.
    Array(A),
    /// A mipmapped array.
    Mipmap(M),
    /// Device memory, in one dimension.
    Linear {
        /// Where.
        address: u64,
        /// `CUarray_format`.
        format: u32,
        /// Channels of an element.
        channels: u32,
        /// Bytes.
        bytes: u64,
    },
    /// Device memory, in two dimensions.
    Pitch2D {
        /// Where.
        address: u64,
        /// `CUarray_format`.
        format: u32,
        /// Channels of an element.
        channels: u32,
        /// Elements of a row.
        width: u64,
        /// Rows.
        height: u64,
        /// Bytes from a row to the next.
        pitch: u64,
    },
}

impl<A, M> Resource<A, M> {
    /// The same resource, with its array named otherwise.
    ///
    /// # Errors
    /// What `array` or `mipmap` answers.
    pub fn try_map<B, N, E>(
        self,
        array: impl FnOnce(A) -> Result<B, E>,
        mipmap: impl FnOnce(M) -> Result<N, E>,
    ) -> Result<Resource<B, N>, E> {
        Ok(match self {
            Self::Array(a) => Resource::Array(array(a)?),
            Self::Mipmap(m) => Resource::Mipmap(mipmap(m)?),
            Self::Linear { address, format, channels, bytes } => {
                Resource::Linear { address, format, channels, bytes }
            }
            Self::Pitch2D { address, format, channels, width, height, pitch } => {
                Resource::Pitch2D { address, format, channels, width, height, pitch }
            }
        })
    }

    /// The device memory that it reads by address: first address and bytes. `None` for an array, and for what does not fit in
    /// the address space.
    #[must_use]
    pub fn memory(&self) -> Option<(u64, u64)> {
        match *self {
            Self::Array(_) | Self::Mipmap(_) => None,
            Self::Linear { address, bytes, .. } => Some((address, bytes)),
            Self::Pitch2D { address, format, channels, width, height, pitch } => {
                let element = ElementFormat::new(format, channels).ok()?.bytes();
                let before = height.checked_sub(1)?.checked_mul(pitch)?;
                Some((address, before.checked_add(width.checked_mul(element)?)?))
            }
        }
    }
}

impl Wire for Resource {
    fn encode(&self, to: &mut Encoder<'_>) {
        match *self {
            Self::Array(array) => (0u8, array).encode(to),
            Self::Mipmap(mipmap) => (1u8, mipmap).encode(to),
            Self::Linear { address, format, channels, bytes } => {
                (2u8, ([address, bytes], [format, channels])).encode(to);
            }
            Self::Pitch2D { address, format, channels, width, height, pitch } => {
                (3u8, ([address, width, height, pitch], [format, channels])).encode(to);
            }
        }
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        match u8::decode(from)? {
            0 => Ok(Self::Array(Wire::decode(from)?)),
            1 => Ok(Self::Mipmap(Wire::decode(from)?)),
            2 => {
                let ([address, bytes], [format, channels]) = Wire::decode(from)?;
                Ok(Self::Linear { address, format, channels, bytes })
            }
            3 => {
                let ([address, width, height, pitch], [format, channels]) = Wire::decode(from)?;
                Ok(Self::Pitch2D { address, format, channels, width, height, pitch })
            }
            other => Err(DecodeError::Invalid { what: "resource of a texture", value: other.into() }),
        }
    }
}

record! {
    /// How a texture reads, as `CUDA_TEXTURE_DESC`.
    #[derive(Copy, Serialize, Deserialize)]
    Sampling {
        /// `CUaddress_mode` of each dimension.
        address: [u32; 3],
        /// `CUfilter_mode`.
        filter: u32,
        /// `CU_TRSF_*`.
        flags: u32,
        /// Most samples of an anisotropic read.
        max_anisotropy: u32,
        /// `CUfilter_mode` between levels.
        mipmap_filter: u32,
        /// Added to the level asked for.
        level_bias: f32,
        /// Least level.
        min_level: f32,
        /// Greatest level.
        max_level: f32,
        /// What lies outside, with the address mode that says so.
        border: [f32; 4],
    }
}

record! {
    /// A part of an array, or another format for it, as `CUDA_RESOURCE_VIEW_DESC`.
    #[derive(Copy, Eq, Serialize, Deserialize)]
    ResourceView {
        /// `CUresourceViewFormat`.
        format: u32,
        /// Elements of a row.
        width: u64,
        /// Rows.
        height: u64,
        /// Slices.
        depth: u64,
        /// First and last level.
        levels: (u32, u32),
        /// First and last layer.
        layers: (u32, u32),
    }
}

/// A texture: what it reads and how.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct TextureDesc<A = ArrayId, M = MipmapId> {
    /// What it reads.
    pub resource: Resource<A, M>,
    /// How.
    pub sampling: Sampling,
    /// Which part of it, and as what.
    pub view: Option<ResourceView>,
}

impl Wire for TextureDesc {
    fn encode(&self, to: &mut Encoder<'_>) {
        (self.resource, (self.sampling, self.view)).encode(to);
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        let (resource, (sampling, view)) = Wire::decode(from)?;
        Ok(Self { resource, sampling, view })
    }
}

impl Sampling {
    /// Integers are told as integers.
    pub const AS_INTEGER: u32 = sys::CU_TRSF_READ_AS_INTEGER;
    /// Coordinates run from 0 to 1.
    pub const NORMALIZED: u32 = sys::CU_TRSF_NORMALIZED_COORDINATES;
    /// Bytes are of the sRGB curve.
    pub const SRGB: u32 = sys::CU_TRSF_SRGB;
    const CARRIED: u32 = Self::AS_INTEGER
        | Self::NORMALIZED
        | Self::SRGB
        | sys::CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION
        | sys::CU_TRSF_SEAMLESS_CUBEMAP;
    /// `CU_TR_ADDRESS_MODE_*` of the driver: wrap, clamp, mirror, border.
    const ADDRESS_MODES: std::ops::RangeInclusive<u32> = 0..=3;
    /// `CU_TR_FILTER_MODE_LINEAR`.
    pub const LINEAR: u32 = sys::CUfilter_mode::CU_TR_FILTER_MODE_LINEAR as u32;

    /// Whether it has this flag.
    #[must_use]
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Whether elements of that format can be read so.
    ///
    /// # Errors
    /// `INVALID_VALUE` for what `cuTexObjectCreate` forbids.
    pub fn check(&self, element: ElementFormat) -> Result<(), CuError> {
        let modes = self.address.iter().all(|mode| Self::ADDRESS_MODES.contains(mode));
        let filters = self.filter <= Self::LINEAR && self.mipmap_filter <= Self::LINEAR;
        if !modes || !filters || self.flags & !Self::CARRIED != 0 {
            return Err(CuError::INVALID_VALUE);
        }
        // What is told as an integer is not mixed; integers of 32 bits are never told as anything else.
        let integer = match element.kind {
            ChannelKind::Unsigned | ChannelKind::Signed => {
                self.has(Self::AS_INTEGER) || element.channel_bytes == 4
            }
            ChannelKind::Float | ChannelKind::Unorm | ChannelKind::Snorm => false,
        };
        if integer && (self.filter == Self::LINEAR || self.mipmap_filter == Self::LINEAR) {
            return Err(CuError::INVALID_VALUE);
        }
        Ok(())
    }
}

/// A `CUtensorMap`: bytes whose meaning is the device library's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct TensorMap(pub [u64; 16]);

impl Wire for TensorMap {
    fn encode(&self, to: &mut Encoder<'_>) {
        self.0.encode(to);
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(Self(Wire::decode(from)?))
    }
}

record! {
    /// What all kinds of tensor map are told.
    #[derive(Eq, Hash)]
    Tensor {
        /// `CUtensorMapDataType`.
        data_type: u32,
        /// Where it lies.
        address: u64,
        /// Elements of each dimension.
        dims: Vec<u64>,
        /// Bytes from an element to the next in each dimension but the first.
        strides: Vec<u64>,
        /// Steps of the traversal in each dimension.
        element_strides: Vec<u32>,
        /// `CUtensorMapInterleave`, `CUtensorMapSwizzle`, `CUtensorMapL2promotion`, `CUtensorMapFloatOOBfill`.
        modes: [u32; 4],
    }
}

/// What is asked for of a tensor map.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum TensorMapRequest {
    /// `cuTensorMapEncodeTiled`: with the box.
    Tiled(Tensor, Vec<u32>),
    /// `cuTensorMapEncodeIm2col`: with the corners of the box of pixels, channels of a pixel and pixels of a column.
    Im2col(Tensor, (Vec<i32>, Vec<i32>), [u32; 2]),
    /// `cuTensorMapEncodeIm2colWide`: with the corners in width, channels of a pixel, pixels of a column, and the mode.
    Im2colWide(Tensor, [i32; 2], [u32; 3]),
    /// `cuTensorMapReplaceAddress`.
    Replace(TensorMap, u64),
}

impl Wire for TensorMapRequest {
    fn encode(&self, to: &mut Encoder<'_>) {
        match self {
            Self::Tiled(tensor, shape) => {
                0u8.encode(to);
                tensor.encode(to);
                shape.encode(to);
            }
            Self::Im2col(tensor, (lower, upper), pixels) => {
                1u8.encode(to);
                tensor.encode(to);
                lower.encode(to);
                upper.encode(to);
                pixels.encode(to);
            }
            Self::Im2colWide(tensor, corners, pixels) => {
                2u8.encode(to);
                tensor.encode(to);
                corners.encode(to);
                pixels.encode(to);
            }
            Self::Replace(map, address) => {
                3u8.encode(to);
                map.encode(to);
                address.encode(to);
            }
        }
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        Ok(match u8::decode(from)? {
            0 => Self::Tiled(Wire::decode(from)?, Wire::decode(from)?),
            1 => Self::Im2col(Wire::decode(from)?, Wire::decode(from)?, Wire::decode(from)?),
            2 => Self::Im2colWide(Wire::decode(from)?, Wire::decode(from)?, Wire::decode(from)?),
            3 => Self::Replace(Wire::decode(from)?, Wire::decode(from)?),
            other => return Err(DecodeError::Invalid { what: "tensor map", value: other.into() }),
        })
    }
}
