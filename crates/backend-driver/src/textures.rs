//! Arrays, textures, surfaces and tensor maps.
//!
//! The driver's descriptors are written as structs of numbers: the application may name formats and modes that today's enums
//! do not have, and the driver says what it takes.

use crate::api::{Api, check};
use crate::copy;
use crate::driver::Driver;
use backend::{CopyBox, RawArray, RawContext, RawMipmap, RawTexture, Result, StreamArg, Textures};
use cudarc::driver::sys;
use std::ffi::c_void;
use wire::{ArrayDesc, CuError, Resource, ResourceView, Sampling, Tensor, TensorMap, TensorMapRequest};

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
struct ArrayDescriptor {
    sizes: [usize; 3],
    format: u32,
    channels: u32,
    flags: u32,
}
const _: () = assert!(size_of::<ArrayDescriptor>() == size_of::<sys::CUDA_ARRAY3D_DESCRIPTOR>());

/// `CUDA_RESOURCE_DESC`; the union is 128 bytes, of which each kind uses the first words.
#[repr(C)]
struct ResourceDescriptor {
    kind: u32,
    union: [u64; 16],
    flags: u32,
}
const _: () = assert!(size_of::<ResourceDescriptor>() == size_of::<sys::CUDA_RESOURCE_DESC>());

/// `CUDA_TEXTURE_DESC`.
#[repr(C)]
struct TextureDescriptor {
    address: [u32; 3],
    filter: u32,
    flags: u32,
    max_anisotropy: u32,
    mipmap_filter: u32,
    level_bias: f32,
    level_clamp: [f32; 2],
    border: [f32; 4],
    reserved: [u32; 12],
}
const _: () = assert!(size_of::<TextureDescriptor>() == size_of::<sys::CUDA_TEXTURE_DESC>());

/// `CUDA_RESOURCE_VIEW_DESC`.
#[repr(C)]
struct ViewDescriptor {
    format: u32,
    sizes: [usize; 3],
    levels: [u32; 2],
    layers: [u32; 2],
    reserved: [u32; 16],
}
const _: () = assert!(size_of::<ViewDescriptor>() == size_of::<sys::CUDA_RESOURCE_VIEW_DESC>());

fn array_descriptor(desc: &ArrayDesc) -> ArrayDescriptor {
    ArrayDescriptor {
        sizes: [desc.width as usize, desc.height as usize, desc.depth as usize],
        format: desc.format,
        channels: desc.channels,
        flags: desc.flags,
    }
}

fn resource_descriptor(resource: &Resource<RawArray, RawMipmap>) -> ResourceDescriptor {
    let element = |format: u32, channels: u32| u64::from(format) | u64::from(channels) << 32;
    let (kind, words): (_, [u64; 5]) = match *resource {
        Resource::Array(array) => (sys::CUresourcetype::CU_RESOURCE_TYPE_ARRAY, [array.0, 0, 0, 0, 0]),
        Resource::Mipmap(mipmap) => {
            (sys::CUresourcetype::CU_RESOURCE_TYPE_MIPMAPPED_ARRAY, [mipmap.0, 0, 0, 0, 0])
        }
        Resource::Linear { address, format, channels, bytes } => {
            (sys::CUresourcetype::CU_RESOURCE_TYPE_LINEAR, [address, element(format, channels), bytes, 0, 0])
        }
        Resource::Pitch2D { address, format, channels, width, height, pitch } => (
            sys::CUresourcetype::CU_RESOURCE_TYPE_PITCH2D,
            [address, element(format, channels), width, height, pitch],
        ),
    };
    let mut union = [0; 16];
    union[..words.len()].copy_from_slice(&words);
    ResourceDescriptor { kind: kind as u32, union, flags: 0 }
}

fn texture_descriptor(sampling: &Sampling) -> TextureDescriptor {
    TextureDescriptor {
        address: sampling.address,
        filter: sampling.filter,
        flags: sampling.flags,
        max_anisotropy: sampling.max_anisotropy,
        mipmap_filter: sampling.mipmap_filter,
        level_bias: sampling.level_bias,
        level_clamp: [sampling.min_level, sampling.max_level],
        border: sampling.border,
        reserved: [0; 12],
    }
}

