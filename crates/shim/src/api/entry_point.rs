//! How programs find the other functions.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use cuda_abi::{
    CuError, CuResult, FunctionId,
    proc_address::{self, Missing},
    sys::{CUdriverProcAddressQueryResult as Status, CUuuid},
};

use crate::{exports, facts, private};

/// `CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM`; the only other flag is `LEGACY_STREAM`, 1.
const PER_THREAD: u64 = 2;

/// Gives the address of the newest version of a function that a release had. A function that is not there is no error:
/// NULL, and the reason in `symbolStatus`.
pub unsafe fn cuGetProcAddress_v2(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    cudaVersion: c_int,
    flags: u64,
    symbolStatus: *mut c_uint,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    let found = unsafe { find(symbol, pfn, cudaVersion, flags) }?;
    let (address, status) = match found {
        Ok(id) => (exports::address(id), Status::CU_GET_PROC_ADDRESS_SUCCESS),
        Err(Missing::Symbol) => (std::ptr::null(), Status::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND),
        Err(Missing::Version) => (std::ptr::null(), Status::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT),
    };
    // SAFETY: `find` checked that it is not NULL, so it is the caller's to write to.
    unsafe { pfn.write(address.cast_mut()) };
    if !symbolStatus.is_null() {
        // SAFETY: not NULL, so the caller's to write to.
        unsafe { symbolStatus.write(status as c_uint) };
    }
    Ok(())
}

/// The form of CUDA 11.3: a function that is not there is an error, and nothing is written.
pub unsafe fn cuGetProcAddress(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    cudaVersion: c_int,
    flags: u64,
) -> CuResult {
    // SAFETY: the caller's contract is the same.
    let id = unsafe { find(symbol, pfn, cudaVersion, flags) }?.map_err(|_| CuError::NOT_FOUND)?;
    // SAFETY: `find` checked that it is not NULL, so it is the caller's to write to.
    unsafe { pfn.write(exports::address(id).cast_mut()) };
    Ok(())
}

unsafe fn find(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> CuResult<Result<FunctionId, Missing>> {
    if symbol.is_null() || pfn.is_null() || flags > 3 || version > facts::driver_version() {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: not NULL, so a C string of the caller's.
    let name = unsafe { CStr::from_ptr(symbol) };
    // The driver compares the release as an unsigned number, so that -1 gets the newest version.
    Ok(proc_address::lookup(name.to_bytes(), version.cast_unsigned(), flags & PER_THREAD != 0))
}

/// Gives a private table by its id.
pub unsafe fn cuGetExportTable(ppExportTable: *mut *const c_void, pExportTableId: *const CUuuid) -> CuResult {
    if ppExportTable.is_null() || pExportTableId.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: neither is NULL, so they are the caller's to read and to write.
    unsafe {
        let table = private::table(pExportTableId.cast::<[u8; 16]>().read());
        ppExportTable.write(table.unwrap_or(std::ptr::null()));
        if table.is_some() { Ok(()) } else { Err(CuError::INVALID_VALUE) }
    }
}
