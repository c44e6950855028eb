//! Device memory: where allocations lie, and when a freed one may be used again.

pub mod arena;
