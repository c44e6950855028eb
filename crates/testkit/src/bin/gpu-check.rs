//! Runs every check that a machine with a GPU can run (or, with `--device soft`, the same without one), and prints a
//! table last.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use serde::Serialize;
use testkit::cost::{self, Cost};
use testkit::kit::Kit;
use testkit::place::Device;
use testkit::scenario::Scenario;
use testkit::served::Served;
use testkit::suite::{CI_ROUNDS, News, Row, SOAK_ROUNDS, Suite, Table, choose};

/// Run every guest under every disturbance, and the other checks of this bundle
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Where CUDA calls go [default: the GPU if there is one]
    #[arg(long, value_enum)]
    device: Option<Device>,
    /// Rounds of each scenario
    #[arg(long, default_value_t = CI_ROUNDS)]
    rounds: u32,
    #[arg(long, conflicts_with = "rounds", help = format!("The long runs: {SOAK_ROUNDS} rounds of each scenario"))]
    soak: bool,
    /// Begin no further run after this many minutes; what was not run does not count as passed. Whoever ends it by a signal
    /// gets the table, too
    #[arg(long)]
    minutes: Option<u32>,
    /// Only these guests, separated by commas (and no other checks); `marked` are all with marked kernels, `matrix` are all that run if none are named
    #[arg(long, value_delimiter = ',')]
    guests: Vec<String>,
    /// Only this is done to them, separated by commas [default: all of these]
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = Scenario::ALL, hide_default_value = true)]
    scenarios: Vec<Scenario>,
    /// The device is another machine's: `dormouse serve` on this one, over its loopback (and no other checks)
    #[arg(long)]
    remote: bool,
    /// How many rounds run side by side
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// What the moments of checkpoints are drawn from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print the results as JSON
    #[arg(long)]
    json: bool,
}

/// A further check of the bundle: a program of its own.
#[derive(Serialize)]
struct Check {
    name: String,
    passed: bool,
}

#[derive(Serialize)]
struct Results {
    device: &'static str,
    guests: Vec<Row>,
    checks: Vec<Check>,
    costs: Vec<Cost>,
    #[serde(skip)]
    how: How,
    #[serde(skip)]
    is_printed: bool,
}

/// How results come about, and are printed.
struct How {
    rounds: u32,
    seed: u64,
    json: bool,
}

/// What has come out so far: it is printed also where somebody ends this before its time.
type SoFar = Arc<Mutex<Results>>;

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    let device = arguments.device.unwrap_or_else(Device::of_this_machine);
    let rounds = if arguments.soak { SOAK_ROUNDS } else { arguments.rounds };
    let so_far = SoFar::new(Mutex::new(Results {
        device: device.flag(),
        guests: Vec::new(),
        checks: Vec::new(),
        costs: Vec::new(),
        how: How { rounds, seed: arguments.seed, json: arguments.json },
        is_printed: false,
    }));
    let ended = Arc::clone(&so_far);
    host::signals::last_words(move || drop(locked(&ended).print())).context("cannot wait for signals")?;

    let kit = Kit::locate()?;
    let manifest = kit.manifest()?;
    let mut guests = choose(&manifest, &arguments.guests)?;
    if arguments.remote {
        // Who serves bounds what sessions take.
        guests.retain(|guest| guest.device_memory(device == Device::Gpu).is_none() && !guest.shares);
    }
    if arguments.guests.is_empty() && !arguments.remote {
        other_checks(&kit, device, |check| locked(&so_far).checks.push(check))?;
        // Costs are measured while nothing else runs; without a GPU there is nothing to compare with.
        if device == Device::Gpu {
            let costs = cost::measure(&kit)?;
            locked(&so_far).costs = costs;
        }
    }

    let until =
        arguments.minutes.map(|minutes| Instant::now() + Duration::from_secs(u64::from(minutes) * 60));
    let folder =
        tempfile::Builder::new().prefix("dormouse-keys-").tempdir().context("cannot make a folder")?;
    let served = arguments.remote.then(|| served(&kit, device, folder.path())).transpose()?;
    let scenarios = arguments.scenarios.clone();
    let suite = Suite { kit, device, served, scenarios, rounds, seed: arguments.seed, until };
    let tell = |news: News<'_>| match news {
        News::Failed(failure) => eprintln!("FAILED: {failure}"),
        News::Round { row, last } => {
            locked(&so_far).take(row);
            if last {
                eprintln!("{row}");
            }
        }
    };
    let rows = suite.all(&guests, arguments.jobs, tell)?;
    let mut results = locked(&so_far);
    results.guests = rows;
    results.print()?;
    Ok(results.failed() == 0)
}

fn locked(so_far: &SoFar) -> MutexGuard<'_, Results> {
    so_far.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Results {
    /// A guest's row, in place of the one before. Of two rounds that end at once the later one may come first.
    fn take(&mut self, row: &Row) {
        match self.guests.iter_mut().find(|each| each.guest == row.guest) {
            Some(each) if each.ended() > row.ended() => {}
            Some(each) => each.clone_from(row),
            None => self.guests.push(row.clone()),
        }
    }

    fn failed(&self) -> usize {
        self.guests.iter().filter(|row| !row.is_complete()).count()
            + self.checks.iter().filter(|check| !check.passed).count()
    }

    /// Prints them, once: where a signal comes as all has been said there is no more to say.
    fn print(&mut self) -> anyhow::Result<()> {
        if std::mem::replace(&mut self.is_printed, true) {
            return Ok(());
        }
        let How { rounds, seed, json } = self.how;
        if json {
            println!("{}", serde_json::to_string_pretty(self)?);
            return Ok(());
        }
        println!("\ndevice: {}, {rounds} rounds of each scenario, seed {seed}\n", self.device);
        if !self.costs.is_empty() {
            println!("{}", cost::Table(&self.costs));
        }
        print!("{}", Table(&self.guests));
        for check in &self.checks {
            println!("{:<20}{}", check.name, if check.passed { "ok" } else { "FAILED" });
        }
        let failed = self.failed();
        let passed = self.guests.len() + self.checks.len() - failed;
        println!("\n{passed} passed, {failed} failed or not run to their end");
        Ok(())
    }
}

/// This machine, for itself.
fn served(kit: &Kit, device: Device, folder: &Path) -> anyhow::Result<Arc<Served>> {
    let served = Served::begin(kit, device, (folder, "127.0.0.1"), |_| {})?;
    served.is_trusted()?;
    Ok(Arc::new(served))
}

/// Runs the programs in the kit's `checks/`, one after the other: each takes `--device`, says what it found, and fails when
/// something is wrong.
fn other_checks(kit: &Kit, device: Device, mut tell: impl FnMut(Check)) -> anyhow::Result<()> {
    let Ok(entries) = std::fs::read_dir(kit.checks()) else { return Ok(()) };
    let mut programs = Vec::new();
    for entry in entries {
        let entry = entry.context("cannot list the checks")?;
        if entry.metadata().context("cannot look at a check")?.permissions().mode() & 0o111 != 0 {
            programs.push(entry.path());
        }
    }
    programs.sort();
    for program in programs {
        let name = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        eprintln!("-- {name}");
        let status = host::signals::unblocked(Command::new(&program).args(["--device", device.flag()]))
            .status()
            .with_context(|| format!("cannot run {}", program.display()))?;
        tell(Check { name, passed: status.success() });
    }
    Ok(())
}
