//! The suite that every backend must pass.

use backend_soft::SoftBackend;

#[test]
fn conformance() {
    let backend = SoftBackend::default();
    let (passed, failed) = backend::conformance::run(&backend);
    assert!(failed.is_empty(), "failed: {failed:#?}\npassed: {passed:#?}");
}
