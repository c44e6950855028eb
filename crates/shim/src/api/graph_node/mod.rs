//! Nodes of graphs.

mod add;
mod generic;
mod kernel;
mod memory;
mod other;
mod query;

pub use generic::*;
pub use kernel::*;
pub use memory::*;
pub use other::*;
pub use query::*;
