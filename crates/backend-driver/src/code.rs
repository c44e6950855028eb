//! Modules and functions.

use crate::api::{Api, check};
use crate::jit::{self, Jit};
use backend::{Compiled, LoadError, Range, RawFunction, RawModule, Result};
use cudarc::driver::sys;
use std::ffi::{CStr, CString};
use wire::{CuError, FunctionFacts, Param};

/// Attributes that are told with a function's facts (`CU_FUNC_ATTRIBUTE_MAX` is one past the last).
const ATTRIBUTES: std::ops::Range<i32> = 0..sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX as i32;

pub fn load(
    api: &Api,
    image: &[u8],
    options: &[(u32, u64)],
) -> std::result::Result<Compiled<RawModule>, LoadError> {
    let image = jit::image(image);
    let mut options = Jit::new(options);
    let mut module: sys::CUmodule = std::ptr::null_mut();
    // SAFETY: the image is whole (the server has bounded it), aligned and NUL-terminated; as many values as names; the logs
    // live through the call.
    let code = unsafe {
        (api.cuModuleLoadDataEx)(
            &raw mut module,
            image.as_ptr().cast(),
            options.names.len() as u32,
            options.names.as_mut_ptr(),
            options.values.as_mut_ptr(),
        )
    };
    check(code).map_err(|code| LoadError { code, detail: options.errors().trim().to_owned() })?;
    Ok(Compiled { code: RawModule(module as u64), info: options.info() })
}

pub fn functions(api: &Api, module: RawModule) -> Result<Vec<String>> {
    let module = module.0 as sys::CUmodule;
    let mut count = 0;
    // SAFETY: writes the count.
    check(unsafe { (api.cuModuleGetFunctionCount)(&raw mut count, module) })?;
    let mut functions: Vec<sys::CUfunction> = vec![std::ptr::null_mut(); count as usize];
    // SAFETY: the list has room for that many.
    check(unsafe { (api.cuModuleEnumerateFunctions)(functions.as_mut_ptr(), count, module) })?;
    functions.into_iter().map(|function| name(api, function)).collect()
}

fn name(api: &Api, function: sys::CUfunction) -> Result<String> {
    let mut name = std::ptr::null();
    // SAFETY: writes the pointer.
    check(unsafe { (api.cuFuncGetName)(&raw mut name, function) })?;
    if name.is_null() {
        return Err(CuError::UNKNOWN);
    }
    // SAFETY: the driver gives a NUL-terminated string that lives as long as the module.
    Ok(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
}

pub fn function(api: &Api, module: RawModule, name: &str) -> Result<RawFunction> {
    let name = CString::new(name).map_err(|_| CuError::NOT_FOUND)?;
    let mut function: sys::CUfunction = std::ptr::null_mut();
    // SAFETY: a live module and a NUL-terminated name.
    check(unsafe { (api.cuModuleGetFunction)(&raw mut function, module.0 as sys::CUmodule, name.as_ptr()) })?;
    Ok(RawFunction(function as u64))
}

pub fn global(api: &Api, module: RawModule, name: &str) -> Result<Range> {
    let name = CString::new(name).map_err(|_| CuError::NOT_FOUND)?;
    let (mut base, mut bytes) = (0, 0);
    // SAFETY: a live module and a NUL-terminated name.
    check(unsafe {
        (api.cuModuleGetGlobal_v2)(&raw mut base, &raw mut bytes, module.0 as sys::CUmodule, name.as_ptr())
    })?;
    Ok(Range { base, bytes: bytes as u64 })
}

pub fn attribute(api: &Api, function: RawFunction, attribute: i32) -> Result<i32> {
    let mut value = 0;
    // SAFETY: writes the value; the driver refuses attributes it does not know.
    check(unsafe {
        (api.cuFuncGetAttribute)(&raw mut value, attribute as u32, function.0 as sys::CUfunction)
    })?;
    Ok(value)
}

pub fn facts(api: &Api, raw: RawFunction) -> Result<FunctionFacts> {
    let function = raw.0 as sys::CUfunction;
    let mut params = Vec::new();
    loop {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: writes both numbers.
        let code =
            unsafe { (api.cuFuncGetParamInfo)(function, params.len(), &raw mut offset, &raw mut size) };
        match check(code) {
            Ok(()) => params.push(Param { offset: offset as u32, size: size as u32 }),
            Err(CuError::INVALID_VALUE) => break,
            Err(error) => return Err(error),
        }
    }
    let attributes =
        ATTRIBUTES.filter_map(|each| attribute(api, raw, each).ok().map(|value| (each, value))).collect();
    Ok(FunctionFacts { name: name(api, function)?, params, attributes })
}
