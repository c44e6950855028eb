//! Modules.

use std::ffi::{CStr, OsStr, c_char, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cuda_abi::{
    CuError, CuResult,
    sys::{self, CUmoduleLoadingMode},
};
use wire::{ModuleGetGlobal, ModuleListFunctions, UploadId};

use crate::client::{Call, JitOptions, Kind, Upload, handle, out, text, with};
use crate::facts;

/// Always lazy: cudart then loads a module at the first launch of one of its kernels.
pub unsafe fn cuModuleGetLoadingMode(mode: *mut c_uint) -> CuResult {
    facts::get()?;
    if mode.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: not NULL, so the caller's to write to.
    unsafe { mode.write(CUmoduleLoadingMode::CU_MODULE_LAZY_LOADING as c_uint) };
    Ok(())
}

/// Loads a module from a file.
pub unsafe fn cuModuleLoad(module: *mut sys::CUmodule, fname: *const c_char) -> CuResult {
    // SAFETY: the caller's contract is the same.
    unsafe {
        load(module, &JitOptions::default(), |folder, id| Upload::write(folder, id, &read_file(fname)?))
    }
}

/// Loads a module from what `upload` writes into the session's folder.
unsafe fn load(
    module: *mut sys::CUmodule,
    options: &JitOptions,
    upload: impl FnOnce(&Path, UploadId) -> CuResult<Upload>,
) -> CuResult {
    let module = out(module)?;
    let id = with(|call| {
        call.context()?;
        let upload = upload(&call.session.folder, UploadId(call.session.next_id()))?;
        call.load_module(&upload, options)
    })?;
    // SAFETY: the caller's to write to.
    unsafe { module.set(handle(id.handle())) };
    Ok(())
}

/// A whole file of device code.
pub(super) unsafe fn read_file(name: *const c_char) -> CuResult<Vec<u8>> {
    if name.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: not NULL, and text as the caller says.
    let path = OsStr::from_bytes(unsafe { CStr::from_ptr(name) }.to_bytes());
    std::fs::read(path).map_err(|_| CuError::FILE_NOT_FOUND)
}

/// Loads a module from memory.
pub unsafe fn cuModuleLoadData(module: *mut sys::CUmodule, image: *const c_void) -> CuResult {
    // SAFETY: the caller's contract is the same.
    unsafe { cuModuleLoadDataEx(module, image, 0, std::ptr::null_mut(), std::ptr::null_mut()) }
}

/// Loads a module from memory, with options for the compiler.
pub unsafe fn cuModuleLoadDataEx(
    module: *mut sys::CUmodule,
    image: *const c_void,
    numOptions: c_uint,
    options: *mut c_uint,
    optionValues: *mut *mut c_void,
) -> CuResult {
    // SAFETY: the caller gives arrays of this length, and a whole image.
    unsafe {
        let options = JitOptions::read(numOptions, options, optionValues)?;
        load(module, &options, |folder, id| Upload::from_memory(folder, id, image))
    }
}

/// Loads a module from a fatbinary in memory.
pub unsafe fn cuModuleLoadFatBinary(module: *mut sys::CUmodule, fatCubin: *const c_void) -> CuResult {
    // SAFETY: the caller's contract is the same.
    unsafe { cuModuleLoadData(module, fatCubin) }
}

/// Unloads a module.
pub unsafe fn cuModuleUnload(hmod: sys::CUmodule) -> CuResult {
    with(|call| call.unload_module(hmod))
}

/// Gives the function of a name.
pub unsafe fn cuModuleGetFunction(
    hfunc: *mut sys::CUfunction,
    hmod: sys::CUmodule,
    name: *const c_char,
) -> CuResult {
    let hfunc = out(hfunc)?;
    // SAFETY: text, as the caller says.
    let name = unsafe { text(name) }?;
    let id = with(|call| {
        let module = call.module(hmod)?;
        call.module_function(&module, name)
    })?;
    // SAFETY: the caller's to write to.
    unsafe { hfunc.set(handle(id.handle())) };
    Ok(())
}

/// Gives the number of functions.
pub unsafe fn cuModuleGetFunctionCount(count: *mut c_uint, r#mod: sys::CUmodule) -> CuResult {
    let count = out(count)?;
    let functions = with(|call| {
        let module = call.module(r#mod)?.id;
        call.ask(&ModuleListFunctions { module, first: 0, most: 0 })
    })?;
    // SAFETY: the caller's to write to.
    unsafe { count.set(functions.total) };
    Ok(())
}

/// Gives up to `numFunctions` functions.
pub unsafe fn cuModuleEnumerateFunctions(
    functions: *mut sys::CUfunction,
    numFunctions: c_uint,
    r#mod: sys::CUmodule,
) -> CuResult {
    if functions.is_null() || numFunctions == 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let found = with(|call| {
        let module = call.module(r#mod)?;
        let id = module.id;
        let names =
            call.names(numFunctions, |first, most| ModuleListFunctions { module: id, first, most })?;
        names.iter().map(|name| call.module_function(&module, name)).collect::<CuResult<Vec<_>>>()
    })?;
    for (index, id) in found.into_iter().enumerate() {
        // SAFETY: the caller gives `numFunctions` elements.
        unsafe { functions.add(index).write(handle(id.handle())) };
    }
    Ok(())
}

/// Gives a variable's address and size; either may be left out.
pub unsafe fn cuModuleGetGlobal_v2(
    dptr: *mut sys::CUdeviceptr,
    bytes: *mut usize,
    hmod: sys::CUmodule,
    name: *const c_char,
) -> CuResult {
    let find = |call: &mut Call<'_>, name: &str| {
        let module = call.module(hmod)?;
        if let Some(found) = call.module_variable(&module, name)? {
            return Ok(found);
        }
        let found = call.ask(&ModuleGetGlobal { module: module.id, name: name.to_owned() })?;
        let kind = Kind::Global(module.id.handle());
        call.session.add_allocation(found, module.owner.clone(), kind);
        Ok(found)
    };
    // SAFETY: text, and the caller's to write to where not NULL.
    unsafe { super::give_variable((dptr, bytes), name, find) }
}
