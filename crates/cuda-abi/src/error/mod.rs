//! `CUresult` without the success: what a call may fail with, its name and its text.

mod table;

use std::{ffi::CStr, fmt, num::NonZeroU32};

/// What an implementation of a driver function answers.
pub type CuResult<T = ()> = Result<T, CuError>;

/// A `CUresult` other than `CUDA_SUCCESS`. Codes that `cuda.h` does not name are kept as they are.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CuError(NonZeroU32);

impl CuError {
    const fn literal(code: u32) -> CuError {
        match NonZeroU32::new(code) {
            Some(code) => CuError(code),
            None => panic!("CUDA_SUCCESS is no error"),
        }
    }

    /// The number that C sees.
    pub const fn code(self) -> u32 {
        self.0.get()
    }

    /// The error for a result code; `None` for `CUDA_SUCCESS`.
    pub const fn from_code(code: u32) -> Option<CuError> {
        match NonZeroU32::new(code) {
            Some(code) => Some(CuError(code)),
            None => None,
        }
    }

    /// A result code from C, as a `Result`.
    ///
    /// # Errors
    /// Every code but `CUDA_SUCCESS`.
    pub fn check(code: u32) -> CuResult {
        CuError::from_code(code).map_or(Ok(()), Err)
    }

    /// Whether the error, once met, is the answer of every later call of its context (CUDA: the context is corrupted).
    pub fn is_sticky(self) -> bool {
        [
            CuError::ILLEGAL_ADDRESS,
            CuError::LAUNCH_TIMEOUT,
            CuError::ASSERT,
            CuError::HARDWARE_STACK_ERROR,
            CuError::ILLEGAL_INSTRUCTION,
            CuError::MISALIGNED_ADDRESS,
            CuError::INVALID_ADDRESS_SPACE,
            CuError::INVALID_PC,
            CuError::LAUNCH_FAILED,
        ]
        .contains(&self)
    }

    /// Such as `CUDA_ERROR_INVALID_VALUE`; `None` for a code that `cuda.h` does not name.
    pub fn name(self) -> Option<&'static CStr> {
        self.row().map(|(_, name, _)| *name)
    }

    /// Such as `invalid argument`; `None` for a code that `cuda.h` does not name.
    pub fn text(self) -> Option<&'static CStr> {
        self.row().map(|(_, _, text)| *text)
    }

    fn row(self) -> Option<&'static (u32, &'static CStr, &'static CStr)> {
        let at = table::TABLE.binary_search_by_key(&self.code(), |(code, ..)| *code).ok()?;
        table::TABLE.get(at)
    }
}

impl fmt::Debug for CuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{}", name.to_string_lossy()),
            None => write!(f, "CUDA error {}", self.code()),
        }
    }
}

impl fmt::Display for CuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => write!(f, "{self:?} ({})", text.to_string_lossy()),
            None => write!(f, "CUDA error {}", self.code()),
        }
    }
}

impl std::error::Error for CuError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::CUresult;

    #[test]
    fn names_and_texts_are_the_drivers() {
        assert_eq!(CuError::INVALID_VALUE.to_string(), "CUDA_ERROR_INVALID_VALUE (invalid argument)");
        assert_eq!(CuError::ILLEGAL_ADDRESS.code(), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS as u32);
        assert_eq!(CuError::literal(12345).to_string(), "CUDA error 12345");
    }

    #[test]
    fn the_table_is_sorted() {
        assert!(table::TABLE.is_sorted_by_key(|(code, ..)| *code));
        assert_eq!(table::TABLE.len(), 100);
    }

    #[test]
    fn success_is_no_error() {
        assert_eq!(CuError::check(0), Ok(()));
        assert_eq!(CuError::check(1), Err(CuError::INVALID_VALUE));
        assert_eq!(CuError::from_code(0), None);
    }
}
