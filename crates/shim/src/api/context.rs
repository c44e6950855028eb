//! Contexts and each thread's stack of them.

use std::ffi::{c_int, c_uint, c_ulonglong};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cuda_abi::{CuError, CuResult, sys};
use wire::{ContextGetLimit, ContextSetCacheConfig, ContextSetLimit, ContextSynchronize, Device};

use crate::client::{API_VERSION, Call, Context, context_gone, out, session, with};

/// Flags of a context that are known: scheduling, `MAP_HOST`, `LMEM_RESIZE_TO_MAX`, the core dump flags, `SYNC_MEMOPS`.
const FLAGS: c_uint = 0x07 | 0x08 | 0x10 | 0x20 | 0x40 | 0x80;

/// Refuses flags that mean nothing together: at most one way of scheduling.
pub(super) fn check_flags(flags: c_uint) -> CuResult {
    if flags & !FLAGS == 0 && (flags & 0x07).count_ones() <= 1 { Ok(()) } else { Err(CuError::INVALID_VALUE) }
}

fn create(pctx: *mut sys::CUcontext, flags: c_uint, dev: sys::CUdevice) -> CuResult {
    let pctx = out(pctx)?;
    check_flags(flags)?;
    let context = with(|call| {
        call.session.device(dev)?;
        let context = call.session.create_context(call, Device(dev as u32), flags, API_VERSION)?;
        call.thread.contexts.push(Arc::clone(&context));
        Ok(context)
    })?;
    // SAFETY: not NULL, so the caller's to write to.
    unsafe { pctx.set(context.handle()) };
    Ok(())
}

/// Makes a context and pushes it on the thread's stack.
pub unsafe fn cuCtxCreate_v2(pctx: *mut sys::CUcontext, flags: c_uint, dev: sys::CUdevice) -> CuResult {
    create(pctx, flags, dev)
}

/// The same; contexts with execution affinity are not there.
pub unsafe fn cuCtxCreate_v3(
    pctx: *mut sys::CUcontext,
    paramsArray: *mut sys::CUexecAffinityParam,
    numParams: c_int,
    flags: c_uint,
    dev: sys::CUdevice,
) -> CuResult {
    if !paramsArray.is_null() || numParams != 0 {
        return Err(CuError::NOT_SUPPORTED);
    }
    create(pctx, flags, dev)
}

/// The same; neither execution affinity nor graphics contexts are there.
pub unsafe fn cuCtxCreate_v4(
    pctx: *mut sys::CUcontext,
    ctxCreateParams: *mut sys::CUctxCreateParams,
    flags: c_uint,
    dev: sys::CUdevice,
) -> CuResult {
    if !ctxCreateParams.is_null() {
        // SAFETY: not NULL, so the caller's parameters.
        let params = unsafe { &*ctxCreateParams };
        if !params.execAffinityParams.is_null()
            || params.numExecAffinityParams != 0
            || !params.cigParams.is_null()
        {
            return Err(CuError::NOT_SUPPORTED);
        }
    }
    create(pctx, flags, dev)
}

/// Destroys a context of the application's own; it is popped if it is current to the caller.
pub unsafe fn cuCtxDestroy_v2(ctx: sys::CUcontext) -> CuResult {
    with(|call| {
        let context = call.session.any_context(ctx)?;
        // A green context is destroyed as such.
        if context.primary || context.green.is_some() {
            return Err(CuError::INVALID_CONTEXT);
        }
        call.thread.contexts.pop_if(|current| current.id == context.id);
        call.session.destroy_context(call, &context)
    })?;
    context_gone(ctx);
    Ok(())
}

/// Pushes a context on the thread's stack.
pub unsafe fn cuCtxPushCurrent_v2(ctx: sys::CUcontext) -> CuResult {
    with(|call| {
        let context = call.session.any_context(ctx)?;
        call.thread.contexts.push(context);
        Ok(())
    })
}

/// Pops the current context.
pub unsafe fn cuCtxPopCurrent_v2(pctx: *mut sys::CUcontext) -> CuResult {
    let context = with(|call| call.thread.contexts.pop().ok_or(CuError::INVALID_CONTEXT))?;
    if let Ok(pctx) = out(pctx) {
        // SAFETY: the caller's to write to.
        unsafe { pctx.set(context.handle()) };
    }
    Ok(())
}

/// Replaces the current context; NULL pops it.
pub unsafe fn cuCtxSetCurrent(ctx: sys::CUcontext) -> CuResult {
    with(|call| {
        let stack = &mut call.thread.contexts;
        if ctx.is_null() {
            stack.pop();
            return Ok(());
        }
        let context = call.session.any_context(ctx)?;
        match stack.last_mut() {
            Some(top) => *top = context,
            None => stack.push(context),
        }
        Ok(())
    })
}

