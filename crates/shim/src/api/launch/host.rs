//! Host functions in streams.

use std::ffi::c_void;

use cuda_abi::{CuError, CuResult, sys};
use wire::{CallbackId, HostFunction};

use crate::client::{Callback, with};
use crate::graph::{Captive, HostCall, Work};

/// Runs a function of the host when the stream gets there.
pub unsafe fn cuLaunchHostFunc(
    hStream: sys::CUstream,
    r#fn: sys::CUhostFn,
    userData: *mut c_void,
) -> CuResult {
    let function = r#fn.ok_or(CuError::INVALID_VALUE)?;
    add(hStream, Callback::Function(function, userData))
}

/// Puts a callback into a stream.
pub(in crate::api) fn add(stream: sys::CUstream, callback: Callback) -> CuResult {
    with(|call| {
        if let Callback::Function(function, data) = callback
            && let Some(target) = call.capture_of(stream)?
        {
            return call.capture(target, Captive::Work(Work::Host(HostCall(function, data))));
        }
        let (stream, ctx) = call.stream(stream)?;
        let id = call.session.next_id();
        call.session.callbacks.add(id, callback)?;
        call.submit(&HostFunction { ctx, stream, callback: CallbackId(id) })
            .inspect_err(|_| call.session.callbacks.forget(id))
    })
}
