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
    (
        "placement::made_again_in_the_same_place",
        "variables lie where the driver below puts them, which is not steered: not in places of unloaded code",
    ),
    ("sharing::a_piece_is_exported_and_imported", "a descriptor alone does not keep memory"),
    (
        "code::managed_variables_lie_where_they_are_put",
        "variables are put into managed memory in machine code, and the driver below links PTX to PTX",
    ),
];

/// Guests that between them ask a backend for all that any guest does. Not among them: guests that use pinned memory in kernels (it is a shared mapping
/// of its server, and those are not mapped on the device below), that put variables into managed memory or code where other code was (as above), and
/// the one that asks for the machine's GPUs, of which the vendor's driver alone is asked. What a program's processes, files and exits do is no backend's affair.
const GUESTS: &[&str] = &[
    "alloc_churn",
    "async_allocator",
    "contexts",
    "device_heap",
    "device_printf",
    "expandable",
    "fault",
    "fork_child",
    "green",
    "ipc",
    "launch_first",
    "linked",
    "managed_atomics",
    "managed_attached_shadow",
    "managed_shadow",
    "mixed",
    "out_of_memory",
    "per_thread_stream",
    "pools",
    "symbols",
    "textures",
    "vector_loop",
    "vmm",
];

/// Those of them that are suspended, too, and run on behind a checkpoint. The others are restarted once: what else a backend is asked for
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
    let manifest = kit.manifest()?;
    let behaviours = BEHAVIOURS.iter().map(|(name, _)| *name);
    for (name, _) in EXCEPT {
        ensure!(
            behaviours.clone().any(|known| known == *name),
            "{name} is excepted, but there is no such thing"
        );
    }
    for name in MORE_SCENARIOS {
        ensure!(GUESTS.contains(name), "{name} is none of the guests here");
    }
    for name in GUESTS {
        ensure!(manifest.set(Set::Matrix).any(|guest| guest.name == *name), "there is no guest {name}");
    }
    let (conformance, gpu_check) =
        (kit.checks().join("conformance"), kit.dormouse().with_file_name("gpu-check"));
    let trial = |name: &str, program: &Path, arguments: &[&str]| {
        let mut command = Command::new(kit.dormouse());
        command.args(["run", "--device", "soft", "--"]).arg(program);
        command.args(["--device", "nested"]).args(arguments);
        Trial::test(name, move || Ok(succeeds(command)?))
    };
    let is_excepted = |name: &&str| EXCEPT.iter().any(|(except, _)| except == name);
    let behaviours =
        behaviours.filter(|name| !is_excepted(name)).map(|name| trial(name, &conformance, &[name]));
    let guests = GUESTS.iter().map(|name| {
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
