//! What the paper does not have: the least run time, incremental checkpoints, deciding while the program runs.

use crate::support::{Random, wishes};
use plan::expected::{self, Failures, Law, daly, young};
use plan::model::{Wanted, Wishes, plan};
use plan::online::{Decision, Scheduler};
use plan::profile::{Boundary, Profile, Recorder};
use plan::synthetic;
use plan::units::{Mtbf, Nanos};

const S: u64 = 1_000_000_000;

fn law(shape: f64, mtbf: f64, restart: f64) -> Law {
    let failures = Failures::weibull(shape, Nanos((restart * 1e9) as u64)).unwrap();
    failures.law(Mtbf::of_seconds(mtbf).unwrap())
}

#[test]
fn a_segment_takes_what_daly_says() {
    let (mtbf, restart) = (1000.0_f64, 30.0_f64);
    for length in [0.0, 1e-6, 1.0, 100.0, 3000.0_f64] {
        let daly = mtbf * (restart / mtbf).exp() * (length / mtbf).exp_m1();
        let told = law(1.0, mtbf, restart).segment(length);
        assert!((told - daly).abs() <= 1e-12 * daly, "{length}: {told} {daly}");
        // The Weibull law's own way, at a shape next to 1.
        let near = law(1.0 + 1e-9, mtbf, restart).segment(length);
        assert!((near - daly).abs() <= 1e-6 * daly, "{length}: {near} {daly}");
    }
}

#[test]
fn a_weibull_segment_takes_what_a_sum_says() {
    for (shape, length) in [(0.6, 200.0), (0.6, 2000.0), (2.0, 500.0), (3.5, 900.0)] {
        let (mtbf, restart) = (1000.0, 40.0);
        // Γ(1 + 1/k), from tables.
        let gamma = match shape {
            0.6 => 1.504_575_488,
            2.0 => 0.886_226_925,
            _ => 0.899_747_213,
        };
        let scale = mtbf / gamma;
        let survives = |time: f64| (-(time / scale).powf(shape)).exp();
        let steps = 2_000_000;
        let lived = |until: f64| {
            let width = until / f64::from(steps);
            (0..steps).map(|step| survives((f64::from(step) + 0.5) * width)).sum::<f64>() * width
        };
        let restarts = lived(restart) / survives(restart);
        let sum = (lived(length) + (1.0 - survives(length)) * restarts) / survives(length);
        let told = law(shape, mtbf, restart).segment(length);
        assert!((told - sum).abs() < 1e-4 * sum, "{shape} {length}: {told} {sum}");
    }
}

#[test]
fn young_s_and_daly_s_intervals_come_out() {
    for (cost, mtbf) in [(1.0, 10_000.0), (10.0, 10_000.0), (60.0, 3600.0)] {
        let end = 100_000 * S;
        let at: Vec<u64> = (0..100_000).map(|second| second * S).collect();
        let costs = vec![cost; at.len()];
        let chosen = expected::cheapest(&at, &costs, end, &law(1.0, mtbf, 0.0));
        let every = 100_000.0 / (chosen.len() + 1) as f64;
        let daly = daly(cost, mtbf);
        assert!((every / daly - 1.0).abs() < 0.02, "{cost} {mtbf}: {every} {daly}");
        assert!((every / young(cost, mtbf) - 1.0).abs() < 0.15, "{cost} {mtbf}: {every}");
    }
}

#[test]
fn the_least_run_time_is_the_least_there_is() {
    for seed in 0..10_000 {
        let mut random = Random(seed);
        let len = random.below(9) as usize;
        let mut at: Vec<u64> = (0..len).map(|_| random.below(20) * S).collect();
        at.sort_unstable();
        let end = at.last().copied().unwrap_or(0) + random.below(5) * S;
        let costs: Vec<f64> = (0..len).map(|_| random.below(7) as f64 / 2.0).collect();
        let shape = [0.5, 0.8, 1.0, 1.5, 3.0][random.below(5) as usize];
        let law = law(shape, 1.0 + random.below(30) as f64, random.below(4) as f64);
        let time = |path: &mut dyn Iterator<Item = usize>| {
            law.run(path.map(|point| (at[point] as f64 / 1e9, costs[point])), end as f64 / 1e9)
        };
        let best = (0..1_u32 << len)
            .map(|mask| time(&mut (0..len).filter(|point| mask >> point & 1 == 1)))
            .min_by(f64::total_cmp)
            .unwrap();
        let chosen = expected::cheapest(&at, &costs, end, &law);
        let told = time(&mut chosen.iter().map(|point| *point as usize));
        assert!(told <= best * (1.0 + 1e-12), "{seed}: {told} {best} {chosen:?} {at:?} {costs:?} {law:?}");
    }
}

#[test]
fn what_is_no_law_is_refused() {
    for shape in [0.0, -1.0, f64::NAN, f64::INFINITY, 0.05, 21.0] {
        assert!(Failures::weibull(shape, Nanos(0)).is_err(), "{shape}");
    }
}

