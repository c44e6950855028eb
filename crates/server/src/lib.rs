//! The GPU server: session, object table, allocator.

pub mod memory;
