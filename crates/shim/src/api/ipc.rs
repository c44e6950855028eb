//! Memory and events of other processes of the job. What the application carries to them is a handle of ours (`wire::Shared`).

use std::ffi::{c_char, c_uint};
use std::sync::{Arc, PoisonError};

use cuda_abi::{CuError, CuResult, FunctionId, sys};
use wire::{EventId, IpcCloseMem, IpcGetEvent, IpcGetMem, IpcOpenEvent, IpcOpenMem, SHARED_BYTES, Shared};

use crate::client::{Event, Kind, Owner, out, with};
use crate::report::{Unsupported, report};

/// `CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS`.
const LAZY_PEER_ACCESS: c_uint = 1;
/// `CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS`.
const OPENED: c_uint = 2 | 4;

fn given(shared: Shared) -> [c_char; SHARED_BYTES] {
    shared.to_bytes().map(|byte| byte as c_char)
}

/// What a handle says; one that is not of a process of a job is refused by the name of the call.
fn taken(handle: [c_char; SHARED_BYTES], call: FunctionId) -> CuResult<Shared> {
    Shared::from_bytes(&handle.map(|byte| byte as u8)).ok_or_else(|| {
        report(Unsupported::ForeignHandle(call));
        CuError::INVALID_HANDLE
    })
}

/// Gives a handle by which another process can open the allocation that an address lies in.
pub unsafe fn cuIpcGetMemHandle(pHandle: *mut sys::CUipcMemHandle, dptr: sys::CUdeviceptr) -> CuResult {
    let pHandle = out(pHandle)?;
    let claim = with(|call| {
        call.context()?;
        let found = call.session.memory.find(dptr).ok_or(CuError::INVALID_VALUE)?;
        match found.kind {
            Kind::Device => call.ask(&IpcGetMem { address: dptr }),
            // As with the driver, memory of pools, graphs and other processes is not to be had so.
            _ => Err(CuError::INVALID_VALUE),
        }
    })?;
    // SAFETY: the caller's to write to.
    unsafe { pHandle.set(sys::CUipcMemHandle { reserved: given(Shared::Memory(claim)) }) };
    Ok(())
}

/// Opens an allocation of another process, or once more; gives its address here.
pub unsafe fn cuIpcOpenMemHandle_v2(
    pdptr: *mut sys::CUdeviceptr,
    handle: sys::CUipcMemHandle,
    Flags: c_uint,
) -> CuResult {
    let pdptr = out(pdptr)?;
    if Flags != LAZY_PEER_ACCESS {
        return Err(CuError::INVALID_VALUE);
    }
    let address = with(|call| {
        call.unsafe_in_capture()?;
        let context = Arc::clone(call.context()?);
        let Shared::Memory(claim) = taken(handle.reserved, FunctionId::cuIpcOpenMemHandle_v2)? else {
            return Err(CuError::INVALID_HANDLE);
        };
        let _opening = call.session.opening.lock().unwrap_or_else(PoisonError::into_inner);
        let address = call.ask(&IpcOpenMem { ctx: context.id, claim })?;
        let known = call.session.memory.find(address);
        if known.is_none_or(|known| (known.base, known.bytes) != (address, claim.bytes)) {
            call.session.add_allocation((address, claim.bytes), Owner::new(&context), Kind::Opened);
        }
        Ok(address)
    })?;
    // SAFETY: the caller's to write to.
    unsafe { pdptr.set(address) };
    Ok(())
}

/// Closes it once; the last time, when nothing uses it any more.
pub unsafe fn cuIpcCloseMemHandle(dptr: sys::CUdeviceptr) -> CuResult {
    with(|call| {
        call.unsafe_in_capture()?;
        let _opening = call.session.opening.lock().unwrap_or_else(PoisonError::into_inner);
        let known = call.session.memory.find(dptr).filter(|known| known.base == dptr);
        if !matches!(known, Some(known) if matches!(known.kind, Kind::Opened)) {
            return Err(CuError::INVALID_VALUE);
        }
        if call.ask(&IpcCloseMem { address: dptr })? {
            call.session.memory.remove(dptr, |kind| matches!(kind, Kind::Opened));
        }
        Ok(())
    })
}

/// Gives a handle by which another process can use an event that was made for that.
pub unsafe fn cuIpcGetEventHandle(pHandle: *mut sys::CUipcEventHandle, event: sys::CUevent) -> CuResult {
    let pHandle = out(pHandle)?;
    let share = with(|call| {
        let (event, known) = call.event(event)?;
        if !known.is_interprocess() {
            return Err(CuError::INVALID_VALUE);
        }
        call.ask(&IpcGetEvent { event })
    })?;
    // SAFETY: the caller's to write to.
    unsafe { pHandle.set(sys::CUipcEventHandle { reserved: given(Shared::Event(share)) }) };
    Ok(())
}

/// An event of another process as one of this.
pub unsafe fn cuIpcOpenEventHandle(phEvent: *mut sys::CUevent, handle: sys::CUipcEventHandle) -> CuResult {
    let phEvent = out(phEvent)?;
    let id = with(|call| {
        call.unsafe_in_capture()?;
        let context = Arc::clone(call.context()?);
        let Shared::Event(share) = taken(handle.reserved, FunctionId::cuIpcOpenEventHandle)? else {
            return Err(CuError::INVALID_HANDLE);
        };
        let event = EventId(call.session.next_id());
        call.ask(&IpcOpenEvent { ctx: context.id, event, share })?;
        call.session.events.insert(event.0, Arc::new(Event::new(Owner::new(&context), OPENED)));
        Ok(event)
    })?;
    // SAFETY: the caller's to write to.
    unsafe { phEvent.set(crate::client::handle(id.handle())) };
    Ok(())
}
