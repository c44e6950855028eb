//! The CUDA driver's binary interface: its functions ([`FunctionId`], generated from the list in `cuda-list`), its
//! types ([`sys`]), its errors ([`CuError`]), and which version of a function a program gets ([`proc_address`]).

#![forbid(unsafe_code)]

pub mod error;
mod function;
pub mod proc_address;

pub use cuda_list::Class;
/// The driver's types as C declares them. Nothing here is called through it: the shim and the driver backend use
/// its types only.
pub use cudarc::driver::sys;
pub use error::{CuError, CuResult};
pub use function::{Function, FunctionId};

/// The newest driver interface that the list covers, as `cuDriverGetVersion` counts: 1000 × major + 10 × minor.
pub const NEWEST_DRIVER_VERSION: i32 = 13000;

/// The stream handle that always means the legacy default stream (`CU_STREAM_LEGACY`).
pub const STREAM_LEGACY: usize = 1;

/// The stream handle that always means the calling thread's default stream (`CU_STREAM_PER_THREAD`).
pub const STREAM_PER_THREAD: usize = 2;
