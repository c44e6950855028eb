//! The state of a session is refused or understood; what is understood is written, and read back the same. The bytes are taken as
//! they are, and as code images and a table before a footer that fits.
#![no_main]

use libfuzzer_sys::fuzz_target;
use server::state::{MAGIC, SessionState, VERSION};

fuzz_target!(|bytes: &[u8]| {
    check(bytes);
    let Some(([low, high], rest)) = bytes.split_first_chunk() else { return };
    let table = rest.len().saturating_sub(u16::from_le_bytes([*low, *high]).into());
    let footer = [&(table as u64).to_le_bytes()[..], &VERSION.to_le_bytes(), &MAGIC].concat();
    check(&[rest, &footer].concat());
});

fn check(bytes: &[u8]) {
    let Ok((state, images)) = SessionState::from_bytes(bytes) else { return };
    let again = state.to_bytes(&images).expect("what was read can be written");
    let (same, images) = SessionState::from_bytes(&again).expect("what was written can be read");
    // Times may be numbers that are not equal to themselves: the bytes are.
    assert_eq!(same.to_bytes(&images).expect("what was read can be written"), again);
}
