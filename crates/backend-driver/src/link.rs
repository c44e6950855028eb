//! Linking device code.

use crate::api::{Api, check};
use backend::{LinkInput, LoadError};
use cudarc::driver::sys::{self, CUjit_option as Option_};
use std::ffi::{CString, c_void};
use wire::CuError;

/// Bytes for the linker's error log.
const LOG_BYTES: usize = 16 << 10;

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
) -> std::result::Result<Vec<u8>, LoadError> {
    let mut log = vec![0u8; LOG_BYTES];
    let logs = [
        Option_::CU_JIT_INFO_LOG_BUFFER,
        Option_::CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
        Option_::CU_JIT_ERROR_LOG_BUFFER,
        Option_::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
    ]
    .map(|option| option as u32);
    // The log buffers are ours: addresses of the application's mean nothing here.
    let (mut names, mut values): (Vec<u32>, Vec<*mut c_void>) = options
        .iter()
        .filter(|(name, _)| !logs.contains(name))
        .map(|(name, value)| (*name, *value as *mut c_void))
        .unzip();
    names.extend_from_slice(&logs[2..]);
    values.extend([log.as_mut_ptr().cast(), LOG_BYTES as *mut c_void]);
    let linked = run(api, inputs, &mut names, &mut values);
    linked.map_err(|code| {
        let end = log.iter().position(|byte| *byte == 0).unwrap_or(0);
        LoadError { code, detail: String::from_utf8_lossy(&log[..end]).into_owned() }
    })
}

/// The names and values, and the log among them, stay until the link is destroyed.
fn run(
    api: &Api,
    inputs: &[LinkInput<'_>],
    names: &mut [u32],
    values: &mut [*mut c_void],
) -> Result<Vec<u8>, CuError> {
    let mut raw: sys::CUlinkState = std::ptr::null_mut();
    // SAFETY: as many values as names, which outlive the state.
    check(unsafe {
        (api.cuLinkCreate_v2)(names.len() as u32, names.as_mut_ptr(), values.as_mut_ptr(), &raw mut raw)
    })?;
    let state = State { api, raw };
    for input in inputs {
        let name = CString::new(input.name).map_err(|_| CuError::INVALID_VALUE)?;
        // PTX ends in a NUL; a copy is aligned for headers.
        let mut data = vec![0u64; input.data.len() / 8 + 1];
        for (word, bytes) in data.iter_mut().zip(input.data.chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(padded);
        }
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
