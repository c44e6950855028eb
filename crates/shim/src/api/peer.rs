//! Access between devices.

use std::ffi::{c_int, c_uint};

use cuda_abi::{CuError, CuResult, sys};
use wire::{CanAccessPeer, Device, PeerAccess};

use crate::client::{out, with};

/// Tells whether one device can use another's memory.
pub unsafe fn cuDeviceCanAccessPeer(
    canAccessPeer: *mut c_int,
    dev: sys::CUdevice,
    peerDev: sys::CUdevice,
) -> CuResult {
    let canAccessPeer = out(canAccessPeer)?;
    let value = can_access(dev, peerDev)?;
    // SAFETY: the caller's to write to.
    unsafe { canAccessPeer.set(value.into()) };
    Ok(())
}

fn can_access(device: sys::CUdevice, peer: sys::CUdevice) -> CuResult<bool> {
    with(|call| {
        call.session.device(device)?;
        call.session.device(peer)?;
        let (device, peer) = (Device(device as u32), Device(peer as u32));
        if device == peer { Ok(false) } else { call.ask(&CanAccessPeer { device, peer }) }
    })
}

/// Lets the current context use the memory of another.
pub unsafe fn cuCtxEnablePeerAccess(peerContext: sys::CUcontext, Flags: c_uint) -> CuResult {
    if Flags != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    set_access(peerContext, true)
}

/// Ends that.
pub unsafe fn cuCtxDisablePeerAccess(peerContext: sys::CUcontext) -> CuResult {
    set_access(peerContext, false)
}

fn set_access(peer: sys::CUcontext, enable: bool) -> CuResult {
    with(|call| {
        let ctx = call.context()?.id;
        let peer = call.session.context(peer)?.id;
        if ctx == peer {
            return Err(CuError::INVALID_CONTEXT);
        }
        call.ask(&PeerAccess { ctx, peer, enable })
    })
}

/// Gives an attribute of the connection of two devices.
pub unsafe fn cuDeviceGetP2PAttribute(
    value: *mut c_int,
    attrib: c_uint,
    srcDevice: sys::CUdevice,
    dstDevice: sys::CUdevice,
) -> CuResult {
    use sys::CUdevice_P2PAttribute::CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED as ACCESS;
    const LAST: c_uint = 6;
    let value = out(value)?;
    if attrib == 0 || attrib > LAST || srcDevice == dstDevice {
        return Err(CuError::INVALID_VALUE);
    }
    let access = can_access(srcDevice, dstDevice)?;
    // What it is beyond that (rank, atomics, arrays) is not known here, and 0 promises nothing.
    let answer = attrib == ACCESS as c_uint && access;
    // SAFETY: the caller's to write to.
    unsafe { value.set(answer.into()) };
    Ok(())
}

/// Tells what atomic operations of one device on another's memory can be.
pub unsafe fn cuDeviceGetP2PAtomicCapabilities(
    capabilities: *mut c_uint,
    operations: *const c_uint,
    count: c_uint,
    srcDevice: sys::CUdevice,
    dstDevice: sys::CUdevice,
) -> CuResult {
    if srcDevice == dstDevice {
        return Err(CuError::INVALID_DEVICE);
    }
    // SAFETY: the caller's contract is the same.
    unsafe { super::atomics::promise_nothing(capabilities, operations, count, &[srcDevice, dstDevice]) }
}
