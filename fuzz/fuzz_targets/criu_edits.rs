//! What a restart changes in CRIU's images of mounts and TCP connections is found within them, or not at all.
#![no_main]

use host::criu::{mounts, tcp};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Some(unsent) = tcp::unsent(bytes) {
        // Where there is a number, which ends where it is said to.
        let number = bytes.get(unsent).expect("it lies in the image");
        assert!((1..=10).contains(&number.len()));
    }
    let keys = ["dormouse-1".to_owned()];
    assert_eq!(mounts::without(bytes, &[]).as_deref().unwrap_or(bytes), bytes);
    if let Some(left) = mounts::without(bytes, &keys) {
        assert!(left.len() <= bytes.len());
        assert_eq!(mounts::without(&left, &keys).as_deref(), Some(&left[..]));
    }
});
