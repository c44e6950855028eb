//! Recognising a run by its kernels, whatever little is different; and what of memory is live.

use crate::support::Random;
use plan::cost::Rates;
use plan::follow::{Follower, Seen, name};
use plan::live::Tracker;
use plan::model::{Model, Mtbfs, Wanted, Wishes, plan};
use plan::planfile::Plan;
use plan::profile::{Boundary, Profile, Recorder};
use plan::record::Recording;
use plan::units::{Bandwidth, Mtbf, Nanos};
use proptest::prelude::*;

const SECOND: u64 = 1_000_000_000;

/// Cycles of a kernel that opens, many that smooth, and one that closes; each kernel a tenth of a second.
fn program(cycles: usize) -> Vec<&'static str> {
    let cycle = ["open", "smooth", "smooth", "smooth", "norm", "smooth", "smooth", "smooth", "close"];
    cycle.into_iter().cycle().take(9 * cycles).collect()
}

/// There is little before `open`.
fn profile(names: &[&str]) -> Profile {
    let mut recorder = Recorder::default();
    for (number, kernel) in names.iter().enumerate() {
        let kernel_id = recorder.kernel(kernel).unwrap();
        let live = if *kernel == "open" { 1 << 20 } else { 1 << 30 };
        let boundary = Boundary { kernel: kernel_id, allocated: 1 << 30, live, ..Boundary::default() };
        recorder.boundary(Nanos(number as u64 * SECOND / 10), boundary).unwrap();
    }
    recorder.finish(Nanos(names.len() as u64 * SECOND / 10)).unwrap()
}

fn planned(profile: &Profile) -> Plan {
    let bandwidth = Bandwidth::per_second(1 << 30).unwrap();
    let mtbf = Mtbf::of_seconds(1e6).unwrap();
    let wishes = Wishes {
        model: Model::Sync,
        mtbf: Mtbfs { gpu: mtbf, cpu: mtbf },
        interval: Some(Nanos(5 * SECOND)),
        count: None,
        cpu_count: None,
        offset: None,
        rates: Rates::of_bandwidths(bandwidth, bandwidth).unwrap(),
        objective: Wanted::Cost,
    };
    let made = plan(profile, &wishes).unwrap();
    Plan::from_json(made.to_json().unwrap().as_bytes()).unwrap()
}

/// At which kernels a run stops, each checkpoint taken.
fn stops(plan: &Plan, names: &[&str]) -> Vec<usize> {
    let mut follower = Follower::new(plan, None).unwrap();
    let mut stops = Vec::new();
    for (number, kernel) in names.iter().enumerate() {
        if let Seen::Planned(checkpoint) = follower.at(name(kernel)) {
            stops.push(number);
            follower.done(checkpoint);
        }
        follower.pass(name(kernel));
    }
    stops
}

fn boundaries(plan: &Plan) -> Vec<usize> {
    plan.parts[0].checkpoints.iter().map(|each| each.boundary as usize).collect()
}

#[test]
fn the_same_run_stops_where_it_was_planned() {
    let names = program(40);
    let plan = planned(&profile(&names));
    assert!(boundaries(&plan).len() >= 6);
    assert_eq!(stops(&plan, &names), boundaries(&plan));
    assert!(boundaries(&plan).iter().all(|at| names[*at] == "open"));
}

#[test]
fn one_gets_ready_before() {
    let names = program(40);
    let plan = planned(&profile(&names));
    let mut follower = Follower::new(&plan, None).unwrap();
    let leads = (0..boundaries(&plan).len()).map(|number| follower.lead(number));
    assert!(leads.eq(boundaries(&plan).iter().map(|_| Nanos(SECOND))), "ten kernels");
    assert!(!follower.is_recognised());
    let near = |each: &&str| {
        let seen = follower.at(name(each));
        follower.pass(name(each));
        matches!(seen, Seen::Near(_))
    };
    let near: Vec<bool> = names.iter().map(near).collect();
    for boundary in boundaries(&plan) {
        let before = near[..boundary].iter().rev().position(|near| *near).unwrap();
        assert!((9..=11).contains(&before), "{before} tenths of a second");
    }
}

#[test]
fn a_run_goes_on_where_its_image_was_taken() {
    let names = program(40);
    let plan = planned(&profile(&names));
    for cut in [0, 1, 7, 100, 333] {
        let mut follower = Follower::new(&plan, None).unwrap();
        names[..cut].iter().for_each(|each| follower.pass(name(each)));
        let passed = serde_json::to_vec(&follower.passed()).unwrap();
        let mut again = Follower::new(&plan, Some(serde_json::from_slice(&passed).unwrap())).unwrap();
        for each in &names[cut..] {
            assert_eq!(again.at(name(each)), follower.at(name(each)));
            again.pass(name(each));
            follower.pass(name(each));
        }
    }
}

