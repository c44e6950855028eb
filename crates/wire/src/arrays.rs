//! Arrays: their formats, their shapes, and the boxes of them that copies move.

use crate::codec::{DecodeError, Decoder, Encoder, Wire};
use crate::{ArrayId, CuError, Pitched};
use cuda_abi::sys::{self, CUarray_format_enum as Format};
use serde::{Deserialize, Serialize};

/// What an element of an array holds in each channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChannelKind {
    /// An unsigned integer.
    Unsigned,
    /// A signed integer.
    Signed,
    /// A floating-point number of 2 or 4 bytes.
    Float,
    /// An unsigned integer that stands for 0 to 1.
    Unorm,
    /// A signed integer that stands for -1 to 1.
    Snorm,
}

/// What an element of an array is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ElementFormat {
    /// What each channel holds.
    pub kind: ChannelKind,
    /// Bytes of a channel.
    pub channel_bytes: u32,
    /// Channels.
    pub channels: u32,
}

impl ElementFormat {
    /// The format that a `CUarray_format` and a number of channels say.
    ///
    /// # Errors
    /// `INVALID_VALUE` for what is no format; `NOT_SUPPORTED` for compressed and planar ones.
    pub fn new(format: u32, channels: u32) -> Result<Self, CuError> {
        use ChannelKind::{Float, Signed, Snorm, Unorm, Unsigned};
        let (kind, channel_bytes, named) = match format {
            f if f == Format::CU_AD_FORMAT_UNSIGNED_INT8 as u32 => (Unsigned, 1, None),
            f if f == Format::CU_AD_FORMAT_UNSIGNED_INT16 as u32 => (Unsigned, 2, None),
            f if f == Format::CU_AD_FORMAT_UNSIGNED_INT32 as u32 => (Unsigned, 4, None),
            f if f == Format::CU_AD_FORMAT_SIGNED_INT8 as u32 => (Signed, 1, None),
            f if f == Format::CU_AD_FORMAT_SIGNED_INT16 as u32 => (Signed, 2, None),
            f if f == Format::CU_AD_FORMAT_SIGNED_INT32 as u32 => (Signed, 4, None),
            f if f == Format::CU_AD_FORMAT_HALF as u32 => (Float, 2, None),
            f if f == Format::CU_AD_FORMAT_FLOAT as u32 => (Float, 4, None),
            f if f == Format::CU_AD_FORMAT_UNORM_INT8X1 as u32 => (Unorm, 1, Some(1)),
            f if f == Format::CU_AD_FORMAT_UNORM_INT8X2 as u32 => (Unorm, 1, Some(2)),
            f if f == Format::CU_AD_FORMAT_UNORM_INT8X4 as u32 => (Unorm, 1, Some(4)),
            f if f == Format::CU_AD_FORMAT_UNORM_INT16X1 as u32 => (Unorm, 2, Some(1)),
            f if f == Format::CU_AD_FORMAT_UNORM_INT16X2 as u32 => (Unorm, 2, Some(2)),
            f if f == Format::CU_AD_FORMAT_UNORM_INT16X4 as u32 => (Unorm, 2, Some(4)),
            f if f == Format::CU_AD_FORMAT_SNORM_INT8X1 as u32 => (Snorm, 1, Some(1)),
            f if f == Format::CU_AD_FORMAT_SNORM_INT8X2 as u32 => (Snorm, 1, Some(2)),
            f if f == Format::CU_AD_FORMAT_SNORM_INT8X4 as u32 => (Snorm, 1, Some(4)),
            f if f == Format::CU_AD_FORMAT_SNORM_INT16X1 as u32 => (Snorm, 2, Some(1)),
            f if f == Format::CU_AD_FORMAT_SNORM_INT16X2 as u32 => (Snorm, 2, Some(2)),
            f if f == Format::CU_AD_FORMAT_SNORM_INT16X4 as u32 => (Snorm, 2, Some(4)),
            // Block-compressed, packed, planar and half-planar images.
            80..=94 | 145..=159 | 161..=169 | 176..=181 => return Err(CuError::NOT_SUPPORTED),
            _ => return Err(CuError::INVALID_VALUE),
        };
        if !matches!(channels, 1 | 2 | 4) || named.is_some_and(|named| named != channels) {
            return Err(CuError::INVALID_VALUE);
        }
        Ok(Self { kind, channel_bytes, channels })
    }

    /// Bytes of an element.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.channel_bytes * self.channels)
    }
}

record! {
    /// What an array is made of, as `CUDA_ARRAY3D_DESCRIPTOR`.
    #[derive(Copy, Eq, Serialize, Deserialize)]
    ArrayDesc {
        /// Elements of a row.
        width: u64,
        /// Rows; 0 for one dimension.
        height: u64,
        /// Slices, layers or faces; 0 for fewer than three dimensions.
        depth: u64,
        /// `CUarray_format`.
        format: u32,
        /// Channels of an element.
        channels: u32,
        /// `CUDA_ARRAY3D_*`.
        flags: u32,
    }
}

