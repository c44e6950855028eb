//! Tests of whole jobs in the test harness.

use std::process::ExitCode;

use dormouse_tests::faults::is_possible;
use dormouse_tests::{Body, bodies};
use libtest_mimic::{Arguments, Trial};
use testkit::place::Device;

fn main() -> ExitCode {
    let trial = |(name, body): (&'static str, Body)| {
        Trial::test(name, move || {
            body(Device::of_this_machine()).map_err(|error| format!("{error:#}").into())
        })
        .with_ignored_flag(!is_possible(name))
    };
    libtest_mimic::run(&Arguments::from_args(), bodies().map(trial).collect()).exit_code()
}