/// Each boundary a second after the last, live and changed in units of 10 MB.
fn sampled(boundaries: &[(u64, Option<u64>)]) -> Profile {
    let mut recorder = Recorder::default();
    let kernel = recorder.kernel("k").unwrap();
    for (second, (live, changed)) in (0..).zip(boundaries) {
        let [live, changed] = [Some(*live), *changed].map(|units| units.map(|units| units * 10_000_000));
        let live = live.unwrap();
        let boundary = Boundary { kernel, allocated: live, live, changed, ..Boundary::default() };
        recorder.boundary(Nanos(second * S), boundary).unwrap();
    }
    recorder.finish(Nanos(boundaries.len() as u64 * S)).unwrap()
}

#[test]
fn incremental_plans_are_the_cheapest_there_are() {
    for seed in 0..10_000 {
        let mut random = Random(seed);
        let len = 1 + random.below(8) as usize;
        let boundaries: Vec<(u64, u64)> = (0..len).map(|_| (random.below(9), random.below(5))).collect();
        let interval = 1 + random.below(5);
        let profile =
            sampled(&boundaries.iter().map(|(live, changed)| (*live, Some(*changed))).collect::<Vec<_>>());
        let wishes = Wishes {
            interval: Some(Nanos(interval * S)),
            objective: Wanted::IncrementalCost,
            ..wishes(1e5, 1e5)
        };
        let made = plan(&profile, &wishes).unwrap();
        let cost = |path: &[usize]| {
            let mut last: Option<usize> = None;
            path.iter()
                .map(|&point| {
                    let live = boundaries[point].0;
                    let changed = last.map(|last| {
                        boundaries[last + 1..=point].iter().map(|(_, changed)| changed).sum::<u64>()
                    });
                    last = Some(point);
                    changed.map_or(live, |changed| changed.min(live))
                })
                .sum::<u64>()
        };
        let allowed = |path: &[usize]| {
            let times = path.iter().map(|point| *point as u64).chain([len as u64]);
            times.scan(0, |last, at| Some(at - std::mem::replace(last, at))).all(|gap| gap <= interval)
        };
        let best = (0..1_u32 << len)
            .map(|mask| (0..len).filter(|point| mask >> point & 1 == 1).collect::<Vec<_>>())
            .filter(|path| allowed(path))
            .map(|path| cost(&path))
            .min()
            .unwrap();
        let told = made.parts[0].cost_s / (10e6 / 2e9 + 10e6 / 25e9);
        assert!((told - best as f64).abs() < 1e-6, "{seed}: {told} {best} {boundaries:?} {interval}");
        let chosen: Vec<usize> =
            made.parts[0].checkpoints.iter().map(|each| each.boundary as usize).collect();
        assert!(allowed(&chosen) && cost(&chosen) == best, "{seed}: {chosen:?}");
    }
}

#[test]
fn between_samples_changes_are_spread() {
    // 12 changed in the three boundaries up to the second sample: four each.
    let profile = sampled(&[(100, Some(0)), (100, None), (100, None), (100, Some(12)), (100, None)]);
    let wishes = Wishes { interval: Some(Nanos(S)), objective: Wanted::IncrementalCost, ..wishes(1e5, 1e5) };
    let made = plan(&profile, &wishes).unwrap();
    let unit = 10e6 / 2e9 + 10e6 / 25e9;
    let units: Vec<f64> = made.parts[0].checkpoints.iter().map(|each| (each.cost_s / unit).round()).collect();
    assert_eq!(units, [100.0, 4.0, 4.0, 4.0]);
}

#[test]
fn while_the_program_runs_checkpoints_wait_for_little_data() {
    let profile = synthetic::multigrid(100, 6).unwrap();
    let run = |offset: Nanos| {
        let mut scheduler = Scheduler::new(Nanos(20 * S), offset);
        let (mut bytes, mut times) = (0_u64, Vec::new());
        profile.device().each(|at, step| {
            if scheduler.at(Nanos(at), step.live) == Decision::Take {
                scheduler.taken(Nanos(at));
                bytes += step.live;
                times.push(at);
            }
        });
        (bytes, times)
    };
    let (plain, plain_times) = run(Nanos(0));
    let (waited, waited_times) = run(Nanos(4 * S));
    assert!(
        plain_times.len().abs_diff(waited_times.len()) <= plain_times.len() / 5 + 1,
        "{plain_times:?} {waited_times:?}"
    );
    let each = |bytes: u64, times: &[u64]| bytes / times.len() as u64;
    assert!(each(plain, &plain_times) >= 3 * each(waited, &waited_times), "{plain} {waited}");
    let longest = waited_times.windows(2).map(|two| two[1] - two[0]).max().unwrap();
    assert!(longest <= 25 * S, "{longest}");
}
