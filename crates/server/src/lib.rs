//! The GPU server: session, object table, allocator.
