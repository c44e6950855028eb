//! Random kernels, each stopped at every marker that it comes to, and at moments that it chooses itself.
//!
//! `DORMOUSE_KERNEL=SEED cargo test -p cpt random_kernels` repeats one and shows it, `DORMOUSE_KERNELS_SECONDS` goes on for so long.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime};

use cpt::{Group, Poll, Rewritten};

use crate::device::{Gpu, Stops, When};
use crate::generate::{Generated, SLOT, SUMS, kernel};
use crate::random::Random;
use crate::reference;
use crate::stopping::moved;

const SEED: &str = "DORMOUSE_KERNEL";
const SECONDS: &str = "DORMOUSE_KERNELS_SECONDS";
/// How long a usual run takes.
const USUAL: Duration = Duration::from_secs(6);

/// After this a kernel hangs.
const LIMIT: Duration = Duration::from_secs(60);

#[derive(Default, Debug)]
struct Seen {
    kernels: usize,
    refused: usize,
    launches: usize,
    /// Times that a block has gone on from half-way.
    half_way: usize,
    no_room: usize,
    /// Kernels whose memory has lain elsewhere when they went on.
    moved: usize,
}

/// Compares runs of a kernel that are stopped with one that is not.
fn stops_and_goes_on(random: &mut Random, seen: &mut Seen, shown: bool) {
    let group = *random.of(&[Group::Thread, Group::Warp, Group::Block, Group::Block, Group::Grid]);
    let Generated { text, shape, is_plain } = kernel(random, group);
    if shown {
        println!("{text}");
    }
    let module = ptx::parse(&text).unwrap_or_else(|error| panic!("{error}"));
    let poll = *random.of(&[Poll::Every, Poll::Counted(3), Poll::Adaptive, Poll::Barrier]);
    let Rewritten { text, kernels, refusals } = cpt::rewrite_with(&module, poll).unwrap().unwrap();
    if shown {
        println!("{text}{refusals:?}");
    }
    seen.kernels += 1;
    let Some(kernel) = kernels.get("k") else {
        assert!(!is_plain, "{refusals:?}");
        seen.refused += 1;
        return;
    };
    // It takes longer than the runs.
    if random.once_in(8) || shown {
        let made = ptx::parse(&text).unwrap();
        reference::check(&made, kernel);
        reference::nothing_else_is_read(&made, "k", kernel);
    }
    let threads = u64::from(shape.grid * shape.block);
    let bytes = (threads * SLOT + SUMS) as usize;
    let input: Vec<u8> = (0..bytes).map(|_| random.next() as u8).collect();
    let n = random.below(2000) as u32;
    // Where nothing depends on it, memory of blocks and threads lies elsewhere in each second launch.
    let gpu = if kernel.is_bound { Gpu::new(&text) } else { Gpu::of(&[&text, &moved(&text)]) };
    seen.moved += usize::from(!kernel.is_bound);
    let memory = gpu.alloc(bytes as u64);
    let params = |stop: u64| [&memory.to_le_bytes()[..], &stop.to_le_bytes(), &n.to_le_bytes()].concat();
    gpu.put(memory, &input);
    gpu.launch("k", shape, &params(gpu.alloc(64)));
    gpu.wait();
    let expected = gpu.get::<u8>(memory, bytes);
    let mut run = |capacity: u32, when: &mut dyn FnMut(&Stops) -> When| {
        gpu.put(memory, &input);
        let stops = gpu.run_with_stops(kernel, shape, &params, capacity, when).unwrap();
        let found = gpu.get::<u8>(memory, bytes);
        let differs = found.iter().zip(&expected).position(|(found, expected)| found != expected);
        assert_eq!(differs, None, "differs after {stops:?}");
        seen.launches += stops.launches;
        seen.half_way += stops.half_way;
        seen.no_room += stops.no_room;
    };
    // From marker to marker: the kernel asks itself to stop when it begins.
    run(shape.grid, &mut |stops| if stops.last > 0 { When::Before } else { When::Never });
    // As it likes, and now and then before it begins, or at once.
    let mut moments = Random(random.next());
    let mut sometimes = |_: &Stops| match moments.below(4) {
        0 => When::Before,
        1 => When::After(Duration::from_micros(moments.below(300))),
        _ => When::Never,
    };
    // Those for which there is no room go on to their end; a grid has to have room.
    let room = 1 + random.below(u64::from(shape.grid)) as u32;
    run(if group == Group::Grid { shape.grid } else { room }, &mut sometimes);
}

#[test]
fn random_kernels() {
    let seed = std::env::var(SEED).ok().map(|seed| seed.parse::<u64>().unwrap());
    let limit = std::env::var(SECONDS).map_or(USUAL, |text| Duration::from_secs(text.parse().unwrap()));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let (begun, mut seen) = (Instant::now(), Seen::default());
    let mut next = seed.unwrap_or(now);
    // Nothing ends a kernel that waits for ever, but the end of the process.
    let (goes_on, told) = channel::<u64>();
    std::thread::spawn(move || {
        let mut last = 0;
        loop {
            match told.recv_timeout(LIMIT) {
                Ok(seed) => last = seed,
                Err(RecvTimeoutError::Timeout) => {
                    eprintln!("{SEED}={last} hangs");
                    std::process::abort();
                }
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
    });
    while begun.elapsed() < limit {
        println!("{SEED}={next}");
        goes_on.send(next).unwrap();
        stops_and_goes_on(
            &mut Random(next.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            &mut seen,
            seed.is_some(),
        );
        if seed.is_some() {
            break;
        }
        next += 1;
    }
    println!("{seen:?} in {:?}", begun.elapsed());
    assert!(seed.is_some() || seen.half_way > 0, "{seen:?}");
}
