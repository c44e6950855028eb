//! A pipelined call that fails is told of once, by the next call that reaches the server.
#![allow(clippy::unwrap_used)]

use std::ptr::null_mut;

use cuda_abi::CuError;
use cuda_shim::api::{context::*, primary_context::*, stream::*};

#[test]
fn failures_of_pipelined_calls_come_back_once() {
    let fake = crate::fake::start();
    let mut stream = null_mut();
    // SAFETY: the pointers are this test's.
    unsafe {
        let failing = fake.fail("StreamCreate", CuError::OUT_OF_MEMORY);
        cuStreamCreate(&raw mut stream, 0).unwrap();
        // The round trip may have been sent before the creation had failed; the one after it is not.
        let told: Vec<_> = (0..5).map(|_| cuCtxSynchronize()).filter(Result::is_err).collect();
        assert_eq!(told, [Err(CuError::OUT_OF_MEMORY)]);
        drop(failing);

        let failing = fake.fail("ContextGetLimit", CuError::NOT_SUPPORTED);
        let mut limit = 77;
        assert_eq!(cuCtxGetLimit(&raw mut limit, 2), Err(CuError::NOT_SUPPORTED));
        assert_eq!(limit, 77, "nothing is written on failure");
        drop(failing);
        cuCtxGetLimit(&raw mut limit, 2).unwrap();
        assert_eq!(limit, 2);

        let failing = fake.fail("StreamCreate", CuError::OUT_OF_MEMORY);
        cuStreamCreate(&raw mut stream, 0).unwrap();
        while fake.session.control().error().is_none() {
            std::thread::yield_now();
        }
        drop(failing);
        // The server hears of the context's end all the same, or could not make it anew.
        assert_eq!(cuDevicePrimaryCtxReset_v2(0), Err(CuError::OUT_OF_MEMORY));
        let ended =
            fake.picked(|(_, request)| matches!(request, wire::Request::ContextDestroy(_)).then_some(()));
        assert_eq!(ended.len(), 1);
    }
}
