//! Graphs.

mod make;
mod objects;
mod query;

pub use make::*;
pub use objects::*;
pub use query::*;
