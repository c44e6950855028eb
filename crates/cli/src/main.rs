//! The `dormouse` command.
fn main() {}
