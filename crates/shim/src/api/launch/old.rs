//! Launches in the form of CUDA 3: block, shared memory and parameters are set at the function, one after another, and a launch only
//! says how many blocks there are.

use std::ffi::{c_float, c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::PoisonError;

use cuda_abi::{CuError, CuResult, sys};

use super::kernel::{Arguments, Config, launch};
use crate::client::{Call, OldForm, with};

/// The most bytes of parameters.
const PARAMS_MAX: usize = 4096;
/// The names in `extra` of a buffer with parameters, of its size, and the end.
const BUFFER: *mut c_void = std::ptr::without_provenance_mut(1);
const BUFFER_SIZE: *mut c_void = std::ptr::without_provenance_mut(2);

/// Changes what a function is to be launched with.
fn change(function: sys::CUfunction, change: impl FnOnce(&mut OldForm) -> CuResult) -> CuResult {
    with(|call| {
        let callable = call.callable(function)?;
        change(&mut callable.old_form.lock().unwrap_or_else(PoisonError::into_inner))
    })
}

/// Sets bytes of the parameters.
fn set(function: sys::CUfunction, offset: c_int, bytes: &[u8]) -> CuResult {
    let begin = usize::try_from(offset).map_err(|_| CuError::INVALID_VALUE)?;
    let end =
        begin.checked_add(bytes.len()).filter(|end| *end <= PARAMS_MAX).ok_or(CuError::INVALID_VALUE)?;
    change(function, |form| {
        if form.params.len() < end {
            form.params.resize(end, 0);
        }
        form.params[begin..end].copy_from_slice(bytes);
        Ok(())
    })
}

/// Launches blocks as they were set.
fn launch_grid(function: sys::CUfunction, grid: [c_int; 2], stream: sys::CUstream) -> CuResult {
    let [width, height] = grid.map(u32::try_from);
    let (Ok(width), Ok(height)) = (width, height) else { return Err(CuError::INVALID_VALUE) };
    with(|call: &mut Call<'_>| {
        let form = call.callable(function)?.old_form.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let config = Config { grid: [width, height, 1], block: form.block, shared: form.shared, stream };
        let (mut params, mut size) = (form.params, form.size);
        params.resize(size, 0);
        let mut extra =
            [BUFFER, params.as_mut_ptr().cast(), BUFFER_SIZE, (&raw mut size).cast(), null_mut::<c_void>()];
        // A function without parameters takes none in this form either.
        let extra = if size == 0 { null_mut() } else { extra.as_mut_ptr() };
        // SAFETY: the list is ended, and names a buffer of that size; all of it lives until the launch has been sent.
        unsafe { launch(call, function, config, &[], Arguments { params: null_mut(), extra }) }
    })
}

/// Sets the size of a block.
pub unsafe fn cuFuncSetBlockShape(hfunc: sys::CUfunction, x: c_int, y: c_int, z: c_int) -> CuResult {
    let sizes = [x, y, z].map(|size| u32::try_from(size).ok().filter(|size| *size > 0));
    let [Some(x), Some(y), Some(z)] = sizes else { return Err(CuError::INVALID_VALUE) };
    change(hfunc, |form| {
        form.block = [x, y, z];
        Ok(())
    })
}

/// Sets how much dynamic shared memory a block has.
pub unsafe fn cuFuncSetSharedSize(hfunc: sys::CUfunction, bytes: c_uint) -> CuResult {
    change(hfunc, |form| {
        form.shared = bytes;
        Ok(())
    })
}

/// Sets how many bytes of parameters there are.
pub unsafe fn cuParamSetSize(hfunc: sys::CUfunction, numbytes: c_uint) -> CuResult {
    let size = numbytes as usize;
    if size > PARAMS_MAX {
        return Err(CuError::INVALID_VALUE);
    }
    change(hfunc, |form| {
        form.size = size;
        Ok(())
    })
}

/// Sets an integer among the parameters.
pub unsafe fn cuParamSeti(hfunc: sys::CUfunction, offset: c_int, value: c_uint) -> CuResult {
    set(hfunc, offset, &value.to_ne_bytes())
}

/// Sets a number among the parameters.
pub unsafe fn cuParamSetf(hfunc: sys::CUfunction, offset: c_int, value: c_float) -> CuResult {
    set(hfunc, offset, &value.to_ne_bytes())
}

/// Sets any bytes of the parameters.
pub unsafe fn cuParamSetv(
    hfunc: sys::CUfunction,
    offset: c_int,
    ptr: *mut c_void,
    numbytes: c_uint,
) -> CuResult {
    if ptr.is_null() || numbytes as usize > PARAMS_MAX {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: not NULL, and the caller's to read, as many bytes as it says.
    set(hfunc, offset, unsafe { std::slice::from_raw_parts(ptr.cast::<u8>(), numbytes as usize) })
}

/// Launches one block.
pub unsafe fn cuLaunch(f: sys::CUfunction) -> CuResult {
    launch_grid(f, [1, 1], null_mut())
}

/// Launches a grid of blocks.
pub unsafe fn cuLaunchGrid(f: sys::CUfunction, grid_width: c_int, grid_height: c_int) -> CuResult {
    launch_grid(f, [grid_width, grid_height], null_mut())
}

/// The same in a stream.
pub unsafe fn cuLaunchGridAsync(
    f: sys::CUfunction,
    grid_width: c_int,
    grid_height: c_int,
    hStream: sys::CUstream,
) -> CuResult {
    launch_grid(f, [grid_width, grid_height], hStream)
}
