//! The allocator, in kernels that nvcc has made, on the software device.
#![allow(clippy::unwrap_used)]

mod allocating;
mod device;
mod rewriting;

/// Kernels that allocate.
const KERNELS: &str = include_str!("kernels.ptx");
