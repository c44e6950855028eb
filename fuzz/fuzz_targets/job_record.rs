//! The record of a job is refused as damaged or too new, or understood; what is understood is written, and read back the same.
#![no_main]

use checkpoint::{JobRecord, Kind};
use image::Manifest;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let manifest = Manifest::new("job");
    match JobRecord::read(bytes, &manifest) {
        Ok(record) => {
            let written = serde_json::to_vec(&record).expect("what was read can be written");
            let again = JobRecord::read(&written, &manifest).expect("what was written can be read");
            assert_eq!(serde_json::to_vec(&again).expect("what was read can be written"), written);
        }
        Err(failure) => assert!(matches!(failure.kind, Kind::Damaged | Kind::Mismatch), "{failure}"),
    }
});