/// Gives the current context, or NULL.
pub unsafe fn cuCtxGetCurrent(pctx: *mut sys::CUcontext) -> CuResult {
    let pctx = out(pctx)?;
    let current = with(|call| {
        Ok(call.thread.contexts.last().map_or(std::ptr::null_mut(), |context| context.handle()))
    })?;
    // SAFETY: the caller's to write to.
    unsafe { pctx.set(current) };
    Ok(())
}

/// Gives the current context's device.
pub unsafe fn cuCtxGetDevice(device: *mut sys::CUdevice) -> CuResult {
    // SAFETY: the caller's contract is the same.
    unsafe { cuCtxGetDevice_v2(device, std::ptr::null_mut()) }
}

/// Gives a context's device; NULL is the current one.
pub unsafe fn cuCtxGetDevice_v2(device: *mut sys::CUdevice, ctx: sys::CUcontext) -> CuResult {
    let device = out(device)?;
    // The device is known also while a primary context is not active.
    let ordinal = with(|call| match ctx.is_null() {
        true => call.thread.contexts.last().map(|context| context.device.0).ok_or(CuError::INVALID_CONTEXT),
        false => Ok(call.session.context(ctx)?.device.0),
    })?;
    // SAFETY: the caller's to write to.
    unsafe { device.set(ordinal as sys::CUdevice) };
    Ok(())
}

/// Gives the current context's flags.
pub unsafe fn cuCtxGetFlags(flags: *mut c_uint) -> CuResult {
    let flags = out(flags)?;
    let value = with(|call| Ok(call.context()?.flags.load(Ordering::Relaxed)))?;
    // SAFETY: the caller's to write to.
    unsafe { flags.set(value) };
    Ok(())
}

/// Sets the current context's flags.
pub unsafe fn cuCtxSetFlags(flags: c_uint) -> CuResult {
    check_flags(flags)?;
    with(|call| {
        call.context()?.flags.store(flags, Ordering::Relaxed);
        Ok(())
    })
}

/// Gives a number that no other context of the process has; NULL is the current context.
pub unsafe fn cuCtxGetId(ctx: sys::CUcontext, ctxId: *mut c_ulonglong) -> CuResult {
    let ctxId = out(ctxId)?;
    let id = with(|call| match (ctx.is_null(), call.green()) {
        // A green context has an id of its own.
        (true, Some(green)) => Ok(green.id.0),
        (true, None) => Ok(call.context()?.id.0),
        (false, _) => {
            let context = call.session.any_context(ctx)?;
            if context.is_active() { Ok(context.id.0) } else { Err(CuError::CONTEXT_IS_DESTROYED) }
        }
    })?;
    // SAFETY: the caller's to write to.
    unsafe { ctxId.set(id.into()) };
    Ok(())
}

/// The context that a handle names, alive; NULL is the current one.
fn named_or_current(call: &mut Call<'_>, ctx: sys::CUcontext) -> CuResult<Arc<Context>> {
    if ctx.is_null() {
        return call.context().cloned();
    }
    let context = call.session.context(ctx)?;
    if context.is_active() { Ok(context) } else { Err(CuError::CONTEXT_IS_DESTROYED) }
}

/// Waits for all work of the current context.
pub unsafe fn cuCtxSynchronize() -> CuResult {
    // SAFETY: NULL is allowed.
    unsafe { cuCtxSynchronize_v2(std::ptr::null_mut()) }
}

/// Waits for all work of a context; NULL is the current one.
pub unsafe fn cuCtxSynchronize_v2(ctx: sys::CUcontext) -> CuResult {
    with(|call| {
        let ctx = named_or_current(call, ctx)?.id;
        call.refuse_captured_context(ctx)?;
        call.unsafe_in_capture()?;
        call.await_work(&ContextSynchronize { ctx })
    })
}

/// Asks for a limit; the driver may set another one.
pub unsafe fn cuCtxSetLimit(limit: c_uint, value: usize) -> CuResult {
    with(|call| {
        let ctx = call.context()?.id;
        call.ask(&ContextSetLimit { ctx, limit, value: value as u64 })
    })
}

/// Gives a limit.
pub unsafe fn cuCtxGetLimit(pvalue: *mut usize, limit: c_uint) -> CuResult {
    let pvalue = out(pvalue)?;
    let value = with(|call| {
        let ctx = call.context()?.id;
        call.ask(&ContextGetLimit { ctx, limit })
    })?;
    // SAFETY: the caller's to write to.
    unsafe { pvalue.set(value as usize) };
    Ok(())
}

