//! What waiting costs, alone and on a crowded machine: pairs of a client and a server thread on a ring each, and threads that
//! compute beside them. `waiting PAIRS THINK WORK BURNERS`: the client thinks for THINK µs between two calls, the server works
//! for WORK µs on each. Prints the median and the 99th percentile of a call, less the server's work; calls and processor time of
//! a second; and how much of a processor each burner got.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use transport::{ClientSession, Next, ServerSession, State};

const TIME: Duration = Duration::from_secs(2);

fn compute(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::black_box(begun);
    }
}

/// Processor time of the calling thread or of the process, seconds.
fn processor(clock: rustix::time::ClockId) -> f64 {
    let now = rustix::time::clock_gettime(clock);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).map(|word| word.parse().unwrap()).collect();
    let [pairs, think, work, burners] = numbers[..] else { panic!("waiting PAIRS THINK WORK BURNERS") };
    let (think, work) = (Duration::from_micros(think), Duration::from_micros(work));
    let done = AtomicBool::new(false);
    let calls = Mutex::new(Vec::new());
    let burnt = AtomicU64::new(0);
    let before = processor(rustix::time::ClockId::ProcessCPUTime);
    std::thread::scope(|scope| {
        for _ in 0..burners {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    compute(Duration::from_millis(1));
                }
                let own = processor(rustix::time::ClockId::ThreadCPUTime);
                burnt.fetch_add((own * 1e6) as u64, Ordering::Relaxed);
            });
        }
        let clients: Vec<_> = (0..pairs).map(|_| scope.spawn(|| pair(think, work, &calls))).collect();
        clients.into_iter().for_each(|client| client.join().unwrap());
        done.store(true, Ordering::Relaxed);
    });
    let used = processor(rustix::time::ClockId::ProcessCPUTime) - before;
    let burnt = burnt.into_inner() as f64 / 1e6;
    let mut calls = calls.into_inner().unwrap();
    calls.sort();
    let part = |of: usize| (calls[calls.len() * of / 100].saturating_sub(work)).as_nanos() as f64 / 1e3;
    let seconds = TIME.as_secs_f64();
    println!(
        "{pairs:3} pairs, think {think:>6.0?}, work {work:>6.0?}, {burners:2} burners: {:7.2} us median {:9.2} us p99 {:9.0} calls/s {:6.2} processors {:5.2} per burner",
        part(50),
        part(99),
        calls.len() as f64 / seconds,
        (used - burnt) / seconds,
        if burners == 0 { 0.0 } else { burnt / seconds / burners as f64 },
    );
}

/// A session with a server of one thread, and its client; what each call took goes to `calls`.
fn pair(think: Duration, work: Duration, calls: &Mutex<Vec<Duration>>) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let server = ServerSession::create(dir.path()).unwrap();
    server.control().set_state(State::Running);
    let client = ClientSession::open(dir.path()).unwrap();
    let mut ring = client.take_ring().unwrap();
    let thread = {
        let (server, index) = (Arc::clone(&server), ring.index());
        std::thread::spawn(move || {
            let mut reader = server.reader(index);
            loop {
                match reader.next(Duration::from_millis(500)).unwrap() {
                    Next::Message(_) => {
                        compute(work);
                        reader.reply(&[0; 16]).unwrap();
                    }
                    Next::Idle => {}
                    Next::Closed => return reader.release(),
                }
            }
        })
    };
    let begun = Instant::now();
    let mut took = Vec::new();
    let mut reply = Vec::new();
    while begun.elapsed() < TIME {
        compute(think);
        let call = Instant::now();
        ring.call(1, &[&[0; 24]], &mut reply).unwrap();
        took.push(call.elapsed());
    }
    calls.lock().unwrap().append(&mut took);
    drop(ring);
    thread.join().unwrap();
}