fn view_descriptor(view: &ResourceView) -> ViewDescriptor {
    ViewDescriptor {
        format: view.format,
        sizes: [view.width as usize, view.height as usize, view.depth as usize],
        levels: [view.levels.0, view.levels.1],
        layers: [view.layers.0, view.layers.1],
        reserved: [0; 16],
    }
}

/// The most dimensions of a tensor map.
const RANK_MAX: usize = 5;

/// The number of dimensions, from which the driver takes how long the lists are: they are as long as that.
fn rank(tensor: &Tensor) -> Result<u32> {
    let rank = tensor.dims.len();
    let whole = tensor.strides.len() + 1 == rank && tensor.element_strides.len() == rank;
    if (1..=RANK_MAX).contains(&rank) && whole { Ok(rank as u32) } else { Err(CuError::INVALID_VALUE) }
}

/// Memory for a `CUtensorMap`, aligned as the driver asks.
#[repr(C, align(128))]
struct AlignedMap([u64; 16]);
const _: () = assert!(size_of::<AlignedMap>() == size_of::<sys::CUtensorMap>());

fn tensor_map(api: &Api, request: &TensorMapRequest) -> Result<TensorMap> {
    let mut map = AlignedMap([0; 16]);
    let to: *mut sys::CUtensorMap = (&raw mut map).cast();
    let address = |tensor: &Tensor| tensor.address as *mut c_void;
    match request {
        TensorMapRequest::Tiled(tensor, shape) => {
            let rank = rank(tensor)?;
            if shape.len() != rank as usize {
                return Err(CuError::INVALID_VALUE);
            }
            let [interleave, swizzle, promotion, fill] = tensor.modes;
            // SAFETY: the map is aligned and whole, and each list has the length that goes with the rank; the driver only
            // writes the address down.
            check(unsafe {
                (api.cuTensorMapEncodeTiled)(
                    to,
                    tensor.data_type,
                    rank,
                    address(tensor),
                    tensor.dims.as_ptr(),
                    tensor.strides.as_ptr(),
                    shape.as_ptr(),
                    tensor.element_strides.as_ptr(),
                    interleave,
                    swizzle,
                    promotion,
                    fill,
                )
            })?;
        }
        TensorMapRequest::Im2col(tensor, (lower, upper), [channels, pixels]) => {
            let rank = rank(tensor)?;
            let corners = (rank as usize).checked_sub(2).ok_or(CuError::INVALID_VALUE)?;
            if lower.len() != corners || upper.len() != corners {
                return Err(CuError::INVALID_VALUE);
            }
            let [interleave, swizzle, promotion, fill] = tensor.modes;
            // SAFETY: as above.
            check(unsafe {
                (api.cuTensorMapEncodeIm2col)(
                    to,
                    tensor.data_type,
                    rank,
                    address(tensor),
                    tensor.dims.as_ptr(),
                    tensor.strides.as_ptr(),
                    lower.as_ptr(),
                    upper.as_ptr(),
                    *channels,
                    *pixels,
                    tensor.element_strides.as_ptr(),
                    interleave,
                    swizzle,
                    promotion,
                    fill,
                )
            })?;
        }
        TensorMapRequest::Im2colWide(tensor, [lower, upper], [channels, pixels, mode]) => {
            let rank = rank(tensor)?;
            let encode = api.tensor_map_im2col_wide.ok_or(CuError::NOT_SUPPORTED)?;
            let [interleave, swizzle, promotion, fill] = tensor.modes;
            // SAFETY: as above.
            check(unsafe {
                encode(
                    to,
                    tensor.data_type,
                    rank,
                    address(tensor),
                    tensor.dims.as_ptr(),
                    tensor.strides.as_ptr(),
                    *lower,
                    *upper,
                    *channels,
                    *pixels,
                    tensor.element_strides.as_ptr(),
                    interleave,
                    *mode,
                    swizzle,
                    promotion,
                    fill,
                )
            })?;
        }
        TensorMapRequest::Replace(known, address) => {
            map.0 = known.0;
            // SAFETY: the map is aligned and whole; the driver only writes the address down.
            check(unsafe { (api.cuTensorMapReplaceAddress)(to, *address as *mut c_void) })?;
        }
    }
    Ok(TensorMap(map.0))
}

