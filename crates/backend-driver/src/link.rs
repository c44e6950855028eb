//! Linking device code.

use crate::api::{Api, check};
use crate::jit::{self, Jit};
use backend::{Compiled, LinkInput, LoadError};
use cudarc::driver::sys;
use std::ffi::{CString, c_void};
use wire::CuError;

/// A link under way.
struct State<'a> {
    api: &'a Api,
    raw: sys::CUlinkState,
}

impl Drop for State<'_> {
    fn drop(&mut self) {
        // SAFETY: the state that `cuLinkCreate` made, which nobody else has.
        let _ = unsafe { (self.api.cuLinkDestroy)(self.raw) };
    }
}

pub fn link(
    api: &Api,
    inputs: &[LinkInput<'_>],
    options: &[(u32, u64)],
) -> std::result::Result<Compiled<Vec<u8>>, LoadError> {
    let mut options = Jit::new(options);
    match run(api, inputs, &mut options) {
        Ok(code) => Ok(Compiled { code, info: options.info() }),
        Err(code) => Err(LoadError { code, detail: options.errors() }),
    }
}

/// The options, and the logs among them, stay until the link is destroyed.
fn run(api: &Api, inputs: &[LinkInput<'_>], options: &mut Jit) -> Result<Vec<u8>, CuError> {
    let Jit { names, values, .. } = options;
    let mut raw: sys::CUlinkState = std::ptr::null_mut();
    // SAFETY: as many values as names, which outlive the state.
    check(unsafe {
        (api.cuLinkCreate_v2)(names.len() as u32, names.as_mut_ptr(), values.as_mut_ptr(), &raw mut raw)
    })?;
    let state = State { api, raw };
    for input in inputs {
        let name = CString::new(input.name).map_err(|_| CuError::INVALID_VALUE)?;
        let mut data = jit::image(input.data);
        // SAFETY: the data has this many bytes, the name ends in a NUL, and there are no options.
        check(unsafe {
            (api.cuLinkAddData_v2)(
                state.raw,
                input.kind,
                data.as_mut_ptr().cast(),
                input.data.len(),
                name.as_ptr(),
                0,
                std::ptr::null_mut(),
                std::ptr::null_mut(),
            )
        })?;
    }
    let (mut cubin, mut bytes): (*mut c_void, usize) = (std::ptr::null_mut(), 0);
    // SAFETY: a live state; both outputs are locals.
    check(unsafe { (api.cuLinkComplete)(state.raw, &raw mut cubin, &raw mut bytes) })?;
    if cubin.is_null() {
        return Err(CuError::UNKNOWN);
    }
    // SAFETY: the driver's own, of that length, until the state is destroyed.
    Ok(unsafe { std::slice::from_raw_parts(cubin.cast::<u8>(), bytes) }.to_vec())
}
