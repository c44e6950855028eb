//! What each supported function does: one module per chapter of the list.

#![allow(non_snake_case, clippy::missing_safety_doc)]

pub mod entry_point;
pub mod error;
pub mod initialization;
pub mod module;
pub mod profiler;
