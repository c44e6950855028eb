//! Executable graphs.

mod instantiate;
mod launch;
mod update;

pub use instantiate::*;
pub use launch::*;
pub use update::*;
