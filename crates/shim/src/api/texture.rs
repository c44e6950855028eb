//! Texture and surface objects.

use std::sync::Arc;

use cuda_abi::{CuError, CuResult, sys};
use wire::{
    ArrayId, Resource, ResourceView, Sampling, SurfaceCreate, SurfaceDestroy, TextureCreate, TextureDesc,
    TextureDestroy,
};

use crate::client::{Call, Owner, Plain, TexelDescs, TexelKind, out, with};

/// `CUresourcetype`.
const ARRAY: u32 = sys::CUresourcetype::CU_RESOURCE_TYPE_ARRAY as u32;
const MIPMAPPED_ARRAY: u32 = sys::CUresourcetype::CU_RESOURCE_TYPE_MIPMAPPED_ARRAY as u32;
const LINEAR: u32 = sys::CUresourcetype::CU_RESOURCE_TYPE_LINEAR as u32;
const PITCH2D: u32 = sys::CUresourcetype::CU_RESOURCE_TYPE_PITCH2D as u32;

/// Reads a number that the bindings take for an enum: an application may write any.
macro_rules! number {
    ($place:expr) => {
        (&raw const $place).cast::<u32>().read()
    };
}

/// Reads what a texture is to read.
///
/// # Safety
/// `desc` must be the caller's to read.
unsafe fn read_resource(call: &Call<'_>, desc: *const sys::CUDA_RESOURCE_DESC) -> CuResult<Resource> {
    // SAFETY: the caller's description; each kind has its own member of the union.
    unsafe {
        if (*desc).flags != 0 {
            return Err(CuError::INVALID_VALUE);
        }
        match number!((*desc).resType) {
            ARRAY => Ok(Resource::Array(call.array((*desc).res.array.hArray)?.id)),
            MIPMAPPED_ARRAY => Ok(Resource::Mipmap(call.mipmap((*desc).res.mipmap.hMipmappedArray)?.id)),
            LINEAR => Ok(Resource::Linear {
                address: (*desc).res.linear.devPtr,
                format: number!((*desc).res.linear.format),
                channels: (*desc).res.linear.numChannels,
                bytes: (*desc).res.linear.sizeInBytes as u64,
            }),
            PITCH2D => Ok(Resource::Pitch2D {
                address: (*desc).res.pitch2D.devPtr,
                format: number!((*desc).res.pitch2D.format),
                channels: (*desc).res.pitch2D.numChannels,
                width: (*desc).res.pitch2D.width as u64,
                height: (*desc).res.pitch2D.height as u64,
                pitch: (*desc).res.pitch2D.pitchInBytes as u64,
            }),
            _ => Err(CuError::INVALID_VALUE),
        }
    }
}

/// # Safety
/// `desc` must be the caller's to read.
unsafe fn read_sampling(desc: *const sys::CUDA_TEXTURE_DESC) -> Sampling {
    // SAFETY: the caller's description.
    unsafe {
        Sampling {
            address: (&raw const (*desc).addressMode).cast::<[u32; 3]>().read(),
            filter: number!((*desc).filterMode),
            flags: (*desc).flags,
            max_anisotropy: (*desc).maxAnisotropy,
            mipmap_filter: number!((*desc).mipmapFilterMode),
            level_bias: (*desc).mipmapLevelBias,
            min_level: (*desc).minMipmapLevelClamp,
            max_level: (*desc).maxMipmapLevelClamp,
            border: (*desc).borderColor,
        }
    }
}

/// # Safety
/// `desc` must be the caller's to read.
unsafe fn read_view(desc: *const sys::CUDA_RESOURCE_VIEW_DESC) -> ResourceView {
    // SAFETY: the caller's description.
    unsafe {
        ResourceView {
            format: number!((*desc).format),
            width: (*desc).width as u64,
            height: (*desc).height as u64,
            depth: (*desc).depth as u64,
            levels: ((*desc).firstMipmapLevel, (*desc).lastMipmapLevel),
            layers: ((*desc).firstLayer, (*desc).lastLayer),
        }
    }
}

/// Makes a texture.
pub unsafe fn cuTexObjectCreate(
    pTexObject: *mut sys::CUtexObject,
    pResDesc: *const sys::CUDA_RESOURCE_DESC,
    pTexDesc: *const sys::CUDA_TEXTURE_DESC,
    pResViewDesc: *const sys::CUDA_RESOURCE_VIEW_DESC,
) -> CuResult {
    let pTexObject = out(pTexObject)?;
    if pResDesc.is_null() || pTexDesc.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    let value = with(|call| {
        let context = Arc::clone(call.context()?);
        // SAFETY: not NULL, so the caller's descriptions.
        let (texture, descs) = unsafe {
            let view = (!pResViewDesc.is_null()).then_some(pResViewDesc);
            let texture = TextureDesc {
                resource: read_resource(call, pResDesc)?,
                sampling: read_sampling(pTexDesc),
                view: view.map(|view| read_view(view)),
            };
            let descs = TexelDescs {
                resource: Plain::read(pResDesc),
                texture: Some(Plain::read(pTexDesc)),
                view: view.map(|view| Plain::read(view)),
            };
            (texture, descs)
        };
        let value = call.ask(&TextureCreate { ctx: context.id, texture })?;
        call.session.texels.insert(Owner::new(&context), TexelKind::Texture, value, descs);
        Ok(value)
    })?;
    // SAFETY: the caller's to write to.
    unsafe { pTexObject.set(value) };
    Ok(())
}

