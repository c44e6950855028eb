//! A page map of CRIU's is refused or understood; completed, it has the same pages, none of them left out, and more can be added or not.
#![no_main]

use host::criu::pagemap::{PAGE, Pagemap};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some(pagemap) = Pagemap::of(bytes) else { return };
    let before: Vec<_> = pagemap.runs().map(|run| (run.address, run.bytes)).collect();
    let again = Pagemap::of(&pagemap.completed()).expect("what was written can be read");
    assert!(again.runs().all(|run| !run.left_out));
    assert!(again.runs().map(|run| (run.address, run.bytes)).eq(before.iter().copied()));
    // Behind the last ones, and over the first one.
    let end = before.iter().map(|(address, bytes)| address + bytes).max().unwrap_or(0);
    let behind = end / PAGE * PAGE..(end / PAGE).saturating_add(2).saturating_mul(PAGE);
    for more in [behind, 0..PAGE] {
        let count = again.runs().count();
        let Some(added) = Pagemap::of(bytes).and_then(|pagemap| pagemap.with_left_out(&[more])) else { continue };
        assert_eq!(added.runs().count(), count + 1);
    }
});
