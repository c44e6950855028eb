//! Functions and launches.

mod function;
mod host;
mod kernel;

pub use function::*;
pub use host::*;
pub use kernel::*;
