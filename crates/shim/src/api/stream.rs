//! Streams.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use cuda_abi::{CuError, CuResult, sys};
use wire::{
    ContextId, EventId, GreenId, GreenStreamCreate, StreamCreate, StreamDestroy, StreamId, StreamQuery,
    StreamSynchronize, StreamWaitEvent,
};

use super::launch::add;
pub use super::stream_attributes::*;
use crate::client::{Call, Callback, Context, Owner, Stream, handle, out, with};
use crate::graph::{self, Captive, Work};

/// `CU_EVENT_WAIT_EXTERNAL`: a node of its own in a capture.
const EXTERNAL: c_uint = 1;
/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;

/// Makes a stream.
pub unsafe fn cuStreamCreate(phStream: *mut sys::CUstream, Flags: c_uint) -> CuResult {
    // SAFETY: the caller's contract is the same.
    unsafe { cuStreamCreateWithPriority(phStream, Flags, 0) }
}

/// Makes a stream; a priority outside of the range becomes the nearest one inside.
pub unsafe fn cuStreamCreateWithPriority(
    phStream: *mut sys::CUstream,
    flags: c_uint,
    priority: c_int,
) -> CuResult {
    let phStream = out(phStream)?;
    if flags & !NON_BLOCKING != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let id = with(|call| {
        let context = Arc::clone(call.context()?);
        let green = call.thread.contexts.last().filter(|current| current.green.is_some()).cloned();
        // What a blocking stream waits for is the default stream of the primary context, not the green one's.
        if green.is_some() && flags & NON_BLOCKING == 0 {
            return Err(CuError::NOT_SUPPORTED);
        }
        create(call, &context, green, flags, priority)
    })?;
    // SAFETY: the caller's to write to.
    unsafe { phStream.set(handle(id.handle())) };
    Ok(())
}

/// Makes a stream of a context, or of the green one that is converted to `green`.
///
/// # Errors
/// As [`Call::submit`].
pub(super) fn create(
    call: &mut Call<'_>,
    context: &Arc<Context>,
    green: Option<Arc<Context>>,
    flags: c_uint,
    priority: c_int,
) -> CuResult<StreamId> {
    let (least, greatest) = call.session.device(context.device.0 as i32)?.facts.stream_priorities;
    let priority = priority.max(greatest.min(least)).min(least.max(greatest));
    let id = StreamId(call.session.next_id());
    match green.as_ref().and_then(|green| green.green.as_ref()) {
        Some(green) => call.submit(&GreenStreamCreate { green: green.id, stream: id, priority })?,
        None => call.submit(&StreamCreate { ctx: context.id, stream: id, flags, priority })?,
    }
    let stream = Stream {
        owner: Owner::new(context),
        green,
        flags,
        priority: AtomicI32::new(priority),
        gone: AtomicBool::new(false),
    };
    call.session.streams.insert(id.0, Arc::new(stream));
    Ok(id)
}

/// Destroys a stream; what is in it still completes.
pub unsafe fn cuStreamDestroy_v2(hStream: sys::CUstream) -> CuResult {
    with(|call| {
        let id = StreamId::from_handle(hStream.addr() as u64).ok_or(CuError::INVALID_HANDLE)?;
        call.check()?;
        let stream = call.session.streams.remove(id.0).ok_or(CuError::INVALID_HANDLE)?;
        stream.gone.store(true, Ordering::Release);
        call.end_of_stream(wire::Stream::Created(id), stream.owner.context.id);
        call.submit(&StreamDestroy { stream: id })
    })
}

/// What is known here of a stream.
struct Known {
    id: u64,
    ctx: ContextId,
    green: Option<GreenId>,
    flags: c_uint,
    priority: c_int,
}

fn known(call: &mut Call<'_>, stream: sys::CUstream) -> CuResult<Known> {
    let (name, ctx) = call.any_stream(stream)?;
    Ok(match name {
        wire::Stream::Created(id) => {
            let stream = call.session.streams.get(id.0).ok_or(CuError::INVALID_HANDLE)?;
            Known {
                id: id.0.into(),
                ctx,
                green: stream.green.as_ref().and_then(|context| context.green.as_ref()).map(|green| green.id),
                flags: stream.flags,
                priority: stream.priority.load(Ordering::Relaxed),
            }
        }
        // Ids of created streams are 32 bits long; the default streams of a context come behind them.
        wire::Stream::Legacy => {
            Known { id: 1 << 32 | u64::from(ctx.0), ctx, green: None, flags: 0, priority: 0 }
        }
        wire::Stream::PerThread => {
            Known { id: per_thread_id(ctx), ctx, green: None, flags: NON_BLOCKING, priority: 0 }
        }
    })
}

/// A number for the calling thread's default stream in a context.
fn per_thread_id(ctx: ContextId) -> u64 {
    2 << 32 | graph::thread() << 40 | u64::from(ctx.0)
}

/// Gives the priority.
pub unsafe fn cuStreamGetPriority(hStream: sys::CUstream, priority: *mut c_int) -> CuResult {
    let priority = out(priority)?;
    let stream = with(|call| known(call, hStream))?;
    // SAFETY: the caller's to write to.
    unsafe { priority.set(stream.priority) };
    Ok(())
}

