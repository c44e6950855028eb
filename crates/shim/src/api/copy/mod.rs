//! Copies.

mod array;
mod linear;
mod pitched;

pub use array::*;
pub use linear::*;
pub use pitched::*;
