//! How fast bulk streams are over loopback, with TLS and without, beside a socket that is nothing else, and what a byte there and back takes: `cargo run --release -p link --example bulk [GIGABYTES]`.
#![allow(clippy::unwrap_used)]

use link::keys::{Quota, YEAR};
use link::{Address, DialOptions, Front, FrontOptions, Keys, Trust, Wires, dial, far_end};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

const PIECE: usize = 1 << 20;
/// What is asked for in the place of a direction: bytes come back.
const ECHO: u8 = 2;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if args.get(1).is_some_and(|arg| arg == "far-end") {
        return serve_session();
    }
    let gigabytes: u64 = args.get(1).map_or(4, |arg| arg.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let keys = Keys::new(folder.path().to_owned());
    let own = keys.create(SystemTime::now() + YEAR).unwrap();
    keys.authorize("bench", own.fingerprint(), Quota::default(), None).unwrap();
    let front = Front::bind(FrontOptions {
        listen: (Ipv4Addr::LOCALHOST, 0).into(),
        keys: keys.clone(),
        insecure_loopback: true,
        max_clients: 100,
        half_open: 10,
    });
    let front = front.unwrap();
    let address: Address = front.local_addr().unwrap().to_string().parse().unwrap();
    keys.trust(&address.machine(), own.fingerprint(), None).unwrap();
    thread::spawn(move || {
        front.run(|control| {
            let program = std::env::current_exe().unwrap();
            Command::new(program).arg("far-end").stdin(control).stdout(Stdio::null()).spawn()
        })
    });
    println!("{gigabytes} GB each, pieces of 1 MiB, {} cores", thread::available_parallelism().unwrap());
    println!("one socket: {:.2} GB/s", socket(gigabytes * 1_000_000_000 / PIECE as u64));
    println!(
        "streams  TLS up        TLS down      plain up      plain down    (GB/s; CPU seconds here for each GB)"
    );
    for bulk in [1, 2, 4, 8] {
        let mut row = format!("{bulk:7}");
        for trust in [Trust::Keys(&keys), Trust::InsecureLoopback] {
            let options = DialOptions { bulk, timeout: Duration::from_secs(10), ..DialOptions::default() };
            let share = gigabytes * 1_000_000_000 / u64::from(bulk) / PIECE as u64;
            for up in [true, false] {
                let (wires, _) = dial(&address, trust, &options).unwrap();
                let before = processor_seconds();
                let seconds = measure(wires, up, share);
                let gigabytes = (share * u64::from(bulk) * PIECE as u64) as f64 / 1e9;
                let processor = (processor_seconds() - before) / gigabytes;
                row.push_str(&format!("  {:5.2} ({processor:4.2})", gigabytes / seconds));
            }
        }
        println!("{row}");
    }
    for trust in [Trust::Keys(&keys), Trust::InsecureLoopback] {
        let options = DialOptions { bulk: 1, timeout: Duration::from_secs(10), ..DialOptions::default() };
        let (wires, _) = dial(&address, trust, &options).unwrap();
        let tls = if matches!(trust, Trust::Keys(_)) { "with TLS" } else { "without" };
        println!("a byte there and back, {tls}: {:.1} µs", round_trip(wires).as_secs_f64() * 1e6);
    }
    let since = Instant::now();
    for _ in 0..20 {
        let options = DialOptions { bulk: 4, timeout: Duration::from_secs(10), ..DialOptions::default() };
        drop(dial(&address, Trust::Keys(&keys), &options).unwrap());
    }
    println!("a session of 10 connections begins within {:?}", since.elapsed() / 20);
}

/// What a plain socket carries, GB/s: the most that a stream on this machine could.
fn socket(pieces: u64) -> f64 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut to = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut from = listener.accept().unwrap().0;
    let since = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            let piece = vec![7; PIECE];
            (0..pieces).for_each(|_| to.write_all(&piece).unwrap());
        });
        let mut piece = vec![0; PIECE];
        (0..pieces).for_each(|_| from.read_exact(&mut piece).unwrap());
    });
    pieces as f64 * PIECE as f64 / 1e9 / since.elapsed().as_secs_f64()
}

/// What this process has taken of all cores: where others work, too, it says more than the clock.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, fields) = stat.rsplit_once(')').unwrap();
    let ticks = fields.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<f64>().unwrap());
    ticks.sum::<f64>() / 100.0
}

/// Asks for it, and waits until the far end has all of it, or this one.
fn measure(mut wires: Wires, up: bool, pieces: u64) -> f64 {
    let since = Instant::now();
    let mut order = pieces.to_le_bytes().to_vec();
    order.push(u8::from(up));
    wires.control_out.write_all(&order).unwrap();
    if up {
        send(&mut wires.bulk_out, pieces)
    } else {
        take(&mut wires.bulk_in, pieces)
    }
    wires.control_in.read_exact(&mut [0]).unwrap();
    since.elapsed().as_secs_f64()
}

/// The median of a byte's way there and back.
fn round_trip(mut wires: Wires) -> Duration {
    wires.control_out.write_all(&[0, 0, 0, 0, 0, 0, 0, 0, ECHO]).unwrap();
    let mut times: Vec<Duration> = (0..5000)
        .map(|_| {
            let since = Instant::now();
            wires.control_out.write_all(&[1]).unwrap();
            wires.control_in.read_exact(&mut [0]).unwrap();
            since.elapsed()
        })
        .collect();
    times.sort_unstable();
    times[times.len() / 2]
}

fn send(to: &mut [Box<dyn Write + Send>], pieces: u64) {
    let piece = vec![7; PIECE];
    thread::scope(|scope| {
        for stream in to {
            scope.spawn(|| (0..pieces).for_each(|_| stream.write_all(&piece).unwrap()));
        }
    });
}

fn take(from: &mut [Box<dyn Read + Send>], pieces: u64) {
    thread::scope(|scope| {
        for stream in from {
            scope.spawn(|| {
                let mut piece = vec![0; PIECE];
                (0..pieces).for_each(|_| stream.read_exact(&mut piece).unwrap());
            });
        }
    });
}

fn serve_session() {
    let grace = Duration::from_secs(std::env::var("GRACE").map_or(30, |text| text.parse().unwrap()));
    let options = link::far_end::FarEndOptions {
        service: link::Service::Devices,
        insecure_loopback: true,
        confinement: Some(link::Confinement { user: None, network: false, system_calls: true }),
        rdma: false,
        grace,
    };
    let served = far_end(link::far_end::control().unwrap(), &options, |_| {
        Ok(|mut wires: Wires| {
            let mut order = [0; 9];
            if wires.control_in.read_exact(&mut order).is_err() {
                return;
            }
            let pieces = u64::from_le_bytes(order[..8].try_into().unwrap());
            if order[8] == ECHO {
                let mut byte = [0];
                while wires.control_in.read_exact(&mut byte).is_ok() {
                    wires.control_out.write_all(&byte).unwrap();
                }
                return;
            }
            if order[8] == 1 {
                take(&mut wires.bulk_in, pieces)
            } else {
                send(&mut wires.bulk_out, pieces)
            }
            wires.control_out.write_all(&[1]).unwrap();
            // With this process would go what has not arrived.
            let _ = wires.control_in.read(&mut [0]);
        })
    });
    served.unwrap();
}
