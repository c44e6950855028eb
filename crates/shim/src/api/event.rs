//! Events.

use std::ffi::c_uint;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use cuda_abi::{CuError, CuResult, sys};
use wire::{
    EventCreate, EventDestroy, EventElapsed, EventId, EventQuery, EventRecord, EventRecordNow,
    EventSynchronize,
};

use crate::client::{Event, Owner, handle, out, with};
use crate::graph::{Captive, Work};

/// `CU_EVENT_BLOCKING_SYNC`, `DISABLE_TIMING`, `INTERPROCESS`.
const FLAGS: c_uint = 1 | 2 | 4;
const DISABLE_TIMING: c_uint = 2;
/// `CU_EVENT_RECORD_EXTERNAL`: a node of its own in a capture.
const EXTERNAL: c_uint = 1;
/// `CU_EVENT_INTERPROCESS`.
const INTERPROCESS: c_uint = 4;

/// Makes an event.
pub unsafe fn cuEventCreate(phEvent: *mut sys::CUevent, Flags: c_uint) -> CuResult {
    let phEvent = out(phEvent)?;
    let untimed = Flags & DISABLE_TIMING != 0;
    if Flags & !FLAGS != 0 || (Flags & INTERPROCESS != 0 && !untimed) {
        return Err(CuError::INVALID_VALUE);
    }
    let id = with(|call| {
        let context = Arc::clone(call.context()?);
        let id = EventId(call.session.next_id());
        call.submit(&EventCreate { ctx: context.id, event: id, flags: Flags })?;
        call.session.events.insert(id.0, Arc::new(Event::new(Owner::new(&context), Flags)));
        Ok(id)
    })?;
    // SAFETY: the caller's to write to.
    unsafe { phEvent.set(handle(id.handle())) };
    Ok(())
}

/// Destroys an event.
pub unsafe fn cuEventDestroy_v2(hEvent: sys::CUevent) -> CuResult {
    with(|call| {
        let id = EventId::from_handle(hEvent.addr() as u64).ok_or(CuError::INVALID_HANDLE)?;
        call.check()?;
        let event = call.session.events.remove(id.0).ok_or(CuError::INVALID_HANDLE)?;
        event.gone.store(true, Ordering::Release);
        call.submit(&EventDestroy { event: id })
    })
}

/// Records an event.
pub unsafe fn cuEventRecord(hEvent: sys::CUevent, hStream: sys::CUstream) -> CuResult {
    // SAFETY: the caller's contract is the same.
    unsafe { cuEventRecordWithFlags(hEvent, hStream, 0) }
}

/// Records an event. In a capture it marks a place, for streams that are to join, or (`CU_EVENT_RECORD_EXTERNAL`) is recorded by
/// the graph.
pub unsafe fn cuEventRecordWithFlags(
    hEvent: sys::CUevent,
    hStream: sys::CUstream,
    flags: c_uint,
) -> CuResult {
    if flags > EXTERNAL {
        return Err(CuError::INVALID_VALUE);
    }
    with(|call| {
        let captured = call.capture_of(hStream)?;
        let (stream, ctx) = call.any_stream(hStream)?;
        let (id, event) = call.event(hEvent)?;
        let event = Arc::clone(event);
        if event.owner.context.id != ctx {
            return Err(CuError::INVALID_HANDLE);
        }
        match captured {
            Some(target) if flags & EXTERNAL != 0 => {
                return call.capture(target, Captive::Work(Work::EventRecord(id, event)));
            }
            Some(target) => return call.capture_record(target, &event),
            None => event.captured.clear(),
        }
        if event.is_interprocess() {
            // Whoever is told of it by this process may wait for it at once.
            return call.ask(&EventRecordNow { ctx, stream, event: id, flags });
        }
        call.submit(&EventRecord { ctx, stream, event: id, flags })?;
        event.records.fetch_add(1, Ordering::AcqRel);
        Ok(())
    })
}

/// Tells whether an event is complete; one that was never recorded is.
pub unsafe fn cuEventQuery(hEvent: sys::CUevent) -> CuResult {
    with(|call| {
        let (id, event) = call.event(hEvent)?;
        if event.pending().is_none() && event.captured.capture().is_none() && !crate::graph::capturing() {
            return call.check();
        }
        let event = Arc::clone(event);
        call.refuse_captured_event(&event)?;
        call.unsafe_in_capture()?;
        let Some(record) = event.pending() else { return call.check() };
        if !call.ask(&EventQuery { event: id })? {
            return Err(CuError::NOT_READY);
        }
        event.completed(record);
        Ok(())
    })
}

/// Waits for an event.
pub unsafe fn cuEventSynchronize(hEvent: sys::CUevent) -> CuResult {
    with(|call| {
        let (id, event) = call.event(hEvent)?;
        let event = Arc::clone(event);
        call.refuse_captured_event(&event)?;
        call.unsafe_in_capture()?;
        let Some(record) = event.pending() else { return call.check() };
        call.ask(&EventSynchronize { event: id })?;
        event.completed(record);
        Ok(())
    })
}

/// Gives the time between two events, milliseconds. Both must be recorded, and made with timing.
pub unsafe fn cuEventElapsedTime_v2(
    pMilliseconds: *mut f32,
    hStart: sys::CUevent,
    hEnd: sys::CUevent,
) -> CuResult {
    let pMilliseconds = out(pMilliseconds)?;
    let value = with(|call| {
        let mut timed = |handle| {
            let (id, event) = call.event(handle)?;
            if event.captured.capture().is_some() {
                return Err(CuError::CAPTURED_EVENT);
            }
            let usable = event.is_recorded() && event.flags & DISABLE_TIMING == 0;
            if usable { Ok(id) } else { Err(CuError::INVALID_HANDLE) }
        };
        let (start, end) = (timed(hStart)?, timed(hEnd)?);
        call.ask(&EventElapsed { start, end })
    })?;
    // SAFETY: the caller's to write to.
    unsafe { pMilliseconds.set(value) };
    Ok(())
}
