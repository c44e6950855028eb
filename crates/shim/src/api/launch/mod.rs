//! Functions and launches.

mod function;
mod host;
mod kernel;
mod old;

pub use function::*;
pub use host::*;
pub use kernel::*;
pub use old::*;
