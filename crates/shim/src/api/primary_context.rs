//! Primary contexts: one for each device, shared by all users of the runtime.

use std::ffi::{c_int, c_uint};
use std::sync::atomic::Ordering;

use cuda_abi::{CuError, CuResult, sys};

use super::context::check_flags;
use crate::client::{context_gone, out, session, with};

/// Makes the primary context if it is not there, and keeps it there.
pub unsafe fn cuDevicePrimaryCtxRetain(pctx: *mut sys::CUcontext, dev: sys::CUdevice) -> CuResult {
    let pctx = out(pctx)?;
    let context = with(|call| call.session.retain_primary(call, dev))?;
    // SAFETY: the caller's to write to.
    unsafe { pctx.set(context.handle()) };
    Ok(())
}

/// Takes one retain back; the last one destroys the context.
pub unsafe fn cuDevicePrimaryCtxRelease_v2(dev: sys::CUdevice) -> CuResult {
    if let Some(gone) = with(|call| call.session.release_primary(call, dev, false))? {
        context_gone(gone);
    }
    Ok(())
}

/// Destroys the context and all that is in it, whoever retains it.
pub unsafe fn cuDevicePrimaryCtxReset_v2(dev: sys::CUdevice) -> CuResult {
    if let Some(gone) = with(|call| call.session.release_primary(call, dev, true))? {
        context_gone(gone);
    }
    Ok(())
}

/// Sets the flags of the context, for now or for when it is made.
pub unsafe fn cuDevicePrimaryCtxSetFlags_v2(dev: sys::CUdevice, flags: c_uint) -> CuResult {
    check_flags(flags)?;
    session()?.device(dev)?.primary.flags.store(flags, Ordering::Relaxed);
    Ok(())
}

/// Gives flags and whether the context is there.
pub unsafe fn cuDevicePrimaryCtxGetState(
    dev: sys::CUdevice,
    flags: *mut c_uint,
    active: *mut c_int,
) -> CuResult {
    let primary = &session()?.device(dev)?.primary;
    if flags.is_null() && active.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    if let Ok(flags) = out(flags) {
        // SAFETY: the caller's to write to.
        unsafe { flags.set(primary.flags.load(Ordering::Relaxed)) };
    }
    if let Ok(active) = out(active) {
        // SAFETY: the caller's to write to.
        unsafe { active.set(primary.is_active().into()) };
    }
    Ok(())
}
