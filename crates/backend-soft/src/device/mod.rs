//! The device as the server sees it: facts, limits, handles, and the [`Backend`](::backend::Backend) trait.

mod attributes;
mod backend;
mod code;
mod facts;
mod function;
mod graph;
mod handles;
mod limits;
mod machine;
mod occupancy;
mod partition;
mod place;
mod sharing;
mod template;
mod textures;

pub use backend::{Options, SoftBackend};
pub use machine::machine;
