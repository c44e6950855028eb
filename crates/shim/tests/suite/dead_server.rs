//! A server that dies: every call says so, soon, and none hangs.
#![allow(clippy::unwrap_used)]

use std::ptr::null_mut;
use std::time::{Duration, Instant};

use cuda_abi::CuError;
use cuda_shim::api::{context::*, memory::*, stream::*};
use cuda_shim::default_stream::LEGACY;
use transport::State;

#[test]
fn every_call_fails_within_a_second() {
    let fake = crate::fake::start();
    let mut context = null_mut();
    // SAFETY: the pointer is this test's.
    unsafe { cuCtxGetCurrent(&raw mut context) }.unwrap();
    let context = context as usize;
    // Threads that wait in calls when the server dies: it holds their callbacks, which nobody runs to the end.
    unsafe extern "C" fn never(_: *mut std::ffi::c_void) {
        std::thread::sleep(Duration::from_secs(3600));
    }
    // SAFETY: the callback follows no pointer.
    unsafe { cuda_shim::api::launch::cuLaunchHostFunc(LEGACY, Some(never), null_mut()) }.unwrap();
    let waiters: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(move || {
                // SAFETY: a handle, and a stream.
                unsafe {
                    cuCtxSetCurrent(context as _).unwrap();
                    cuStreamSynchronize(LEGACY)
                }
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(200));
    fake.session.control().set_state(State::Dead);
    let died = Instant::now();
    // SAFETY: the pointer is this test's.
    assert_eq!(unsafe { cuMemAlloc_v2(&mut 0, 1) }, Err(CuError::DEVICE_UNAVAILABLE));
    for waiter in waiters {
        assert_eq!(waiter.join().unwrap(), Err(CuError::DEVICE_UNAVAILABLE));
    }
    // SAFETY: no pointers.
    assert_eq!(unsafe { cuCtxSynchronize() }, Err(CuError::DEVICE_UNAVAILABLE));
    assert!(died.elapsed() < Duration::from_secs(1), "{:?}", died.elapsed());
}
