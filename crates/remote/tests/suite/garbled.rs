//! Sessions of honest ends, garbled on the way: at any message of any stream, either way, the receiver meets what a malicious peer
//! might say there. Whatever that is: neither end panics or crashes, and both have ended soon after the connection has.
//!
//! Each session is a process, and says by its seed what it was: `DORMOUSE_GARBLED=SEED` repeats one. There are as many as fit into
//! `DORMOUSE_GARBLED_SECONDS`.

use super::common::tcp;
use backend::conformance::BEHAVIOURS;
use libtest_mimic::{Failed, Trial};
use remote::{Choice, RemoteBackend, Wires};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};
use testkit::proxy::{Change, Network, Stream, between_changing};

/// The seed of one session: what makes this binary such a process.
pub const SEED: &str = "DORMOUSE_GARBLED";
const SECONDS: &str = "DORMOUSE_GARBLED_SECONDS";

/// For how long it goes on, unless somebody says otherwise.
const USUALLY: Duration = Duration::from_secs(60);
/// What nobody says for so long, nobody will say: an answer has been garbled away.
const QUIET: Duration = Duration::from_millis(150);
/// After this a session hangs.
const LIMIT: Duration = Duration::from_secs(60);

pub fn trials() -> Vec<Trial> {
    vec![Trial::test("garbled::whatever_is_said_harms_nobody", whatever_is_said_harms_nobody)]
}

fn whatever_is_said_harms_nobody() -> Result<(), Failed> {
    let begun = Instant::now();
    let told = std::env::var(SECONDS).ok().map(|seconds| Duration::from_secs(seconds.parse().unwrap()));
    let time = told.unwrap_or(USUALLY);
    let first = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_nanos() as u64;
    let mut sessions = 0;
    let mut failed = Vec::new();
    while begun.elapsed() < time {
        let seed = first.wrapping_add(sessions);
        let session = Command::new(std::env::current_exe()?).env(SEED, seed.to_string()).output()?;
        sessions += 1;
        if !session.status.success() {
            let said = String::from_utf8_lossy(&session.stderr).into_owned();
            eprintln!("{SEED}={seed}: {}\n{said}", session.status);
            failed.push(seed);
        }
    }
    println!("{sessions} sessions in {:?}, {} failed", begun.elapsed(), failed.len());
    if failed.is_empty() { Ok(()) } else { Err(format!("{SEED} of those that failed: {failed:?}").into()) }
}

/// One session.
pub fn session(seed: &str) -> ExitCode {
    let mut random = Random(seed.parse().unwrap());
    let panics: Arc<Mutex<Vec<String>>> = Arc::default();
    let told = Arc::clone(&panics);
    std::panic::set_hook(Box::new(move |info| {
        // The program is right to say that it does not see what it should.
        if info.location().is_none_or(|at| !at.file().contains("backend/src/conformance")) {
            told.lock().unwrap().push(info.to_string());
        }
    }));
    let remote: Vec<_> = BEHAVIOURS.iter().filter(|(name, _)| !name.starts_with("sharing::")).collect();
    let some: Vec<_> = (0..4).map(|_| remote[random.below(remote.len() as u64) as usize]).collect();
    let names: Vec<_> = some.iter().map(|(name, _)| *name).collect();
    let (mut far, sockets) = tcp(&[]);
    let streams = 2 * sockets.len() as u64;
    // Mostly control; now and then several streams.
    let garbled: Vec<u64> = (0..1 + random.below(2) * random.below(2))
        .map(|_| if random.below(4) > 0 { random.below(2) } else { random.below(streams) })
        .collect();
    let log: Arc<Mutex<Vec<String>>> = Arc::default();
    let (near, traffic) = between_changing(sockets, Network::default(), |stream| {
        let number = 2 * stream.connection as u64 + u64::from(stream.to_far);
        let garbled = garbled.contains(&number);
        garbled.then(|| garbles(stream, random.next(), Arc::clone(&log)))
    })
    .unwrap();
    let client = std::thread::spawn(move || {
        let wires = Wires::of_tcp(near).unwrap();
        if let Ok(backend) = RemoteBackend::connect(wires, &Choice::default(), |_| {}) {
            for (_, behaviour) in some {
                let _ = catch_unwind(AssertUnwindSafe(|| behaviour(&backend)));
            }
        }
    });
    let begun = Instant::now();
    let (mut carried, mut since) = (0, Instant::now());
    while !client.is_finished() && begun.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(5));
        if traffic.bytes() != carried {
            (carried, since) = (traffic.bytes(), Instant::now());
        } else if since.elapsed() > QUIET {
            traffic.cut();
        }
    }
    traffic.cut();
    let mut ended = None;
    while ended.is_none() && begun.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(1));
        ended = far.0.try_wait().unwrap();
    }
    let panics = std::mem::take(&mut *panics.lock().unwrap());
    eprintln!(
        "{names:?}: the client is over: {}; the far end: {ended:?}; panics: {panics:?}\n{}",
        client.is_finished(),
        log.lock().unwrap().join("\n")
    );
    // A far end whose client has broken the protocol, or has left work that does not end, says so and exits with 1.
    let well = client.is_finished()
        && ended.is_some_and(|status| matches!(status.code(), Some(0 | 1)))
        && panics.is_empty();
    if well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// How messages lie in a stream: a head of so many bytes, in which the length of the rest is.