/// Destroys a texture; what it reads stays.
pub unsafe fn cuTexObjectDestroy(texObject: sys::CUtexObject) -> CuResult {
    with(|call| {
        let ctx = call.context()?.id;
        call.check()?;
        call.session.texels.remove(ctx, TexelKind::Texture, texObject)?;
        call.submit(&TextureDestroy { ctx, texture: texObject })
    })
}

fn descs(kind: TexelKind, value: u64) -> CuResult<TexelDescs> {
    with(|call| call.session.texels.get(call.context()?.id, kind, value))
}

/// Tells what a texture reads.
pub unsafe fn cuTexObjectGetResourceDesc(
    pResDesc: *mut sys::CUDA_RESOURCE_DESC,
    texObject: sys::CUtexObject,
) -> CuResult {
    out(pResDesc)?;
    let descs = descs(TexelKind::Texture, texObject)?;
    // SAFETY: not NULL, so the caller's to write to.
    unsafe { descs.resource.write(pResDesc) };
    Ok(())
}

/// Tells how a texture reads.
pub unsafe fn cuTexObjectGetTextureDesc(
    pTexDesc: *mut sys::CUDA_TEXTURE_DESC,
    texObject: sys::CUtexObject,
) -> CuResult {
    out(pTexDesc)?;
    let texture = descs(TexelKind::Texture, texObject)?.texture.ok_or(CuError::INVALID_VALUE)?;
    // SAFETY: not NULL, so the caller's to write to.
    unsafe { texture.write(pTexDesc) };
    Ok(())
}

/// Tells which part a texture reads, and as what, if it was made with such a view.
pub unsafe fn cuTexObjectGetResourceViewDesc(
    pResViewDesc: *mut sys::CUDA_RESOURCE_VIEW_DESC,
    texObject: sys::CUtexObject,
) -> CuResult {
    out(pResViewDesc)?;
    let view = descs(TexelKind::Texture, texObject)?.view.ok_or(CuError::INVALID_VALUE)?;
    // SAFETY: not NULL, so the caller's to write to.
    unsafe { view.write(pResViewDesc) };
    Ok(())
}

/// Makes a surface of an array that was made for it.
pub unsafe fn cuSurfObjectCreate(
    pSurfObject: *mut sys::CUsurfObject,
    pResDesc: *const sys::CUDA_RESOURCE_DESC,
) -> CuResult {
    let pSurfObject = out(pSurfObject)?;
    if pResDesc.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    let value = with(|call| {
        let context = Arc::clone(call.context()?);
        // SAFETY: not NULL, so the caller's description.
        let (resource, plain) = unsafe { (read_resource(call, pResDesc)?, Plain::read(pResDesc)) };
        let array: ArrayId = match resource {
            Resource::Array(array) => array,
            _ => return Err(CuError::INVALID_VALUE),
        };
        let value = call.ask(&SurfaceCreate { ctx: context.id, array })?;
        let descs = TexelDescs { resource: plain, texture: None, view: None };
        call.session.texels.insert(Owner::new(&context), TexelKind::Surface, value, descs);
        Ok(value)
    })?;
    // SAFETY: the caller's to write to.
    unsafe { pSurfObject.set(value) };
    Ok(())
}

/// Destroys a surface; its array stays.
pub unsafe fn cuSurfObjectDestroy(surfObject: sys::CUsurfObject) -> CuResult {
    with(|call| {
        let ctx = call.context()?.id;
        call.check()?;
        call.session.texels.remove(ctx, TexelKind::Surface, surfObject)?;
        call.submit(&SurfaceDestroy { ctx, surface: surfObject })
    })
}

/// Tells what a surface is of.
pub unsafe fn cuSurfObjectGetResourceDesc(
    pResDesc: *mut sys::CUDA_RESOURCE_DESC,
    surfObject: sys::CUsurfObject,
) -> CuResult {
    out(pResDesc)?;
    let descs = descs(TexelKind::Surface, surfObject)?;
    // SAFETY: not NULL, so the caller's to write to.
    unsafe { descs.resource.write(pResDesc) };
    Ok(())
}
