//! The backends' conformance suite where there is no test harness: on a GPU machine, from a bundle.
//!
//! Each behaviour runs in a process of its own, so that one that is not shown (a panic, a crash, a hang) leaves the others
//! undisturbed.

use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use backend::Backend;
use backend::conformance::BEHAVIOURS;
use backend_driver::Driver;
use backend_soft::SoftBackend;
use clap::Parser;
use testkit::place::Device;

/// Run the conformance suite of the backends
#[derive(Parser)]
struct Arguments {
    /// The backend [default: the GPU if there is one]
    #[arg(long, value_enum)]
    device: Option<Device>,
    /// Only this behaviour, in this process
    behaviour: Option<String>,
}

/// No behaviour takes longer.
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let device = arguments.device.unwrap_or_else(Device::of_this_machine);
    let result = match &arguments.behaviour {
        Some(name) => show(device, name).map(|()| true),
        None => show_all(device),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn show(device: Device, name: &str) -> anyhow::Result<()> {
    let (_, behaviour) = BEHAVIOURS
        .iter()
        .find(|(listed, _)| *listed == name)
        .with_context(|| format!("no behaviour {name}"))?;
    let backend: Box<dyn Backend> = match device {
        Device::Gpu => Box::new(Driver::open()?),
        Device::Nested => Box::new(Driver::open_nested()?),
        Device::Soft => Box::new(SoftBackend::default()),
    };
    behaviour(&*backend);
    Ok(())
}

fn show_all(device: Device) -> anyhow::Result<bool> {
    let ourselves = std::env::current_exe().context("cannot find this program")?;
    let mut failed = 0;
    for (name, _) in BEHAVIOURS {
        let mut command = Command::new(&ourselves);
        command.args(["--device", device.flag(), name]).stdin(Stdio::null()).stdout(Stdio::null());
        let shown = in_time(&mut command);
        if let Err(error) = &shown {
            println!("FAILED  {name}: {error:#}");
            failed += 1;
        }
    }
    println!("conformance on {}: {} passed, {failed} failed", device.flag(), BEHAVIOURS.len() - failed);
    Ok(failed == 0)
}

/// Runs a command that must succeed within the limit; what it says on standard error goes where ours does.
fn in_time(command: &mut Command) -> anyhow::Result<()> {
    let mut child = command.spawn().context("cannot start it")?;
    let deadline = Instant::now() + LIMIT;
    loop {
        match child.try_wait().context("cannot wait for it")? {
            Some(status) if status.success() => return Ok(()),
            Some(status) => bail!("{status}"),
            None if Instant::now() > deadline => {
                child.kill().context("cannot kill it")?;
                child.wait().context("cannot wait for it")?;
                bail!("not over after {LIMIT:?}");
            }
            None => std::thread::sleep(Duration::from_millis(2)),
        }
    }
}
