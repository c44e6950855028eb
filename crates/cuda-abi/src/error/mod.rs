//! `CUresult` without the success: what a call may fail with, its name and its text.

mod table;

use std::{ffi::CStr, fmt, num::NonZeroU32};

/// What an implementation of a driver function answers.
pub type CudaResult<T = ()> = Result<T, CudaError>;

/// A `CUresult` other than `CUDA_SUCCESS`. Codes that `cuda.h` does not name are kept as they are.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CudaError(NonZeroU32);

impl CudaError {
    const fn literal(code: u32) -> CudaError {
        match NonZeroU32::new(code) {
            Some(code) => CudaError(code),
            None => panic!("CUDA_SUCCESS is no error"),
        }
    }

    /// The number that C sees.
    pub const fn code(self) -> u32 {
        self.0.get()
    }

    /// A `CUresult` from C, as a `Result`.
    ///
    /// # Errors
    /// Every code but `CUDA_SUCCESS`.
    pub fn check(code: u32) -> CudaResult {
        NonZeroU32::new(code).map_or(Ok(()), |code| Err(CudaError(code)))
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

impl fmt::Debug for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => write!(f, "{}", name.to_string_lossy()),
            None => write!(f, "CUresult({})", self.code()),
        }
    }
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text() {
            Some(text) => write!(f, "{} ({self:?})", text.to_string_lossy()),
            None => write!(f, "unknown CUDA error {}", self.code()),
        }
    }
}

impl std::error::Error for CudaError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::CUresult;

    #[test]
    fn names_and_texts_are_the_drivers() {
        assert_eq!(CudaError::INVALID_VALUE.to_string(), "invalid argument (CUDA_ERROR_INVALID_VALUE)");
        assert_eq!(CudaError::ILLEGAL_ADDRESS.code(), CUresult::CUDA_ERROR_ILLEGAL_ADDRESS as u32);
        assert_eq!(CudaError::literal(12345).to_string(), "unknown CUDA error 12345");
    }

    #[test]
    fn the_table_is_sorted() {
        assert!(table::TABLE.is_sorted_by_key(|(code, ..)| *code));
        assert_eq!(table::TABLE.len(), 100);
    }

    #[test]
    fn success_is_no_error() {
        assert_eq!(CudaError::check(0), Ok(()));
        assert_eq!(CudaError::check(1), Err(CudaError::INVALID_VALUE));
    }
}
