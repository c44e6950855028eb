//! Why a text is not accepted.

use std::fmt;

/// A PTX text that cannot be parsed, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("PTX line {line}, column {column}: {kind}")]
pub struct ParseError {
    /// Counted from 1.
    pub line: u32,
    /// Counted from 1, in bytes.
    pub column: u32,
    /// What is wrong there.
    pub kind: ParseErrorKind,
}

/// What is wrong with a PTX text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseErrorKind {
    /// The grammar wants something else here.
    #[error("expected {expected}, found {found}")]
    Expected {
        /// What would be accepted.
        expected: &'static str,
        /// What stands there, shortened.
        found: Excerpt,
    },
    /// A PTX ISA that this parser does not know.
    #[error("PTX ISA {0} is newer than this version knows (up to {max})", max = crate::parse::NEWEST_ISA)]
    Version(crate::ast::Version),
    /// A character that starts nothing.
    #[error("unexpected character {0:?}")]
    Character(char),
    /// A comment or string without end.
    #[error("{0} without end")]
    Unterminated(&'static str),
    /// A number that its type cannot hold.
    #[error("number {0} is out of range")]
    Number(Excerpt),
    /// A constant expression without value.
    #[error("constant expression {0}")]
    Constant(&'static str),
    /// A name that nothing before declares.
    #[error("{0} is not declared")]
    Undeclared(Excerpt),
    /// A label that nothing in reach defines.
    #[error("label {0} is not defined in this scope")]
    UndefinedLabel(Excerpt),
    /// A name that its scope has already.
    #[error("{0} is declared twice in one scope")]
    Duplicate(Excerpt),
    /// More initial values than the variable has room for.
    #[error("initialiser does not fit into the variable")]
    Initializer,
    /// Something legal of which there is too much.
    #[error("{what}: more than the {limit} that are accepted")]
    Limit {
        /// What there is too much of.
        what: &'static str,
        /// How much is accepted.
        limit: u64,
    },
}

/// A piece of the text, shortened for a message.
#[derive(Clone, PartialEq, Eq)]
pub struct Excerpt(Box<str>);

impl Excerpt {
    const MAX: usize = 48;

    pub(crate) fn new(text: &str) -> Self {
        let line = text.lines().next().unwrap_or_default();
        match line.char_indices().nth(Self::MAX) {
            Some((end, _)) => Self(format!("`{}…`", &line[..end]).into()),
            None => Self(format!("`{line}`").into()),
        }
    }

    pub(crate) fn end_of_text() -> Self {
        Self("the end of the text".into())
    }
}

impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
