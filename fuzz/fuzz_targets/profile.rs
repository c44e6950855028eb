//! Profiles are refused or understood: what is understood is written, and read back the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use plan::format::{HEADER_LEN, decode, encode, seal};

fuzz_target!(|bytes: &[u8]| {
    // As a file, as a body, and as the file of a body that was mangled.
    let body = bytes.get(HEADER_LEN..).map(seal);
    for file in [bytes.to_vec(), seal(bytes)].into_iter().chain(body) {
        let Ok(profile) = decode(&file) else { continue };
        assert_eq!(decode(&encode(&profile)).expect("what was written can be read"), profile);
    }
});
