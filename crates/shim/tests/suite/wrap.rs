//! A program that has used up all numbers for handles goes on with those that are free again.
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::FileExt;
use std::ptr::null_mut;

use cuda_abi::sys::{CUevent, CUstream};
use cuda_shim::api::{event::*, stream::*};

/// Where the control page keeps the next id (`docs/wire-protocol.md`).
const NEXT_ID: u64 = 256;

fn stream() -> CUstream {
    let mut stream = null_mut();
    // SAFETY: the pointer is this function's.
    unsafe { cuStreamCreate(&raw mut stream, 0) }.unwrap();
    stream
}

fn event() -> CUevent {
    let mut event = null_mut();
    // SAFETY: the pointer is this function's.
    unsafe { cuEventCreate(&raw mut event, 0) }.unwrap();
    event
}

#[test]
fn numbers_in_use_are_not_given_out_again() {
    let fake = crate::fake::start();
    let number = |handle: usize| handle as u32;
    let streams: Vec<_> = (0..10).map(|_| stream()).collect();
    let file = std::fs::File::options().write(true).open(fake.folder.join("session")).unwrap();
    file.write_all_at(&(u32::MAX - 3).to_le_bytes(), NEXT_ID).unwrap();
    let events: Vec<_> = (0..20).map(|_| event()).collect();
    let mut numbers: Vec<_> = streams.iter().map(|stream| number(stream.addr())).collect();
    numbers.extend(events.iter().map(|event| number(event.addr())));
    let small = numbers.iter().filter(|number| **number < 1000).count();
    assert!(small >= 25, "most of them are small again: {numbers:?}");
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 30);
    assert!(!numbers.contains(&0) && !numbers.contains(&u32::MAX));
    for (stream, event) in streams.into_iter().zip(events) {
        // SAFETY: handles.
        unsafe { cuEventRecord(event, stream) }.unwrap();
    }
}
