//! Profiles as files: loops, damage, versions, hostile bytes.

use crate::support::Random;
use plan::format::{HEADER_LEN, decode, encode, seal};
use plan::profile::{Boundary, CpuInterval, Profile, Recorder};
use plan::units::Nanos;
use plan::{Error, synthetic};
use proptest::prelude::*;

fn boundaries(profile: &Profile) -> Vec<(u64, Boundary)> {
    let mut all = Vec::new();
    profile.device().each(|at, step| all.push((at, *step)));
    all
}

#[test]
fn a_loop_of_a_million_kernels_is_small() {
    let million = synthetic::uniform(1_000_000, Nanos(10_000), 1 << 30).unwrap();
    let file = encode(&million);
    assert!(file.len() < 200, "{}", file.len());
    let again = decode(&file).unwrap();
    assert_eq!(again, million);
    assert_eq!((again.device().len(), again.end()), (1_000_000, Nanos(10_000_000_000)));
    // Loops within loops.
    let multigrid = synthetic::multigrid(1000, 6).unwrap();
    let file = encode(&multigrid);
    assert!(file.len() < 16_000, "{} for {}", file.len(), multigrid.device().len());
    assert_eq!(decode(&file).unwrap(), multigrid);
}

#[test]
fn whatever_repeats_is_told_as_it_was() {
    for seed in 0..2000 {
        let mut random = Random(seed);
        let mut recorder = Recorder::default();
        let kernels: Vec<u32> = ["a", "b", "c"].iter().map(|name| recorder.kernel(name).unwrap()).collect();
        let mut now = 0;
        let mut pushed = Vec::new();
        let mut one = |random: &mut Random, recorder: &mut Recorder| {
            let kernel = kernels[random.below(3) as usize];
            let boundary = Boundary {
                after: Nanos(1),
                kernel,
                allocated: 9,
                live: random.below(2),
                ..Boundary::default()
            };
            now += 1;
            recorder.boundary(Nanos(now), boundary).unwrap();
            pushed.push((now, boundary));
        };
        for _ in 0..random.below(8) {
            // A body, again and again: the same draws from the same seed.
            let (body, len) = (random.next(), random.below(6));
            for _ in 0..1 + random.below(5) {
                let mut inner = Random(body);
                (0..len).for_each(|_| one(&mut inner, &mut recorder));
            }
        }
        let profile = recorder.finish(Nanos(pushed.len() as u64)).unwrap();
        assert_eq!(boundaries(&profile), pushed, "{seed}");
        assert_eq!(decode(&encode(&profile)).unwrap(), profile, "{seed}");
    }
}

/// As it was written by version 1, for all time.
#[test]
fn a_profile_of_today_is_read_for_ever() {
    let golden = include_bytes!("golden/v1.profile");
    let profile = decode(golden).unwrap();
    assert_eq!(profile, synthetic::multigrid(12, 3).unwrap());
    assert_eq!(encode(&profile), golden);
}

#[test]
fn damage_is_told() {
    let file = encode(&synthetic::multigrid(3, 2).unwrap());
    for len in 0..file.len() {
        let error = decode(&file[..len]).unwrap_err();
        assert!(matches!(error, Error::Damaged(_)), "{len}: {error}");
        assert!(len < 8 || error.to_string().contains("truncated"), "{len}: {error}");
    }
    for index in 0..file.len() {
        let mut flipped = file.clone();
        flipped[index] ^= 0x10;
        let error = decode(&flipped).unwrap_err();
        let version = (8..10).contains(&index);
        assert_eq!(matches!(error, Error::Version { .. }), version, "{index}: {error}");
    }
    assert!(decode(&[file, vec![0]].concat()).unwrap_err().to_string().contains("followed by"));
}

#[test]
fn few_bytes_cannot_ask_for_much() {
    // End 0, no kernels, then nodes.
    let loops = |depth: usize, times: &[u8]| {
        let mut body = vec![0, 0];
        for _ in 0..depth {
            body.extend([&[1][..], times].concat());
        }
        [&body[..], &[1, 0, 0, 0, 0, 0, 0], &[0]].concat()
    };
    let most = [0xff, 0xff, 0xff, 0xff, 0x0f];
    for body in [
        loops(1, &most),
        loops(5, &most),
        loops(6, &most),
        loops(7, &[2]),
        loops(200, &[2]),
        // More things than bytes.
        vec![0, 0xff, 0xff, 0x7f],
        vec![0, 0, 0xff, 0xff, 0xff, 0xff, 0x7f],
        // A loop of nothing, and a number of more than 64 bits.
        vec![0, 0, 1, 5, 0, 0],
        vec![0xff; 11],
    ] {
        let error = decode(&seal(&body)).unwrap_err();
        assert!(matches!(error, Error::Damaged(_) | Error::Overflow { .. }), "{body:?}: {error}");
    }
    // Longer than 64 bits of nanoseconds, and a kernel that has no name.
    let step = |kernel: u8| {
        [
            &[0_u8, 1, 1, b'k', 1, 0xff, 0xff, 0xff, 0xff, 0x0f, 1, 0, kernel << 1][..],
            &[0xff; 9],
            &[1, 0, 0, 0, 0],
        ]
        .concat()
    };
    assert_eq!(decode(&seal(&step(0))), Err(Error::Overflow { what: "times" }));
    let unnamed = [0, 0, 1, 0, 2, 0, 0, 0, 0, 0];
    assert!(decode(&seal(&unnamed)).unwrap_err().to_string().contains("names no kernel 1"));
}

fn any_profile() -> impl Strategy<Value = Profile> {
    let boundary = (0..3_u64, 0..3_u32, any::<u32>(), any::<u32>(), proptest::option::of(any::<u64>()));
    let interval = (0..3_u64, any::<u64>(), any::<u64>());
    (proptest::collection::vec(boundary, 0..40), proptest::collection::vec(interval, 0..40)).prop_map(
        |(device, cpu)| {
            let mut recorder = Recorder::default();
            let kernels = ["", "a", "µ"].map(|name| recorder.kernel(name).unwrap());
            let (mut now, mut end) = (0, 0);
            for (after, kernel, a, b, changed) in device {
                now += after;
                end = end.max(now);
                let (live, allocated) = (u64::from(a.min(b)), u64::from(a.max(b)));
                let boundary = Boundary {
                    kernel: kernels[kernel as usize],
                    live,
                    allocated,
                    changed,
                    idle: Nanos(after),
                    ..Boundary::default()
                };
                recorder.boundary(Nanos(now), boundary).unwrap();
            }
            now = 0;
            for (after, bytes, idle) in cpu {
                now += after;
                end = end.max(now);
                recorder
                    .interval(Nanos(now), CpuInterval { bytes, idle: Nanos(idle), ..CpuInterval::default() })
                    .unwrap();
            }
            recorder.finish(Nanos(end)).unwrap()
        },
    )
}

proptest! {
    #[test]
    fn profiles_come_back(profile in any_profile()) {
        prop_assert_eq!(decode(&encode(&profile)).unwrap(), profile);
    }

    #[test]
    fn bytes_are_refused_or_understood(mut body in proptest::collection::vec(any::<u8>(), 0..200), profile in any_profile(), at in any::<prop::sample::Index>()) {
        let mut mangled = encode(&profile)[HEADER_LEN..].to_vec();
        let at = at.index(mangled.len());
        mangled[at] = body.pop().unwrap_or(0);
        for body in [body, mangled] {
            if let Ok(profile) = decode(&seal(&body)) {
                prop_assert_eq!(decode(&encode(&profile)).unwrap(), profile);
            }
        }
    }
}
