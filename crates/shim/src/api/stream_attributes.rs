//! Attributes of streams.

use std::ffi::c_uint;
use std::sync::atomic::Ordering;

use cuda_abi::{CuError, CuResult, sys};
use wire::{LaunchValue, Stream, StreamGetAttribute, StreamSetAttribute};

use crate::client::{Call, out, with};

/// `CU_STREAM_ATTRIBUTE_PRIORITY`.
const PRIORITY: c_uint = sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PRIORITY as c_uint;

/// The attributes that a stream has, and how many bytes the value of each has: a program made for an older CUDA has no room for
/// more than it knows of.
const ATTRIBUTES: [(c_uint, usize); 5] = [
    (
        sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW as c_uint,
        size_of::<sys::CUaccessPolicyWindow>(),
    ),
    (sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY as c_uint, size_of::<c_uint>()),
    (PRIORITY, size_of::<i32>()),
    (
        sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP as c_uint,
        size_of::<sys::CUlaunchMemSyncDomainMap>(),
    ),
    (sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN as c_uint, size_of::<c_uint>()),
];

fn bytes_of(attribute: c_uint) -> CuResult<usize> {
    let known = ATTRIBUTES.iter().find(|(id, _)| *id == attribute);
    known.map(|(_, bytes)| *bytes).ok_or(CuError::INVALID_VALUE)
}

fn get(call: &mut Call<'_>, stream: sys::CUstream, attribute: c_uint) -> CuResult<LaunchValue> {
    let (stream, ctx) = call.any_stream(stream)?;
    call.ask(&StreamGetAttribute { ctx, stream, attribute })
}

fn set(call: &mut Call<'_>, stream: sys::CUstream, attribute: c_uint, value: LaunchValue) -> CuResult {
    let (stream, ctx) = call.any_stream(stream)?;
    call.ask(&StreamSetAttribute { ctx, stream, attribute, value })?;
    if let (PRIORITY, Stream::Created(id)) = (attribute, stream)
        && let Some(known) = call.session.streams.get(id.0)
    {
        let [a, b, c, d, ..] = value.0;
        known.priority.store(i32::from_ne_bytes([a, b, c, d]), Ordering::Relaxed);
    }
    Ok(())
}

/// Tells an attribute of a stream.
pub unsafe fn cuStreamGetAttribute(
    hStream: sys::CUstream,
    attr: c_uint,
    value: *mut sys::CUstreamAttrValue,
) -> CuResult {
    out(value)?;
    let bytes = bytes_of(attr)?;
    let told = with(|call| get(call, hStream, attr))?;
    // SAFETY: not NULL, so the caller's to write to, as far as the attribute's value goes.
    unsafe { std::ptr::copy_nonoverlapping(told.0.as_ptr(), value.cast::<u8>(), bytes) };
    Ok(())
}

/// Sets an attribute of a stream.
pub unsafe fn cuStreamSetAttribute(
    hStream: sys::CUstream,
    attr: c_uint,
    param: *const sys::CUstreamAttrValue,
) -> CuResult {
    if param.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    let bytes = bytes_of(attr)?;
    let mut value = LaunchValue([0; 64]);
    // SAFETY: not NULL, so the caller's to read, as far as the attribute's value goes; no value has more than 64 bytes.
    unsafe { std::ptr::copy_nonoverlapping(param.cast::<u8>(), value.0.as_mut_ptr(), bytes) };
    with(|call| set(call, hStream, attr, value))
}

/// Gives a stream the attributes of another of its context.
pub unsafe fn cuStreamCopyAttributes(dstStream: sys::CUstream, srcStream: sys::CUstream) -> CuResult {
    with(|call| {
        if call.any_stream(dstStream)?.1 != call.any_stream(srcStream)?.1 {
            return Err(CuError::INVALID_VALUE);
        }
        for (attribute, _) in ATTRIBUTES {
            let value = get(call, srcStream, attribute)?;
            if get(call, dstStream, attribute)? != value {
                set(call, dstStream, attribute, value)?;
            }
        }
        Ok(())
    })
}
