//! Copies.

mod linear;
mod pitched;

pub use linear::*;
pub use pitched::*;
