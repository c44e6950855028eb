//! A child forked from a process that uses CUDA: calls fail as the driver's do, and it can end.
#![allow(clippy::unwrap_used)]

use cuda_abi::CuError;
use cuda_shim::api::{context::*, initialization::*, memory::*};

/// Runs `child` in a forked process and tells how it ended: 0 when it returned true.
fn forked(child: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child calls nothing that needs another thread, and ends at once.
    match unsafe { libc::fork() } {
        0 => {
            let code = i32::from(!child());
            // SAFETY: ends the child without the parent's atexit handlers.
            unsafe { libc::_exit(code) }
        }
        pid => {
            let mut status = -1;
            // SAFETY: waits for that child.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
            status
        }
    }
}

#[test]
fn a_forked_child_is_told_so() {
    crate::fake::start();
    let mut address = 0;
    // SAFETY: the pointers are this test's.
    unsafe {
        cuMemAlloc_v2(&raw mut address, 64).unwrap();
        let ended = forked(|| {
            cuMemAlloc_v2(&raw mut address, 64) == Err(CuError::NOT_INITIALIZED)
                && cuCtxGetCurrent(&mut std::ptr::null_mut()) == Err(CuError::NOT_INITIALIZED)
                && cuInit(0) == Err(CuError::NOT_INITIALIZED)
        });
        assert_eq!(ended, 0);
        cuMemFree_v2(address).unwrap();
        cuCtxSynchronize().unwrap();
    }
}

#[test]
fn a_thread_of_the_child_can_end() {
    crate::fake::start();
    // The thread that forks becomes the child's only one, and has a ring that is not there any more.
    let ended = std::thread::spawn(|| {
        crate::fake::start();
        forked(|| {
            // SAFETY: a new thread of the child, which makes a call and ends.
            let made = std::thread::spawn(|| unsafe { cuMemAlloc_v2(&mut 0, 1) }).join();
            made.is_ok_and(|result| result == Err(CuError::NOT_INITIALIZED))
        })
    });
    assert_eq!(ended.join().unwrap(), 0);
}
