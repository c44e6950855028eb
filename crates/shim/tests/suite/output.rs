//! What kernels print comes in order with what the application prints.
#![allow(clippy::unwrap_used)]

use std::io::{Read, Seek};
use std::os::fd::AsRawFd;

use cuda_shim::api::context::cuCtxSynchronize;

#[test]
fn device_output_goes_through_the_applications_stdout() {
    let fake = crate::fake::start();
    let mut file = tempfile::tempfile().unwrap();
    // More than one reply carries.
    let long = "x".repeat(wire::OUTPUT_MAX) + "\n";
    // SAFETY: descriptors of this process, and text that ends with a NUL.
    unsafe {
        let before = libc::dup(1);
        libc::dup2(file.as_raw_fd(), 1);
        libc::puts(c"before".as_ptr());
        fake.printing.lock().unwrap().1 = long.clone().into_bytes();
        cuCtxSynchronize().unwrap();
        libc::puts(c"after".as_ptr());
        libc::fflush(std::ptr::null_mut());
        libc::dup2(before, 1);
        libc::close(before);
    }
    let mut text = String::new();
    file.rewind().unwrap();
    file.read_to_string(&mut text).unwrap();
    assert!(text == format!("before\n{long}after\n"), "{} bytes", text.len());
}