/// Gives the preference between cache and shared memory.
pub unsafe fn cuCtxGetCacheConfig(pconfig: *mut c_uint) -> CuResult {
    let pconfig = out(pconfig)?;
    let value = with(|call| Ok(call.context()?.cache_config.load(Ordering::Relaxed)))?;
    // SAFETY: the caller's to write to.
    unsafe { pconfig.set(value) };
    Ok(())
}

/// Sets the preference between cache and shared memory.
pub unsafe fn cuCtxSetCacheConfig(config: c_uint) -> CuResult {
    if config > sys::CUfunc_cache::CU_FUNC_CACHE_PREFER_EQUAL as c_uint {
        return Err(CuError::INVALID_VALUE);
    }
    with(|call| {
        let context = Arc::clone(call.context()?);
        call.submit(&ContextSetCacheConfig { ctx: context.id, config })?;
        context.cache_config.store(config, Ordering::Relaxed);
        Ok(())
    })
}

/// Gives the interface version that a context was made with; NULL is the current one.
pub unsafe fn cuCtxGetApiVersion(ctx: sys::CUcontext, version: *mut c_uint) -> CuResult {
    let version = out(version)?;
    let value = with(|call| named_or_current(call, ctx))?.api_version;
    // SAFETY: the caller's to write to.
    unsafe { version.set(value) };
    Ok(())
}

/// Gives the range of stream priorities.
pub unsafe fn cuCtxGetStreamPriorityRange(
    leastPriority: *mut c_int,
    greatestPriority: *mut c_int,
) -> CuResult {
    let ordinal = with(|call| Ok(call.context()?.device.0))?;
    let (least, greatest) = session()?.device(ordinal as i32)?.facts.stream_priorities;
    for (to, value) in [(leastPriority, least), (greatestPriority, greatest)] {
        if let Ok(to) = out(to) {
            // SAFETY: the caller's to write to.
            unsafe { to.set(value) };
        }
    }
    Ok(())
}

/// Gives persisting lines of the L2 cache back: how long they persist is the device's affair, so there is nothing to send.
pub unsafe fn cuCtxResetPersistingL2Cache() -> CuResult {
    with(|call| call.context().map(|_| ()))
}

/// Gives the width of shared memory banks; no device since Kepler has a choice.
pub unsafe fn cuCtxGetSharedMemConfig(pConfig: *mut c_uint) -> CuResult {
    let pConfig = out(pConfig)?;
    with(|call| call.context().map(|_| ()))?;
    // SAFETY: the caller's to write to.
    unsafe { pConfig.set(sys::CUsharedconfig::CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE as c_uint) };
    Ok(())
}

/// Sets the width of shared memory banks, which no device since Kepler lets one choose.
pub unsafe fn cuCtxSetSharedMemConfig(config: c_uint) -> CuResult {
    if config > sys::CUsharedconfig::CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE as c_uint {
        return Err(CuError::INVALID_VALUE);
    }
    with(|call| call.context().map(|_| ()))
}

/// Counts a further user of the current context.
pub unsafe fn cuCtxAttach(pctx: *mut sys::CUcontext, flags: c_uint) -> CuResult {
    let pctx = out(pctx)?;
    if flags != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let context = with(|call| {
        let context = own_and_current(call)?;
        context.usage.fetch_add(1, Ordering::Relaxed);
        Ok(context)
    })?;
    // SAFETY: the caller's to write to.
    unsafe { pctx.set(context.handle()) };
    Ok(())
}

/// Counts one less, and destroys the context with the last one; it must be current.
pub unsafe fn cuCtxDetach(ctx: sys::CUcontext) -> CuResult {
    let last = with(|call| {
        let context = own_and_current(call)?;
        if context.handle() != ctx {
            return Err(CuError::INVALID_CONTEXT);
        }
        Ok(context.usage.fetch_sub(1, Ordering::Relaxed) == 1)
    })?;
    // SAFETY: the caller's contract is the same.
    if last { unsafe { cuCtxDestroy_v2(ctx) } } else { Ok(()) }
}

/// The current context, which has to be one that the application has made.
fn own_and_current(call: &Call<'_>) -> CuResult<Arc<Context>> {
    let context = call.context()?;
    if context.primary || call.green().is_some() {
        return Err(CuError::INVALID_CONTEXT);
    }
    Ok(Arc::clone(context))
}
