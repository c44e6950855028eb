//! Graphs.

mod dot;
mod make;
mod objects;
mod query;

pub use dot::*;
pub use make::*;
pub use objects::*;
pub use query::*;
