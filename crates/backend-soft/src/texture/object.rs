//! Texture and surface objects, resolved: which bytes they are, as what, and how they are read.

use wire::{ArrayDesc, ChannelKind, CuError, ElementFormat, Resource, ResourceView, Sampling, TextureDesc};

use super::{Array, Mipmap};
use crate::memory::Extents;

/// Faces of a cube mixed across their edges: here each is apart.
const SEAMLESS: u32 = cudarc::driver::sys::CU_TRSF_SEAMLESS_CUBEMAP;
/// `CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT`.
const ALIGNMENT: u64 = 512;
/// `CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT`.
const PITCH_ALIGNMENT: u64 = 32;

/// The elements of an array, of a level of one, or of device memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plane {
    /// Where the first element is.
    pub base: u64,
    /// Elements of a row, rows, and slices or layers: each at least 1.
    pub size: [u64; 3],
    /// Bytes from a row to the next.
    pub pitch: u64,
    /// Bytes from a slice to the next.
    pub slice: u64,
}

impl Plane {
    fn of(array: &Array) -> Self {
        let (desc, shape) = (&array.desc, &array.shape);
        let size = [desc.width, shape.rows, shape.slices];
        Self { base: array.base, size, pitch: array.pitch(), slice: array.slice() }
    }
}

/// A texture object.
#[derive(Clone, Debug)]
pub struct Texture {
    /// The levels that it reads, the largest first: at least one.
    pub levels: Vec<Plane>,
    /// What an element is.
    pub element: ElementFormat,
    /// How it reads.
    pub sampling: Sampling,
    /// `CUDA_ARRAY3D_*` of the array.
    pub array_flags: u32,
    /// Whether it reads device memory of one dimension: what lies outside is zero.
    pub is_linear_memory: bool,
}

/// A surface object.
#[derive(Clone, Copy, Debug)]
pub struct Surface {
    /// Whether its slices are layers or faces.
    pub is_layered: bool,
    /// Its elements.
    pub plane: Plane,
    /// What an element is.
    pub element: ElementFormat,
}

/// What an element is under a `CUresourceViewFormat`; `None` for the array's own.
fn view_format(format: u32) -> Result<Option<ElementFormat>, CuError> {
    use ChannelKind::{Float, Signed, Unsigned};
    let (kind, channel_bytes) = match format {
        0 => return Ok(None),
        1..=3 => (Unsigned, 1),
        4..=6 => (Signed, 1),
        7..=9 => (Unsigned, 2),
        10..=12 => (Signed, 2),
        13..=15 => (Unsigned, 4),
        16..=18 => (Signed, 4),
        19..=21 => (Float, 2),
        22..=24 => (Float, 4),
        25..=34 => return Err(CuError::NOT_SUPPORTED),
        _ => return Err(CuError::INVALID_VALUE),
    };
    let channels = [1, 2, 4][(format as usize - 1) % 3];
    Ok(Some(ElementFormat { kind, channel_bytes, channels }))
}

impl Texture {
    /// Resolves a description.
    ///
    /// # Errors
    /// `INVALID_VALUE` for what `cuTexObjectCreate` forbids, `NOT_SUPPORTED` for compressed formats.
    pub fn new(desc: &TextureDesc<Array, Mipmap>, memory: &Extents) -> Result<Self, CuError> {
        let invalid = CuError::INVALID_VALUE;
        let (mut levels, element, array_flags, layered) = match &desc.resource {
            Resource::Array(array) => {
                let layered = array.desc.has(ArrayDesc::LAYERED | ArrayDesc::CUBEMAP);
                (vec![Plane::of(array)], array.desc.element()?, array.desc.flags, layered)
            }
            Resource::Mipmap(mipmap) => {
                let first = &mipmap.levels.first().ok_or(invalid)?.desc;
                let layered = first.has(ArrayDesc::LAYERED | ArrayDesc::CUBEMAP);
                (mipmap.levels.iter().map(Plane::of).collect(), first.element()?, first.flags, layered)
            }
            Resource::Linear { address, format, channels, bytes } => {
                let element = ElementFormat::new(*format, *channels)?;
                let width = bytes / element.bytes();
                let plane = Plane { base: *address, size: [width, 1, 1], pitch: *bytes, slice: *bytes };
                if width == 0 {
                    return Err(invalid);
                }
                (vec![plane], element, 0, false)
            }
            Resource::Pitch2D { address, format, channels, width, height, pitch } => {
                let element = ElementFormat::new(*format, *channels)?;
                let row = width.checked_mul(element.bytes()).ok_or(invalid)?;
                let slice = pitch.checked_mul(*height).ok_or(invalid)?;
                if row == 0 || *height == 0 || row > *pitch || !pitch.is_multiple_of(PITCH_ALIGNMENT) {
                    return Err(invalid);
                }
                let plane = Plane { base: *address, size: [*width, *height, 1], pitch: *pitch, slice };
                (vec![plane], element, 0, false)
            }
        };
        let is_array = matches!(desc.resource, Resource::Array(_) | Resource::Mipmap(_));
        if !is_array {
            let (address, bytes) = desc.resource.memory().ok_or(invalid)?;
            if !address.is_multiple_of(ALIGNMENT) || memory.find(address, bytes).is_none() {
                return Err(invalid);
            }
        }
        let mut format = element;
        if let Some(view) = &desc.view {
            if !is_array {
                return Err(invalid);
            }
            format = view_format(view.format)?.unwrap_or(element);
            if format.bytes() != element.bytes() {
                return Err(invalid);
            }
            narrow(&mut levels, view, layered)?;
        }
        desc.sampling.check(format)?;
        if desc.sampling.flags & SEAMLESS != 0 {
            return Err(CuError::NOT_SUPPORTED);
        }
        let is_linear_memory = matches!(desc.resource, Resource::Linear { .. });
        Ok(Self { levels, element: format, sampling: desc.sampling, array_flags, is_linear_memory })
    }
}

/// Leaves the levels and layers that a view shows.
fn narrow(levels: &mut Vec<Plane>, view: &ResourceView, layered: bool) -> Result<(), CuError> {
    let invalid = CuError::INVALID_VALUE;
    let size = levels.first().ok_or(invalid)?.size;
    // 0 is a dimension that the array has not.
    let same = [view.width, view.height, view.depth].iter().zip(size).all(|(v, s)| (*v).max(1) == s);
    let (first, last) = (view.levels.0 as usize, view.levels.1 as usize);
    if (!same && !layered) || first > last || last >= levels.len() {
        return Err(invalid);
    }
    levels.truncate(last + 1);
    levels.drain(..first);
    let (first, last) = (u64::from(view.layers.0), u64::from(view.layers.1));
    if layered {
        for plane in levels {
            if first > last || last >= plane.size[2] {
                return Err(invalid);
            }
            plane.base += first * plane.slice;
            plane.size[2] = last - first + 1;
        }
    } else if (first, last) != (0, 0) {
        return Err(invalid);
    }
    Ok(())
}

impl Surface {
    /// A surface of an array that was made for it.
    ///
    /// # Errors
    /// `INVALID_VALUE` for any other array.
    pub fn new(array: &Array) -> Result<Self, CuError> {
        if !array.desc.has(ArrayDesc::SURFACE) {
            return Err(CuError::INVALID_VALUE);
        }
        let is_layered = array.desc.has(ArrayDesc::LAYERED | ArrayDesc::CUBEMAP);
        Ok(Self { is_layered, plane: Plane::of(array), element: array.desc.element()? })
    }
}
