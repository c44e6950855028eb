//! The fault tests in the test harness.

use std::process::ExitCode;

use dormouse_tests::faults;
use libtest_mimic::{Arguments, Trial};
use testkit::place::Device;

fn main() -> ExitCode {
    let trial = |(name, body): &(&'static str, faults::Body)| {
        let body = *body;
        Trial::test(*name, move || {
            body(Device::of_this_machine()).map_err(|error| format!("{error:#}").into())
        })
    };
    libtest_mimic::run(&Arguments::from_args(), faults::ALL.iter().map(trial).collect()).exit_code()
}
