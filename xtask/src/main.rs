//! Set-up, demo, tests, bundle and CI.
fn main() {}
