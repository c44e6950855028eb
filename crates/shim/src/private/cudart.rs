//! What cudart asks beside the public functions: primary contexts without touching them, and what kind of context one
//! is.

use std::ffi::{c_int, c_uint, c_void};

use cuda_abi::{
    CuError, CuResult, FunctionId,
    sys::{CUcontext, CUmodule},
};

use super::slots::Table;
use crate::{exports, facts};

/// `CUDART_INTERFACE`.
pub static INTERFACE: Table<13> = Table::new::<0>(&[
    (1, load_module as *const c_void),
    (2, primary_context as *const c_void),
    (6, load_module as *const c_void),
    (7, nothing as *const c_void),
    (8, load_fatbin as *const c_void),
    (12, nothing as *const c_void),
]);

/// `CONTEXT_CHECKS`.
pub static CONTEXT_CHECKS: Table<15> =
    Table::new::<3>(&[(2, check_context as *const c_void), (3, nothing as *const c_void)]);

/// Gives the handle of a device's primary context, which is neither retained nor made current.
unsafe extern "C" fn primary_context(context: *mut CUcontext, device: c_int) -> c_uint {
    let give = || -> CuResult {
        let handle = facts::get()?.primary_context(device)?;
        if context.is_null() {
            return Err(CuError::INVALID_VALUE);
        }
        // SAFETY: not NULL, so the caller's to write to.
        unsafe { context.write(handle) };
        Ok(())
    };
    give().map_or_else(CuError::code, |()| 0)
}

/// How cudart before 12.0 loads a program's image: as `cuModuleLoadData` does. Three more arguments of one entry are
/// not looked at.
unsafe extern "C" fn load_module(module: *mut CUmodule, image: *const c_void) -> c_uint {
    type LoadData = unsafe extern "C" fn(*mut CUmodule, *const c_void) -> c_uint;
    // SAFETY: the address of this function, and where it is not supported of one that looks at no arguments.
    let load: LoadData = unsafe { std::mem::transmute(exports::address(FunctionId::cuModuleLoadData)) };
    // SAFETY: the caller's contract is the same.
    unsafe { load(module, image) }
}

/// The same with the arguments the other way round.
unsafe extern "C" fn load_fatbin(image: *const c_void, module: *mut CUmodule) -> c_uint {
    // SAFETY: the caller's contract is the same.
    unsafe { load_module(module, image) }
}

/// Succeeds: there is nothing to prepare.
extern "C" fn nothing() -> c_uint {
    0
}

/// Says that a context is an ordinary one. A driver leaves the third argument as it is.
unsafe extern "C" fn check_context(_context: CUcontext, kind: *mut c_uint, _out: *mut *mut c_void) -> c_uint {
    if !kind.is_null() {
        // SAFETY: not NULL, so the caller's to write to.
        unsafe { kind.write(0) };
    }
    0
}
