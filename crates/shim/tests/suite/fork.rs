//! A child forked from a process that uses CUDA: calls fail as the driver's do, and it can end.
#![allow(clippy::unwrap_used)]

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cuda_abi::CuError;
use cuda_shim::api::{context::*, host_memory::*, initialization::*, memory::*};

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

/// Waited for where a process is about to fork and the handlers of the shim have run, and with whom memory is registered then.
static ABOUT: Barrier = Barrier::new(2);
static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
static WAS_REGISTERED: AtomicBool = AtomicBool::new(false);

extern "C" fn about_to_fork() {
    ABOUT.wait();
    std::thread::sleep(Duration::from_millis(300));
    WAS_REGISTERED.store(IS_REGISTERED.load(Ordering::SeqCst), Ordering::SeqCst);
}

#[test]
fn nothing_is_moved_while_the_process_forks() {
    crate::fake::start();
    // The last handler to come is the first to run: the shim's comes with the first registration.
    // SAFETY: a function of this program.
    assert_eq!(unsafe { libc::pthread_atfork(Some(about_to_fork), None, None) }, 0);
    let mut memory = [[0u8; 8192]; 2];
    let [first, second] = memory.each_mut().map(|part| part.as_mut_ptr().expose_provenance());
    let register = |address| {
        let address = std::ptr::with_exposed_provenance_mut(address);
        // SAFETY: memory of this test's, which outlives it.
        unsafe { cuMemHostRegister_v2(address, 8192, 0).unwrap() };
    };
    register(first);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            crate::fake::start();
            ABOUT.wait();
            register(second);
            IS_REGISTERED.store(true, Ordering::SeqCst);
        });
        assert_eq!(forked(|| !WAS_REGISTERED.load(Ordering::SeqCst)), 0);
    });
    assert!(IS_REGISTERED.load(Ordering::SeqCst), "it is when the child is there");
}
