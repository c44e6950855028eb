//! Why a message failed.

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

/// Cuts off what is beyond `max` bytes, between two characters.
pub fn truncate(text: &mut String, max: usize) {
    if text.len() > max {
        let end = (0..=max).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
    }
}

impl From<CuError> for Failure {
    fn from(code: CuError) -> Self {
        Self { code, detail: String::new() }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_between_characters() {
        for (max, kept) in [(0, ""), (1, "a"), (2, "a"), (3, "a\u{e9}"), (4, "a\u{e9}z"), (9, "a\u{e9}z")] {
            let mut text = "a\u{e9}z".to_owned();
            truncate(&mut text, max);
            assert_eq!(text, kept, "{max}");
        }
    }
}
