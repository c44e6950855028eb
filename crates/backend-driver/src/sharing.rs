//! Memory and events of other servers, by the driver's own ways: descriptors for memory, 64 bytes for events.

use crate::api::check;
use crate::driver::{Driver, event};
use backend::{RawBlock, RawContext, RawEvent, RawPhysical, Result, SharedEvent, Sharing};
use cudarc::driver::sys;
use std::ffi::{c_int, c_void};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use wire::CuError;

const DESCRIPTOR: u32 = sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0;

impl Sharing for Driver {
    fn block_physical(&self, block: RawBlock) -> Result<RawPhysical> {
        let range = self.block_range(block)?;
        let mut handle = 0;
        // SAFETY: the address of a mapping of ours; the handle is a local.
        check(unsafe { (self.api.cuMemRetainAllocationHandle)(&raw mut handle, range.base as *mut c_void) })?;
        Ok(RawPhysical(handle))
    }

    fn physical_export(&self, physical: RawPhysical) -> Result<OwnedFd> {
        let mut file: c_int = -1;
        // SAFETY: a live handle, and room for a descriptor, which is what this type of handle is.
        check(unsafe {
            (self.api.cuMemExportToShareableHandle)((&raw mut file).cast(), physical.0, DESCRIPTOR, 0)
        })?;
        if file < 0 {
            return Err(CuError::UNKNOWN);
        }
        // SAFETY: the descriptor just made, which is the caller's.
        Ok(unsafe { OwnedFd::from_raw_fd(file) })
    }

    fn physical_import(&self, _: usize, file: OwnedFd, _: u64) -> Result<RawPhysical> {
        let mut handle = 0;
        let descriptor = file.as_raw_fd() as usize as *mut c_void;
        // SAFETY: this type of handle is passed as the descriptor itself; the driver keeps what it needs of it.
        check(unsafe { (self.api.cuMemImportFromShareableHandle)(&raw mut handle, descriptor, DESCRIPTOR) })?;
        Ok(RawPhysical(handle))
    }

    fn event_export(&self, ctx: RawContext, raw: RawEvent) -> Result<SharedEvent> {
        self.enter(ctx)?;
        let mut handle = sys::CUipcEventHandle { reserved: [0; 64] };
        // SAFETY: a live event, and room for a handle.
        check(unsafe { (self.api.cuIpcGetEventHandle)(&raw mut handle, event(raw)) })?;
        Ok(SharedEvent { file: None, bytes: handle.reserved.iter().map(|byte| *byte as u8).collect() })
    }

    fn event_import(&self, ctx: RawContext, shared: SharedEvent) -> Result<RawEvent> {
        let bytes = <[u8; 64]>::try_from(shared.bytes).map_err(|_| CuError::INVALID_VALUE)?;
        self.enter(ctx)?;
        let handle = sys::CUipcEventHandle { reserved: bytes.map(|byte| byte as std::ffi::c_char) };
        let mut raw = std::ptr::null_mut();
        // SAFETY: room for an event; the driver refuses a handle that it does not know.
        check(unsafe { (self.api.cuIpcOpenEventHandle)(&raw mut raw, handle) })?;
        Ok(RawEvent(raw as u64))
    }
}
