//! Libraries and kernels.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::sync::Arc;

use cuda_abi::{CuError, CuResult, sys};
use wire::{ContextId, FunctionSetCacheConfig, LibraryGetGlobal, LibraryListKernels, UploadId};

use super::launch::{check_cache_config, set_attribute};
use super::module::read_file;
use crate::client::{Call, Callable, JitOptions, Kind, Origin, Owner, Upload, handle, out, text, with};

/// Loads a library from memory. Its options say how long the caller keeps the image; it is copied at once.
pub unsafe fn cuLibraryLoadData(
    library: *mut sys::CUlibrary,
    code: *const c_void,
    jitOptions: *mut c_uint,
    jitOptionsValues: *mut *mut c_void,
    numJitOptions: c_uint,
    libraryOptions: *mut c_uint,
    _libraryOptionValues: *mut *mut c_void,
    numLibraryOptions: c_uint,
) -> CuResult {
    let jit = (numJitOptions, jitOptions, jitOptionsValues);
    // SAFETY: the caller's contract is the same, and gives a whole image.
    unsafe {
        load(library, jit, (libraryOptions, numLibraryOptions), |folder, id| {
            Upload::from_memory(folder, id, code)
        })
    }
}

/// Loads a library from a file.
pub unsafe fn cuLibraryLoadFromFile(
    library: *mut sys::CUlibrary,
    fileName: *const c_char,
    jitOptions: *mut c_uint,
    jitOptionsValues: *mut *mut c_void,
    numJitOptions: c_uint,
    libraryOptions: *mut c_uint,
    _libraryOptionValues: *mut *mut c_void,
    numLibraryOptions: c_uint,
) -> CuResult {
    let jit = (numJitOptions, jitOptions, jitOptionsValues);
    // SAFETY: the caller's contract is the same.
    unsafe {
        load(library, jit, (libraryOptions, numLibraryOptions), |folder, id| {
            Upload::write(folder, id, &read_file(fileName)?)
        })
    }
}

/// Loads a library from what `upload` writes into the session's folder.
unsafe fn load(
    library: *mut sys::CUlibrary,
    (jit_count, jit_options, jit_values): (c_uint, *mut c_uint, *mut *mut c_void),
    (options, count): (*const c_uint, c_uint),
    upload: impl FnOnce(&Path, UploadId) -> CuResult<Upload>,
) -> CuResult {
    let library = out(library)?;
    // SAFETY: the caller gives arrays of these lengths.
    let jit = unsafe {
        check_library_options(options, count)?;
        JitOptions::read(jit_count, jit_options, jit_values)?
    };
    let id = with(|call| {
        let upload = upload(&call.session.folder, UploadId(call.session.next_id()))?;
        call.load_library(&upload, &jit)
    })?;
    // SAFETY: the caller's to write to.
    unsafe { library.set(handle(id.handle())) };
    Ok(())
}

/// `CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE` and `CU_LIBRARY_BINARY_IS_PRESERVED` ask for nothing here.
unsafe fn check_library_options(options: *const c_uint, count: c_uint) -> CuResult {
    if count > 0 && options.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    for index in 0..count as usize {
        // SAFETY: the caller gives `count` elements.
        if unsafe { options.add(index).read() } > 1 {
            return Err(CuError::INVALID_VALUE);
        }
    }
    Ok(())
}

/// Unloads a library.
pub unsafe fn cuLibraryUnload(library: sys::CUlibrary) -> CuResult {
    with(|call| call.unload_library(library))
}

/// Gives the kernel of a name.
pub unsafe fn cuLibraryGetKernel(
    pKernel: *mut sys::CUkernel,
    library: sys::CUlibrary,
    name: *const c_char,
) -> CuResult {
    let pKernel = out(pKernel)?;
    // SAFETY: text, as the caller says.
    let name = unsafe { text(name) }?;
    let id = with(|call| {
        let library = call.library(library)?;
        call.library_kernel(&library, name)
    })?;
    // SAFETY: the caller's to write to.
    unsafe { pKernel.set(handle(id.handle())) };
    Ok(())
}

/// Gives the number of kernels.
pub unsafe fn cuLibraryGetKernelCount(count: *mut c_uint, lib: sys::CUlibrary) -> CuResult {
    let count = out(count)?;
    let kernels = with(|call| {
        let library = call.library(lib)?;
        // Its code is loaded for this, and where its variables lie has to be known then.
        call.library_variables(&library)?;
        call.ask(&LibraryListKernels { library: library.id, first: 0, most: 0 })
    })?;
    // SAFETY: the caller's to write to.
    unsafe { count.set(kernels.total) };
    Ok(())
}

/// Gives up to `numKernels` kernels.
pub unsafe fn cuLibraryEnumerateKernels(
    kernels: *mut sys::CUkernel,
    numKernels: c_uint,
    lib: sys::CUlibrary,
) -> CuResult {
    if kernels.is_null() || numKernels == 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let found = with(|call| {
        let library = call.library(lib)?;
        call.library_variables(&library)?;
        let id = library.id;
        let names = call.names(numKernels, |first, most| LibraryListKernels { library: id, first, most })?;
        names.iter().map(|name| call.library_kernel(&library, name)).collect::<CuResult<Vec<_>>>()
    })?;
    for (index, id) in found.into_iter().enumerate() {
        // SAFETY: the caller gives `numKernels` elements.
        unsafe { kernels.add(index).write(handle(id.handle())) };
    }
    Ok(())
}

/// Gives the library's module in the current context.
pub unsafe fn cuLibraryGetModule(pMod: *mut sys::CUmodule, library: sys::CUlibrary) -> CuResult {
    let pMod = out(pMod)?;
    let id = with(|call| {
        let library = call.library(library)?;
        call.library_module(&library)
    })?;
    // SAFETY: the caller's to write to.
    unsafe { pMod.set(handle(id.handle())) };
    Ok(())
}

