//! Tests of whole jobs where there is no test harness: on a GPU machine, from a bundle.

use std::process::ExitCode;

use clap::Parser;
use dormouse_tests::bodies;
use dormouse_tests::faults::is_possible;
use testkit::place::Device;

/// Break what programs under Dormouse depend on, and have them follow plans
#[derive(Parser)]
struct Arguments {
    /// Where CUDA calls go [default: the GPU if there is one]
    #[arg(long, value_enum)]
    device: Option<Device>,
    /// Only these, by a part of their names
    names: Vec<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let device = arguments.device.unwrap_or_else(Device::of_this_machine);
    let asked = |name: &str| {
        arguments.names.is_empty() || arguments.names.iter().any(|part| name.contains(part.as_str()))
    };
    let (mut passed, mut failed) = (0, 0);
    for (name, body) in bodies().filter(|(name, _)| asked(name)) {
        if !is_possible(name) {
            println!("not run here: {name}");
            continue;
        }
        match body(device) {
            Ok(()) => passed += 1,
            Err(error) => {
                println!("FAILED  {name}: {error:#}");
                failed += 1;
            }
        }
    }
    println!("jobs on {}: {passed} passed, {failed} failed", device.flag());
    if failed == 0 && passed > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
