//! Dormouse in a job of Dormouse: the real driver's backend on the driver that Dormouse itself is, which stands on the software
//! device. So what needs a driver is tested where there is none: its conformance, and the guests under every disturbance.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, ensure};
use backend::conformance::BEHAVIOURS;
use libtest_mimic::{Arguments, Trial};
use testkit::kit::Kit;
use testkit::manifest::Set;

/// What the driver below does not do for the one above, and why.
const EXCEPT: &[(&str, &str)] = &[
    ("placement::made_again_in_the_same_place", PLACES),
    ("sharing::a_piece_is_exported_and_imported", "a descriptor alone does not keep memory"),
    ("linking", PLACES),
    ("module_unload", PLACES),
    ("batches", SHARED),
    ("callbacks", SHARED),
    ("capture", SHARED),
    ("conditional", SHARED),
    ("driver_api", SHARED),
    ("graph_calls", SHARED),
    ("graph_nodes", SHARED),
    ("graphs", SHARED),
    ("host_register", SHARED),
    ("host_threads", SHARED),
    ("managed", SHARED),
    ("managed_small", SHARED),
    ("managed_attached", SHARED),
    ("managed_copies", SHARED),
    ("managed_copies_shadow", SHARED),
    ("managed_cycles", SHARED),
    ("managed_fork", SHARED),
    ("managed_large", SHARED),
    ("managed_moves", SHARED),
    ("managed_globals", LINKED),
    ("managed_globals_shadow", LINKED),
    ("code::managed_variables_lie_where_they_are_put", LINKED),
    ("managed_pages", SHARED),
    ("managed_pages_auto", SHARED),
    ("managed_unmapped", SHARED),
    ("memops", SHARED),
    ("pinned", SHARED),
    ("streams", SHARED),
    ("nvml", "the machine's GPUs are asked of the vendor's driver alone"),
];

const SHARED: &str =
    "its pinned memory is a shared mapping of its server, and those are not mapped on the device";
const LINKED: &str =
    "variables are put into managed memory in machine code, and the driver below links PTX to PTX";
const PLACES: &str =
    "variables lie where the driver below puts them, which is not steered: not in places of unloaded code";

/// Guests that are suspended, too, and run on behind a checkpoint. The others are restarted once: what else a backend is asked for
/// differs little from guest to guest.
const MORE_SCENARIOS: &[&str] = &["managed_shadow", "mixed", "pools", "symbols", "vector_loop"];

fn scenarios(guest: &str) -> &'static str {
    if MORE_SCENARIOS.contains(&guest) { "checkpoint,restart,suspend" } else { "restart" }
}

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
    let guests: Vec<String> = kit.manifest()?.set(Set::Matrix).map(|guest| guest.name.clone()).collect();
    let excepted = |name: &str| EXCEPT.iter().any(|(except, _)| *except == name);
    for name in EXCEPT.iter().map(|(name, _)| name).chain(MORE_SCENARIOS) {
        let known = BEHAVIOURS.iter().any(|(behaviour, _)| behaviour == name)
            || guests.iter().any(|guest| guest == name);
        ensure!(known, "{name} is named here, but there is no such thing");
    }
    let (conformance, gpu_check) =
        (kit.checks().join("conformance"), kit.dormouse().with_file_name("gpu-check"));
    let trial = |name: &str, program: &Path, arguments: &[&str]| {
        let mut command = Command::new(kit.dormouse());
        command.args(["run", "--device", "soft", "--"]).arg(program);
        command.args(["--device", "nested"]).args(arguments);
        Trial::test(name, move || Ok(succeeds(command)?))
    };
    let behaviours = BEHAVIOURS
        .iter()
        .filter(|(name, _)| !excepted(name))
        .map(|(name, _)| trial(name, &conformance, &[name]));
    let guests = guests.iter().filter(|name| !excepted(name)).map(|name| {
        trial(name, &gpu_check, &["--guests", name, "--rounds", "1", "--scenarios", scenarios(name)])
    });
    Ok(behaviours.chain(guests).collect())
}

fn succeeds(mut command: Command) -> anyhow::Result<()> {
    let output = command.stdin(Stdio::null()).output().context("cannot run dormouse")?;
    let [said, errors] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    ensure!(output.status.success(), "{}\n{said}{errors}", output.status);
    Ok(())
}
