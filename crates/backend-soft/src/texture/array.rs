//! Arrays and mipmapped arrays.

use cudarc::driver::sys::CUdevice_attribute as A;
use wire::{ArrayDesc, ArrayShape, CuError};

use crate::stream::Side;

/// Where a row may begin: an element of any format, or what is read of a surface at once, lies at a multiple of its size in it.
const ROW_ALIGNMENT: u64 = 16;

/// An array, or a level of a mipmapped one.
#[derive(Clone, Copy, Debug)]
pub struct Array {
    /// Where its bytes are.
    pub base: u64,
    /// What it is.
    pub desc: ArrayDesc,
    /// How many bytes it has in each direction.
    pub shape: ArrayShape,
    /// Whether its memory goes with a mipmapped array's.
    pub is_level: bool,
}

impl Array {
    /// An array whose bytes are at `base`; `None` when there can be none such.
    pub fn new(base: u64, desc: ArrayDesc, is_level: bool) -> Option<Self> {
        Some(Self { base, desc, shape: desc.shape()?, is_level })
    }

    /// Bytes from a row to the next.
    pub fn pitch(&self) -> u64 {
        self.shape.row.next_multiple_of(ROW_ALIGNMENT)
    }

    /// Bytes from a slice to the next.
    pub fn slice(&self) -> u64 {
        self.pitch() * self.shape.rows
    }

    /// Bytes of memory; `None` when no memory has as many.
    pub fn bytes(&self) -> Option<u64> {
        let pitch = self.shape.row.checked_next_multiple_of(ROW_ALIGNMENT)?;
        pitch.checked_mul(self.shape.rows)?.checked_mul(self.shape.slices)
    }

    /// A box of it as the side of a copy.
    ///
    /// # Errors
    /// `INVALID_VALUE` when it is not all inside.
    pub fn side(&self, at: [u64; 3], extent: [u64; 3]) -> Result<Side, CuError> {
        if !self.shape.contains(at, extent) {
            return Err(CuError::INVALID_VALUE);
        }
        let (pitch, slice) = (self.pitch(), self.slice());
        let address = self.base + at[2] * slice + at[1] * pitch + at[0];
        Ok(Side { address, pitch, slice })
    }
}

/// A mipmapped array: its levels, one behind the other.
#[derive(Clone, Debug)]
pub struct Mipmap {
    /// The levels, the largest first.
    pub levels: Vec<Array>,
}

/// Where a level may begin.
const LEVEL_ALIGNMENT: u64 = 512;

impl Mipmap {
    /// Bytes that `count` levels take, and the offset of each; `None` when there can be none such.
    pub fn layout(desc: &ArrayDesc, count: u32) -> Option<(u64, Vec<u64>)> {
        let mut offsets = Vec::new();
        let mut end = 0u64;
        for level in 0..count {
            let begin = end.next_multiple_of(LEVEL_ALIGNMENT);
            offsets.push(begin);
            end = begin.checked_add(Array::new(begin, desc.level(level), true)?.bytes()?)?;
        }
        Some((end, offsets))
    }
}

/// Elements of the longest texture of device memory.
pub const TEXTURE_LINEAR: u64 = 1 << 28;
const TEXTURE_1D: u64 = 131_072;
const TEXTURE_2D: [u64; 2] = [131_072, 65_536];
const TEXTURE_3D: u64 = 16_384;
const LAYERED: u64 = 32_768;
const LAYERS: u64 = 2048;
const GATHER: u64 = 32_768;

/// What the device says of its largest arrays and textures: those of a GPU of compute capability 9.0.
#[rustfmt::skip]
pub const LIMITS: &[(A, i32)] = &[
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH, TEXTURE_1D as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH, TEXTURE_2D[0] as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT, TEXTURE_2D[1] as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH, TEXTURE_3D as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT, TEXTURE_3D as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH, TEXTURE_3D as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_WIDTH, LAYERED as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_HEIGHT, LAYERED as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LAYERED_LAYERS, LAYERS as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_WIDTH, LAYERED as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LAYERED_LAYERS, LAYERS as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_WIDTH, GATHER as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_GATHER_HEIGHT, GATHER as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_WIDTH, LAYERED as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH, LAYERED as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS, (LAYERS - 2) as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_WIDTH, LAYERED as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_WIDTH, TEXTURE_2D[0] as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_HEIGHT, TEXTURE_2D[1] as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_WIDTH, TEXTURE_3D as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_HEIGHT, TEXTURE_3D as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE3D_DEPTH, TEXTURE_3D as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_WIDTH, LAYERED as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE1D_LAYERED_LAYERS, LAYERS as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_WIDTH, LAYERED as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_HEIGHT, LAYERED as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACE2D_LAYERED_LAYERS, LAYERS as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_WIDTH, LAYERED as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH, LAYERED as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS, (LAYERS - 2) as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_LINEAR_WIDTH, TEXTURE_LINEAR as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_WIDTH, 131_072),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_HEIGHT, 65_000),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_LINEAR_PITCH, 2_097_120),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH, LAYERED as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT, LAYERED as i32),
    (A::CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH, LAYERED as i32),
];

/// Whether the device can have such an array.
///
/// # Errors
/// As [`ArrayDesc::check`]; `INVALID_VALUE` for one that is too large.
pub fn check(desc: &ArrayDesc) -> Result<(), CuError> {
    desc.check()?;
    let layered = desc.has(ArrayDesc::LAYERED);
    let most = match (desc.height, desc.depth) {
        _ if desc.has(ArrayDesc::CUBEMAP) => [LAYERED, LAYERED, if layered { LAYERS - 2 } else { 6 }],
        (0, _) if layered => [LAYERED, 0, LAYERS],
        (_, _) if layered => [LAYERED, LAYERED, LAYERS],
        _ if desc.has(ArrayDesc::GATHER) => [GATHER, GATHER, 0],
        (0, _) => [TEXTURE_1D, 0, 0],
        (_, 0) => [TEXTURE_2D[0], TEXTURE_2D[1], 0],
        _ => [TEXTURE_3D; 3],
    };
    let inside = [desc.width, desc.height, desc.depth].iter().zip(most).all(|(asked, most)| *asked <= most);
    if inside { Ok(()) } else { Err(CuError::INVALID_VALUE) }
}
