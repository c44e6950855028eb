//! What the store's tests share.
#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses its part, and a test may panic")]

pub mod fault;
pub mod hook;
pub mod keys;
pub mod quota;
pub mod sample;
pub mod sim;
