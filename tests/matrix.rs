//! Every guest restarted in a chain, and checkpointed or suspended in place, one test for each guest, named by it.
//!
//! `DORMOUSE_ROUNDS` sets the rounds of each scenario (else guests of managed memory have three, and others one), `DORMOUSE_SEED` what their moments are drawn from.

use std::process::ExitCode;

use dormouse_tests::number;
use libtest_mimic::{Arguments, Failed, Trial};
use testkit::kit::Kit;
use testkit::manifest::{Guest, Set};
use testkit::place::Device;
use testkit::scenario::Scenario;
use testkit::suite::{CI_ROUNDS, Suite};

/// What happens to managed memory depends on the moment more than anything else.
const MANAGED_ROUNDS: u32 = 3;

/// How often moments are drawn until one is in the middle of a marked launch. These follow one another; on a busy machine all of a few moments may lie between two.
const DRAWS: usize = 3;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    match trials() {
        Ok(trials) => libtest_mimic::run(&arguments, trials).exit_code(),
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn trials() -> anyhow::Result<Vec<Trial>> {
    let kit = Kit::locate()?;
    let manifest = kit.manifest()?;
    let suite = Suite {
        kit,
        device: Device::of_this_machine(),
        served: None,
        scenarios: Vec::new(),
        rounds: CI_ROUNDS,
        seed: number("DORMOUSE_SEED", 1)?,
        until: None,
    };
    let of_managed = number("DORMOUSE_ROUNDS", MANAGED_ROUNDS)?;
    let of_others = number("DORMOUSE_ROUNDS", CI_ROUNDS)?;
    let trial = |(number, guest): (usize, &Guest)| {
        let (mut suite, guest) = (suite.clone(), guest.clone());
        suite.rounds = if guest.name.starts_with("managed") { of_managed } else { of_others };
        suite.scenarios = Scenario::in_ci(number, guest.set).to_vec();
        Trial::test(guest.name.clone(), move || run(&suite, &guest))
    };
    Ok(manifest.set(Set::Matrix).chain(manifest.set(Set::Marked)).enumerate().map(trial).collect())
}

fn run(suite: &Suite, guest: &Guest) -> Result<(), Failed> {
    let mut checkpoints = 0;
    for seed in (suite.seed..).take(DRAWS) {
        let suite = Suite { seed, ..suite.clone() };
        let row = suite.guest(guest).map_err(|error| format!("{error:#}"))?;
        if !row.failures.is_empty() {
            return Err(row.failures.join("\n").into());
        }
        if guest.set != Set::Marked || row.half_way > 0 {
            return Ok(());
        }
        checkpoints += row.checkpoints;
    }
    Err(format!("none of {checkpoints} checkpoints has a launch half-way").into())
}