/// Gives a variable's address and size in the current context; either may be left out.
pub unsafe fn cuLibraryGetGlobal(
    dptr: *mut sys::CUdeviceptr,
    bytes: *mut usize,
    library: sys::CUlibrary,
    name: *const c_char,
) -> CuResult {
    let find = |call: &mut Call<'_>, name: &str| {
        let library = call.library(library)?;
        let context = Arc::clone(call.context()?);
        if let Some(found) = call.library_variables(&library)?.find(name) {
            return Ok(found);
        }
        let library = library.id;
        let found = call.ask(&LibraryGetGlobal { ctx: context.id, library, name: name.to_owned() })?;
        call.session.add_allocation(found, Owner::new(&context), Kind::Global(library.handle()));
        Ok(found)
    };
    // SAFETY: text, and the caller's to write to where not NULL.
    unsafe { super::give_variable((dptr, bytes), name, find) }
}

/// Gives the address and size of a variable in managed memory, the same in every context; either may be left out.
pub unsafe fn cuLibraryGetManaged(
    dptr: *mut sys::CUdeviceptr,
    bytes: *mut usize,
    library: sys::CUlibrary,
    name: *const c_char,
) -> CuResult {
    let find = |call: &mut Call<'_>, name: &str| {
        let library = call.library(library)?;
        call.library_variables(&library)?.find(name).ok_or(CuError::NOT_FOUND)
    };
    // SAFETY: text, and the caller's to write to where not NULL.
    unsafe { super::give_variable((dptr, bytes), name, find) }
}

/// The kernel that a handle names; a function is none.
fn kernel(call: &mut Call<'_>, kernel: sys::CUkernel) -> CuResult<Arc<Callable>> {
    let found = call.callable(kernel.cast())?;
    match found.origin {
        Origin::Library(_) => Ok(Arc::clone(found)),
        _ => Err(CuError::INVALID_HANDLE),
    }
}

/// Where a kernel's attributes for a device are: the current context if it is on that device, else its primary context.
fn context_on(call: &Call<'_>, dev: sys::CUdevice) -> CuResult<ContextId> {
    let primary = &call.session.device(dev)?.primary;
    Ok(match call.context() {
        Ok(current) if current.device == primary.device => current.id,
        _ => primary.id,
    })
}

/// Gives a kernel as a function of the current context.
pub unsafe fn cuKernelGetFunction(pFunc: *mut sys::CUfunction, kernel: sys::CUkernel) -> CuResult {
    let pFunc = out(pFunc)?;
    let id = with(|call| {
        let kernel = self::kernel(call, kernel)?;
        call.kernel_function(&kernel)
    })?;
    // SAFETY: the caller's to write to.
    unsafe { pFunc.set(handle(id.handle())) };
    Ok(())
}

/// Gives the library that a kernel is from.
pub unsafe fn cuKernelGetLibrary(pLib: *mut sys::CUlibrary, kernel: sys::CUkernel) -> CuResult {
    let pLib = out(pLib)?;
    let kernel = with(|call| self::kernel(call, kernel))?;
    let Origin::Library(library) = &kernel.origin else { return Err(CuError::INVALID_HANDLE) };
    // SAFETY: the caller's to write to.
    unsafe { pLib.set(handle(library.id.handle())) };
    Ok(())
}

/// Gives a kernel's attribute on a device.
pub unsafe fn cuKernelGetAttribute(
    pi: *mut c_int,
    attrib: c_uint,
    kernel: sys::CUkernel,
    dev: sys::CUdevice,
) -> CuResult {
    let pi = out(pi)?;
    let value = with(|call| {
        let kernel = self::kernel(call, kernel)?;
        let ctx = context_on(call, dev)?;
        call.attribute(&kernel, ctx, attrib as i32)
    })?;
    // SAFETY: the caller's to write to.
    unsafe { pi.set(value) };
    Ok(())
}

/// Sets a kernel's attribute on a device.
pub unsafe fn cuKernelSetAttribute(
    attrib: c_uint,
    val: c_int,
    kernel: sys::CUkernel,
    dev: sys::CUdevice,
) -> CuResult {
    with(|call| {
        let kernel = self::kernel(call, kernel)?;
        let ctx = context_on(call, dev)?;
        set_attribute(call, &kernel, ctx, attrib, val)
    })
}

/// Sets a kernel's preference between cache and shared memory on a device.
pub unsafe fn cuKernelSetCacheConfig(kernel: sys::CUkernel, config: c_uint, dev: sys::CUdevice) -> CuResult {
    check_cache_config(config)?;
    with(|call| {
        let callee = self::kernel(call, kernel)?.callee;
        let ctx = context_on(call, dev)?;
        call.submit(&FunctionSetCacheConfig { ctx, callee, config })
    })
}

/// Gives a kernel's name, which lives as long as its library.
pub unsafe fn cuKernelGetName(name: *mut *const c_char, hfunc: sys::CUkernel) -> CuResult {
    let name = out(name)?;
    let kernel = with(|call| self::kernel(call, hfunc))?;
    // SAFETY: the caller's to write to; the text is the registry's.
    unsafe { name.set(kernel.name.as_ptr()) };
    Ok(())
}

/// Gives offset and size of a parameter.
pub unsafe fn cuKernelGetParamInfo(
    kernel: sys::CUkernel,
    paramIndex: usize,
    paramOffset: *mut usize,
    paramSize: *mut usize,
) -> CuResult {
    let kernel = with(|call| self::kernel(call, kernel))?;
    // SAFETY: the caller's contract is the same.
    unsafe { super::launch::give_param(&kernel, paramIndex, paramOffset, paramSize) }
}
