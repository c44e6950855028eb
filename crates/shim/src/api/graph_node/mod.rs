//! Nodes of graphs.

mod query;

pub use query::*;
