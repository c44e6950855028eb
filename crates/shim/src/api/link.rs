//! Linking device code at run time. Inputs are collected here; the server links them all when the link is completed.

use std::ffi::{CStr, OsStr, c_char, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use cuda_abi::{CuError, CuResult, sys};
use wire::{LinkId, UploadId};

use crate::client::{JitOptions, Link, LinkInput, LinkOptions, Upload, handle, out, session, with};

/// The last `CUjitInputType` that this list knows: NVVM is older than links by the driver's own compiler.
const LAST_KIND: c_uint = sys::CUjitInputType::CU_JIT_INPUT_LIBRARY as c_uint;

fn link(state: sys::CUlinkState) -> CuResult<(LinkId, Arc<Link>)> {
    let id = LinkId::from_handle(state.addr() as u64).ok_or(CuError::INVALID_HANDLE)?;
    Ok((id, session()?.links.get(id.0).ok_or(CuError::INVALID_HANDLE)?))
}

/// Begins a link.
pub unsafe fn cuLinkCreate_v2(
    numOptions: c_uint,
    options: *mut c_uint,
    optionValues: *mut *mut c_void,
    stateOut: *mut sys::CUlinkState,
) -> CuResult {
    let stateOut = out(stateOut)?;
    // SAFETY: the caller's arrays, which stay until the link is destroyed.
    let options = LinkOptions(unsafe { JitOptions::read(numOptions, options, optionValues)? });
    let id = with(|call| {
        call.context()?;
        let id = LinkId(call.session.next_id());
        let made = Link { options, inputs: Mutex::default(), linked: OnceLock::new() };
        call.session.links.insert(id.0, Arc::new(made));
        Ok(id)
    })?;
    // SAFETY: the caller's to write to.
    unsafe { stateOut.set(handle(id.handle())) };
    Ok(())
}

fn add(state: sys::CUlinkState, kind: c_uint, name: String, data: Vec<u8>) -> CuResult {
    let (_, link) = link(state)?;
    if kind > LAST_KIND || data.is_empty() || link.linked.get().is_some() {
        return Err(CuError::INVALID_VALUE);
    }
    let mut inputs = link.inputs.lock().unwrap_or_else(PoisonError::into_inner);
    inputs.push(LinkInput { kind, name, data });
    Ok(())
}

/// Adds an input.
pub unsafe fn cuLinkAddData_v2(
    state: sys::CUlinkState,
    r#type: c_uint,
    data: *mut c_void,
    size: usize,
    name: *const c_char,
    numOptions: c_uint,
    options: *mut c_uint,
    optionValues: *mut *mut c_void,
) -> CuResult {
    if data.is_null() || size == 0 {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: the caller's arrays.
    unsafe { JitOptions::read(numOptions, options, optionValues)? };
    // SAFETY: the caller gives this many bytes, and a text where the name is not NULL.
    let (data, name) = unsafe {
        let name = if name.is_null() { c"" } else { CStr::from_ptr(name) };
        (std::slice::from_raw_parts(data.cast::<u8>(), size).to_vec(), name)
    };
    add(state, r#type, name.to_string_lossy().into_owned(), data)
}

/// Adds a file.
pub unsafe fn cuLinkAddFile_v2(
    state: sys::CUlinkState,
    r#type: c_uint,
    path: *const c_char,
    numOptions: c_uint,
    options: *mut c_uint,
    optionValues: *mut *mut c_void,
) -> CuResult {
    if path.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: the caller's arrays.
    unsafe { JitOptions::read(numOptions, options, optionValues)? };
    // SAFETY: not NULL, and text as the caller says.
    let path = unsafe { CStr::from_ptr(path) };
    let data = std::fs::read(OsStr::from_bytes(path.to_bytes())).map_err(|_| CuError::FILE_NOT_FOUND)?;
    add(state, r#type, path.to_string_lossy().into_owned(), data)
}

/// Links; the result is the link's, and goes with it.
pub unsafe fn cuLinkComplete(
    state: sys::CUlinkState,
    cubinOut: *mut *mut c_void,
    sizeOut: *mut usize,
) -> CuResult {
    let cubinOut = out(cubinOut)?;
    let (_, link) = link(state)?;
    let inputs = link.inputs.lock().unwrap_or_else(PoisonError::into_inner);
    if link.linked.get().is_none() {
        let linked = complete(&link, &inputs)?;
        // Only who holds the inputs does this.
        let _ = link.linked.set(linked);
    }
    let linked = link.linked.get().ok_or(CuError::UNKNOWN)?;
    // SAFETY: the caller's to write to, where not NULL.
    unsafe {
        cubinOut.set(linked.as_ptr().cast_mut().cast());
        if !sizeOut.is_null() {
            sizeOut.write(linked.len());
        }
    }
    Ok(())
}

fn complete(link: &Link, inputs: &[LinkInput]) -> CuResult<Vec<u8>> {
    with(|call| {
        let ctx = call.context()?.id;
        let folder = &call.session.folder;
        let mut uploads = Vec::with_capacity(inputs.len());
        for input in inputs {
            uploads.push(Upload::write(folder, UploadId(call.session.next_id()), &input.data)?);
        }
        let named = inputs.iter().zip(&uploads);
        let named = named.map(|(input, upload)| (input.kind, (upload.id, input.name.clone()))).collect();
        let options = &link.options.0;
        let output = UploadId(call.session.next_id());
        let message = wire::Link { ctx, inputs: named, options: options.send.clone(), output };
        options.finish(call.ask_for_reason(&message).map(|(_, info)| info))?;
        Upload::take(folder, output)
    })
}

/// Ends a link.
pub unsafe fn cuLinkDestroy(state: sys::CUlinkState) -> CuResult {
    let (id, _) = link(state)?;
    session()?.links.remove(id.0).map(drop).ok_or(CuError::INVALID_HANDLE)
}