proptest! {
    /// Each stop is before `open` still, and no more than one cycle per difference from where it was planned.
    #[test]
    fn small_differences_move_a_stop_by_whole_cycles(
        seed: u64,
        changes in prop::collection::vec((0..3_u8, any::<prop::sample::Index>()), 0..5),
    ) {
        let names = program(40);
        let plan = planned(&profile(&names));
        let mut run = names.clone();
        let mut random = Random(seed);
        for (change, at) in &changes {
            // Only what does not open a cycle: that would be another program.
            let at = at.index(run.len() - 1);
            match change {
                0 => run.insert(at, ["smooth", "extra"][random.below(2) as usize]),
                1 if run[at] != "open" => drop(run.remove(at)),
                2 if run[at] != "open" && run[at + 1] != "open" => run.swap(at, at + 1),
                _ => {}
            }
        }
        let (planned, stopped) = (boundaries(&plan), stops(&plan, &run));
        prop_assert!(stopped.len() + 1 + 2 * changes.len() >= planned.len());
        for at in &stopped {
            prop_assert_eq!(run[*at], "open");
            let nearest = planned.iter().map(|planned| planned.abs_diff(*at)).min().unwrap();
            prop_assert!(nearest <= 9 * 2 * changes.len() + changes.len());
        }
    }

    /// Against a model that knows each byte's future.
    #[test]
    fn live_is_what_is_read_before_it_is_overwritten(seed: u64, len in 1..120_usize, keep in 0..40_usize) {
        let mut random = Random(seed);
        // Sixteen bytes, in two allocations of eight.
        let steps: Vec<(u64, u64, u64)> =
            (0..len).map(|_| (random.below(4), random.below(16), 1 + random.below(8))).collect();
        let mut tracker = Tracker::default();
        tracker.allocate(0, 8, false);
        tracker.allocate(8, 8, false);
        let mut told = Vec::new();
        for (what, base, bytes) in &steps {
            let bytes = (*bytes).min(8 - base % 8);
            match what {
                0 => tracker.boundary(),
                1 => tracker.read(*base, bytes),
                2 => tracker.overwrite(*base, bytes),
                _ => tracker.write_around(*base),
            }
            if tracker.pending() > 2 * keep + 1 {
                told.extend(tracker.give_out(keep));
            }
        }
        told.extend(tracker.end());
        let mut exact = Vec::new();
        for (at, _) in steps.iter().enumerate().filter(|(_, step)| step.0 == 0) {
            let live = (0..16).filter(|byte| {
                let touches = |step: &&(u64, u64, u64)| {
                    let end = step.1 + step.2.min(8 - step.1 % 8);
                    match step.0 {
                        0 => false,
                        3 => step.1 / 8 == byte / 8,
                        _ => (step.1..end).contains(byte),
                    }
                };
                let is_written = steps[..at].iter().any(|step| step.0 > 1 && touches(&step));
                let next = steps[at..].iter().filter(|step| step.0 != 3).find(touches);
                is_written && next.is_some_and(|step| step.0 == 1)
            });
            exact.push(live.count() as u64);
        }
        prop_assert_eq!(told.len(), exact.len());
        // Reads are of whole parts, and what is given out early counts as read: never less than exact.
        for (told, exact) in told.iter().zip(&exact) {
            prop_assert!(told >= exact && *told <= 16, "{told} for {exact}");
        }
    }
}

#[test]
fn scratch_is_dead_between_its_last_read_and_its_end() {
    let mut tracker = Tracker::default();
    tracker.allocate(0x1000, 100, true);
    tracker.boundary();
    tracker.allocate(0x2000, 1000, false);
    tracker.boundary();
    tracker.write_around(0x2010);
    tracker.boundary();
    tracker.read_around(0x2010);
    tracker.boundary();
    tracker.free(0x2000);
    tracker.read(0x1000, 100);
    tracker.boundary();
    assert_eq!(tracker.allocated(), 100);
    assert_eq!(tracker.end(), [100, 100, 1100, 100, 0]);
}

#[test]
fn kernels_that_may_reach_anything_read_all_that_is_allocated() {
    let mut tracker = Tracker::default();
    tracker.allocate(0x1000, 100, true);
    tracker.boundary();
    tracker.allocate(0x2000, 50, false);
    tracker.touch_anything();
    tracker.boundary();
    tracker.touch_anything();
    tracker.boundary();
    tracker.overwrite(0x1000, 100);
    assert_eq!(tracker.end(), [100, 150, 0]);
}

#[test]
fn a_recorded_loop_is_small_and_its_times_are_near() {
    let mut recording = Recording::default();
    recording.memory.allocate(0x1000, 1 << 20, true);
    let (mut at, mut random) = (0, Random(7));
    let mut times = Vec::new();
    for turn in 0..200_000_u64 {
        at += 8_000 + random.below(4_000);
        recording.boundary(Nanos(at), ["a", "b", "c"][(turn % 3) as usize]).unwrap();
        recording.memory.read_around(0x1000);
        recording.memory.write_around(0x1000);
        times.push(at);
    }
    let (profile, full) = recording.finish(Nanos(at)).unwrap();
    assert_eq!(full, None);
    let mut number = 0;
    profile.device().each(|told, step| {
        let real = times[number];
        assert!(told.abs_diff(real) <= 1_100_000.max(real / 500), "{told} for {real}");
        assert_eq!((step.live, step.allocated), (1 << 20, 1 << 20));
        number += 1;
    });
    let file = plan::format::encode(&profile);
    assert!(file.len() < 64 << 10, "{} bytes", file.len());
}