/// How many bytes an array has, and in what order they are when they lie packed: rows of bytes, then slices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ArrayShape {
    /// Bytes of a row.
    pub row: u64,
    /// Rows of a slice; 1 for one dimension.
    pub rows: u64,
    /// Slices, layers or faces; 1 where there are none.
    pub slices: u64,
    /// Bytes of an element.
    pub element: u64,
}

/// Faces of a cube.
const FACES: u64 = 6;
/// More bytes than any device has: what is larger is refused before anything is multiplied.
const BYTES_MAX: u64 = 1 << 44;

impl ArrayDesc {
    /// Layers rather than a third dimension.
    pub const LAYERED: u32 = sys::CUDA_ARRAY3D_LAYERED;
    /// Surfaces may be made of it.
    pub const SURFACE: u32 = sys::CUDA_ARRAY3D_SURFACE_LDST;
    /// Six faces, or six for each layer.
    pub const CUBEMAP: u32 = sys::CUDA_ARRAY3D_CUBEMAP;
    /// `tex2Dgather` reads it.
    pub const GATHER: u32 = sys::CUDA_ARRAY3D_TEXTURE_GATHER;
    const CARRIED: u32 = Self::LAYERED | Self::SURFACE | Self::CUBEMAP | Self::GATHER;
    const NOT_CARRIED: u32 = sys::CUDA_ARRAY3D_DEPTH_TEXTURE
        | sys::CUDA_ARRAY3D_COLOR_ATTACHMENT
        | sys::CUDA_ARRAY3D_SPARSE
        | sys::CUDA_ARRAY3D_DEFERRED_MAPPING
        | sys::CUDA_ARRAY3D_VIDEO_ENCODE_DECODE;

    /// Whether it has this flag.
    #[must_use]
    pub fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// What an element is.
    ///
    /// # Errors
    /// As [`ElementFormat::new`].
    pub fn element(&self) -> Result<ElementFormat, CuError> {
        ElementFormat::new(self.format, self.channels)
    }

    /// Whether such an array can be, as far as it does not depend on the device.
    ///
    /// # Errors
    /// `INVALID_VALUE` for what `cuArray3DCreate` forbids; `NOT_SUPPORTED` for what is made for other APIs or engines.
    pub fn check(&self) -> Result<(), CuError> {
        let invalid = Err(CuError::INVALID_VALUE);
        self.element()?;
        if self.flags & Self::NOT_CARRIED != 0 {
            return Err(CuError::NOT_SUPPORTED);
        }
        if self.flags & !Self::CARRIED != 0 || self.width == 0 {
            return invalid;
        }
        let layered = self.has(Self::LAYERED);
        if (layered && self.depth == 0) || (!layered && self.depth > 0 && self.height == 0) {
            return invalid;
        }
        if self.has(Self::CUBEMAP) {
            let faces = if layered { self.depth.is_multiple_of(FACES) } else { self.depth == FACES };
            if self.width != self.height || !faces {
                return invalid;
            }
        }
        let flat = self.height > 0 && (self.depth == 0 || layered);
        if self.has(Self::GATHER) && !(flat && self.depth == 0) {
            return invalid;
        }
        let bytes = [self.width, self.height.max(1), self.depth.max(1)]
            .into_iter()
            .try_fold(16u64, |all, each| all.checked_mul(each));
        if bytes.is_none_or(|bytes| bytes > BYTES_MAX) {
            return invalid;
        }
        Ok(())
    }

    /// Its bytes. `None` when there can be no such array.
    #[must_use]
    pub fn shape(&self) -> Option<ArrayShape> {
        self.check().ok()?;
        let element = self.element().ok()?.bytes();
        Some(ArrayShape {
            row: self.width * element,
            rows: self.height.max(1),
            slices: self.depth.max(1),
            element,
        })
    }

    /// How many levels a mipmapped array of this size can have: down to an element.
    #[must_use]
    pub fn levels_max(&self) -> u32 {
        let depth = if self.has(Self::LAYERED | Self::CUBEMAP) { 0 } else { self.depth };
        self.width.max(self.height).max(depth).max(1).ilog2() + 1
    }

    /// The array that is a level of a mipmapped one: each dimension halved for each level, layers not.
    #[must_use]
    pub fn level(&self, level: u32) -> Self {
        let halved = |whole: u64| if whole == 0 { 0 } else { whole.checked_shr(level).unwrap_or(0).max(1) };
        let layers = self.has(Self::LAYERED | Self::CUBEMAP);
        Self {
            width: halved(self.width),
            height: halved(self.height),
            depth: if layers { self.depth } else { halved(self.depth) },
            ..*self
        }
    }
}

