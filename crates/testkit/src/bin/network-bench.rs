//! What it costs a program that its device is on another machine: the same program natively, under Dormouse, and with the device of a `dormouse serve` behind a
//! network of ours that takes time and has a bandwidth; side by side, as a table.

use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Parser;
use tempfile::TempDir;
use testkit::cost;
use testkit::kit::Kit;
use testkit::place::Device;
use testkit::proxy::{self, Network};
use testkit::served::Served;

/// What a device on another machine costs: launches, waits and copies through networks of many kinds
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Where CUDA calls go [default: the GPU if there is one]
    #[arg(long, value_enum)]
    device: Option<Device>,
    /// How many kernels the program launches
    #[arg(long, default_value_t = 1_000_000)]
    launches: u32,
    /// How many MiB it copies to the device and back
    #[arg(long, default_value_t = 256)]
    copied: u32,
    /// Round trips that the network adds, ms
    #[arg(long, value_delimiter = ',', default_value = "0,0.1,0.5,2,10")]
    round_trips: Vec<f64>,
    /// Bandwidths of the network, Gbit/s, of all connections together
    #[arg(long, value_delimiter = ',', default_value = "10,1")]
    rates: Vec<f64>,
    /// How often each line is measured: the medians are printed
    #[arg(long, default_value_t = 3)]
    turns: usize,
}

fn main() -> ExitCode {
    match Bench::new(Arguments::parse()).and_then(|bench| bench.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

struct Bench {
    arguments: Arguments,
    device: Device,
    kit: Kit,
    folder: TempDir,
}

/// How the program gets to its device.
enum Way {
    Native,
    Here,
    Far(Served),
}

/// What the program measures, by the names it prints; the second is the time of all launches, s.
const FIGURES: [&str; 6] = ["launch", "launches", "question", "launch_and_wait", "to_device", "to_host"];
const ALL_LAUNCHES: usize = 1;

/// One line of the table.
struct Row {
    name: String,
    /// What the network itself takes and carries: a byte there and back, one plain stream.
    network: Option<(Duration, f64)>,
    figures: [f64; FIGURES.len()],
    /// The time of all launches, by that of the first line of the same bandwidth.
    undelayed: Option<f64>,
}

impl Row {
    const HEAD: &str = "| device | a byte there and back, µs | one stream, GB/s | a launch, for the caller, µs | all launches, s | × undelayed | a question, µs | launch + synchronise, µs | pageable memory to the device, GB/s | back |\n|---|---|---|---|---|---|---|---|---|---|";
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [launch, launches, question, wait, to, back] = self.figures;
        let undelayed = self.undelayed.map_or_else(String::new, |ratio| format!("{ratio:.3}"));
        let name = &self.name;
        let network = self.network.map_or_else(
            || " | ".to_owned(),
            |(byte, rate)| format!("{:.0} | {:.2}", byte.as_secs_f64() * 1e6, rate / 1e9),
        );
        write!(
            f,
            "| {name} | {network} | {launch:.2} | {launches:.3} | {undelayed} | {question:.1} | {wait:.1} | {to:.2} | {back:.2} |"
        )
    }
}

impl Bench {
    fn new(arguments: Arguments) -> anyhow::Result<Self> {
        let device = arguments.device.unwrap_or_else(Device::of_this_machine);
        let folder =
            tempfile::Builder::new().prefix("dormouse-network-").tempdir().context("cannot make a folder")?;
        Ok(Self { arguments, device, kit: Kit::locate()?, folder })
    }

    fn run(&self) -> anyhow::Result<()> {
        println!("{}", Row::HEAD);
        if self.device == Device::Gpu {
            self.row("native", &Way::Native, None, None)?;
        }
        self.row("under Dormouse", &Way::Here, None, None)?;
        self.row("over loopback, TLS", &Way::Far(self.served(None)?), None, None)?;
        for &rate in &self.arguments.rates {
            let mut undelayed = None;
            for &round_trip in &self.arguments.round_trips {
                let network = Network {
                    delay: Duration::from_secs_f64(round_trip / 2e3),
                    rate: NonZeroU64::new((rate * 1e9 / 8.0) as u64),
                    ..Network::default()
                };
                let name = format!("{rate} Gbit/s, + {round_trip} ms");
                let way = Way::Far(self.served(Some(network))?);
                let row = self.row(&name, &way, Some(network), undelayed)?;
                undelayed.get_or_insert(row);
            }
        }
        Ok(())
    }

    /// The device, behind a network.
    fn served(&self, network: Option<Network>) -> anyhow::Result<Served> {
        let mut served = Served::begin(&self.kit, self.device, (self.folder.path(), "127.0.0.1"), |_| {})?;
        if let Some(network) = network {
            let at: SocketAddr = served.address.parse().context("who serves is at no address")?;
            served.is_behind(proxy::before(at, network)?.to_string());
        }
        served.is_trusted()?;
        Ok(served)
    }

    /// Measures and prints a line; the time of all launches.
    fn row(
        &self,
        name: &str,
        way: &Way,
        network: Option<Network>,
        undelayed: Option<f64>,
    ) -> anyhow::Result<f64> {
        let is_far = matches!(way, Way::Far(_));
        let network =
            is_far.then(|| proxy::measured(network)).transpose().context("the network is not measured")?;
        let turns =
            (0..self.arguments.turns.max(1)).map(|_| self.turn(way)).collect::<Result<Vec<_>, _>>()?;
        let median = |figure: usize| {
            let mut values: Vec<f64> = turns.iter().map(|turn| turn[figure]).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let figures: [f64; FIGURES.len()] = std::array::from_fn(median);
        let all = figures[ALL_LAUNCHES];
        println!(
            "{}",
            Row { name: name.to_owned(), network, figures, undelayed: undelayed.map(|it| all / it) }
        );
        Ok(all)
    }

    fn turn(&self, way: &Way) -> anyhow::Result<[f64; FIGURES.len()]> {
        let program = self.kit.bench("launches");
        let mut command = match way {
            Way::Native => Command::new(&program),
            Way::Here | Way::Far(_) => Command::new(self.kit.dormouse()),
        };
        match way {
            Way::Native => {}
            Way::Here => drop(command.args(["run", "--device", self.device.flag()])),
            Way::Far(served) => served.used_by(command.arg("run")),
        }
        if !matches!(way, Way::Native) {
            command.arg("--store").arg(self.folder.path().join("store")).arg("--").arg(&program);
        }
        let (launches, copied) = (self.arguments.launches.to_string(), self.arguments.copied.to_string());
        let output = command.args([launches, copied]).output().context("cannot run the program")?;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success(),
            "the program failed: {said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let printed = cost::parse(&said, &program)?;
        let mut figures = [0.0; FIGURES.len()];
        for (figure, name) in figures.iter_mut().zip(FIGURES) {
            *figure = cost::named(&printed, name)?;
        }
        Ok(figures)
    }
}
