//! CUDA's result codes as a Rust error, so that `?` works.

use cudarc::driver::sys::CUresult;
use std::num::NonZeroU32;

/// A `CUresult` other than `CUDA_SUCCESS`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CuError(NonZeroU32);

macro_rules! known {
    ($($name:ident = $cu:ident),* $(,)?) => {
        impl CuError {
            $(#[doc = concat!("`", stringify!($cu), "`.")]
            pub const $name: CuError = CuError(NonZeroU32::new(CUresult::$cu as u32).unwrap());)*
        }
        /// Names of the codes this project itself answers.
        const NAMES: &[(u32, &str)] = &[$((CUresult::$cu as u32, stringify!($cu))),*];
    };
}

known! {
    INVALID_VALUE = CUDA_ERROR_INVALID_VALUE,
    OUT_OF_MEMORY = CUDA_ERROR_OUT_OF_MEMORY,
    NOT_INITIALIZED = CUDA_ERROR_NOT_INITIALIZED,
    DEINITIALIZED = CUDA_ERROR_DEINITIALIZED,
    DEVICE_UNAVAILABLE = CUDA_ERROR_DEVICE_UNAVAILABLE,
    NO_DEVICE = CUDA_ERROR_NO_DEVICE,
    INVALID_DEVICE = CUDA_ERROR_INVALID_DEVICE,
    INVALID_IMAGE = CUDA_ERROR_INVALID_IMAGE,
    INVALID_CONTEXT = CUDA_ERROR_INVALID_CONTEXT,
    MAP_FAILED = CUDA_ERROR_MAP_FAILED,
    NO_BINARY_FOR_GPU = CUDA_ERROR_NO_BINARY_FOR_GPU,
    INVALID_PTX = CUDA_ERROR_INVALID_PTX,
    UNSUPPORTED_PTX_VERSION = CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
    INVALID_HANDLE = CUDA_ERROR_INVALID_HANDLE,
    NOT_FOUND = CUDA_ERROR_NOT_FOUND,
    NOT_READY = CUDA_ERROR_NOT_READY,
    ILLEGAL_ADDRESS = CUDA_ERROR_ILLEGAL_ADDRESS,
    LAUNCH_OUT_OF_RESOURCES = CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
    LAUNCH_TIMEOUT = CUDA_ERROR_LAUNCH_TIMEOUT,
    PEER_ACCESS_ALREADY_ENABLED = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED,
    PEER_ACCESS_NOT_ENABLED = CUDA_ERROR_PEER_ACCESS_NOT_ENABLED,
    PRIMARY_CONTEXT_ACTIVE = CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE,
    CONTEXT_IS_DESTROYED = CUDA_ERROR_CONTEXT_IS_DESTROYED,
    ASSERT = CUDA_ERROR_ASSERT,
    HOST_MEMORY_ALREADY_REGISTERED = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
    HOST_MEMORY_NOT_REGISTERED = CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
    HARDWARE_STACK_ERROR = CUDA_ERROR_HARDWARE_STACK_ERROR,
    ILLEGAL_INSTRUCTION = CUDA_ERROR_ILLEGAL_INSTRUCTION,
    MISALIGNED_ADDRESS = CUDA_ERROR_MISALIGNED_ADDRESS,
    INVALID_ADDRESS_SPACE = CUDA_ERROR_INVALID_ADDRESS_SPACE,
    INVALID_PC = CUDA_ERROR_INVALID_PC,
    LAUNCH_FAILED = CUDA_ERROR_LAUNCH_FAILED,
    COOPERATIVE_LAUNCH_TOO_LARGE = CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
    NOT_PERMITTED = CUDA_ERROR_NOT_PERMITTED,
    NOT_SUPPORTED = CUDA_ERROR_NOT_SUPPORTED,
    SYSTEM_NOT_READY = CUDA_ERROR_SYSTEM_NOT_READY,
    UNKNOWN = CUDA_ERROR_UNKNOWN,
}

impl CuError {
    /// The error for a driver's result code; `None` for `CUDA_SUCCESS`.
    #[must_use]
    pub const fn from_code(code: u32) -> Option<Self> {
        match NonZeroU32::new(code) {
            Some(code) => Some(Self(code)),
            None => None,
        }
    }

    /// The driver's number for this error; never 0.
    #[must_use]
    pub const fn code(self) -> u32 {
        self.0.get()
    }

    /// Whether the error, once met, is the answer of every later call of the context (CUDA: "the context is corrupted").
    #[must_use]
    pub fn is_sticky(self) -> bool {
        [
            Self::ILLEGAL_ADDRESS,
            Self::LAUNCH_TIMEOUT,
            Self::ASSERT,
            Self::HARDWARE_STACK_ERROR,
            Self::ILLEGAL_INSTRUCTION,
            Self::MISALIGNED_ADDRESS,
            Self::INVALID_ADDRESS_SPACE,
            Self::INVALID_PC,
            Self::LAUNCH_FAILED,
        ]
        .contains(&self)
    }
}

impl std::fmt::Display for CuError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match NAMES.iter().find(|(code, _)| *code == self.code()) {
            Some((_, name)) => f.write_str(name),
            None => write!(f, "CUDA error {}", self.code()),
        }
    }
}

impl std::fmt::Debug for CuError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for CuError {}
