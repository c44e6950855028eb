//! Without a job there is no device, and the user is told what to do.
#![allow(clippy::unwrap_used)]

use cuda_abi::CuError;

#[test]
fn initialisation_fails_with_a_hint() {
    let nowhere = tempfile::tempdir().unwrap();
    assert_eq!(cuda_shim::client::start(nowhere.path()), Err(CuError::NO_DEVICE));
    // SAFETY: the pointer is this test's.
    let count = unsafe { cuda_shim::api::device::cuDeviceGetCount(&mut 0) };
    assert_eq!(count, Err(CuError::NOT_INITIALIZED));
}
