//! The lines of CRIU's log that say why it failed.

use std::fmt;
use std::fs;
use std::path::Path;

/// The last errors of a log, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LogExcerpt(pub Vec<String>);

impl LogExcerpt {
    const LINES: usize = 12;
    /// What CRIU complains about and goes on.
    const HARMLESS: [&str; 3] = ["RLIMIT_NOFILE for self", "CLONE_PARENT | CLONE_NEWPID", "kdat cache"];

    pub(crate) fn of(log: &Path) -> Self {
        let text =
            fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
        let telling = |line: &&str| {
            (line.contains("Error") || line.contains("Warn"))
                && !Self::HARMLESS.iter().any(|h| line.contains(h))
        };
        let errors: Vec<&str> = text.lines().filter(telling).collect();
        let first = errors.len().saturating_sub(Self::LINES);
        Self(errors[first..].iter().map(|l| (*l).to_owned()).collect())
    }

    /// Whether any line contains `what`.
    #[must_use]
    pub fn mentions(&self, what: &str) -> bool {
        self.0.iter().any(|l| l.contains(what))
    }
}

impl fmt::Display for LogExcerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str(" (its log says nothing)");
        }
        self.0.iter().try_for_each(|line| write!(f, "\n    {line}"))
    }
}
