//! Exit codes: a promise, written down in `docs/exit-codes.md`.

use std::process::ExitCode;

/// The exit code of `run` and `restart` when Dormouse itself fails: those below belong to the program.
pub const OWN_FAILURE: u8 = 125;

/// Success or the failure's code.
#[must_use]
pub fn of(failure: &checkpoint::Failure) -> ExitCode {
    ExitCode::from(failure.kind.exit_code())
}
