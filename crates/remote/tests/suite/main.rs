//! The crate's tests. The far end is a process of its own, as it is in life: mirrors lie at the addresses of what they mirror.
//! The test binary is both ends.

// A test says what it saw by panicking.
#![allow(clippy::unwrap_used)]

mod clients;
mod common;
mod conformance;
mod faults;
mod garbled;
mod memory;
mod slow;

use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(place) = std::env::var_os(common::PLACE) {
        common::far_end(&place);
        return ExitCode::SUCCESS;
    }
    if let Ok(seed) = std::env::var(garbled::SEED) {
        return garbled::session(&seed);
    }
    let args = libtest_mimic::Arguments::from_args();
    let chapters = [
        clients::trials(),
        conformance::trials(),
        faults::trials(),
        garbled::trials(),
        memory::trials(),
        slow::trials(),
    ];
    libtest_mimic::run(&args, chapters.into_iter().flatten().collect()).exit_code()
}
