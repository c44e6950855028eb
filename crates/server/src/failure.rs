//! Why a message failed.

use backend::LoadError;
use wire::CuError;

/// What a message fails with: the code the application gets, and a sentence for the log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// The application's.
    pub code: CuError,
    /// What is wrong and what to do; may be empty.
    pub detail: String,
}

/// Result of a message.
pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    /// A failure with a reason.
    pub fn new(code: CuError, detail: impl Into<String>) -> Self {
        Self { code, detail: detail.into() }
    }
}

impl From<CuError> for Failure {
    fn from(code: CuError) -> Self {
        Self { code, detail: String::new() }
    }
}

impl From<LoadError> for Failure {
    fn from(error: LoadError) -> Self {
        Self { code: error.code, detail: error.detail }
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.code)?;
        if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        Ok(())
    }
}
