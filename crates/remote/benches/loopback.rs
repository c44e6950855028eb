//! What it costs that the device is on another machine.
fn main() {}
