//! What atomic operations of devices on each other's and the host's memory can be.

use std::ffi::c_uint;

use cuda_abi::{CuError, CuResult, sys};

use crate::client::with;

/// Answers for each operation that nothing is promised of it: which connection there is between devices, and between a device and
/// the host, can be another one after a restart.
///
/// # Safety
/// Both lists must be NULL or have `count` elements.
pub(super) unsafe fn promise_nothing(
    capabilities: *mut c_uint,
    operations: *const c_uint,
    count: c_uint,
    devices: &[sys::CUdevice],
) -> CuResult {
    const LAST: c_uint = sys::CUatomicOperation::CU_ATOMIC_OPERATION_FLOAT_MAX as c_uint;
    with(|call| devices.iter().try_for_each(|device| call.session.device(*device).map(drop)))?;
    if capabilities.is_null() || operations.is_null() || count == 0 {
        return Err(CuError::INVALID_VALUE);
    }
    // SAFETY: not NULL, and as long as the caller says.
    let (answers, asked) = unsafe {
        (
            std::slice::from_raw_parts_mut(capabilities, count as usize),
            std::slice::from_raw_parts(operations, count as usize),
        )
    };
    if asked.iter().any(|operation| *operation > LAST) {
        return Err(CuError::INVALID_VALUE);
    }
    answers.fill(0);
    Ok(())
}
