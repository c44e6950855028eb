//! Hands the blocks of grids to threads.
//!
//! A block runs for a slice, then another gets its turn: blocks that wait for each other make progress whatever their order,
//! and a cooperative grid is only one whose blocks are all resident at once.

mod grid;
mod pool;

pub use grid::Grid;
pub use pool::Pool;