impl ArrayShape {
    /// All its bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.row * self.rows * self.slices
    }

    /// Whether a box of `width` bytes, `height` rows and `depth` slices at byte `x` of row `y` of slice `z` lies inside, and
    /// between elements.
    #[must_use]
    pub fn contains(&self, [x, y, z]: [u64; 3], [width, height, depth]: [u64; 3]) -> bool {
        let inside = |at: u64, count: u64, all: u64| at.checked_add(count).is_some_and(|end| end <= all);
        inside(x, width, self.row)
            && inside(y, height, self.rows)
            && inside(z, depth, self.slices)
            && x.is_multiple_of(self.element)
            && width.is_multiple_of(self.element)
    }
}

/// One side of a copy that has an array on a side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CopySide {
    /// Device or pinned memory.
    Memory(Pitched),
    /// A box of an array: byte of the row, row, slice.
    Array(ArrayId, [u64; 3]),
    /// A staging slot of the thread's ring, in which the rows lie packed.
    Slot(u32),
}

impl Wire for CopySide {
    fn encode(&self, to: &mut Encoder<'_>) {
        match self {
            Self::Memory(side) => (0u8, *side).encode(to),
            Self::Array(array, at) => (1u8, (*array, *at)).encode(to),
            Self::Slot(slot) => (2u8, *slot).encode(to),
        }
    }
    fn decode(from: &mut Decoder<'_>) -> Result<Self, DecodeError> {
        match u8::decode(from)? {
            0 => Ok(Self::Memory(Wire::decode(from)?)),
            1 => {
                let (array, at) = Wire::decode(from)?;
                Ok(Self::Array(array, at))
            }
            2 => Ok(Self::Slot(Wire::decode(from)?)),
            other => Err(DecodeError::Invalid { what: "side of a copy", value: other.into() }),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn desc(width: u64, height: u64, depth: u64, flags: u32) -> ArrayDesc {
        ArrayDesc { width, height, depth, format: 32, channels: 2, flags }
    }

    #[test]
    fn arrays_are_what_the_driver_allows() {
        use ArrayDesc as A;
        let good = [
            desc(5, 0, 0, 0),
            desc(5, 3, 0, A::SURFACE),
            desc(5, 3, 2, 0),
            desc(5, 0, 4, A::LAYERED),
            desc(5, 3, 4, A::LAYERED),
            desc(4, 4, 6, A::CUBEMAP),
            desc(4, 4, 12, A::CUBEMAP | A::LAYERED),
            desc(4, 4, 0, A::GATHER),
        ];
        for desc in good {
            assert_eq!(desc.check(), Ok(()), "{desc:?}");
        }
        let bad = [
            desc(0, 0, 0, 0),
            desc(5, 0, 4, 0),
            desc(5, 3, 0, A::LAYERED),
            desc(4, 4, 5, A::CUBEMAP),
            desc(4, 3, 6, A::CUBEMAP),
            desc(4, 4, 12, A::CUBEMAP),
            desc(4, 4, 7, A::CUBEMAP | A::LAYERED),
            desc(4, 4, 4, A::GATHER),
            desc(4, 4, 4, 1 << 20),
            desc(u64::MAX, 2, 2, 0),
            ArrayDesc { channels: 3, ..desc(4, 4, 0, 0) },
            ArrayDesc { format: 7, ..desc(4, 4, 0, 0) },
            ArrayDesc { format: 192, ..desc(4, 4, 0, 0) },
        ];
        for desc in bad {
            assert_eq!(desc.check(), Err(CuError::INVALID_VALUE), "{desc:?}");
            assert_eq!(desc.shape(), None);
        }
        for refused in
            [desc(4, 4, 0, sys::CUDA_ARRAY3D_SPARSE), ArrayDesc { format: 176, ..desc(4, 4, 0, 0) }]
        {
            assert_eq!(refused.check(), Err(CuError::NOT_SUPPORTED), "{refused:?}");
        }
    }

    #[test]
    fn a_shape_says_what_lies_inside() {
        let shape = desc(5, 3, 2, 0).shape().unwrap();
        assert_eq!((shape.row, shape.rows, shape.slices, shape.bytes()), (40, 3, 2, 240));
        assert!(shape.contains([8, 1, 1], [32, 2, 1]));
        assert!(!shape.contains([8, 1, 1], [40, 2, 1]));
        assert!(!shape.contains([4, 0, 0], [8, 1, 1]), "half of an element");
        assert!(!shape.contains([0, 0, u64::MAX], [8, 1, 1]));
        assert_eq!(desc(5, 0, 0, 0).shape().unwrap().bytes(), 40);
    }

    #[test]
    fn levels_are_halved_and_layers_are_not() {
        assert_eq!(desc(9, 5, 0, 0).levels_max(), 4);
        assert_eq!(desc(9, 5, 0, 0).level(2), desc(2, 1, 0, 0));
        assert_eq!(desc(8, 8, 8, 0).level(3), desc(1, 1, 1, 0));
        let layered = desc(8, 0, 40, ArrayDesc::LAYERED);
        assert_eq!((layered.levels_max(), layered.level(1)), (4, desc(4, 0, 40, ArrayDesc::LAYERED)));
        assert_eq!(desc(8, 8, 0, 0).level(200), desc(1, 1, 0, 0));
    }
}
