//! Nodes of graphs.

mod add;
mod conditional;
mod generic;
mod kernel;
mod memory;
mod operations;
mod other;
mod query;

pub use conditional::*;
pub use generic::*;
pub use kernel::*;
pub use memory::*;
pub use operations::*;
pub use other::*;
pub use query::*;
