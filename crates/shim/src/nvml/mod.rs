//! NVML, the library that programs ask about GPUs without CUDA: this library is the job's `libnvidia-ml.so.1` too. The real one would
//! keep nodes of the driver open, which no image can hold.
//!
//! `functions` is the list of what is answered, `refused` of what is not: together every function of NVML 13. The answers are
//! the supervisor's (`known`), which is asked anew for what changes; no session is begun, and nothing stays open, so programs may ask
//! before they fork. What identifies a GPU stays what the process was told first, on whatever device a restart goes on.

mod device;
mod fabric;
mod functions;
mod handle;
mod identity;
mod known;
mod numbers;
mod out;
mod processes;
mod refused;
mod system;

use nvml_wrapper_sys::bindings as sys;
use std::ffi::c_uint;

pub use functions::ANSWERED;
pub use known::start;
pub use refused::REFUSED;

/// `nvmlDevice_t`.
pub type Device = sys::nvmlDevice_t;

/// What a function answers.
pub type Answer<T = ()> = Result<T, Error>;

/// An `nvmlReturn_t` other than success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Error(pub c_uint);

impl Error {
    /// `nvmlInit` was not called.
    pub const UNINITIALIZED: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_UNINITIALIZED);
    /// An argument cannot be.
    pub const INVALID_ARGUMENT: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_INVALID_ARGUMENT);
    /// The GPU, or Dormouse, cannot.
    pub const NOT_SUPPORTED: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_NOT_SUPPORTED);
    /// There is no such thing.
    pub const NOT_FOUND: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_NOT_FOUND);
    /// There is too little room.
    pub const INSUFFICIENT_SIZE: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_INSUFFICIENT_SIZE);
    /// Nobody can tell of GPUs.
    pub const DRIVER_NOT_LOADED: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_DRIVER_NOT_LOADED);
    /// The job goes on where there are fewer GPUs.
    pub const GPU_IS_LOST: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_GPU_IS_LOST);
    /// A structure of a version that is not known.
    pub const VERSION_MISMATCH: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
    /// Something else.
    pub const UNKNOWN: Self = Self(sys::nvmlReturn_enum_NVML_ERROR_UNKNOWN);
}
