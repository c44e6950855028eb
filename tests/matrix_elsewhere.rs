//! Every guest once with its device on another machine: what it leaves is what it leaves with this one's. One test for each guest, named by it.

use std::process::ExitCode;

use dormouse_tests::elsewhere::Elsewhere;
use libtest_mimic::{Arguments, Failed, Trial};
use testkit::kit::Kit;
use testkit::manifest::{Guest, Set};
use testkit::place::Device;
use testkit::reference::Reference;
use testkit::served::Served;
use testkit::suite::job_name;

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
    let manifest = Kit::locate()?.manifest()?;
    let guests = manifest.set(Set::Matrix).chain(manifest.set(Set::Marked)).filter(|guest| !guest.shares);
    let trial = |guest: &Guest| {
        let guest = guest.clone().elsewhere();
        Trial::test(guest.name.clone(), move || {
            run(&guest).map_err(|error| Failed::from(format!("{error:#}")))
        })
    };
    Ok(guests.map(trial).collect())
}

fn run(guest: &Guest) -> anyhow::Result<()> {
    let kit = Kit::locate()?;
    let folder = tempfile::Builder::new().prefix("dormouse-test-").tempdir()?;
    let elsewhere = Elsewhere::beside()?;
    let listen = (folder.path(), Elsewhere::ADDRESS);
    let memory = guest.device_memory(false).map(|memory| format!("--device-memory={memory}M"));
    let begin = || {
        Served::begin(&kit, Device::Soft, listen, |serve| {
            serve.args(&memory);
        })
    };
    let server = elsewhere.at_it(begin)?;
    server.is_trusted()?;
    let there = (Device::Soft, Some(&server));
    Reference::measure(&kit, there, guest, folder.path(), &job_name(&guest.name)).map(drop)
}
