//! Arrays and mipmapped arrays.

use std::ffi::c_uint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use cuda_abi::{CuError, CuResult, sys};
use wire::{
    ArrayCreate, ArrayDesc, ArrayDestroy, ArrayId, MipmapCreate, MipmapDestroy, MipmapId, MipmapLevel,
};

use crate::client::{Array, Mipmap, Owner, handle, out, with};

/// Reads the part that both descriptors have. The format is read as the integer that it is: an application may write any.
macro_rules! read_desc {
    ($desc:expr, depth: $depth:expr, flags: $flags:expr) => {
        ArrayDesc {
            width: (*$desc).Width as u64,
            height: (*$desc).Height as u64,
            depth: $depth,
            format: (&raw const (*$desc).Format).cast::<u32>().read(),
            channels: (*$desc).NumChannels,
            flags: $flags,
        }
    };
}

/// # Safety
/// `desc` must be NULL or the caller's to read.
unsafe fn read_3d(desc: *const sys::CUDA_ARRAY3D_DESCRIPTOR) -> CuResult<ArrayDesc> {
    if desc.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: not NULL, so the caller's description.
    Ok(unsafe { read_desc!(desc, depth: (*desc).Depth as u64, flags: (*desc).Flags) })
}

fn create(desc: ArrayDesc) -> CuResult<ArrayId> {
    desc.check()?;
    let shape = desc.shape().ok_or(CuError::INVALID_VALUE)?;
    with(|call| {
        let context = Arc::clone(call.context()?);
        call.unsafe_in_capture()?;
        let id = ArrayId(call.session.next_id());
        call.ask(&ArrayCreate { ctx: context.id, array: id, desc })?;
        let owner = Owner::new(&context);
        let array = Array { id, owner, desc, shape, mipmap: None, gone: AtomicBool::new(false) };
        call.session.arrays.insert(id.0, Arc::new(array));
        Ok(id)
    })
}

/// Makes an array of one or two dimensions.
pub unsafe fn cuArrayCreate_v2(
    pHandle: *mut sys::CUarray,
    pAllocateArray: *const sys::CUDA_ARRAY_DESCRIPTOR,
) -> CuResult {
    let pHandle = out(pHandle)?;
    if pAllocateArray.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: not NULL, so the caller's description.
    let desc = unsafe { read_desc!(pAllocateArray, depth: 0, flags: 0) };
    let id = create(desc)?;
    // SAFETY: the caller's to write to.
    unsafe { pHandle.set(handle(id.handle())) };
    Ok(())
}

/// Makes an array of up to three dimensions, of layers, or of the faces of a cube.
pub unsafe fn cuArray3DCreate_v2(
    pHandle: *mut sys::CUarray,
    pAllocateArray: *const sys::CUDA_ARRAY3D_DESCRIPTOR,
) -> CuResult {
    let pHandle = out(pHandle)?;
    // SAFETY: the caller's description, or NULL.
    let id = create(unsafe { read_3d(pAllocateArray) }?)?;
    // SAFETY: the caller's to write to.
    unsafe { pHandle.set(handle(id.handle())) };
    Ok(())
}

/// Destroys an array.
pub unsafe fn cuArrayDestroy(hArray: sys::CUarray) -> CuResult {
    with(|call| {
        let array = call.array(hArray)?;
        call.unsafe_in_capture()?;
        call.check()?;
        // A level goes with its mipmapped array.
        if array.mipmap.is_some() || call.session.arrays.remove(array.id.0).is_none() {
            return Err(CuError::INVALID_HANDLE);
        }
        array.gone.store(true, Ordering::Release);
        call.submit(&ArrayDestroy { array: array.id })
    })
}

/// Writes the part that both descriptors have.
macro_rules! write_desc {
    ($to:expr, $desc:expr) => {{
        (*$to).Width = $desc.width as usize;
        (*$to).Height = $desc.height as usize;
        (&raw mut (*$to).Format).cast::<u32>().write($desc.format);
        (*$to).NumChannels = $desc.channels;
    }};
}

/// Tells the format and size of an array, as far as two dimensions go.
pub unsafe fn cuArrayGetDescriptor_v2(
    pArrayDescriptor: *mut sys::CUDA_ARRAY_DESCRIPTOR,
    hArray: sys::CUarray,
) -> CuResult {
    out(pArrayDescriptor)?;
    let desc = with(|call| {
        call.context()?;
        Ok(call.array(hArray)?.desc)
    })?;
    // SAFETY: not NULL, so the caller's to write to.
    unsafe { write_desc!(pArrayDescriptor, desc) };
    Ok(())
}

/// Tells all of an array.
pub unsafe fn cuArray3DGetDescriptor_v2(
    pArrayDescriptor: *mut sys::CUDA_ARRAY3D_DESCRIPTOR,
    hArray: sys::CUarray,
) -> CuResult {
    out(pArrayDescriptor)?;
    let desc = with(|call| {
        call.context()?;
        Ok(call.array(hArray)?.desc)
    })?;
    // SAFETY: not NULL, so the caller's to write to.
    unsafe {
        write_desc!(pArrayDescriptor, desc);
        (*pArrayDescriptor).Depth = desc.depth as usize;
        (*pArrayDescriptor).Flags = desc.flags;
    }
    Ok(())
}

/// What is asked about an array that only another kind of array has: sparse, mapped later, or with planes. Arrays of those kinds
/// are refused when they are to be made.
fn of_another_kind(array: sys::CUarray) -> CuResult {
    with(|call| {
        call.context()?;
        call.array(array)?;
        Err(CuError::INVALID_VALUE)
    })
}

