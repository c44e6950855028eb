//! What a function is and how it is set up.

use std::ffi::{c_char, c_int, c_uint};

use cuda_abi::{CuError, CuResult, sys};
use wire::{ContextId, FunctionSetAttribute, FunctionSetCacheConfig};

use crate::client::{Call, Callable, Origin, handle, out, with};

/// Attributes that can be set: dynamic shared memory, carve-out, cluster sizes and scheduling.
const SETTABLE: std::ops::RangeInclusive<i32> = 8..=15;
/// Among them, the one that only tells: whether a cluster size must be set.
const READ_ONLY: i32 = 10;

pub(in crate::api) fn check_cache_config(config: c_uint) -> CuResult {
    let known = config <= sys::CUfunc_cache::CU_FUNC_CACHE_PREFER_EQUAL as c_uint;
    if known { Ok(()) } else { Err(CuError::INVALID_VALUE) }
}

/// The context in which a function's or kernel's attributes are meant.
pub(super) fn home(call: &Call<'_>, callable: &Callable) -> CuResult<ContextId> {
    match callable.owner() {
        Some(owner) => Ok(owner.context.id),
        None => Ok(call.context()?.id),
    }
}

/// Sets an attribute, and remembers what it became.
pub(in crate::api) fn set_attribute(
    call: &mut Call<'_>,
    callable: &Callable,
    ctx: ContextId,
    attribute: c_uint,
    value: c_int,
) -> CuResult {
    let attribute = attribute as i32;
    if !SETTABLE.contains(&attribute) || attribute == READ_ONLY {
        return Err(CuError::INVALID_VALUE);
    }
    call.ask(&FunctionSetAttribute { ctx, callee: callable.callee, attribute, value })?;
    callable.set_attribute(attribute, value);
    Ok(())
}

/// Gives a parameter's offset and size; the size may be left out.
pub(in crate::api) unsafe fn give_param(
    callable: &Callable,
    index: usize,
    offset: *mut usize,
    size: *mut usize,
) -> CuResult {
    let offset = out(offset)?;
    let param = callable.params.get(index).ok_or(CuError::INVALID_VALUE)?;
    // SAFETY: the caller's to write to.
    unsafe { offset.set(param.offset as usize) };
    if let Ok(size) = out(size) {
        // SAFETY: the caller's to write to.
        unsafe { size.set(param.size as usize) };
    }
    Ok(())
}

/// Gives an attribute.
pub unsafe fn cuFuncGetAttribute(pi: *mut c_int, attrib: c_uint, hfunc: sys::CUfunction) -> CuResult {
    let pi = out(pi)?;
    let value = with(|call| {
        let function = call.callable(hfunc)?.clone();
        let ctx = home(call, &function)?;
        call.attribute(&function, ctx, attrib as i32)
    })?;
    // SAFETY: the caller's to write to.
    unsafe { pi.set(value) };
    Ok(())
}

/// Sets an attribute.
pub unsafe fn cuFuncSetAttribute(hfunc: sys::CUfunction, attrib: c_uint, value: c_int) -> CuResult {
    with(|call| {
        let function = call.callable(hfunc)?.clone();
        let ctx = home(call, &function)?;
        set_attribute(call, &function, ctx, attrib, value)
    })
}

/// Sets the preference between cache and shared memory.
pub unsafe fn cuFuncSetCacheConfig(hfunc: sys::CUfunction, config: c_uint) -> CuResult {
    check_cache_config(config)?;
    with(|call| {
        let function = call.callable(hfunc)?.clone();
        let ctx = home(call, &function)?;
        call.submit(&FunctionSetCacheConfig { ctx, callee: function.callee, config })
    })
}

/// Sets the width of shared memory banks, which no device since Kepler lets one choose.
pub unsafe fn cuFuncSetSharedMemConfig(hfunc: sys::CUfunction, config: c_uint) -> CuResult {
    if config > sys::CUsharedconfig::CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE as c_uint {
        return Err(CuError::INVALID_VALUE);
    }
    with(|call| call.callable(hfunc).map(|_| ()))
}

/// Gives the module that a function is from.
pub unsafe fn cuFuncGetModule(hmod: *mut sys::CUmodule, hfunc: sys::CUfunction) -> CuResult {
    let hmod = out(hmod)?;
    let id = with(|call| {
        let function = call.callable(hfunc)?.clone();
        match &function.origin {
            Origin::Module(module) => Ok(module.id),
            Origin::KernelIn(library, _) => call.library_module(library),
            Origin::Library(_) => Err(CuError::INVALID_HANDLE),
        }
    })?;
    // SAFETY: the caller's to write to.
    unsafe { hmod.set(handle(id.handle())) };
    Ok(())
}

/// Gives the name, which lives as long as the module.
pub unsafe fn cuFuncGetName(name: *mut *const c_char, hfunc: sys::CUfunction) -> CuResult {
    let name = out(name)?;
    let text = with(|call| Ok(call.callable(hfunc)?.name.as_ptr()))?;
    // SAFETY: the caller's to write to; the text is the registry's.
    unsafe { name.set(text) };
    Ok(())
}

/// Gives offset and size of a parameter.
pub unsafe fn cuFuncGetParamInfo(
    func: sys::CUfunction,
    paramIndex: usize,
    paramOffset: *mut usize,
    paramSize: *mut usize,
) -> CuResult {
    let function = with(|call| call.callable(func).cloned())?;
    // SAFETY: the caller's contract is the same.
    unsafe { give_param(&function, paramIndex, paramOffset, paramSize) }
}

/// Says that a function is loaded: it is as soon as there is a handle for it.
pub unsafe fn cuFuncIsLoaded(state: *mut c_uint, function: sys::CUfunction) -> CuResult {
    let state = out(state)?;
    with(|call| call.callable(function).map(|_| ()))?;
    // SAFETY: the caller's to write to.
    unsafe { state.set(sys::CUfunctionLoadingState::CU_FUNCTION_LOADING_STATE_LOADED as c_uint) };
    Ok(())
}

/// Loads a function, which is done as soon as there is a handle for it.
pub unsafe fn cuFuncLoad(function: sys::CUfunction) -> CuResult {
    with(|call| call.callable(function).map(|_| ()))
}