/// Gives the flags.
pub unsafe fn cuStreamGetFlags(hStream: sys::CUstream, flags: *mut c_uint) -> CuResult {
    let flags = out(flags)?;
    let stream = with(|call| known(call, hStream))?;
    // SAFETY: the caller's to write to.
    unsafe { flags.set(stream.flags) };
    Ok(())
}

/// Gives a number that no other stream of the process has.
pub unsafe fn cuStreamGetId(hStream: sys::CUstream, streamId: *mut c_ulonglong) -> CuResult {
    let streamId = out(streamId)?;
    let number = stream_number(hStream)?;
    // SAFETY: the caller's to write to.
    unsafe { streamId.set(number) };
    Ok(())
}

/// The number of a stream that `cuStreamGetId` gives.
///
/// # Errors
/// As [`Call::any_stream`], and without a session.
pub fn stream_number(stream: sys::CUstream) -> CuResult<u64> {
    Ok(with(|call| known(call, stream))?.id)
}

/// Gives the device.
pub unsafe fn cuStreamGetDevice(hStream: sys::CUstream, device: *mut sys::CUdevice) -> CuResult {
    let device = out(device)?;
    let ordinal = with(|call| {
        let (_, ctx) = call.any_stream(hStream)?;
        Ok(call.session.contexts.get(ctx.0).ok_or(CuError::INVALID_CONTEXT)?.device.0)
    })?;
    // SAFETY: the caller's to write to.
    unsafe { device.set(ordinal as sys::CUdevice) };
    Ok(())
}

/// Gives the context; for a stream in a green context what that converts to.
pub unsafe fn cuStreamGetCtx(hStream: sys::CUstream, pctx: *mut sys::CUcontext) -> CuResult {
    let pctx = out(pctx)?;
    let stream = with(|call| known(call, hStream))?;
    let ctx = stream.green.map_or(stream.ctx, |green| ContextId(green.0));
    // SAFETY: the caller's to write to.
    unsafe { pctx.set(handle(ctx.handle())) };
    Ok(())
}

/// The green context that a stream is in, if any.
///
/// # Errors
/// As [`Call::any_stream`], and without a session.
pub(super) fn green_of(stream: sys::CUstream) -> CuResult<Option<GreenId>> {
    Ok(with(|call| known(call, stream))?.green)
}

/// Gives the context and the green context; of a stream in a green one the primary context.
pub unsafe fn cuStreamGetCtx_v2(
    hStream: sys::CUstream,
    pCtx: *mut sys::CUcontext,
    pGreenCtx: *mut sys::CUgreenCtx,
) -> CuResult {
    let pCtx = out(pCtx)?;
    let stream = with(|call| known(call, hStream))?;
    // SAFETY: the caller's to write to.
    unsafe { pCtx.set(handle(stream.ctx.handle())) };
    if let Ok(pGreenCtx) = out(pGreenCtx) {
        let green = stream.green.map_or(0, GreenId::handle);
        // SAFETY: the caller's to write to.
        unsafe { pGreenCtx.set(handle(green)) };
    }
    Ok(())
}

/// Makes later work of a stream wait for an event; there is nothing to wait for when it is complete.
pub unsafe fn cuStreamWaitEvent(hStream: sys::CUstream, hEvent: sys::CUevent, Flags: c_uint) -> CuResult {
    if Flags > EXTERNAL {
        return Err(CuError::INVALID_VALUE);
    }
    with(|call| {
        let (event, found) = call.event(hEvent)?;
        if graph::capturing() || found.captured.capture().is_some() {
            let found = Arc::clone(found);
            match call.capture_of(hStream)? {
                Some(target) if Flags & EXTERNAL != 0 => {
                    return call.capture(target, Captive::Work(Work::EventWait(event, found)));
                }
                _ => {
                    if call.capture_wait(hStream, &found)? {
                        return Ok(());
                    }
                }
            }
        }
        let (stream, ctx) = call.stream(hStream)?;
        let (event, found) = call.event(hEvent)?;
        if found.pending().is_none() {
            return Ok(());
        }
        call.submit(&StreamWaitEvent { ctx, stream, event: EventId(event.0), flags: Flags })
    })
}

/// Runs a callback when the stream gets there.
pub unsafe fn cuStreamAddCallback(
    hStream: sys::CUstream,
    callback: sys::CUstreamCallback,
    userData: *mut c_void,
    flags: c_uint,
) -> CuResult {
    let function = callback.ok_or(CuError::INVALID_VALUE)?;
    if flags != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    add(hStream, Callback::Stream(hStream, function, userData))
}

/// Tells whether the stream is idle.
pub unsafe fn cuStreamQuery(hStream: sys::CUstream) -> CuResult {
    with(|call| {
        let (stream, ctx) = call.stream(hStream)?;
        if call.ask(&StreamQuery { ctx, stream })? { Ok(()) } else { Err(CuError::NOT_READY) }
    })
}

/// Waits for the stream.
pub unsafe fn cuStreamSynchronize(hStream: sys::CUstream) -> CuResult {
    with(|call| {
        let (stream, ctx) = call.stream(hStream)?;
        call.await_work(&StreamSynchronize { ctx, stream })
    })
}
