//! The suite that every backend must pass, in one process: module memory has one place in the address space.

use std::panic::{AssertUnwindSafe, catch_unwind};

use backend::conformance::BEHAVIOURS;
use backend_soft::SoftBackend;

#[test]
fn shows_every_behaviour() {
    let backend = SoftBackend::default();
    let shown = |(_, behaviour): &&(&str, fn(&dyn backend::Backend))| {
        catch_unwind(AssertUnwindSafe(|| behaviour(&backend))).is_err()
    };
    let failed: Vec<_> = BEHAVIOURS.iter().filter(shown).map(|(name, _)| *name).collect();
    assert!(failed.is_empty(), "not shown: {failed:?}");
}