fn of_another_kind_mipmapped(mipmap: sys::CUmipmappedArray) -> CuResult {
    with(|call| {
        call.context()?;
        call.mipmap(mipmap)?;
        Err(CuError::INVALID_VALUE)
    })
}

/// Tells how a sparse array is laid out: no array is.
pub unsafe fn cuArrayGetSparseProperties(
    sparseProperties: *mut sys::CUDA_ARRAY_SPARSE_PROPERTIES,
    array: sys::CUarray,
) -> CuResult {
    out(sparseProperties)?;
    of_another_kind(array)
}

/// Tells how a sparse mipmapped array is laid out: none is.
pub unsafe fn cuMipmappedArrayGetSparseProperties(
    sparseProperties: *mut sys::CUDA_ARRAY_SPARSE_PROPERTIES,
    mipmap: sys::CUmipmappedArray,
) -> CuResult {
    out(sparseProperties)?;
    of_another_kind_mipmapped(mipmap)
}

/// Tells what memory an array that is mapped later needs: no array is.
pub unsafe fn cuArrayGetMemoryRequirements(
    memoryRequirements: *mut sys::CUDA_ARRAY_MEMORY_REQUIREMENTS,
    array: sys::CUarray,
    _device: sys::CUdevice,
) -> CuResult {
    out(memoryRequirements)?;
    of_another_kind(array)
}

/// Tells what memory a mipmapped array that is mapped later needs: none is.
pub unsafe fn cuMipmappedArrayGetMemoryRequirements(
    memoryRequirements: *mut sys::CUDA_ARRAY_MEMORY_REQUIREMENTS,
    mipmap: sys::CUmipmappedArray,
    _device: sys::CUdevice,
) -> CuResult {
    out(memoryRequirements)?;
    of_another_kind_mipmapped(mipmap)
}

/// Gives a plane of an array of several: none has.
pub unsafe fn cuArrayGetPlane(
    pPlaneArray: *mut sys::CUarray,
    hArray: sys::CUarray,
    _planeIdx: c_uint,
) -> CuResult {
    out(pPlaneArray)?;
    of_another_kind(hArray)
}

/// Makes a mipmapped array; more levels than there can be are as many as there can be.
pub unsafe fn cuMipmappedArrayCreate(
    pHandle: *mut sys::CUmipmappedArray,
    pMipmappedArrayDesc: *const sys::CUDA_ARRAY3D_DESCRIPTOR,
    numMipmapLevels: c_uint,
) -> CuResult {
    let pHandle = out(pHandle)?;
    // SAFETY: the caller's description, or NULL.
    let desc = unsafe { read_3d(pMipmappedArrayDesc) }?;
    desc.check()?;
    if numMipmapLevels == 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let levels = numMipmapLevels.min(desc.levels_max());
    let id = with(|call| {
        let context = Arc::clone(call.context()?);
        call.unsafe_in_capture()?;
        let id = MipmapId(call.session.next_id());
        call.ask(&MipmapCreate { ctx: context.id, mipmap: id, desc, levels })?;
        let owner = Owner::new(&context);
        let gone = AtomicBool::new(false);
        let mipmap = Mipmap { id, owner, desc, levels, handed_out: Mutex::default(), gone };
        call.session.mipmaps.insert(id.0, Arc::new(mipmap));
        Ok(id)
    })?;
    // SAFETY: the caller's to write to.
    unsafe { pHandle.set(handle(id.handle())) };
    Ok(())
}

/// Gives a level of a mipmapped array, as an array.
pub unsafe fn cuMipmappedArrayGetLevel(
    pLevelArray: *mut sys::CUarray,
    hMipmappedArray: sys::CUmipmappedArray,
    level: c_uint,
) -> CuResult {
    let pLevelArray = out(pLevelArray)?;
    let id = with(|call| {
        call.context()?;
        let mipmap = call.mipmap(hMipmappedArray)?;
        if level >= mipmap.levels {
            return Err(CuError::INVALID_VALUE);
        }
        let mut handed_out = mipmap.handed_out.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = handed_out.get(&level) {
            return Ok(*known);
        }
        let desc = mipmap.desc.level(level);
        let shape = desc.shape().ok_or(CuError::INVALID_VALUE)?;
        let id = ArrayId(call.session.next_id());
        call.ask(&MipmapLevel { mipmap: mipmap.id, level, array: id })?;
        let (owner, gone) = (mipmap.owner.clone(), AtomicBool::new(false));
        let array = Array { id, owner, desc, shape, mipmap: Some(Arc::clone(&mipmap)), gone };
        call.session.arrays.insert(id.0, Arc::new(array));
        handed_out.insert(level, id);
        Ok(id)
    })?;
    // SAFETY: the caller's to write to.
    unsafe { pLevelArray.set(handle(id.handle())) };
    Ok(())
}

/// Destroys a mipmapped array, with its levels.
pub unsafe fn cuMipmappedArrayDestroy(hMipmappedArray: sys::CUmipmappedArray) -> CuResult {
    with(|call| {
        let mipmap = call.mipmap(hMipmappedArray)?;
        call.unsafe_in_capture()?;
        call.check()?;
        call.session.mipmaps.remove(mipmap.id.0).ok_or(CuError::INVALID_HANDLE)?;
        mipmap.gone.store(true, Ordering::Release);
        call.session.arrays.sweep();
        call.submit(&MipmapDestroy { mipmap: mipmap.id })
    })
}
