//! Exit codes: a promise, written down in `docs/exit-codes.md`.

use checkpoint::Kind;
use std::process::ExitCode;

/// The exit code for a failure of a command about jobs and images.
#[must_use]
pub fn code(kind: Kind) -> u8 {
    match kind {
        Kind::Failed => 1,
        // As clap's.
        Kind::Usage => 2,
        Kind::NotFound => 3,
        Kind::Busy => 4,
        Kind::NotIdle => 5,
        Kind::Refused => 6,
        Kind::Damaged => 7,
        Kind::Mismatch | Kind::DeviceFull => 8,
        Kind::Unavailable => 9,
        Kind::Store => 10,
        Kind::Ended => 11,
        Kind::CannotExecute => 126,
    }
}

/// The exit code of `run` and `restart` when Dormouse itself fails: those below belong to the program.
pub const OWN_FAILURE: u8 = 125;

/// Success or the failure's code.
#[must_use]
pub fn of(failure: &checkpoint::Failure) -> ExitCode {
    ExitCode::from(code(failure.kind))
}
