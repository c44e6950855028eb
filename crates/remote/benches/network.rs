//! What it costs that the device is on another machine: calls, launches and copies through a network of ours that takes time and has
//! a bandwidth, beside the same on the device itself. Prints the table of `docs/benchmarks.md`. Run with `cargo bench -p remote --bench network`;
//! `-- --quick` makes fewer launches.

// A bench says what went wrong by panicking.
#![allow(clippy::unwrap_used)]

#[path = "../tests/suite/common.rs"]
#[allow(dead_code, reason = "the tests use more of it")]
mod common;

use backend::Backend;
use backend_soft::SoftBackend;
use common::{Far, Program, connect, tcp};
use remote::{RemoteBackend, Wires};
use std::num::NonZeroU64;
use std::time::{Duration, Instant};
use testkit::proxy::{self, Network, between};

const BULK: usize = 256 << 20;
/// Added round-trip times, µs.
const ROUND_TRIPS: [u64; 5] = [0, 100, 500, 2000, 10_000];
/// Bandwidths, Gbit/s.
const RATES: [u64; 2] = [10, 1];

/// How much is measured.
struct Extent {
    launches: u32,
    turns: usize,
}

fn main() {
    if let Some(place) = std::env::var_os(common::PLACE) {
        return common::far_end(&place);
    }
    let quick = std::env::args().any(|arg| arg == "--quick");
    let extent =
        if quick { Extent { launches: 100_000, turns: 3 } } else { Extent { launches: 1_000_000, turns: 7 } };
    println!(
        "| network | a byte there and back, µs | one stream, GB/s | a question, µs | launch + synchronise, µs \
         | a launch, for the caller, µs | {} launches, s | × undelayed | noise to the device, GB/s | back | small numbers to the device, GB/s | back |\n\
         |---|---|---|---|---|---|---|---|---|---|---|---|",
        extent.launches
    );
    {
        let device = SoftBackend::default();
        let program = Program::new(&device).unwrap();
        let launches: Vec<_> = (0..extent.turns).map(|_| program.launches(extent.launches)).collect();
        println!("| none: the device itself | | | | {}|", program.cells(&launches, None));
    }
    row("none: loopback", None, None, &extent);
    row("none: through the proxy", Some(Network::default()), None, &extent);
    for rate in RATES {
        let rate_bytes = NonZeroU64::new(rate * 1_000_000_000 / 8);
        let undelayed = Session::new(Some(Network { rate: rate_bytes, ..Network::default() }));
        for added in ROUND_TRIPS {
            let network =
                Network { delay: Duration::from_micros(added) / 2, rate: rate_bytes, ..Network::default() };
            let name = format!("{rate} Gbit/s, + {} ms", added as f64 / 1e3);
            row(&name, Some(network), Some(&undelayed), &extent);
        }
    }
}

/// Measures one network and prints what was found; launches in turn with those of a session without delay.
fn row(name: &str, network: Option<Network>, undelayed: Option<&Session>, extent: &Extent) {
    let session = Session::new(network);
    let program = Program::new(&session.backend).unwrap();
    let beside = undelayed.map(|session| Program::new(&session.backend).unwrap());
    let (mut launches, mut others) = (Vec::new(), Vec::new());
    for _ in 0..extent.turns {
        others.extend(beside.as_ref().map(|program| program.launches(extent.launches)));
        launches.push(program.launches(extent.launches));
    }
    let (byte, stream) = proxy::measured(network).unwrap();
    let question = round_trip(|| assert!(session.backend.memory_info(program.ctx).is_ok()));
    println!(
        "| {name} | {:.0} | {:.2} | {:.0} | {}|",
        micros(byte),
        stream / 1e9,
        micros(question),
        program.cells(&launches, Some(&others))
    );
}

/// Both ends, and what is between them.
struct Session {
    backend: RemoteBackend,
    _far: Far,
}

impl Session {
    fn new(network: Option<Network>) -> Self {
        let (far, sockets) = tcp(&[]);
        let near = match network {
            Some(network) => between(sockets, network).unwrap().0,
            None => sockets,
        };
        Self { backend: connect(Wires::of_tcp(near).unwrap()), _far: far }
    }
}

/// What launches cost their caller, and all of them.
type Launches = (Duration, Duration);

impl Program<'_> {
    fn launches(&self, count: u32) -> Launches {
        let begun = Instant::now();
        (0..count).for_each(|number| self.store(number).unwrap());
        let submitted = begun.elapsed();
        self.wait().unwrap();
        (submitted / count, begun.elapsed())
    }

    /// To the device and back, GB/s.
    fn bulk(&self, memory: &mut [u8]) -> (f64, f64) {
        let here = memory.as_mut_ptr() as u64;
        let timed = |dst, src| {
            let begun = Instant::now();
            self.copy(dst, src, BULK as u64).unwrap();
            self.wait().unwrap();
            BULK as f64 / begun.elapsed().as_secs_f64() / 1e9
        };
        // Once before, so that all memory is there.
        timed(self.at(0), here);
        (timed(self.at(0), here), timed(here, self.at(0)))
    }

    fn cells(&self, launches: &[Launches], undelayed: Option<&[Launches]>) -> String {
        let blocking = round_trip(|| self.store(7).and_then(|()| self.wait()).unwrap());
        let (to, back) = self.bulk(&mut noise());
        let (small_to, small_back) = self.bulk(&mut small_numbers());
        let whole = median(launches.iter().map(|all| all.1));
        let beside = match undelayed {
            Some(others @ [_, ..]) => {
                format!("{:.2}", whole.as_secs_f64() / median(others.iter().map(|all| all.1)).as_secs_f64())
            }
            _ => String::new(),
        };
        format!(
            "{:.0} | {:.2} | {:.2} | {beside} | {to:.2} | {back:.2} | {small_to:.2} | {small_back:.2} ",
            micros(blocking),
            micros(median(launches.iter().map(|all| all.0))),
            whole.as_secs_f64()
        )
    }
}

/// What cannot be compressed.
fn noise() -> Vec<u8> {
    words(mixed)
}

/// What has zeros in between.
fn small_numbers() -> Vec<u8> {
    words(|at| mixed(at) >> 50)
}

fn mixed(at: u64) -> u64 {
    at.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(at | 1)
}

fn words(word: impl Fn(u64) -> u64) -> Vec<u8> {
    (0..BULK as u64 / 8).flat_map(|at| word(at).to_le_bytes()).collect()
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn median(times: impl Iterator<Item = Duration>) -> Duration {
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    times[times.len() / 2]
}

/// The median of what is done again and again, for a second.
fn round_trip(mut round: impl FnMut()) -> Duration {
    let begun = Instant::now();
    let timed = |()| {
        let begun = Instant::now();
        round();
        begun.elapsed()
    };
    let times: Vec<Duration> =
        std::iter::repeat(()).take_while(|()| begun.elapsed() < Duration::from_secs(1)).map(timed).collect();
    median(times.into_iter())
}
