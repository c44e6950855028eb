//! The real CUDA driver as a [`Backend`](backend::Backend).
//!
//! `libcuda.so.1` is found with `dlopen`. Device memory is mapped with the driver's virtual memory management at addresses
//! that the server chooses; what the driver places by itself is steered ([`steer`]) so that it can be had again.

mod api;
mod attributes;
mod budget;
mod code;
mod copy;
mod device;
mod driver;
mod graph;
mod jit;
mod link;
pub mod machine;
mod managed;
mod memory_operations;
mod output;
mod partition;
mod physical;
mod sharing;
pub mod steer;
mod textures;
mod work;

pub use api::{DriverUnavailable, SHIM_MARKER};
pub use driver::Driver;
