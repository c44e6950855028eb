//! Executable graphs.

mod instantiate;
mod launch;
mod memory;
mod set_params;
mod update;

pub use instantiate::*;
pub use launch::*;
pub use memory::*;
pub use set_params::*;
pub use update::*;
