//! Why something asked of a job did not happen.

use serde::{Deserialize, Serialize};

/// What kind of failure it is: scripts tell them apart by exit code (`docs/exit-codes.md`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Something of the machine or of Dormouse itself.
    Failed,
    /// What was asked for makes no sense, whatever there is.
    Usage,
    /// There is no such job, or no such image.
    NotFound,
    /// The job, or its name, is in use: a checkpoint is under way, or the job of this image still runs.
    Busy,
    /// The job did not get idle before the gate's deadline; it runs on.
    NotIdle,
    /// Something the job holds cannot be restored; nothing was written.
    Refused,
    /// An image is damaged.
    Damaged,
    /// The image does not fit this machine: another architecture, a changed program, a missing device.
    Mismatch,
    /// The device's memory is used up.
    DeviceFull,
    /// A privilege or CRIU is missing.
    Unavailable,
    /// Another machine cannot be reached, or does not let this one in.
    Unreachable,
    /// The store cannot take the image: full, read-only, unreachable.
    Store,
    /// The job ended meanwhile.
    Ended,
    /// The program is there but cannot be executed.
    CannotExecute,
}

impl Kind {
    /// The exit code of a command about jobs and images that fails so: a promise, written down in `docs/exit-codes.md`. A program that asks for its own
    /// checkpoint hears of the same.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::Failed => 1,
            // As clap's.
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Busy => 4,
            Self::NotIdle => 5,
            Self::Refused => 6,
            Self::Damaged => 7,
            Self::Mismatch | Self::DeviceFull => 8,
            Self::Unavailable | Self::Unreachable => 9,
            Self::Store => 10,
            Self::Ended => 11,
            Self::CannotExecute => 126,
        }
    }
}

/// A failure with the sentence for the user: what happened, to what, and what to do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What kind it is.
    pub kind: Kind,
    /// The sentence.
    pub message: String,
}

impl Failure {
    /// Of a job that runs on: whoever reads that its store is full wonders about that first.
    #[must_use]
    pub(crate) fn with_the_job_running(self) -> Self {
        match self.kind {
            Kind::Store => Self { message: format!("{}; the job runs on", self.message), ..self },
            _ => self,
        }
    }

    /// A failure of `kind`.
    pub fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// A failure of the machine: `what` failed because of `error` and all that caused it.
    pub fn of(what: impl std::fmt::Display, error: &dyn std::error::Error) -> Self {
        Self::new(Kind::Failed, format!("{what}: {}", Chain(error)))
    }
}

/// No thread can be had: for what is done that was to be done in it.
#[must_use]
pub fn no_thread(error: &std::io::Error) -> Failure {
    Failure::of(
        "there is no thread left; is a limit on processes reached (pids.max of its control group, ulimit -u)?",
        error,
    )
}

/// An error with its causes, in one line.
pub struct Chain<'a>(pub &'a dyn std::error::Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut said = self.0.to_string();
        f.write_str(&said)?;
        let mut next = self.0.source();
        while let Some(error) = next {
            let text = error.to_string();
            // Some errors repeat their cause in their own words.
            if !said.contains(&text) {
                write!(f, ": {text}")?;
                said = text;
            }
            next = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot open the store")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn causes_are_told_once() {
        let outer = Outer(std::io::Error::other("disk is on fire"));
        assert_eq!(
            Failure::of("checkpoint", &outer).message,
            "checkpoint: cannot open the store: disk is on fire"
        );
        let plain = std::io::Error::other("disk is on fire");
        assert_eq!(Chain(&plain).to_string(), "disk is on fire");
    }
}
