//! How much memory the record of a job takes when it is read out of anybody's image. A program of its own: all that is allocated counts.
#![allow(clippy::unwrap_used)]

use std::alloc::System;

use cap::Cap;
use checkpoint::JobRecord;
use image::Manifest;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// A path of bytes has two in the record for each of its own.
#[test]
fn a_record_takes_little_more_than_its_bytes() {
    let golden = include_str!("golden/job-record-4.json");
    let long = golden.replacen(r#""/srv/out""#, &format!("[{}1]", "1,".repeat(8 << 20)), 1);
    let before = ALLOCATOR.allocated();
    // Who takes more is given none, which ends the process.
    ALLOCATOR.set_limit(before + 2 * long.len()).unwrap();
    let record = JobRecord::read(long.as_bytes(), &Manifest::new("job"));
    ALLOCATOR.set_limit(usize::MAX).unwrap();
    record.unwrap();
}