// SAFETY of the calls below: every handle came from the driver through this trait and is live, which the server's object
// table sees to; every descriptor and out-pointer is a local, laid out as cuda.h says.
impl Textures for Driver {
    fn array_create(&self, ctx: RawContext, desc: &ArrayDesc) -> Result<RawArray> {
        self.enter(ctx)?;
        let descriptor = array_descriptor(desc);
        let mut array: sys::CUarray = std::ptr::null_mut();
        // SAFETY: see above.
        check(unsafe { (self.api.cuArray3DCreate_v2)(&raw mut array, (&raw const descriptor).cast()) })?;
        Ok(RawArray(array as u64))
    }

    fn array_destroy(&self, ctx: RawContext, array: RawArray) -> Result<()> {
        self.enter(ctx)?;
        // SAFETY: see above.
        check(unsafe { (self.api.cuArrayDestroy)(array.0 as sys::CUarray) })
    }

    fn mipmap_create(&self, ctx: RawContext, desc: &ArrayDesc, levels: u32) -> Result<RawMipmap> {
        self.enter(ctx)?;
        let descriptor = array_descriptor(desc);
        let mut mipmap: sys::CUmipmappedArray = std::ptr::null_mut();
        // SAFETY: see above.
        check(unsafe {
            (self.api.cuMipmappedArrayCreate)(&raw mut mipmap, (&raw const descriptor).cast(), levels)
        })?;
        Ok(RawMipmap(mipmap as u64))
    }

    fn mipmap_level(&self, ctx: RawContext, mipmap: RawMipmap, level: u32) -> Result<RawArray> {
        self.enter(ctx)?;
        let mut array: sys::CUarray = std::ptr::null_mut();
        let mipmap = mipmap.0 as sys::CUmipmappedArray;
        // SAFETY: see above.
        check(unsafe { (self.api.cuMipmappedArrayGetLevel)(&raw mut array, mipmap, level) })?;
        Ok(RawArray(array as u64))
    }

    fn mipmap_destroy(&self, ctx: RawContext, mipmap: RawMipmap) -> Result<()> {
        self.enter(ctx)?;
        // SAFETY: see above.
        check(unsafe { (self.api.cuMipmappedArrayDestroy)(mipmap.0 as sys::CUmipmappedArray) })
    }

    fn copy_box(&self, ctx: RawContext, arg: StreamArg, copy: &CopyBox) -> Result<()> {
        self.enter(ctx)?;
        copy::submit(&self.api, arg, copy)
    }

    fn texture_create(&self, ctx: RawContext, texture: &RawTexture) -> Result<u64> {
        self.enter(ctx)?;
        let resource = resource_descriptor(&texture.resource);
        let sampling = texture_descriptor(&texture.sampling);
        let view = texture.view.as_ref().map(view_descriptor);
        let view = view.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let mut made = 0;
        // SAFETY: see above.
        check(unsafe {
            (self.api.cuTexObjectCreate)(
                &raw mut made,
                (&raw const resource).cast(),
                (&raw const sampling).cast(),
                view.cast(),
            )
        })?;
        Ok(made)
    }

    fn texture_destroy(&self, ctx: RawContext, texture: u64) -> Result<()> {
        self.enter(ctx)?;
        // SAFETY: see above.
        check(unsafe { (self.api.cuTexObjectDestroy)(texture) })
    }

    fn surface_create(&self, ctx: RawContext, array: RawArray) -> Result<u64> {
        self.enter(ctx)?;
        let resource = resource_descriptor(&Resource::Array(array));
        let mut made = 0;
        // SAFETY: see above.
        check(unsafe { (self.api.cuSurfObjectCreate)(&raw mut made, (&raw const resource).cast()) })?;
        Ok(made)
    }

    fn surface_destroy(&self, ctx: RawContext, surface: u64) -> Result<()> {
        self.enter(ctx)?;
        // SAFETY: see above.
        check(unsafe { (self.api.cuSurfObjectDestroy)(surface) })
    }

    fn linear_texture_width(&self, device: usize, format: u32, channels: u32) -> Result<u64> {
        let mut width = 0;
        let device = self.device(device)?;
        // SAFETY: see above; the driver refuses formats it does not know.
        check(unsafe {
            (self.api.cuDeviceGetTexture1DLinearMaxWidth)(&raw mut width, format, channels, device)
        })?;
        Ok(width as u64)
    }

    fn tensor_map(&self, ctx: RawContext, request: &TensorMapRequest) -> Result<TensorMap> {
        self.enter(ctx)?;
        tensor_map(&self.api, request)
    }
}
