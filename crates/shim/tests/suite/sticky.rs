//! An execution error stays, and device output comes before what follows it.
#![allow(clippy::unwrap_used)]

use cuda_abi::CuError;
use cuda_shim::api::{context::*, memory::*, primary_context::*, set::*};
use cuda_shim::default_stream::LEGACY;

#[test]
fn an_execution_error_is_the_answer_of_every_later_call() {
    let fake = crate::fake::start();
    let mut address = 0;
    // SAFETY: the pointers are this test's.
    unsafe {
        cuMemAlloc_v2(&raw mut address, 64).unwrap();
        let failing = fake.fail("Fill", CuError::ILLEGAL_ADDRESS);
        cuMemsetD8_v2(address, 0, 64, LEGACY).unwrap();
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(5);
        while cuCtxSynchronize().is_ok() && std::time::Instant::now() < deadline {}
        drop(failing);
        assert_eq!(cuCtxSynchronize(), Err(CuError::ILLEGAL_ADDRESS));
        assert_eq!(cuMemsetD8_v2(address, 0, 64, LEGACY), Err(CuError::ILLEGAL_ADDRESS));
        assert_eq!(cuMemFree_v2(address), Err(CuError::ILLEGAL_ADDRESS));
        let mut context = std::ptr::null_mut();
        cuCtxGetCurrent(&raw mut context).unwrap();
        assert!(!context.is_null(), "what is known here is still answered");
        // A reset succeeds and mends nothing: the error is the process's.
        cuDevicePrimaryCtxReset_v2(0).unwrap();
        assert_eq!(cuDevicePrimaryCtxRetain(&raw mut context, 0), Err(CuError::ILLEGAL_ADDRESS));
        assert_eq!(cuCtxCreate_v2(&raw mut context, 0, 0), Err(CuError::ILLEGAL_ADDRESS));
    }
}