#[derive(Clone, Copy)]
struct Framing {
    head: usize,
    length: (usize, usize),
    /// What comes before the first message.
    greeting: usize,
}

const CONTROL: Framing = Framing { head: 16, length: (0, 4), greeting: 12 };
const BULK: Framing = Framing { head: 24, length: (16, 8), greeting: 0 };

impl Framing {
    fn rest(self, message: &[u8]) -> Option<usize> {
        let (at, bytes) = self.length;
        let length = message.get(at..at + bytes)?;
        let length = length.iter().rev().fold(0u64, |all, byte| all << 8 | u64::from(*byte));
        usize::try_from(length).ok()
    }

    /// Puts the right length before a message.
    fn measure(self, message: &mut [u8]) {
        let length = (message.len() - self.head) as u64;
        let (at, bytes) = self.length;
        message[at..at + bytes].copy_from_slice(&length.to_le_bytes()[..bytes]);
    }
}

/// Garbles one stream: from some message on, some of the messages.
fn garbles(stream: Stream, seed: u64, log: Arc<Mutex<Vec<String>>>) -> Change {
    let framing = if stream.connection == 0 { CONTROL } else { BULK };
    let mut random = Random(seed);
    let first = match random.below(20) {
        0 => 0,
        widths => 1 + random.below(1 << (widths % 8)),
    };
    let one_of = 1 << random.below(6);
    let mut left = 1 + random.below(4);
    let mut come = Vec::new();
    let mut number = 0;
    let mut earlier: Vec<Vec<u8>> = Vec::new();
    let mut held = Vec::new();
    Box::new(move |bytes| {
        come.extend_from_slice(bytes);
        let mut on = Vec::new();
        loop {
            let whole = match framing.greeting {
                greeting @ 1.. if number == 0 => Some(greeting),
                _ => framing.rest(&come).map(|rest| framing.head + rest),
            };
            let Some(whole) = whole.filter(|whole| *whole <= come.len()) else { return on };
            let mut message: Vec<u8> = come.drain(..whole).collect();
            let after = std::mem::take(&mut held);
            if number >= first && left > 0 && (number == first || random.below(one_of) == 0) {
                left -= 1;
                let before = message.len();
                let way = random.garble(framing, &mut message, &earlier, &mut held);
                log.lock().unwrap().push(format!("{stream:?}, message {number} of {before} bytes: {way}"));
            } else if message.len() < 100_000 {
                let place = random.below(16) as usize;
                if place < earlier.len() {
                    earlier[place].clone_from(&message);
                } else {
                    earlier.push(message.clone());
                }
            }
            number += 1;
            on.append(&mut message);
            on.extend_from_slice(&after);
        }
    })
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    /// A number that a check may have forgotten.
    fn number(&mut self) -> u64 {
        let power = 1u64 << self.below(64);
        match self.below(8) {
            0 => u64::MAX - self.below(9),
            1 => power,
            2 => power - 1,
            3 => 0x4000_0000_0000 + (self.below(64) << self.below(22)),
            4 => self.next(),
            5 => u64::from(u32::MAX) + self.below(3),
            _ => self.below(20),
        }
    }

    /// Writes a number somewhere into a message, where the message has room for it.
    fn write(&mut self, message: &mut [u8], from: usize) {
        let (number, bytes) = (self.number(), [1, 2, 4, 8][self.below(4) as usize]);
        if let Some(places) = message.len().checked_sub(from + bytes) {
            let at = from + self.below(places as u64 + 1) as usize;
            message[at..at + bytes].copy_from_slice(&number.to_le_bytes()[..bytes]);
        }
    }

    /// Makes something else of a message: `held` comes after the next one. Tells what it has done.
    fn garble(
        &mut self,
        framing: Framing,
        message: &mut Vec<u8>,
        earlier: &[Vec<u8>],
        held: &mut Vec<u8>,
    ) -> &'static str {
        let is_whole = message.len() >= framing.head;
        match self.below(12) {
            0 => {
                let at = self.below(message.len() as u64) as usize;
                message[at] ^= 1 << self.below(8);
                "a bit is another"
            }
            1..=3 if message.len() > framing.head => {
                (0..1 + self.below(2)).for_each(|_| self.write(message, framing.head));
                "a field is another"
            }
            1 | 4 => {
                self.write(message, 0);
                "a number is another"
            }
            2 | 5 if is_whole && framing.head == CONTROL.head => {
                message[4..6].copy_from_slice(&(self.below(140) as u16).to_le_bytes());
                "it is another call"
            }
            6 if is_whole => {
                let kept = framing.head + self.below((message.len() - framing.head) as u64) as usize;
                message.truncate(kept);
                framing.measure(message);
                "it ends early"
            }
            7 if is_whole => {
                (0..1 + self.below(64)).for_each(|_| message.push(self.below(256) as u8));
                framing.measure(message);
                "it goes on"
            }
            8 => {
                message.clear();
                "it is dropped"
            }
            9 => {
                message.extend_from_within(..);
                "it comes twice"
            }
            10 => {
                std::mem::swap(message, held);
                "it comes later"
            }
            11 if !earlier.is_empty() => {
                let again = &earlier[self.below(earlier.len() as u64) as usize];
                message.extend_from_slice(again);
                "an earlier one comes again"
            }
            _ => {
                (0..1 + self.below(40)).for_each(|_| message.push(self.below(256) as u8));
                "garbage follows"
            }
        }
    }
}
