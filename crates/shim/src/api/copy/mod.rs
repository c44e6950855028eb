//! Copies.

mod array;
mod batch;
mod linear;
mod pitched;

pub use array::*;
pub use batch::*;
pub use linear::*;
pub use pitched::*;
